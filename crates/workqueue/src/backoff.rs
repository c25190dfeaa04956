//! How long a failed key is held.

use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

/// A checked exponential backoff: `min(initial * factor^failures, max)`, extended by a random share of up to `jitter_percent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    factor: f64,
    jitter_percent: u8,
}

/// One second, doubling up to a minute, without jitter.
impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(1),
            max: Duration::from_mins(1),
            factor: 2.0,
            jitter_percent: 0,
        }
    }
}

impl Backoff {
    /// A backoff from its parts; none from a zero `initial` (it would retry without a pause), an `initial` above `max`, a `factor` that is
    /// not finite or below 1, a `jitter_percent` above 100.
    pub fn new(initial: Duration, max: Duration, factor: f64, jitter_percent: u8) -> Option<Self> {
        let is_possible =
            !initial.is_zero() && initial <= max && factor.is_finite() && factor >= 1.0 && jitter_percent <= 100;
        is_possible.then_some(Self {
            initial,
            max,
            factor,
            jitter_percent,
        })
    }

    /// The delay after `failures` earlier failures, without jitter: from `initial` (0 failures) up to `max`.
    pub fn base(&self, failures: u32) -> Duration {
        let seconds = self.initial.as_secs_f64() * self.factor.powf(f64::from(failures));
        // An infinite or huge product is no Duration: the cap holds.
        Duration::try_from_secs_f64(seconds).map_or(self.max, |delay| delay.clamp(self.initial, self.max))
    }

    pub(super) const fn max(&self) -> Duration {
        self.max
    }

    /// [`Self::base`] with the jitter drawn from `rng`: never shorter, and at most `max * (1 + jitter)`.
    pub fn delay(&self, failures: u32, rng: &mut Rng) -> Duration {
        let base = self.base(failures);
        if self.jitter_percent == 0 {
            return base;
        }
        // In whole nanoseconds, so that rounding cannot pass the bound.
        let nanos = base.as_nanos();
        let spread = nanos * u128::from(self.jitter_percent) / 100;
        duration_from_nanos(nanos + rng.u128(0..=spread))
    }
}

/// The duration of so many nanoseconds, [`Duration::MAX`] when it cannot hold them.
pub(super) fn duration_from_nanos(nanos: u128) -> Duration {
    Duration::from_nanos_u128(nanos.min(Duration::MAX.as_nanos()))
}

/// The instant `delay` after `now`; some decades ahead when the sum cannot be represented.
pub(super) fn later(now: Instant, delay: Duration) -> Instant {
    const FAR: Duration = Duration::from_hours(24 * 365 * 30);
    now.checked_add(delay).or_else(|| now.checked_add(FAR)).unwrap_or(now)
}
