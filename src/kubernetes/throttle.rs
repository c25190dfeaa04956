//! A limit of our own requests to the API server: a token bucket whose waiters are served in the order they came.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Slower than this is told apart from never by nobody.
const SLOWEST: Duration = Duration::from_hours(24);

/// How many requests may be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Requests per second in the long run; greater than zero.
    pub per_second: f64,
    /// Requests that may be sent at once after a pause; at least one.
    pub burst: u32,
}

/// Lets requests pass at a limited rate. Clones share the limit.
#[derive(Clone, Debug)]
pub struct Throttle(Arc<Bucket>);

#[derive(Debug)]
struct Bucket {
    interval: Duration,
    /// By how much a request may come before its turn in an even spacing.
    tolerance: Duration,
    /// When the next request would be sent if all were spaced evenly.
    next: Mutex<Option<Instant>>,
}

impl Throttle {
    /// A full bucket.
    pub fn new(limit: RateLimit) -> Self {
        let interval = Duration::try_from_secs_f64(1.0 / limit.per_second).map_or(SLOWEST, |span| span.min(SLOWEST));
        let tolerance = interval.saturating_mul(limit.burst.saturating_sub(1));
        Self(Arc::new(Bucket {
            interval,
            tolerance,
            next: Mutex::new(None),
        }))
    }

    /// Waits for the turn of one request, and tells for how long. A waiter that is dropped has used its turn.
    pub async fn pass(&self) -> Duration {
        let wait = self.0.reserve(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        wait
    }
}

impl Bucket {
    fn reserve(&self, now: Instant) -> Duration {
        let mut next = self.next.lock();
        let turn = next.unwrap_or(now).max(now);
        *next = Some(turn + self.interval);
        turn.duration_since(now).saturating_sub(self.tolerance)
    }
}
