//! A small model of an API server, in virtual time: answers take a while on the way, and so many at a time are worked on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::*;
use crate::apiserver::flow::slots::SlotAnswer;

/// One that is never the bottleneck.
pub(super) const MANY: usize = 10_000;

/// The model; clones are the same one. Times are whole milliseconds, as tokio's are.
#[derive(Clone)]
pub(super) struct ApiServer(Arc<ApiServerInner>);

struct ApiServerInner {
    workers: Semaphore,
    work: AtomicU64,
    delay: AtomicU64,
    /// How uneven answers are: the standard deviation of the logarithm of their times.
    unevenness: f64,
    random: Mutex<fastrand::Rng>,
    served: AtomicUsize,
}

impl ApiServer {
    /// Each request takes `delay` on the way, and `work` of one of the workers, in milliseconds.
    pub fn new(workers: usize, work: u64, delay: u64) -> Self {
        Self::uneven(workers, work, delay, 0.0)
    }

    pub fn uneven(workers: usize, work: u64, delay: u64, unevenness: f64) -> Self {
        Self(Arc::new(ApiServerInner {
            workers: Semaphore::new(workers),
            work: work.into(),
            delay: delay.into(),
            unevenness,
            random: Mutex::new(fastrand::Rng::with_seed(1)),
            served: AtomicUsize::new(0),
        }))
    }

    pub fn set_delay(&self, delay: u64) {
        self.0.delay.store(delay, Ordering::Relaxed);
    }

    pub fn set_work(&self, work: u64) {
        self.0.work.store(work, Ordering::Relaxed);
    }

    /// About a normal distribution.
    fn factor(&self) -> f64 {
        let mut random = self.0.random.lock();
        let sum: f64 = (0..12).map(|_| random.f64()).sum();
        ((sum - 6.0) * self.0.unevenness).exp()
    }

    /// From a request to its answer.
    pub async fn serve(&self) {
        let delay = Duration::from_millis(self.0.delay.load(Ordering::Relaxed));
        let work = Duration::from_millis(self.0.work.load(Ordering::Relaxed));
        sleep(delay.mul_f64(self.factor())).await;
        if !work.is_zero() {
            let _worker = self.0.workers.acquire().await;
            sleep(work.mul_f64(self.factor())).await;
        }
        self.0.served.fetch_add(1, Ordering::Relaxed);
    }

    pub async fn request(&self, slots: &RequestSlots, request: SlotRequest<'_>) {
        let place = slots.acquire(request).await;
        self.serve().await;
        place.finish(SlotAnswer::Served);
    }

    /// A driver that attaches so many at a time, one after another, until it is dropped.
    pub fn keep_busy(&self, slots: &RequestSlots, driver: &str, at_a_time: usize) -> JoinSet<()> {
        (0..at_a_time)
            .map(|number| {
                let (server, slots, driver) = (self.clone(), slots.clone(), name(driver));
                let node = name(&format!("n{}", number % 20));
                async move {
                    loop {
                        for kind in [VOLUME, ATTACHMENT, STATUS] {
                            let request = SlotRequest {
                                kind,
                                ..about(&driver, Some(&node))
                            };
                            server.request(&slots, request).await;
                        }
                    }
                }
            })
            .collect()
    }

    /// Answers a second.
    pub async fn rate_during(&self, seconds: u64) -> f64 {
        let before = self.0.served.load(Ordering::Relaxed);
        sleep(Duration::from_secs(seconds)).await;
        (self.0.served.load(Ordering::Relaxed) - before) as f64 / seconds as f64
    }

    /// The median and the 99th percentile of the answers to another client, which sends one request after the other.
    pub async fn others_wait(&self, seconds: u64) -> (Duration, Duration) {
        let mut times = Vec::new();
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            let began = Instant::now();
            self.serve().await;
            times.push(began.elapsed());
            sleep(Duration::from_millis(7)).await;
        }
        times.sort();
        (times[times.len() / 2], times[times.len() * 99 / 100])
    }
}

/// A driver whose requests all take so long, with so many in line.
pub(super) fn slow_driver(slots: &RequestSlots, driver: &str, takes: Duration, count: usize) -> JoinSet<()> {
    (0..count)
        .map(|number| {
            let (slots, driver) = (slots.clone(), name(driver));
            let node = name(&format!("n{}", number % 20));
            async move {
                let place = slots.acquire(about(&driver, Some(&node))).await;
                sleep(takes).await;
                place.finish(SlotAnswer::Served);
            }
        })
        .collect()
}
