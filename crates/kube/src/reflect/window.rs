//! At most so many things within some time.

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// A sliding window: at most `LIMIT` points in time within so many seconds.
#[derive(Default)]
pub(crate) struct Window<const LIMIT: usize, const SECONDS: u64>(VecDeque<Instant>);

impl<const LIMIT: usize, const SECONDS: u64> Window<LIMIT, SECONDS> {
    /// The first moment, from `now` on, at which one more is within the limit.
    pub fn next_free(&mut self, now: Instant) -> Instant {
        let period = Duration::from_secs(SECONDS);
        while self.0.front().is_some_and(|first| now >= *first + period) {
            self.0.pop_front();
        }
        match self.0.front() {
            Some(first) if self.0.len() >= LIMIT => *first + period,
            _ => now,
        }
    }

    /// Counts one more, which is not before those counted so far.
    pub fn count(&mut self, at: Instant) {
        self.0.push_back(at);
    }
}
