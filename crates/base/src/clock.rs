//! The only place that reads the wall clock. Everything that decides takes the time as an argument.

use std::cell::Cell;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Tells the time in place of the wall clock; none where it does not.
pub type TimeSource = fn() -> Option<Timestamp>;

thread_local! {
    static SOURCE: Cell<Option<TimeSource>> = const { Cell::new(None) };
}

/// Lets `source` tell the time to this thread: that of a simulation.
pub fn set_source(source: TimeSource) {
    SOURCE.set(Some(source));
}

/// Now.
#[allow(clippy::disallowed_methods)]
pub fn now() -> Timestamp {
    SOURCE.get().and_then(|source| source()).unwrap_or_else(Timestamp::now)
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
