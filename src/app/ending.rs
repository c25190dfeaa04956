//! How the process ends: within the grace period as a whole, so that whoever kills it afterwards finds it gone.

use std::process::ExitCode;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, warn};

use super::SharedParts;
use crate::supervisor::Shutdown;
use crate::telemetry::SHUTDOWN_CAP;

/// What is left of the grace period when calls that still run are cancelled: time to release the Leases and to export traces. A call
/// that runs until the process is killed would keep the Lease from the other replicas until it expires.
const AFTER_CALLS: Duration = Duration::from_secs(3);
/// The same for a short grace period, as a part of it.
const AFTER_CALLS_SHARE: u32 = 5;
/// What servers and traces have when nothing is left.
const MIN_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Lets the drivers finish, until the next stop signal. The exit code is 0 when everything that ran was finished; beside it is how long the
/// process may still take to end: not at all after a second signal.
pub(super) async fn finish(
    drivers: JoinHandle<()>,
    shutdown: &Shutdown,
    grace: Duration,
    mut next_signal: impl AsyncFnMut(),
) -> (ExitCode, Duration) {
    let end = Instant::now() + grace;
    shutdown.stop.cancel();
    tokio::select! {
        code = finish_until(end, AbortOnDropHandle::new(drivers), shutdown, grace) => {
            (code, end.saturating_duration_since(Instant::now()))
        }
        () = next_signal() => {
            error!("second stop signal received; exiting with calls still running");
            (ExitCode::FAILURE, Duration::ZERO)
        }
    }
}

/// Waits for the drivers, whose calls are cancelled shortly before the end of the grace period.
async fn finish_until(
    end: Instant,
    mut drivers: AbortOnDropHandle<()>,
    shutdown: &Shutdown,
    grace: Duration,
) -> ExitCode {
    let calls_end = end - AFTER_CALLS.min(grace / AFTER_CALLS_SHARE);
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
                return ExitCode::FAILURE;
            }
        }
    }
}

/// Ends what all drivers shared; the next stop signal cuts that off.
pub(super) async fn close(parts: SharedParts, mut next_signal: impl AsyncFnMut()) {
    let SharedParts {
        tasks,
        servers,
        guard,
        left,
    } = parts;
    let cap = left.clamp(MIN_CLOSE_TIMEOUT, SHUTDOWN_CAP);
    let ended = async { tokio::join!(timeout(cap, servers.ended()), guard.shutdown(cap)) };
    tokio::select! {
        (_overdue, spans) = ended => if spans > 0 {
            warn!(spans, "spans were lost at the end");
        },
        () = next_signal() => warn!("another stop signal received; exiting before all spans were exported"),
    }
    // Until now events could be written.
    drop(tasks);
}

#[cfg(test)]
mod tests {
    use super::super::tasks::SharedTasks;
    use super::*;
    use crate::telemetry::{self, otel_env};
    use std::future::pending;

    const GRACE: Duration = Duration::from_secs(75);

    /// Parts with a server that does not end.
    fn parts(left: Duration) -> SharedParts {
        let mut servers = SharedTasks::default();
        servers.spawn("http-endpoint", pending());
        let environment = otel_env::parse(&otel_env::Environment::new(), "0");
        let (_, _, guard) = telemetry::start(&environment.settings);
        SharedParts {
            tasks: SharedTasks::default(),
            servers,
            guard,
            left,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_leaves_no_time() {
        let shutdown = Shutdown::default();
        let hurried = finish(tokio::spawn(pending()), &shutdown, GRACE, async || {}).await;
        assert_eq!(hurried, (ExitCode::FAILURE, Duration::ZERO));
        assert!(shutdown.stop.is_cancelled() && !shutdown.cut_off.is_cancelled());
        let done = finish(tokio::spawn(async {}), &shutdown, GRACE, async || pending().await).await;
        assert_eq!(done, (ExitCode::SUCCESS, GRACE));
        let late = finish(tokio::spawn(pending()), &shutdown, GRACE, async || pending().await).await;
        assert_eq!(late, (ExitCode::FAILURE, Duration::ZERO));
        assert!(shutdown.cut_off.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_takes_no_longer_than_is_left_and_hears_another_signal() {
        for (left, lasts) in [(Duration::ZERO, MIN_CLOSE_TIMEOUT), (GRACE, SHUTDOWN_CAP)] {
            let began = Instant::now();
            close(parts(left), async || pending().await).await;
            assert_eq!(began.elapsed(), lasts);
        }
        let began = Instant::now();
        close(parts(GRACE), async || {}).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
