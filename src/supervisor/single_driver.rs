//! One driver whose settings come from the command line: no objects are watched and no status is written.

use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use tracing::info;

use super::Shutdown;
use super::drivers::Drivers;
use super::election::LeaderElectionMode;
use super::tasks::Configs;
use crate::api::DriverConfig;
use crate::cache::{KINDS, unread_kinds};
use crate::driver::SharedContext;
use crate::health::{CheckHandle, Health};
use crate::lease::LeaderElectionConfig;
use crate::runtime::DriverPhase;

/// What stands in logs where the name of an AttacherConfig would.
const NAME: &str = "command-line";
/// How often readiness and gauges are set from the state of the driver.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The checks of readiness that depend on the driver.
pub struct DriverChecks {
    /// Passes while the driver is served, or would be if this replica held the Lease.
    driver: CheckHandle,
    /// Those of the watches, each with the plural name of its kind.
    watches: [(&'static str, CheckHandle); KINDS.len()],
}

impl DriverChecks {
    /// Those of a process.
    pub fn new(health: &Health) -> Self {
        Self {
            driver: health.check("driver"),
            watches: KINDS.map(|kind| (kind, health.check(format!("watch/{kind}")))),
        }
    }

    /// Shows the state of the driver by readiness, as there is no object whose status could. A driver that has not answered yet may
    /// have ControllerPublishVolume.
    fn show(&self, phase: Option<&DriverPhase>, publishes: Option<bool>) {
        let unread = unread_kinds(publishes.unwrap_or(true));
        for (kind, check) in &self.watches {
            check.set_needed(!unread.contains(kind));
        }
        match phase {
            Some(DriverPhase::Running | DriverPhase::Standby { .. }) => self.driver.set_ready(true),
            Some(DriverPhase::Unreachable { reason, .. } | DriverPhase::Stalled { reason, .. }) => {
                let reason = reason.as_str();
                self.driver.set_failing(format!("cannot serve the driver: {reason}"));
            }
            _ => self.driver.set_failing("not connected to the driver yet"),
        }
    }
}

/// Serves one driver until `shutdown`, then lets it finish.
pub async fn run_single_driver(
    context: SharedContext,
    config: Arc<DriverConfig>,
    election: Option<LeaderElectionConfig>,
    checks: DriverChecks,
    shutdown: Shutdown,
) {
    let election = election.map_or(LeaderElectionMode::None, |election| {
        LeaderElectionMode::Same(Box::new(election))
    });
    let mut drivers = Drivers::new(context, election);
    drivers.set_cut_off(&shutdown.cut_off);
    drivers.apply(Configs::from([(NAME.to_owned(), config)]));
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.stop.cancelled() => break,
            () = drivers.ended(), if !drivers.is_empty() => {}
            _ = ticks.tick() => {
                drivers.restart_due();
                drivers.update_gauges();
                checks.show(drivers.phase(NAME).as_ref(), drivers.announces_publish(NAME));
            }
        }
    }
    drivers.stop_all();
    while !drivers.is_empty() {
        drivers.ended().await;
    }
    info!("the driver finished");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver without calls is served without the watch that only calls need, and it may get the calls later.
    #[test]
    fn readiness_goes_by_what_the_driver_needs() {
        let health = Health::new();
        let checks = DriverChecks::new(&health);
        for kind in ["volumeattachments", "persistentvolumes"] {
            health.check(format!("watch/{kind}")).set_ready(true);
        }
        let nodes = health.check("watch/csinodes");
        for (publishes, is_ready) in [(None, false), (Some(false), true), (Some(true), false)] {
            checks.show(Some(&DriverPhase::Running), publishes);
            assert_eq!(health.is_ready(), is_ready, "{publishes:?}");
            // The watch fails again and again.
            nodes.set_failing("forbidden");
            assert_eq!(health.is_ready(), is_ready, "{publishes:?}");
        }
        checks.show(Some(&DriverPhase::Running), Some(false));
        health.check("watch/persistentvolumes").set_failing("forbidden");
        assert!(!health.is_ready(), "volumes are read for each driver");
    }
}
