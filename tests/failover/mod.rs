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
    /// How it is configured.
    pub mode: Mode,
    /// Rounds.
    pub rounds: usize,
    /// Every so manyth round is a kill; 0 is never.
    pub kill_every: usize,
    /// Replicas that run at the beginning of a round, the one that leads included.
    pub replicas: usize,
    /// Volumes that are attached and detached.
    pub volumes: usize,
    /// Attaches and detaches that are asked for in a second, together.
    pub per_second: usize,
    /// Whether requests are recorded, so that refused ones are found; that takes its time.
    pub audited: bool,
    /// How long a call takes: from the first to the second.
    pub call: [Duration; 2],
}

/// Times of the Leases: short, so that many rounds take minutes.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// `leaseDuration`.
    pub duration: Duration,
    /// `renewDeadline`.
    pub renew_deadline: Duration,
    /// `retryPeriod`.
    pub retry_period: Duration,
}

/// The times that are used.
pub const LEASE: Lease = Lease {
    duration: Duration::from_secs(3),
    renew_deadline: Duration::from_secs(2),
    retry_period: Duration::from_millis(500),
};

impl Plan {
    fn end(&self, round: usize) -> End {
        if self.kill_every > 0 && round % self.kill_every == self.kill_every - 1 {
            End::Killed
        } else {
            End::Told
        }
    }

    /// How long all of it may take.
    pub fn limit(&self) -> Duration {
        let round = LEASE.duration * 2 + Duration::from_secs(20);
        Duration::from_mins(5) + round * u32::try_from(self.rounds).unwrap_or(u32::MAX)
    }
}

/// Does it. `progress` is told of each round.
pub async fn run(plan: Plan, progress: impl Fn(&str)) -> Result<Report> {
    let mut scene = Box::pin(Scene::set(plan.clone())).await?;
    let load = load::Load::start(&scene, &plan);
    load.wait_busy().await?;
    let mut report = Report::new(&plan);
    for round in 0..plan.rounds {
        let end = plan.end(round);
        let took = scene.replace_leader(end).await?;
        progress(&format!("round {} of {}: {end:?}, {took:?}", round + 1, plan.rounds));
        report.times(end).push(took);
    }
    let settled = scene.settle(&load.stop().await?).await?;
    report.found = check::look(&scene.calls(), &scene.killed());
    report.changes = changes(&scene.lease_versions().await?);
    report.ended = scene.into_ended();
    report.settled = settled;
    Ok(report)
}
