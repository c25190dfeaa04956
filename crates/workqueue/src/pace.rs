//! How many failures a second a queue goes on with, however short its backoff is.
//!
//! Each failure takes a token, and what failed waits until its token is paid for. Keys that never failed, and failures
//! after which nothing is owed, wait for nothing here: when what made them fail is over, all goes on at full speed.

use std::time::Duration;

use tokio::time::Instant;

use super::limits::{Rate, TokenBucket};

/// Nothing waits longer than this for the failures of others.
const LONGEST: Duration = Duration::from_mins(1);

/// The failures of a queue.
#[derive(Debug)]
pub(super) struct FailureRateLimiter(TokenBucket);

impl FailureRateLimiter {
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        Self(TokenBucket::new(rate, now))
    }

    /// How long a key waits at least that fails now.
    pub(super) fn delay(&self, now: Instant) -> Duration {
        let until = self.0.wait_until(now);
        until
            .map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
            .min(LONGEST)
    }

    /// Counts a failure.
    pub(super) fn failed(&mut self, now: Instant) {
        if self.delay(now) < LONGEST {
            self.0.take(now);
        }
    }
}
