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
use crate::driver::SharedContext;
use crate::health::CheckHandle;
use crate::lease::LeaderElectionConfig;
use crate::runtime::DriverPhase;

/// What stands in logs where the name of an AttacherConfig would.
const NAME: &str = "command-line";
/// How often readiness and gauges are set from the state of the driver.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Serves one driver until `shutdown`, then lets it finish. `check` passes while the driver is served, or would be if this
/// replica held the Lease.
pub async fn run_single_driver(
    context: SharedContext,
    config: Arc<DriverConfig>,
    election: Option<LeaderElectionConfig>,
    check: CheckHandle,
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
                show(drivers.phase(NAME).as_ref(), &check);
            }
        }
    }
    drivers.stop_all();
    while !drivers.is_empty() {
        drivers.ended().await;
    }
    info!("the driver finished");
}

/// Shows the state of the driver by readiness, as there is no object whose status could.
fn show(phase: Option<&DriverPhase>, check: &CheckHandle) {
    match phase {
        Some(DriverPhase::Running | DriverPhase::Standby { .. }) => check.set_ready(true),
        Some(DriverPhase::Unreachable { reason, .. } | DriverPhase::Stalled { reason, .. }) => {
            check.set_failing(format!("cannot serve the driver: {}", reason.as_str()));
        }
        _ => check.set_failing("not connected to the driver yet"),
    }
}
