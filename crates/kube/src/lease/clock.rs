//! The two clocks by which the time of a Lease is measured.
//!
//! CLOCK_MONOTONIC stops while the machine is suspended, and CLOCK_BOOTTIME goes on (clock_gettime(2)). Both go on while the
//! process alone stands still. Neither can be set, so that nothing but time moves them.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// A moment by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// CLOCK_MONOTONIC.
    pub monotonic: Instant,
    /// CLOCK_BOOTTIME: the time since the machine was started.
    pub boot: Duration,
}

impl Moment {
    /// The time from `earlier` until this moment, by the clock that went further; zero when `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        let monotonic = self.monotonic.saturating_duration_since(earlier.monotonic);
        monotonic.max(self.boot.saturating_sub(earlier.boot))
    }
}

/// Tells the time by both clocks: what stands in for them in a simulation.
pub type MomentSource = Arc<dyn Fn() -> (Instant, Duration) + Send + Sync>;

/// Reads both clocks. Clones read the same.
#[derive(Clone, Default)]
pub struct Clock(Option<MomentSource>);

impl Clock {
    /// The present moment.
    pub fn now(&self) -> Moment {
        let (monotonic, boot) = match &self.0 {
            Some(source) => source(),
            None => (Instant::now(), boot_time()),
        };
        Moment { monotonic, boot }
    }
}

impl From<MomentSource> for Clock {
    fn from(source: MomentSource) -> Self {
        Self(Some(source))
    }
}

fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither part is ever negative: the clock begins at zero.
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_the_machine_goes_on() {
        let clock = Clock::default();
        let earlier = clock.now();
        std::thread::sleep(Duration::from_millis(20));
        let later = clock.now();
        assert!(later.boot.saturating_sub(earlier.boot) >= Duration::from_millis(20));
        assert!(later.since(earlier) >= Duration::from_millis(20));
        assert_eq!(earlier.since(later), Duration::ZERO);
    }
}
