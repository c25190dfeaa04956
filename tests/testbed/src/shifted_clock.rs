//! The two clocks by which Leases are measured, as a test moves them: the machine is suspended, or one of the clocks stands still.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Clocks of a simulation, which follow tokio's time, also while that is paused, until they are shifted. Clones are the same.
#[derive(Clone, Debug)]
pub struct ShiftedClock(Arc<Mutex<Shifts>>);

#[derive(Debug)]
struct Shifts {
    origin: Instant,
    boot_ahead: Duration,
    monotonic_behind: Duration,
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
    /// The present moment by CLOCK_MONOTONIC and by CLOCK_BOOTTIME.
    pub fn now(&self) -> (Instant, Duration) {
        let shifts = self.0.lock();
        let now = Instant::now();
        // Never before the beginning of tokio's time, which a subtraction could not represent.
        let monotonic = now.checked_sub(shifts.monotonic_behind).unwrap_or(now);
        (
            monotonic,
            now.saturating_duration_since(shifts.origin) + shifts.boot_ahead,
        )
    }

    /// What tells its time to the operator.
    pub fn source(&self) -> Arc<dyn Fn() -> (Instant, Duration) + Send + Sync> {
        let clock = self.clone();
        Arc::new(move || clock.now())
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
