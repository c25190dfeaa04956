use std::time::Duration;

use tokio::time::Instant;

use super::super::{RateLimit, Throttle};

#[tokio::test(start_paused = true)]
async fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
    let throttle = Throttle::new(RateLimit {
        per_second: 10.0,
        burst: 3,
    });
    let started = Instant::now();
    let mut passed = Vec::new();
    for _ in 0..6 {
        throttle.pass().await;
        passed.push(started.elapsed().as_millis());
    }
    assert_eq!(passed, [0, 0, 0, 100, 200, 300]);
    // A pause fills the bucket again, but never above the burst.
    tokio::time::advance(Duration::from_mins(1)).await;
    let started = Instant::now();
    for _ in 0..4 {
        throttle.pass().await;
    }
    assert_eq!(started.elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_and_told_how_long_they_waited() {
    let throttle = Throttle::new(RateLimit {
        per_second: 0.5,
        burst: 1,
    });
    let waits = futures::future::join_all((0..4).map(|_| throttle.pass())).await;
    assert_eq!(waits.iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 2, 4, 6]);
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_is_hardly_one_neither_panics_nor_passes() {
    let throttle = Throttle::new(RateLimit {
        per_second: f64::MIN_POSITIVE,
        burst: u32::MAX,
    });
    assert_eq!(throttle.pass().await, Duration::ZERO);
    let throttle = Throttle::new(RateLimit {
        per_second: f64::MIN_POSITIVE,
        burst: 1,
    });
    throttle.pass().await;
    assert_eq!(throttle.pass().await, Duration::from_hours(24));
}
