use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, advance, timeout};

use super::super::observer::NoObserver;
use super::super::state::{NextRun, QueueState};
use super::super::{Builder, Item, Lane, Queue, QueueLimits, Rate, RunResult, Ticket};
use super::{ATTACH, DETACH, SECOND, VOLUME, item, limited, limits, queue, settle_all, take, take_all};

fn keys(tickets: &[Ticket<&'static str>]) -> Vec<&'static str> {
    tickets.iter().map(|ticket| ticket.key).collect()
}

/// What is left to do after a run may be other work, which the limit of the first is not for.
#[tokio::test(start_paused = true)]
async fn a_run_says_in_which_lane_its_key_waits_next() {
    let queue = limited(limits([1, 0, 0], 0, 0));
    queue.add(item("first", 0).in_group("node"));
    let first = take(&queue).unwrap();
    queue.add(item("second", 0));
    queue.wait_next_in(&first, DETACH, None);
    first.finish(RunResult::RequeueAfter(SECOND));
    let _second = take(&queue).unwrap();
    advance(SECOND).await;
    let again = take(&queue).unwrap();
    assert_eq!((again.key, again.lane), ("first", DETACH));
    // The run knows more than an add that its own write brought about; an add after it knows better.
    queue.add(item("first", 0));
    queue.wait_next_in(&again, VOLUME, None);
    again.finish(RunResult::RequeueAfter(SECOND));
    let third = take(&queue).unwrap();
    assert_eq!(third.lane, VOLUME);
    queue.wait_next_in(&third, DETACH, None);
    queue.add(item("first", 0));
    third.finish(RunResult::Done);
    assert!(take_all(&queue).is_empty());
}

/// Lanes 0 and 1 count together, 2 does not.
#[tokio::test(start_paused = true)]
async fn lanes_that_count_together_take_turns_and_others_do_not_wait_for_them() {
    let together = QueueLimits {
        max_running: 1,
        ..limits([1, 1, 0], 0, 0)
    };
    let queue = limited(together.clone());
    for key in ["a1", "a2", "a3"] {
        queue.add(item(key, 0));
    }
    for key in ["d1", "d2"] {
        queue.add(Item::new(key, DETACH, 0));
    }
    for key in ["v1", "v2"] {
        queue.add(Item::new(key, VOLUME, 0));
    }
    let mut runs = take_all(&queue);
    assert_eq!(keys(&runs), ["a1", "v1", "v2"]);
    let mut order = Vec::new();
    for _ in 0..4 {
        runs.swap_remove(0).finish(RunResult::Done);
        runs = take_all(&queue);
        assert_eq!(runs.len(), 1);
        order.extend(keys(&runs));
    }
    assert_eq!(order, ["d1", "a2", "d2", "a3"]);
    queue.set_limits(QueueLimits {
        max_running: 3,
        ..together
    });
    for key in ["a4", "a5"] {
        queue.add(item(key, 0));
    }
    queue.add(Item::new("d3", DETACH, 0));
    assert_eq!(keys(&take_all(&queue)), ["d3"], "each lane keeps its own limit");
}

#[tokio::test(start_paused = true)]
async fn a_blocked_group_keeps_its_turn() {
    let queue = limited(limits([0; 3], 1, 0));
    for (key, group) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")] {
        queue.add(item(key, 0).in_group(group));
    }
    let mut runs = take_all(&queue);
    assert_eq!(keys(&runs), ["a1", "b1"]);
    queue.add(item("c1", 0).in_group("c"));
    queue.add(item("c2", 0).in_group("c"));
    runs.clear();
    assert_eq!(keys(&take_all(&queue)), ["a2", "b2", "c1"]);
}

/// Lanes that wait for a token, or for a place of a group, take turns, whatever other lanes start meanwhile.
#[tokio::test(start_paused = true)]
async fn what_others_start_costs_a_lane_no_turn() {
    for (what, limits) in [("token", limits([0; 3], 0, 1)), ("place", limits([0; 3], 1, 0))] {
        let queue = limited(limits);
        for (key, lane) in [("a1", ATTACH), ("a2", ATTACH), ("d1", DETACH), ("d2", DETACH)] {
            queue.add(Item::new(key, lane, 0).in_group("node"));
        }
        let mut order = Vec::new();
        for other in ["v1", "v2", "v3", "v4"] {
            queue.add(Item::new(other, VOLUME, 0));
            for run in take_all(&queue) {
                if run.lane != VOLUME {
                    order.push(run.key);
                }
                run.finish(RunResult::Done);
            }
            advance(SECOND).await;
        }
        assert_eq!(order, ["a1", "d1", "a2", "d2"], "{what}");
    }
}

/// Lanes 0 and 1 count together, 2 does not: its runs take no place of a group, and wait for none.
#[tokio::test(start_paused = true)]
async fn runs_that_do_not_count_take_no_place_of_their_group() {
    let of_node = |key: &'static str, lane| Item::new(key, lane, 0).in_group("node");
    let queue = limited(limits([0; 3], 1, 0));
    queue.add(of_node("v1", VOLUME));
    let mut runs = take_all(&queue);
    assert_eq!(keys(&runs), ["v1"]);
    for (key, lane) in [("a1", ATTACH), ("a2", ATTACH), ("d1", DETACH), ("v2", VOLUME)] {
        queue.add(of_node(key, lane));
    }
    runs.extend(take_all(&queue));
    assert_eq!(keys(&runs), ["v1", "a1", "v2"]);
    queue.add(of_node("v3", VOLUME));
    let blocked: Vec<usize> = queue.stats().lanes.iter().map(|lane| lane.blocked).collect();
    assert_eq!(blocked, [1, 1, 0]);
    runs.extend(take_all(&queue));
    assert_eq!(keys(&runs).last(), Some(&"v3"));
    // What ends under other limits leaves nothing behind.
    queue.set_limits(QueueLimits::default());
    for run in runs {
        run.finish(RunResult::Done);
    }
    queue.set_limits(limits([0; 3], 1, 0));
    assert_eq!(settle_all(&queue), ["d1", "a2"]);
}

#[tokio::test(start_paused = true)]
async fn starts_are_spread_over_time_after_the_burst() {
    let names: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
    let typed: Queue<String> = Builder {
        limits: limits([0; 3], 0, 4),
        ..Builder::new(super::plain_backoff())
    }
    .build();
    for (n, name) in names.iter().enumerate() {
        let lane = if n % 2 == 0 { ATTACH } else { DETACH };
        typed.add(Item::new(name.clone(), lane, 0));
    }
    let begin = Instant::now();
    let mut millis = Vec::new();
    for _ in 0..12 {
        typed.next().await.unwrap().finish(RunResult::Done);
        millis.push(begin.elapsed().as_millis());
    }
    assert_eq!(millis, [0, 0, 0, 0, 250, 500, 750, 1_000, 1_250, 1_500, 1_750, 2_000]);
    advance(60 * SECOND).await;
    for name in names {
        typed.add(Item::new(name, ATTACH, 0));
    }
    assert_eq!(take_all(&typed).len(), 4, "the bucket holds no more than one burst");
}

#[tokio::test(start_paused = true)]
async fn rates_have_the_burst_of_one_second() {
    let burst = |rate: f64| {
        let limit = QueueLimits {
            starts_per_second: Rate::per_second(rate).unwrap(),
            ..limits([0; 3], 0, 0)
        };
        let queue = Builder {
            limits: limit,
            ..Builder::new(super::plain_backoff())
        }
        .build();
        for key in 0..100 {
            queue.add(Item::new(key, ATTACH, 0));
        }
        take_all(&queue).len()
    };

    for (rate, starts) in [(0.1, 1), (1.0, 1), (2.5, 2), (3.0, 3), (7.0, 7), (49.0, 49)] {
        assert_eq!(burst(rate), starts, "{rate} per second");
    }
    assert_eq!([0.0, 1e300].map(burst), [100; 2]);
}

#[test]
fn a_rate_with_an_odd_interval_is_rounded_to_the_slower_side() {
    let now = Instant::now();
    let limits = limits([0; 3], 0, 3);
    let rng = fastrand::Rng::with_seed(1);
    let (backoff, observer) = (super::plain_backoff(), Arc::new(NoObserver));
    let mut state = QueueState::<u8>::new(backoff, limits, Rate::default(), rng, observer, now);
    for key in 0..5 {
        state.add(Item::new(key, ATTACH, 0), |_| (), now);
    }
    let mut starts = |nanos| {
        let now = now + Duration::from_nanos(nanos);
        std::iter::from_fn(|| matches!(state.next(now), NextRun::Run(_)).then_some(())).count()
    };
    let nanos = [0, 333_333_333, 333_333_334, 666_666_667, 666_666_668];
    assert_eq!(nanos.map(&mut starts), [3, 0, 1, 0, 1]);
}

#[test]
fn a_rate_is_a_number() {
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(Rate::per_second(bad), None, "{bad}");
    }
    assert_eq!(Rate::per_second(0.0), Some(Rate::default()));
    assert_eq!(Rate::from(0), Rate::default());
    assert_eq!(Rate::per_second(5.0), Some(Rate::from(5)));
}

#[tokio::test(start_paused = true)]
async fn slow_rates_start_one_at_a_time() {
    for (rate, gap) in [(0.5, 2 * SECOND), (1e-300, 1_000_000_000 * SECOND)] {
        let queue = queue();
        queue.set_limits(QueueLimits {
            starts_per_second: Rate::per_second(rate).unwrap(),
            ..limits([0; 3], 0, 0)
        });
        queue.add(item("a", 0));
        queue.add(item("b", 0));
        assert_eq!(settle_all(&queue), ["a"]);
        advance(gap.saturating_sub(Duration::from_millis(1))).await;
        assert!(take(&queue).is_none(), "{rate}");
        advance(Duration::from_millis(1)).await;
        assert_eq!(settle_all(&queue), ["b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_needs_no_declaration() {
    let queue = queue();
    let other = Lane::new(200);
    queue.add(Item::new("x", other, 0));
    assert_eq!(take(&queue).map(|ticket| ticket.lane), Some(other));
}

#[tokio::test(start_paused = true)]
async fn a_faster_rate_ends_a_long_wait_for_a_token() {
    let queue = limited(QueueLimits {
        starts_per_second: Rate::per_second(0.001).unwrap(),
        ..limits([0; 3], 0, 0)
    });
    queue.add(item("a", 0));
    queue.add(item("b", 0));
    let begin = Instant::now();
    assert_eq!(settle_all(&queue), ["a"]);
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next().await.map(|ticket| ticket.key) }
    });
    tokio::task::yield_now().await;
    queue.set_limits(limits([0; 3], 0, 10));
    assert_eq!(waiting.await.unwrap(), Some("b"));
    assert!(begin.elapsed() <= SECOND, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_used_nothing_gives_its_token_back() {
    let queue = limited(limits([0; 3], 0, 2));
    for key in ["a", "b", "c", "d"] {
        queue.add(item(key, 0));
    }
    let idle = take(&queue).unwrap();
    let other = take(&queue).unwrap();
    assert!(take(&queue).is_none(), "the burst of two is used");
    assert!(queue.stats().lacks_token);
    queue.settle_rate(&idle, 0);
    idle.finish(RunResult::Done);
    assert!(!queue.stats().lacks_token);
    assert_eq!(take_all(&queue).len(), 1);
    queue.settle_rate(&other, 1);
    assert_eq!(take_all(&queue).len(), 0, "one token is what it took");
}

/// Work that belongs to no key counts like a run, in its lane and among the lanes that count together.
#[tokio::test(start_paused = true)]
async fn a_place_counts_like_a_run_and_goes_before_keys_that_wait() {
    for queue in [limited(limits([1, 0, 0], 0, 0)), {
        let mut together = limits([0; 3], 0, 0);
        together.max_running = 1;
        together.lanes[ATTACH.index()].rate_limited = true;
        limited(together)
    }] {
        for key in ["a", "b"] {
            queue.add(item(key, 0));
        }
        let mut runs = take_all(&queue);
        assert_eq!(keys(&runs), ["a"]);
        let waiting = queue.clone();
        let mut slot = tokio::spawn(async move { waiting.acquire_slot(ATTACH).await });
        assert!(timeout(SECOND, &mut slot).await.is_err(), "a run has the only slot");
        runs.remove(0).finish(RunResult::Done);
        assert!(take_all(&queue).is_empty(), "what waited before goes first");
        let slot = timeout(SECOND, slot).await.expect("in time").unwrap();
        assert!(take_all(&queue).is_empty());
        drop(slot);
        assert_eq!(keys(&take_all(&queue)), ["b"]);
        // Who gives up waiting holds up nothing.
        drop(timeout(SECOND, queue.acquire_slot(ATTACH)).await);
        queue.add(item("c", 0));
        assert_eq!(keys(&take_all(&queue)), ["c"]);
    }
}
