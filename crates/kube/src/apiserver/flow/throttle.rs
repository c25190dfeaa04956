//! A limit of our own requests to the API server: a token bucket whose waiters are served in the order they came. Of the requests that can
//! wait only one at a time is among them, so that no work stands behind more than that.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::queue::{Rate, TokenBucket};
use crate::telemetry::metrics::Metrics;

/// How many requests may be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Requests per second in the long run; greater than zero.
    pub per_second: f64,
    /// Requests that may be sent at once after a pause; at least one.
    pub burst: u32,
}

/// A day between two requests: nothing slower is needed.
const SLOWEST_PER_SECOND: f64 = 1.0 / (24.0 * 60.0 * 60.0);

/// The longest pause of a request which gives way: the limit may be another one by then.
const MAX_IDLE_PAUSE: Duration = Duration::from_secs(1);

/// The longest that a request which can wait lets all others go first: what is to be detached may stand behind it.
const MAX_GIVE_WAY: Duration = Duration::from_secs(20);

/// Lets requests pass at a limited rate. Clones share the limit.
#[derive(Clone, Debug)]
pub struct Throttle(Arc<ThrottleInner>);

#[derive(Debug)]
struct ThrottleInner {
    state: Mutex<ThrottleState>,
    /// Notified where turns may come earlier.
    changed: Notify,
    /// Held by the one request that can wait and has its turn in the bucket.
    last: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct ThrottleState {
    bucket: Option<(RateLimit, TokenBucket)>,
    /// The numbers of those that wait, in the order in which they came.
    line: VecDeque<u64>,
    /// The number that was given last.
    number: u64,
}

/// A place in the line, until it is dropped: whoever stands behind one that is given up moves up. Nobody waits for another one to take its
/// turn, which may not be polled.
struct Place<'t> {
    throttle: &'t ThrottleInner,
    number: u64,
    came: Instant,
}

impl Place<'_> {
    /// Takes the turn, if it has come, and leaves the line; else when it comes.
    fn try_take(&self) -> Result<(), Instant> {
        let mut state = self.throttle.state.lock();
        let Ok(ahead) = state.line.binary_search(&self.number) else {
            return Ok(());
        };
        if let Some((_, bucket)) = &mut state.bucket {
            bucket.take_behind(ahead, self.came, Instant::now())?;
        }
        state.line.remove(ahead);
        Ok(())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.throttle.state.lock();
        let Ok(place) = state.line.binary_search(&self.number) else {
            return;
        };
        state.line.remove(place);
        drop(state);
        self.throttle.changed.notify_waiters();
    }
}

impl RateLimit {
    /// This limit, and a full bucket of it. A number that is no rate, which the types of the settings refuse, is no limit.
    fn bucket(self) -> (Self, TokenBucket) {
        let rate = Rate::per_second(self.per_second.max(SLOWEST_PER_SECOND)).unwrap_or_default();
        (self, TokenBucket::new(rate.with_burst(self.burst), Instant::now()))
    }
}

impl Throttle {
    /// A full bucket; without a limit everything passes at once.
    pub fn new(limit: impl Into<Option<RateLimit>>) -> Self {
        Self(Arc::new(ThrottleInner {
            state: Mutex::new(ThrottleState {
                bucket: limit.into().map(RateLimit::bucket),
                ..ThrottleState::default()
            }),
            changed: Notify::new(),
            last: tokio::sync::Mutex::default(),
        }))
    }

    /// Takes over another limit, beginning with a full bucket. It holds for those that wait already, too. The limit that
    /// is in force changes nothing.
    pub fn set(&self, limit: Option<RateLimit>) {
        let mut state = self.0.state.lock();
        if state.bucket.as_ref().map(|(limit, _)| *limit) == limit {
            return;
        }
        state.bucket = limit.map(RateLimit::bucket);
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// How long it takes until a request can pass without holding back another one: until all that passed would have had
    /// their turns in an even spacing, and while others wait, for no known time. Zero when there is no limit.
    fn busy_for(&self) -> Duration {
        let state = self.0.state.lock();
        if !state.line.is_empty() {
            return MAX_IDLE_PAUSE;
        }
        let full_in = state.bucket.as_ref().map(|(_, bucket)| bucket.full_in(Instant::now()));
        full_in.unwrap_or_default()
    }

    /// The last place in the line; none where there is no limit.
    fn join(&self) -> Option<Place<'_>> {
        let mut state = self.0.state.lock();
        state.bucket.as_ref()?;
        state.number += 1;
        let number = state.number;
        state.line.push_back(number);
        Some(Place {
            throttle: &self.0,
            number,
            came: Instant::now(),
        })
    }

    /// Waits for the turn of one request, and answers for how long; nothing when there is no limit.
    pub async fn wait(&self) -> Option<Duration> {
        let place = self.join()?;
        loop {
            // Asked for before looking, so that no change is missed.
            let changed = self.0.changed.notified();
            let Err(due) = place.try_take() else {
                return Some(place.came.elapsed());
            };
            tokio::select! {
                () = sleep_until(due) => {}
                () = changed => {}
            }
        }
    }

    /// As [`Self::wait`], for a request that can wait: it takes its turn when no other one of these has one, or has waited long for that.
    pub async fn wait_last(&self) -> Option<Duration> {
        let started = Instant::now();
        let _alone = tokio::time::timeout(MAX_GIVE_WAY, self.0.last.lock()).await;
        let before = started.elapsed();
        self.wait().await.map(|waited| before + waited)
    }
}

/// The limits that a request has to pass.
#[derive(Clone, Default)]
pub(in crate::apiserver) struct RequestThrottles {
    pub process: Option<Throttle>,
    /// The driver that the requests are for, and its own limit.
    pub driver: Option<(Arc<str>, Throttle)>,
}

impl RequestThrottles {
    pub fn driver(&self) -> Option<&Arc<str>> {
        self.driver.as_ref().map(|(driver, _)| driver)
    }

    /// Waits until nothing else makes use of the limits.
    pub async fn wait_until_idle(&self) {
        let of_driver = self.driver.as_ref().map(|(_, throttle)| throttle);
        let busy = || self.process.iter().chain(of_driver).map(Throttle::busy_for).max();
        while let Some(busy) = busy().filter(|busy| !busy.is_zero()) {
            tokio::time::sleep(busy.min(MAX_IDLE_PAUSE)).await;
        }
    }

    /// Waits for the turn of a request, which others go before if it can wait.
    pub async fn wait(&self, can_wait: bool, metrics: &Metrics, verb: &str, host: &str) {
        let process = self.process.as_ref().map(|throttle| ("", throttle));
        let of_driver = self.driver.as_ref().map(|(driver, throttle)| (&**driver, throttle));
        for (driver, throttle) in process.into_iter().chain(of_driver) {
            let waited = if can_wait {
                throttle.wait_last().await
            } else {
                throttle.wait().await
            };
            if let Some(waited) = waited {
                metrics.request_throttled(driver, verb, host, waited);
            }
        }
    }
}
