//! Why a key runs, from the add or wake to the run, and what of its wait was for a limit.

use std::time::Duration;

use tokio::time::advance;

use super::super::{CauseCode, Item, Lane, Queue, RunResult, Trigger};
use super::{ATTACH, DETACH, SECOND, VOLUME, fail, item, limited, limits, queue, take};

const ONE: CauseCode = CauseCode::new(1);
const TWO: CauseCode = CauseCode::new(2);
const THREE: CauseCode = CauseCode::new(3);

type Keys = Queue<&'static str>;

/// An add of the one key, with these inputs.
fn add(queue: &Keys, fingerprint: u64, cause: CauseCode) {
    queue.add(item("a", fingerprint).because(cause));
}

fn add_in(queue: &Keys, lane: Lane, cause: CauseCode) {
    queue.add(Item::new("a", lane, 0).because(cause));
}

/// A run of the key for the first cause, during which something happens.
fn during(queue: &Keys, verdict: RunResult, what: impl FnOnce(&Keys)) {
    add(queue, 0, ONE);
    let run = take(queue).unwrap();
    assert_eq!(run.cause(), ONE);
    what(queue);
    assert_eq!(run.cause(), ONE, "a run does not change");
    run.finish(verdict);
}

/// A failure of the key, which was added for the first cause.
fn failed(queue: &Keys) {
    add(queue, 0, ONE);
    fail(queue);
}

/// What happens to the key, and why it runs in the end.
type Row = (&'static str, fn(&Keys), Trigger, CauseCode);

const ADDED: &[Row] = &[
    (
        "no cause",
        |q| _ = q.add(item("a", 0)),
        Trigger::Event,
        CauseCode::new(0),
    ),
    ("one add", |q| add(q, 0, TWO), Trigger::Event, TWO),
    (
        "the first of two adds",
        |q| {
            add(q, 0, ONE);
            add(q, 1, TWO);
        },
        Trigger::Event,
        ONE,
    ),
    (
        "the first add in the lane of the run",
        |q| {
            add_in(q, ATTACH, ONE);
            add_in(q, DETACH, TWO);
            add_in(q, DETACH, THREE);
        },
        Trigger::Event,
        TWO,
    ),
    (
        "nothing is woken",
        |q| {
            add(q, 0, ONE);
            assert!(!q.wake(&"a", TWO));
            assert_eq!(q.wake_all(TWO), 0);
        },
        Trigger::Event,
        ONE,
    ),
];

const AFTER_A_FAILURE: &[Row] = &[
    ("the end of the hold", failed, Trigger::Retry, ONE),
    (
        "the same inputs",
        |q| {
            failed(q);
            add(q, 0, TWO);
        },
        Trigger::Retry,
        ONE,
    ),
    (
        "other inputs",
        |q| {
            failed(q);
            add(q, 1, TWO);
        },
        Trigger::Event,
        TWO,
    ),
    (
        "a wake",
        |q| {
            failed(q);
            assert!(q.wake(&"a", TWO));
            assert!(!q.wake(&"a", THREE), "it is ready");
        },
        Trigger::Wake,
        TWO,
    ),
    (
        "a wake of all",
        |q| {
            failed(q);
            assert_eq!(q.wake_all(TWO), 1);
        },
        Trigger::Wake,
        TWO,
    ),
    (
        "other inputs after a wake",
        |q| {
            failed(q);
            q.wake(&"a", TWO);
            add(q, 1, THREE);
        },
        Trigger::Event,
        THREE,
    ),
];

const DURING_A_RUN: &[Row] = &[
    (
        "the first add during a run",
        |q| {
            during(q, RunResult::Done, |q| {
                add(q, 0, TWO);
                add(q, 0, THREE);
            });
        },
        Trigger::Event,
        TWO,
    ),
    (
        "the first add during a run in the lane of the next",
        |q| {
            during(q, RunResult::Done, |q| {
                add_in(q, ATTACH, TWO);
                add_in(q, DETACH, THREE);
            });
        },
        Trigger::Event,
        THREE,
    ),
    (
        "an add rather than a wake, of a run that is done",
        |q| {
            during(q, RunResult::Done, |q| {
                q.wake(&"a", THREE);
                add(q, 0, TWO);
            });
        },
        Trigger::Event,
        TWO,
    ),
    (
        "the first wake during a run that fails",
        |q| {
            during(q, RunResult::Failed, |q| {
                assert_eq!(q.wake_all(TWO), 1);
                q.wake(&"a", THREE);
            });
        },
        Trigger::Wake,
        TWO,
    ),
    (
        "an add after a run that asked for time",
        |q| {
            during(q, RunResult::RequeueAfter(SECOND), |_| ());
            add(q, 0, TWO);
        },
        Trigger::Event,
        TWO,
    ),
    (
        "nothing new",
        |q| during(q, RunResult::Requeue, |_| ()),
        Trigger::Again,
        ONE,
    ),
];

#[tokio::test(start_paused = true)]
async fn a_run_knows_why_it_is() {
    for (what, happens, trigger, cause) in [ADDED, AFTER_A_FAILURE, DURING_A_RUN].concat() {
        let queue = queue();
        happens(&queue);
        let run = queue.next().await.unwrap();
        assert_eq!((run.trigger(), run.cause()), (trigger, cause), "{what}");
        run.finish(RunResult::Done);
        assert!(queue.is_empty(), "{what}: one run is all");
        // What is settled is not remembered.
        queue.add(item("a", 0));
        assert_eq!(take(&queue).unwrap().cause(), CauseCode::default(), "{what}");
    }
}

/// How long the next run waited, and how much of that was for a limit.
fn waits(queue: &Keys) -> (Duration, Duration) {
    let run = take(queue).expect("a key is ready");
    let waits = (run.waited(), run.waited_for_limit());
    run.finish(RunResult::Done);
    waits
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_nobody_but_a_worker_is_for_no_limit() {
    let queue = limited(limits([1; 3], 1, 1));
    queue.add(item("a", 0).in_group("node"));
    advance(5 * SECOND).await;
    assert_eq!(waits(&queue), (5 * SECOND, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn each_limit_that_holds_a_key_back_counts() {
    let lane = limits([1, 0, 0], 0, 0);
    let group = limits([0; 3], 1, 0);
    let rate = limits([0; 3], 0, 1);
    for (what, limits) in [("lane", lane), ("group", group), ("rate", rate)] {
        let queue = limited(limits);
        for key in ["a", "b"] {
            queue.add(item(key, 0).in_group("node"));
        }
        let running = take(&queue).unwrap();
        assert_eq!(running.waited_for_limit(), Duration::ZERO, "{what}");
        assert!(take(&queue).is_none(), "{what}");
        advance(SECOND).await;
        running.finish(RunResult::Done);
        assert_eq!(waits(&queue), (SECOND, SECOND), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_whole_wait_of_a_key_that_was_held_back_is_for_the_limit() {
    let queue = limited(limits([1, 1, 0], 0, 0));
    queue.add(item("a", 0));
    let running = take(&queue).unwrap();
    queue.add(item("b", 0));
    advance(2 * SECOND).await;
    assert!(take(&queue).is_none(), "the lane is full");
    advance(SECOND).await;
    running.finish(RunResult::Done);
    queue.add(item("c", 0));
    assert_eq!(waits(&queue), (3 * SECOND, 3 * SECOND), "b");
    advance(SECOND).await;
    assert_eq!(waits(&queue), (SECOND, Duration::ZERO), "nobody refused c");
}

#[tokio::test(start_paused = true)]
async fn a_full_lane_is_no_limit_for_another_one() {
    let queue = limited(limits([1, 1, 0], 0, 0));
    for (key, lane) in [("a", ATTACH), ("b", ATTACH), ("v", VOLUME)] {
        queue.add(Item::new(key, lane, 0));
    }
    let running = take(&queue).unwrap();
    assert_eq!(waits(&queue).1, Duration::ZERO, "v");
    assert!(take(&queue).is_none(), "b has to wait");
    queue.add(Item::new("d", DETACH, 0));
    advance(SECOND).await;
    assert_eq!(waits(&queue), (SECOND, Duration::ZERO), "d");
    running.finish(RunResult::Done);
    assert_eq!(waits(&queue), (SECOND, SECOND), "b");
}

/// The backoff of a failed key is no wait: that begins when it ends.
#[tokio::test(start_paused = true)]
async fn a_hold_is_no_wait_for_a_limit() {
    let queue = limited(limits([1, 0, 0], 0, 0));
    queue.add(item("a", 0));
    fail(&queue);
    queue.add(item("b", 0));
    let running = take(&queue).unwrap();
    assert!(take(&queue).is_none());
    advance(3 * SECOND).await;
    assert!(
        take(&queue).is_none(),
        "the hold ended two seconds ago, the lane is full"
    );
    running.finish(RunResult::Done);
    assert_eq!(waits(&queue), (2 * SECOND, 2 * SECOND));
}
