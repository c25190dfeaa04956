//! The only place that reads the wall clock. Everything that decides takes the time as an argument.

use jiff::Timestamp;
use std::time::Duration;

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
