//! One driver whose settings come from the command line: no objects are watched and no status is written.

use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::election::Election;
use super::running::Drivers;
use crate::admin::CheckHandle;
use crate::api::DriverConfig;
use crate::driver::{Context, Phase};
use crate::lease::Campaign;

/// What stands in logs where the name of an AttacherConfig would.
const NAME: &str = "command-line";
/// How often the driver is looked at for readiness and gauges.
const LOOK: Duration = Duration::from_millis(250);

/// Serves one driver until `stop`, then lets it finish. `check` passes while it is worked for, or could be at once if the
/// Lease were ours.
pub async fn serve_one(
    context: Context,
    config: Arc<DriverConfig>,
    campaign: Option<Campaign>,
    check: CheckHandle,
    stop: CancellationToken,
) {
    let mut drivers =
        Drivers::new(context).electing(campaign.map_or(Election::None, |campaign| Election::Same(Box::new(campaign))));
    drivers.start(NAME, config);
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            name = drivers.ended(), if !drivers.is_empty() => drivers.after_end(&name),
            _ = look.tick() => {
                drivers.restart_due();
                drivers.look();
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

/// Where there is no status of an object, readiness is what tells of the driver.
fn show(phase: Option<&Phase>, check: &CheckHandle) {
    match phase {
        Some(Phase::Running | Phase::Standby { .. }) => check.set_ready(true),
        Some(Phase::Unreachable { reason, .. } | Phase::Stalled { reason, .. }) => {
            check.set_failing(format!("cannot serve the driver: {}", reason.as_str()));
        }
        _ => check.set_failing("not connected to the driver yet"),
    }
}
