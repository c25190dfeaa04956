//! How the process ends: within the grace period as a whole, so that whoever kills it afterwards finds it gone.

use std::process::ExitCode;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{error, warn};

use super::{SharedParts, Signals};
use crate::supervisor::Shutdown;
use crate::telemetry::{FlushOutcome, SHUTDOWN_CAP};

/// What is left of the grace period when calls that still run are cancelled: time to release the Leases and to export traces. A call
/// that runs until the process is killed would keep the Lease from the other replicas until it expires.
const AFTER_CALLS: Duration = Duration::from_secs(3);
/// The same for a short grace period, as a part of it.
const AFTER_CALLS_SHARE: u32 = 5;
/// What servers and traces have when nothing is left.
const LEAST: Duration = Duration::from_millis(500);

/// Lets the drivers finish; the exit code is 0 when everything that ran was finished.
pub(super) async fn finish(
    mut drivers: JoinHandle<()>,
    shutdown: &Shutdown,
    grace: Duration,
    signals: &mut Signals,
) -> ExitCode {
    let end = Instant::now() + grace;
    let calls_end = end - AFTER_CALLS.min(grace / AFTER_CALLS_SHARE);
    shutdown.stop.cancel();
    let mut code = ExitCode::SUCCESS;
    loop {
        tokio::select! {
            ended = &mut drivers => match ended {
                Ok(()) => return code,
                Err(error) => {
                    error!(%error, "the supervisor failed");
                    return ExitCode::FAILURE;
                }
            },
            () = sleep_until(calls_end), if !shutdown.cut_off.is_cancelled() => {
                error!("the grace period is almost over; cancelling the calls that still run");
                shutdown.cut_off.cancel();
                code = ExitCode::FAILURE;
            }
            () = sleep_until(end) => {
                error!("drivers were still running at the end of the grace period");
                break;
            }
            () = signals.next() => {
                error!("second stop signal received; exiting with calls still running");
                break;
            }
        }
    }
    drivers.abort();
    ExitCode::FAILURE
}

/// Ends what all drivers shared.
pub(super) async fn close(parts: SharedParts) {
    let SharedParts {
        tasks,
        servers,
        guard,
        left,
    } = parts;
    let cap = left.clamp(LEAST, SHUTDOWN_CAP);
    let (_overdue, flushed) = tokio::join!(timeout(cap, servers.ended()), guard.shutdown(cap));
    if let FlushOutcome::Lost(spans) = flushed {
        warn!(spans, "spans were lost at the end");
    }
    // Until now events could be written.
    drop(tasks);
}
