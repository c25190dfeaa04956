//! Replicas of the operator that hand a driver over, or are killed, again and again, while volumes come and go.
//!
//! One mock driver is served by replicas that are processes of their own. Each round ends the one that leads: told to
//! stop, or killed. What is measured is the time until the driver is called by another one; what is checked, from the
//! driver's own record of calls with the process behind each, is that no two replicas ever worked on the same volume and
//! node at the same time; from the versions of the Lease, that none was taken before it had run out or was given up; and at
//! the end that every volume is where it is wanted and nowhere else.

mod check;
mod load;
mod report;
mod scene;

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use report::Report;
use scene::Scene;

use crate::support::lease::changes;
use crate::support::{Error, Result};

/// How replicas are told which driver they serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the flags of the sidecar.
    Flags,
    /// By an AttacherConfig.
    Config,
}

/// How a replica that leads comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGTERM: it finishes what runs and hands over.
    Told,
    /// SIGKILL: its Lease has to run out.
    Killed,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The operator.
    pub binary: PathBuf,
    pub mode: Mode,
    pub rounds: usize,
    /// Every so manyth round is a kill.
    pub kill_every: usize,
    /// Replicas that run at the beginning of a round, the one that leads included.
    pub replicas: usize,
    /// Volumes that are attached and detached.
    pub volumes: usize,
    /// Whether requests are recorded, so that refused ones are found; that takes its time.
    pub audited: bool,
}

/// Attaches and detaches that are asked for in a second, together.
const PER_SECOND: u32 = 40;
/// How long a call takes: from the first to the second.
const CALL: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];
/// Times of the Leases: short, so that many rounds take minutes.
const LEASE_DURATION: Duration = Duration::from_secs(3);
const RENEW_DEADLINE: Duration = Duration::from_secs(2);
const RETRY_PERIOD: Duration = Duration::from_millis(500);

/// Does it. `progress` is told of each round. Something that is lost, or done twice at a time, is an error.
pub async fn run(plan: Plan, progress: impl Fn(&str)) -> Result<Report> {
    let round = LEASE_DURATION * 2 + Duration::from_secs(20);
    let limit = Duration::from_mins(5) + round * u32::try_from(plan.rounds).unwrap_or(u32::MAX);
    let report = tokio::time::timeout(limit, Box::pin(hand_over(plan, progress))).await;
    let report = report.map_err(|_| Error::Other(format!("not done within {limit:?}")))??;
    if report.is_sound() {
        return Ok(report);
    }
    Err(Error::Other(report.to_string()))
}

async fn hand_over(plan: Plan, progress: impl Fn(&str)) -> Result<Report> {
    let mut scene = Box::pin(Scene::set(plan.clone())).await?;
    let (stop, client) = (CancellationToken::new(), scene.fixtures.client().clone());
    let load = tokio::spawn(load::work(client, plan.volumes, stop.clone()));
    let busy = tokio::time::timeout(scene::LIMIT * 2, scene.driver.wait_for_calls(20, check::moves)).await;
    busy.map_err(|_| Error::Other("the load did not begin".to_owned()))?;
    for round in 1..=plan.rounds {
        let is_kill = round.is_multiple_of(plan.kill_every);
        let end = if is_kill { End::Killed } else { End::Told };
        let took = scene.replace_leader(end).await?;
        progress(&format!("round {round} of {}: {end:?}, {took:?}", plan.rounds));
    }
    stop.cancel();
    let settled = scene.settle(&load.await??).await;
    Ok(Report {
        plan,
        settled,
        found: check::look(&scene.driver.calls(), &scene.killed()),
        changes: changes(&scene.history.versions(scene::LIMIT).await?),
        ended: scene.ended,
    })
}
