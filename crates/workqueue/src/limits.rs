//! How much may run at once and how often a run may start.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::{duration_from_nanos, later};
use super::item::Lane;

/// The longest time between two starts that differs from never: about 30 years.
const SLOWEST: Duration = Duration::from_secs(1_000_000_000);

/// All limits of a queue; 0 and the default mean no limit. They may change while the queue works: runs in flight are never
/// ended, a lowered limit takes hold as they finish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// The limits of each lane, by its index. A lane that is not named has none.
    pub lanes: Vec<LaneLimits>,
    /// The most runs at once of one group, over all lanes that are [`LaneLimits::rate_limited`]. Keys without a group are not limited by
    /// it.
    pub per_group: usize,
    /// The most runs at once over all lanes that are [`LaneLimits::rate_limited`].
    pub max_running: usize,
    /// How often a run may start, over all lanes that are [`LaneLimits::rate_limited`]; see also `Queue::settle_rate`.
    pub starts_per_second: Rate,
}

impl QueueLimits {
    /// The limits of one lane.
    pub fn lane(&self, lane: Lane) -> LaneLimits {
        self.lanes.get(lane.index()).copied().unwrap_or_default()
    }
}

/// The limits of one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneLimits {
    /// The most runs at once; 0: no limit.
    pub max_running: usize,
    /// Whether the lane is one of those that count together: a start takes a token of [`QueueLimits::starts_per_second`], and a run counts in
    /// [`QueueLimits::max_running`] and [`QueueLimits::per_group`].
    pub rate_limited: bool,
}

/// Starts per second as a token bucket that holds `max(1, rate)` tokens. The default is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds between two starts, rounded up; 0: no limit.
    interval: u64,
    /// Nanoseconds by which a start may be ahead of even spacing: `burst - 1` intervals.
    tolerance: u64,
}

impl Rate {
    /// So many starts per second, with fractions (0.5: one start in two seconds); 0 is no limit. None of a number that is negative,
    /// infinite or NaN.
    pub fn per_second(rate: f64) -> Option<Self> {
        if !rate.is_finite() || rate < 0.0 {
            return None;
        }
        if rate == 0.0 {
            return Some(Self::default());
        }
        let mut interval = Duration::from_secs_f64((1.0 / rate).min(SLOWEST.as_secs_f64()));
        if interval.as_secs_f64() * rate < 1.0 && interval < SLOWEST {
            // Rounded down: never be faster than asked for.
            interval += Duration::from_nanos(1);
        }
        // Starts within one nanosecond cannot be distinguished, so a second of starts is burst enough.
        let ahead = ((rate - 1.0).max(0.0) * interval.as_secs_f64()).min(1.0);
        Some(Self {
            interval: nanos(interval),
            tolerance: nanos(Duration::from_secs_f64(ahead)),
        })
    }

    /// The same in the long run, with so many starts at once after a pause; at least one.
    #[must_use]
    pub fn with_burst(self, burst: u32) -> Self {
        Self {
            tolerance: self.interval.saturating_mul(burst.saturating_sub(1).into()),
            ..self
        }
    }
}

impl From<u32> for Rate {
    fn from(rate: u32) -> Self {
        // A u32 is finite and not negative.
        Self::per_second(f64::from(rate)).unwrap_or_default()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The token bucket, kept as the theoretical time of the next start (generic cell rate algorithm): no timer refills it, and
/// whole nanoseconds leave no rounding error to add up.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: Rate,
    origin: Instant,
    /// Nanoseconds after `origin` at which the bucket would be full again.
    full_at: u128,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            origin: now,
            full_at: 0,
        }
    }

    /// Takes over another rate. A debt from a slower rate shrinks to one interval of the new one.
    pub(super) fn set_rate(&mut self, rate: Rate, now: Instant) {
        if self.rate != rate {
            self.rate = rate;
            let most = self.nanos(now) + u128::from(self.rate.tolerance) + u128::from(rate.interval);
            self.full_at = self.full_at.min(most);
        }
    }

    /// When the next start is allowed; nothing when it is allowed now.
    pub(super) fn wait_until(&self, now: Instant) -> Option<Instant> {
        let next = self.full_at.saturating_sub(u128::from(self.rate.tolerance));
        (self.rate.interval > 0 && next > self.nanos(now)).then(|| later(self.origin, duration_from_nanos(next)))
    }

    /// Takes one token, which is a debt unless [`Self::wait_until`] is nothing.
    pub(super) fn take(&mut self, now: Instant) {
        if self.rate.interval > 0 {
            self.full_at = self.full_at.max(self.nanos(now)) + u128::from(self.rate.interval);
        }
    }

    /// Takes one token if there is one.
    pub fn try_take(&mut self, now: Instant) -> bool {
        let is_there = self.wait_until(now).is_none();
        if is_there {
            self.take(now);
        }
        is_there
    }

    /// Takes one token for who has waited for it since `came`, if it is there beside one for each of those `ahead`; else the moment when it is.
    /// What a timer is late costs no token.
    pub fn take_behind(&mut self, ahead: usize, came: Instant, now: Instant) -> Result<(), Instant> {
        let mut with_those = self.clone();
        with_those.full_at += u128::from(self.rate.interval) * ahead as u128;
        match with_those.wait_until(now) {
            None => {
                self.take(came);
                Ok(())
            }
            Some(later) => Err(later),
        }
    }

    /// How long it takes until the bucket is full, when nothing is taken.
    pub fn full_in(&self, now: Instant) -> Duration {
        duration_from_nanos(self.full_at.saturating_sub(self.nanos(now)))
    }

    /// Corrects the one token that a start took to what was used in the end. Less than none left is a debt that later
    /// starts wait for; more than a full bucket it never holds.
    /// Returns whether a start may be possible earlier than before.
    pub(super) fn settle(&mut self, used: u32, now: Instant) -> bool {
        if self.rate.interval == 0 {
            return false;
        }
        let interval = u128::from(self.rate.interval);
        self.full_at = match used.checked_sub(1) {
            None => self.full_at.saturating_sub(interval),
            Some(0) => return false,
            Some(more) => self.full_at.max(self.nanos(now)) + interval * u128::from(more),
        };
        used == 0
    }

    fn nanos(&self, now: Instant) -> u128 {
        now.saturating_duration_since(self.origin).as_nanos()
    }
}

/// How many failures a second a queue goes on with, however short its backoff is; and as many waits, which it counts for themselves.
///
/// Each failure takes a token, and what failed waits until its token is there. Keys that never failed, and failures
/// after which nothing is owed, wait for nothing here: when what made them fail is over, all goes on at full speed.
#[derive(Debug)]
pub(super) struct HoldRateLimiter(TokenBucket);

impl HoldRateLimiter {
    /// A key waits no longer than this for the failures or the waits of others.
    const MAX_DELAY: Duration = Duration::from_mins(1);

    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        Self(TokenBucket::new(rate, now))
    }

    /// How long a key is held at least that fails now.
    pub(super) fn delay(&self, now: Instant) -> Duration {
        let until = self.0.wait_until(now);
        let delay = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        delay.min(Self::MAX_DELAY)
    }

    pub(super) fn count(&mut self, now: Instant) {
        if self.delay(now) < Self::MAX_DELAY {
            self.0.take(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_left_for_each_of_those_ahead() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut bucket = TokenBucket::new(Rate::from(1).with_burst(3), now);
        for (ahead, wanted) in [
            (2, Ok(())),
            (2, Err(now + second)),
            (1, Ok(())),
            (1, Err(now + second)),
            (0, Ok(())),
            (0, Err(now + second)),
            (1, Err(now + second * 2)),
        ] {
            assert_eq!(bucket.take_behind(ahead, now, now), wanted, "{ahead}");
        }
        // Late timers lose nothing.
        let later = now + second * 5 / 2;
        assert_eq!(bucket.take_behind(0, now, later), Ok(()));
        assert_eq!(bucket.take_behind(0, now, later), Ok(()));
        assert_eq!(bucket.take_behind(0, now, later), Err(now + second * 3));
    }
}
