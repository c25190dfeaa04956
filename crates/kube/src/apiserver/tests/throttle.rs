use std::pin::pin;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::{Instant, sleep, timeout};

use crate::apiserver::{RateLimit, Throttle};

const EACH_SECOND: RateLimit = rate(1.0, 1);
const SLOW: RateLimit = rate(0.01, 1);

const fn rate(per_second: f64, burst: u32) -> RateLimit {
    RateLimit { per_second, burst }
}

/// How many seconds each has waited.
fn seconds(waits: Vec<Option<Duration>>) -> Vec<u64> {
    waits.into_iter().map(|wait| wait.unwrap().as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
    let throttle = Throttle::new(rate(10.0, 3));
    let started = Instant::now();
    let mut passed = Vec::new();
    for _ in 0..6 {
        throttle.wait().await;
        passed.push(started.elapsed().as_millis());
    }
    assert_eq!(passed, [0, 0, 0, 100, 200, 300]);
    // A pause fills the bucket again, but never above the burst.
    tokio::time::advance(Duration::from_mins(1)).await;
    let started = Instant::now();
    for _ in 0..4 {
        throttle.wait().await;
    }
    assert_eq!(started.elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_and_told_how_long_they_waited() {
    let throttle = Throttle::new(rate(0.5, 1));
    let waits = futures::future::join_all((0..4).map(|_| throttle.wait())).await;
    assert_eq!(seconds(waits), [0, 2, 4, 6]);
}

/// However many can wait, work stands behind one of them.
#[tokio::test(start_paused = true)]
async fn of_those_that_can_wait_one_at_a_time_has_a_turn() {
    let throttle = Throttle::new(EACH_SECOND);
    throttle.wait().await;
    let can_wait = futures::future::join_all((0..4).map(|_| throttle.wait_last()));
    let work = futures::future::join_all((0..2).map(|_| throttle.wait()));
    let (can_wait, work) = tokio::join!(can_wait, work);

    assert_eq!((seconds(can_wait), seconds(work)), (vec![1, 4, 5, 6], vec![2, 3]));
    // Without a limit they wait for nothing.
    throttle.set(None);
    assert_eq!(throttle.wait_last().await, None);
}

/// Two take turns, and one has waited long when work comes.
#[tokio::test(start_paused = true)]
async fn what_can_wait_is_not_put_off_for_ever() {
    let throttle = Throttle::new(SLOW);
    throttle.wait().await;
    let work = async {
        tokio::time::sleep(Duration::from_secs(50)).await;
        throttle.wait().await
    };
    let waits = tokio::join!(throttle.wait_last(), throttle.wait_last(), work);
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(waits, (seconds(100), seconds(200), seconds(250)));
}

/// The runs of a driver end together when its Lease is lost. Nobody waits for their turns.
#[tokio::test(start_paused = true)]
async fn who_gives_up_leaves_the_line() {
    let throttle = Throttle::new(EACH_SECOND);
    throttle.wait().await;
    let all = futures::future::join_all((0..100).map(|_| throttle.wait()));
    let ends = timeout(Duration::from_millis(2_500), all);
    let behind = async {
        sleep(Duration::from_millis(100)).await;
        futures::future::join_all((0..2).map(|_| throttle.wait())).await
    };
    let (ended, behind) = tokio::join!(ends, behind);
    assert!(ended.is_err());
    let waited: Vec<_> = behind.into_iter().map(|waited| waited.unwrap().as_millis()).collect();
    assert_eq!(waited, [2_900, 3_900]);
    assert_eq!(throttle.wait().await, Some(Duration::from_secs(1)));
}

/// A task may await something else before it goes on with what waits for the limit, even another turn.
#[tokio::test(start_paused = true)]
async fn who_does_not_take_its_turn_holds_up_nobody() {
    let throttle = Throttle::new(EACH_SECOND);
    throttle.wait().await;
    let mut left = pin!(throttle.wait());
    assert!(left.as_mut().now_or_never().is_none());
    for seconds in [2, 1, 1] {
        assert_eq!(throttle.wait().await, Some(Duration::from_secs(seconds)));
    }
    assert_eq!(left.await, Some(Duration::from_secs(4)));
    assert_eq!(throttle.wait().await, Some(Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_is_hardly_one_neither_panics_nor_passes() {
    let throttle = Throttle::new(rate(f64::MIN_POSITIVE, u32::MAX));
    assert_eq!(throttle.wait().await, Some(Duration::ZERO));
    let throttle = Throttle::new(rate(f64::MIN_POSITIVE, 1));
    throttle.wait().await;
    assert_eq!(throttle.wait().await, Some(Duration::from_hours(24)));
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_everything_passes_at_once() {
    let throttle = Throttle::new(None);
    for _ in 0..1_000 {
        assert_eq!(throttle.wait().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_holds_for_those_that_wait() {
    let throttle = Throttle::new(SLOW);
    throttle.wait().await;
    let changes = async {
        tokio::time::sleep(Duration::from_secs(7)).await;
        throttle.set(Some(EACH_SECOND));
    };
    let waits = futures::future::join_all((0..3).map(|_| throttle.wait()));
    let (waits, ()) = tokio::join!(waits, changes);
    assert_eq!(seconds(waits), [7, 8, 9]);
    let changes = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        throttle.set(None);
    };
    let waits = futures::future::join_all((0..3).map(|_| throttle.wait()));
    let (waits, ()) = tokio::join!(waits, changes);
    assert_eq!(waits, [Some(Duration::from_millis(500)); 3], "no limit any more");
    assert_eq!(throttle.wait().await, None);
}

#[tokio::test(start_paused = true)]
async fn the_same_limit_is_no_change() {
    let throttle = Throttle::new(SLOW);
    throttle.wait().await;
    for _ in 0..3 {
        throttle.set(Some(SLOW));
    }
    // The bucket was not filled up.
    assert_eq!(throttle.wait().await, Some(Duration::from_secs(100)));
}
