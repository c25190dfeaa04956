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

pub use report::Report;
use scene::Scene;

use crate::support::Result;
use crate::support::lease::changes;

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

impl Plan {
    fn end(&self, round: usize) -> End {
        if round % self.kill_every == self.kill_every - 1 {
            End::Killed
        } else {
            End::Told
        }
    }

    /// How long all of it may take.
    pub fn limit(&self) -> Duration {
        let round = LEASE_DURATION * 2 + Duration::from_secs(20);
        Duration::from_mins(5) + round * u32::try_from(self.rounds).unwrap_or(u32::MAX)
    }
}

/// Does it. `progress` is told of each round.
pub async fn run(plan: Plan, progress: impl Fn(&str)) -> Result<Report> {
    let mut scene = Box::pin(Scene::set(plan.clone())).await?;
    let load = load::Load::start(scene.client.clone(), plan.volumes);
    load.wait_busy().await?;
    for round in 0..plan.rounds {
        let end = plan.end(round);
        let took = scene.replace_leader(end).await?;
        progress(&format!("round {} of {}: {end:?}, {took:?}", round + 1, plan.rounds));
    }
    let settled = scene.settle(&load.stop().await?).await?;
    Ok(Report {
        plan,
        settled,
        found: check::look(&scene.driver.calls(), &scene.killed()),
        changes: changes(&scene.history.versions(scene::LIMIT).await?),
        ended: scene.ended,
    })
}
