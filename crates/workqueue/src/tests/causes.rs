//! Why a key runs, from the add or wake to the run, and what of its wait was for a limit.

use std::time::Duration;

use tokio::time::advance;

use super::super::{CauseCode, Item, Queue, RunResult, Ticket};
use super::{ATTACH, DETACH, SECOND, VOLUME, fail, item, limited, limits, queue, take};

type Keys = Queue<&'static str>;

/// What happens to the one key: `add` with its inputs and the code of its cause, `wake` with the code and how that is
/// answered, and between `begin` and `end` during a run for the first cause.
fn happen(queue: &Keys, run: &mut Option<Ticket<&'static str>>, words: &str) {
    let first = CauseCode::new(1);
    let cause = |code: &str| CauseCode::new(code.parse().unwrap());
    let words: Vec<&str> = words.split(' ').collect();
    match words[..] {
        ["add"] => _ = queue.add(item("a", 0)),
        ["add", inputs, code] => _ = queue.add(item("a", inputs.parse().unwrap()).because(cause(code))),
        ["detach", code] => _ = queue.add(Item::new("a", DETACH, 0).because(cause(code))),
        ["wake", code, woken] => assert_eq!(queue.wake(&"a", cause(code)).to_string(), woken),
        ["wake-all", code, woken] => assert_eq!(queue.wake_all(cause(code)).to_string(), woken),
        ["fail"] => fail(queue),
        ["begin"] => {
            *run = take(queue);
            assert_eq!(run.as_ref().unwrap().cause, first);
        }
        ["end", verdict] => {
            let ended = run.take().unwrap();
            assert_eq!(ended.cause, first, "a run does not change");
            ended.finish(match verdict {
                "done" => RunResult::Done,
                "failed" => RunResult::Failed,
                "again" => RunResult::Requeue,
                "later" => RunResult::RequeueAfter(SECOND),
                _ => panic!("no such verdict: {verdict}"),
            });
        }
        _ => panic!("no such words: {words:?}"),
    }
}

/// Why the key runs in the end, and under it what happens to it before.
const CAUSES: &str = "
    Event 0
        no cause | add
    Event 1
        the first of two adds | add 0 1, add 1 2
        nothing is woken | add 0 1, wake 2 false, wake-all 2 0
    Event 2
        one add | add 0 2
        the first add in the lane of the run | add 0 1, detach 2, detach 3
        other inputs after a failure | add 0 1, fail, add 1 2
        the first add during a run | add 0 1, begin, add 0 2, add 0 3, end done
        an add rather than a wake, of a run that is done | add 0 1, begin, wake 3 true, add 0 2, end done
        an add after a run that asked for time | add 0 1, begin, end later, add 0 2
    Event 3
        other inputs after a wake | add 0 1, fail, wake 2 true, add 1 3
        the first add during a run in the lane of the next | add 0 1, begin, add 0 2, detach 3, end done
    Retry 1
        the end of the hold after a failure | add 0 1, fail
        the same inputs after a failure | add 0 1, fail, add 0 2
    Wake 2
        a wake, and another one when it is ready | add 0 1, fail, wake 2 true, wake 3 false
        a wake of all | add 0 1, fail, wake-all 2 1
        the first wake during a run that fails | add 0 1, begin, wake-all 2 1, wake 3 true, end failed
    Again 1
        nothing new | add 0 1, begin, end again
";

#[tokio::test(start_paused = true)]
async fn a_run_knows_why_it_is() {
    let mut wanted = "";
    for line in CAUSES.trim().lines().map(str::trim) {
        let Some((what, happens)) = line.split_once(" | ") else {
            wanted = line;
            continue;
        };
        let (queue, mut run) = (queue(), None);
        for words in happens.split(", ") {
            happen(&queue, &mut run, words);
        }
        let run = queue.next().await.unwrap();
        assert_eq!(format!("{:?} {}", run.trigger, run.cause.code()), wanted, "{what}");
        run.finish(RunResult::Done);
        assert!(queue.is_empty(), "{what}: one run is all");
        // What is settled is not remembered.
        queue.add(item("a", 0));
        assert_eq!(take(&queue).unwrap().cause, CauseCode::default(), "{what}");
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
    // The hold ended two seconds ago, the lane is full.
    assert!(take(&queue).is_none());
    running.finish(RunResult::Done);
    assert_eq!(waits(&queue), (2 * SECOND, 2 * SECOND));
}
