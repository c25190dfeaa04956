//! The two clocks by which the time of a Lease is measured.
//!
//! CLOCK_MONOTONIC stops while the machine is suspended, and CLOCK_BOOTTIME goes on (clock_gettime(2)). Both go on while the
//! process alone stands still. Neither can be set, so that nothing but time moves them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
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

/// Reads both clocks. Clones read the same.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    shifted: Option<ShiftedClock>,
}

impl Clock {
    /// The present moment.
    pub fn now(&self) -> Moment {
        if let Some(shifted) = &self.shifted {
            return shifted.now();
        }
        Moment {
            monotonic: Instant::now(),
            boot: boot_time(),
        }
    }
}

fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither part is ever negative: the clock begins at zero.
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

/// Clocks of a simulation, which follow tokio's time, also while that is paused, until they are shifted. Clones are the same.
#[derive(Clone, Debug)]
pub struct ShiftedClock(Arc<Mutex<Shifts>>);

#[derive(Debug)]
struct Shifts {
    origin: Instant,
    boot_ahead: Duration,
    monotonic_behind: Duration,
}

impl From<ShiftedClock> for Clock {
    fn from(shifted: ShiftedClock) -> Self {
        Self { shifted: Some(shifted) }
    }
}

impl Default for ShiftedClock {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Shifts {
            origin: Instant::now(),
            boot_ahead: Duration::ZERO,
            monotonic_behind: Duration::ZERO,
        })))
    }
}

impl ShiftedClock {
    /// The present moment.
    pub fn now(&self) -> Moment {
        let shifts = self.0.lock();
        let now = Instant::now();
        Moment {
            // Never before the beginning of tokio's time, which a subtraction could not represent.
            monotonic: now.checked_sub(shifts.monotonic_behind).unwrap_or(now),
            boot: now.saturating_duration_since(shifts.origin) + shifts.boot_ahead,
        }
    }

    /// CLOCK_BOOTTIME goes ahead by so much, as seen after the machine was suspended.
    pub fn boot_jumps(&self, ahead: Duration) {
        self.0.lock().boot_ahead += ahead;
    }

    /// Both clocks stood still for so long of the time that has passed, as would two that stop while the machine is suspended.
    pub fn both_stood_still(&self, behind: Duration) {
        let mut shifts = self.0.lock();
        shifts.monotonic_behind += behind;
        shifts.origin += behind;
    }

    /// CLOCK_MONOTONIC stood still for so long of the time that has passed, as while the machine was suspended.
    pub fn monotonic_stood_still(&self, behind: Duration) {
        self.0.lock().monotonic_behind += behind;
    }
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
