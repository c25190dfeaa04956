//! The only place that reads the wall clock. Everything that decides takes the time as an argument.

use jiff::{SignedDuration, Timestamp};
use std::time::Duration;
use tokio::time::Instant;

/// Now.
#[allow(clippy::disallowed_methods)]
pub fn now() -> Timestamp {
    #[cfg(test)]
    if let Some(now) = crate::driver::simulated_time() {
        return now;
    }
    Timestamp::now()
}

/// Time from `start` until now; zero when the clocks disagree.
pub fn since(start: Timestamp) -> Duration {
    now().duration_since(start).try_into().unwrap_or(Duration::ZERO)
}

/// When something happened that this process remembers as an instant.
pub fn wall(instant: Instant) -> Timestamp {
    let now = now();
    let ago = SignedDuration::try_from(instant.elapsed()).unwrap_or_default();
    now.checked_sub(ago).unwrap_or(now)
}
