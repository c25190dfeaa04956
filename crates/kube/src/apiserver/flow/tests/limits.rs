//! How many requests may be in flight, and what drivers are to each other under that.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::server::{ApiServer, MANY, slow_driver};
use super::*;
use crate::apiserver::flow::slots::SlotAnswer;

fn adaptive() -> RequestSlots {
    RequestSlots::new(SlotLimits::default())
}

fn limit(slots: &RequestSlots) -> usize {
    running_and_limit(slots).1
}

/// So many writes of 10 ms, one after the other.
async fn quick_writes(slots: &RequestSlots, driver: &str, count: usize) -> Duration {
    let driver = name(driver);
    let began = Instant::now();
    for _ in 0..count {
        let place = slots.acquire(about(&driver, None)).await;
        sleep(Duration::from_millis(10)).await;
        place.finish(SlotAnswer::Served);
    }
    began.elapsed()
}

/// C3 (a) and (b): beside one and beside six drivers with thousands in line. It took 89 s beside one whose requests take 3 s, and
/// 1,771 s beside six whose requests take 0.9 s.
#[tokio::test(start_paused = true)]
async fn a_quiet_driver_does_not_wait_for_busy_ones() {
    for busy in [1, 6, 30] {
        for takes in [900, 3_000, 15_000] {
            let slots = adaptive();
            let takes = Duration::from_millis(takes);
            let _busy: Vec<_> = (0..busy)
                .map(|number| slow_driver(&slots, &format!("busy-{number}"), takes, 300))
                .collect();
            sleep(Duration::from_secs(16)).await;
            let took = quick_writes(&slots, "quiet", 30).await;
            assert_eq!(took, Duration::from_millis(300), "{busy} busy, {takes:?}");
        }
    }
}

/// H6: two drivers whose writes take 8 s each, with 30 attaches; the third attaches as if it was alone.
#[tokio::test(start_paused = true)]
async fn two_drivers_with_a_slow_webhook_do_not_hold_up_a_third() {
    let slots = adaptive();
    let slow = Duration::from_secs(8);
    let mut all = Vec::new();
    for driver in ["a", "b"] {
        all.push(slow_driver(&slots, driver, slow, 30));
        sleep(Duration::from_millis(1_500)).await;
        assert_eq!(quick_writes(&slots, "c", 3).await, Duration::from_millis(30));
    }
    // Many attaches of the third have a place for each kind of write at least.
    let (server, began) = (ApiServer::new(MANY, 0, 10), Instant::now());
    let mut attaches = JoinSet::new();
    for _ in 0..30 {
        let (server, slots) = (server.clone(), slots.clone());
        attaches.spawn(async move {
            for kind in [VOLUME, ATTACHMENT, STATUS] {
                server.request(&slots, of_kind(&name("c"), kind)).await;
            }
        });
    }
    attaches.join_all().await;
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
}

/// Answers that take 25 ms on the way, of an API server that has time: measured against 64 places, from the first request on.
#[tokio::test(start_paused = true)]
async fn a_distant_api_server_is_used_as_by_many_places() {
    for drivers in [&["one"][..], &["one", "two"]] {
        let mut rates = Vec::new();
        for slots in [fixed(64), adaptive()] {
            let server = ApiServer::new(MANY, 0, 25);
            let _busy: Vec<_> = drivers
                .iter()
                .map(|driver| server.keep_busy(&slots, driver, 100))
                .collect();
            rates.push(server.rate_during(3).await);
        }
        assert!(rates[1] >= 0.9 * rates[0], "{drivers:?}: {rates:?} a second");
    }
}

/// An API server that works on two requests at a time: more than it can do waits here, not there.
#[tokio::test(start_paused = true)]
async fn a_full_api_server_is_not_given_more() {
    for drivers in [1, 3] {
        let mut waits = Vec::new();
        for slots in [adaptive(), fixed(16), fixed(64)] {
            let server = ApiServer::uneven(2, 4, 2, 0.3);
            let _busy: Vec<_> = (0..drivers)
                .map(|driver| server.keep_busy(&slots, &driver.to_string(), 100))
                .collect();
            sleep(Duration::from_secs(3)).await;
            let (median, p99) = server.others_wait(8).await;
            let rate = server.rate_during(3).await;
            waits.push((rate, median, p99, limit(&slots)));
        }
        let [adaptive, sixteen, _] = waits[..] else { panic!() };
        assert!(adaptive.3 <= 16, "{drivers} drivers: {waits:?}");
        assert!(adaptive.2 <= sixteen.2, "{drivers} drivers: {waits:?}");
        assert!(adaptive.0 >= 0.95 * sixteen.0, "{drivers} drivers: {waits:?}");
    }
}

/// For whatever reason the API server was slow: when it is not any more, the limit is back within seconds.
#[tokio::test(start_paused = true)]
async fn the_limit_recovers_in_seconds() {
    let (slots, server) = (adaptive(), ApiServer::new(MANY, 0, 25));
    let _busy = server.keep_busy(&slots, "driver", 200);
    sleep(Duration::from_secs(3)).await;
    assert!(limit(&slots) >= 64, "{}", limit(&slots));
    for (slow, during) in [(1_000, 15), (1_000, 120), (60, 2), (60, 20)] {
        server.set_delay(slow);
        sleep(Duration::from_secs(during)).await;
        server.set_delay(25);
        sleep(Duration::from_secs(3)).await;
        assert!(limit(&slots) >= 64, "after {during} s of {slow} ms: {}", limit(&slots));
    }
    // One that stays slower for good is not taken for one that has too much to do.
    server.set_delay(100);
    sleep(Duration::from_secs(10)).await;
    assert!(limit(&slots) >= 64, "{}", limit(&slots));
}

/// Answers take now 20 and now 120 ms, with nothing in line.
#[tokio::test(start_paused = true)]
async fn uneven_answers_do_not_lower_the_limit() {
    let (slots, server) = (adaptive(), ApiServer::uneven(MANY, 0, 50, 0.5));
    let _busy = server.keep_busy(&slots, "driver", 200);
    sleep(Duration::from_secs(5)).await;
    let mut sum = 0;
    for _ in 0..40 {
        sleep(Duration::from_millis(900)).await;
        sum += limit(&slots);
    }
    assert!(sum / 40 >= 64, "{} on average", sum / 40);
}

/// What is learned while others fill the API server is not believed for long.
#[tokio::test(start_paused = true)]
async fn a_baseline_of_a_bad_moment_does_not_last() {
    let (slots, server) = (adaptive(), ApiServer::new(2, 40, 2));
    let _busy = server.keep_busy(&slots, "driver", 100);
    sleep(Duration::from_secs(10)).await;
    server.set_work(4);
    sleep(Duration::from_secs(70)).await;
    let (_, p99) = server.others_wait(8).await;
    assert!(
        limit(&slots) <= 16 && p99 <= Duration::from_millis(40),
        "{} {p99:?}",
        limit(&slots)
    );
}

/// An API server that sheds load is given less, although its refusals are quick.
#[tokio::test(start_paused = true)]
async fn refusals_lower_the_limit_and_other_errors_do_not() {
    let (slots, server) = (adaptive(), ApiServer::new(MANY, 0, 25));
    let busy = server.keep_busy(&slots, "driver", 100);
    sleep(Duration::from_secs(3)).await;
    let before = limit(&slots);
    drop(busy);
    let answered = async |answer: SlotAnswer, count: usize| {
        for _ in 0..count {
            slots.acquire(about(&name("driver"), None)).await.finish(answer);
        }
    };
    answered(SlotAnswer::Other, 1_000).await;
    assert_eq!(limit(&slots), before);
    answered(SlotAnswer::Overloaded, 500).await;
    assert_eq!(limit(&slots), SlotLimits::default().min);
}

/// A driver alone that fails has its failures written beside its results, and keeps its limit. These notes were another driver's,
/// and the limit fell from 16 to 5.
#[tokio::test(start_paused = true)]
async fn a_driver_alone_that_fails_keeps_its_limit() {
    let (slots, server) = (adaptive(), ApiServer::new(MANY, 0, 25));
    let _busy = server.keep_busy(&slots, "driver", 100);
    let mut most = 0;
    for _ in 0..100 {
        server.request(&slots, of_kind(&name("driver"), STATUS)).await;
        most = most.max(running_and_limit(&slots).0);
    }
    assert!(most >= 64, "{most}");
}

/// A slow webhook on PersistentVolumes: what the same driver detaches meanwhile goes at its pace, and so does another driver.
#[tokio::test(start_paused = true)]
async fn a_slow_webhook_on_volumes_leaves_detaches_alone() {
    let slots = adaptive();
    let slow = ApiServer::new(MANY, 0, 10_000);
    let server = ApiServer::new(MANY, 0, 20);
    let mut all = JoinSet::new();
    for _ in 0..200 {
        let (slow, slots) = (slow.clone(), slots.clone());
        all.spawn(async move { slow.request(&slots, of_kind(&name("driver"), VOLUME)).await });
    }
    sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    let mut detaches = JoinSet::new();
    for _ in 0..200 {
        let (server, slots) = (server.clone(), slots.clone());
        detaches.spawn(async move { server.request(&slots, of_kind(&name("driver"), ATTACHMENT)).await });
    }
    detaches.join_all().await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

/// After an outage the API server is asked by few at first, and what failed quickly is no measure of how quick answers are.
#[tokio::test(start_paused = true)]
async fn an_outage_is_followed_by_few_requests() {
    let (slots, server) = (adaptive(), ApiServer::new(MANY, 0, 25));
    for _ in 0..500 {
        slots
            .acquire(about(&name("new"), None))
            .await
            .finish(SlotAnswer::Overloaded);
    }
    assert_eq!(limit(&slots), SlotLimits::default().min);
    let _busy = server.keep_busy(&slots, "driver", 100);
    sleep(Duration::from_secs(1)).await;
    assert!(limit(&slots) >= 64, "{}", limit(&slots));
}
