//! At most so many things within some time.

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// A sliding window: at most `LIMIT` points in time within so many seconds.
#[derive(Debug, Default)]
pub(crate) struct Window<const LIMIT: usize, const SECONDS: u64>(VecDeque<Instant>);

impl<const LIMIT: usize, const SECONDS: u64> Window<LIMIT, SECONDS> {
    /// The first moment, from `now` on, at which one more is within the limit.
    pub fn next_free(&mut self, now: Instant) -> Instant {
        let period = Duration::from_secs(SECONDS);
        while self.0.front().is_some_and(|first| now >= *first + period) {
            self.0.pop_front();
        }
        // Those counted ahead of time are within the limit, too.
        let before = self.0.len().checked_sub(LIMIT).and_then(|at| self.0.get(at));
        before.map_or(now, |before| (*before + period).max(now))
    }

    /// Counts one more now if that is within the limit; else the first moment at which it is.
    pub fn try_count(&mut self, now: Instant) -> Result<(), Instant> {
        let free = self.next_free(now);
        if free > now {
            return Err(free);
        }
        self.count(now);
        Ok(())
    }

    /// Counts one more, which is not before those counted so far.
    pub fn count(&mut self, at: Instant) {
        self.0.push_back(at);
    }

    /// Whether nothing that was counted matters any more.
    pub fn is_over(&self, now: Instant) -> bool {
        let last = self.0.back();
        last.is_none_or(|last| now >= *last + Duration::from_secs(SECONDS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_within_the_time_also_when_counted_ahead() {
        let (now, period) = (Instant::now(), Duration::from_secs(4));
        let mut window = Window::<2, 4>::default();
        assert!(window.is_over(now));
        let turns: Vec<_> = (0..5)
            .map(|_| {
                let turn = window.next_free(now);
                window.count(turn);
                turn
            })
            .collect();
        assert_eq!(turns, [now, now, now + period, now + period, now + period * 2]);
        assert!(!window.is_over(now + period * 3 - Duration::from_millis(1)));
        assert!(window.is_over(now + period * 3));
        assert_eq!(window.next_free(now + period * 3), now + period * 3);
    }

    #[test]
    fn what_is_not_within_the_limit_is_not_counted() {
        let (now, period) = (Instant::now(), Duration::from_secs(4));
        let mut window = Window::<2, 4>::default();
        let counted: Vec<_> = (0..5).map(|_| window.try_count(now)).collect();
        let later = Err(now + period);
        assert_eq!(counted, [Ok(()), Ok(()), later, later, later]);
        assert_eq!(window.try_count(now + period), Ok(()));
    }
}
