//! What is put back again and again is put back after pauses that grow.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, advance};

use super::super::observer::NoObserver;
use super::super::state::{NextRun, QueueState};
use super::super::{AddResult, CauseCode, Item, Queue, QueueLimits, Rate, RunResult, Trigger};
use super::{ATTACH, DETACH, SECOND, item, plain_backoff, queue, settle, take};

/// Takes the next run, which puts something back and settles the key.
async fn put_back(queue: &Queue<&'static str>) -> Duration {
    let before = Instant::now();
    let run = queue.next().await.unwrap();
    queue.count_put_back(&run);
    run.finish(RunResult::Done);
    before.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_first_time_is_answered_at_once_and_the_next_ones_after_growing_pauses() {
    let queue = queue();
    for seconds in [0, 1, 2, 4, 8, 16, 32, 60, 60] {
        queue.add(item("a", 1));
        assert_eq!(put_back(&queue).await, seconds * SECOND);
        assert!(queue.is_empty(), "it is settled");
    }
}

/// Who takes it away as slowly as the pause of the moment is answered at once, and meets a longer one the next time.
#[tokio::test(start_paused = true)]
async fn the_pauses_grow_for_one_who_takes_his_time() {
    let queue = queue();
    let (begin, mut times) = (Instant::now(), 0);
    while begin.elapsed() < 1_000 * SECOND {
        queue.add(item("a", 1));
        put_back(&queue).await;
        times += 1;
        advance(5 * SECOND).await;
    }
    assert!(times < 25, "{times} times in 1000 s");
}

#[tokio::test(start_paused = true)]
async fn after_a_while_the_next_time_is_a_first_one() {
    let queue = queue();
    for (rest, pause) in [(0, 0), (0, 1), (61, 0), (0, 4), (68, 0), (0, 1)] {
        advance(rest * SECOND).await;
        queue.add(item("a", 1));
        assert_eq!(put_back(&queue).await, pause * SECOND, "after {rest} s");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_away_during_the_run_is_put_back_after_the_pause() {
    for forgets in [false, true] {
        let queue = queue();
        queue.add(item("a", 1));
        let run = take(&queue).unwrap();
        queue.count_put_back(&run);
        if forgets {
            queue.forget(&"a");
        }
        assert_eq!(queue.add(item("a", 1)), AddResult::Dirty);
        run.finish(RunResult::Done);
        assert!(queue.is_held(&"a"));
        assert_eq!(queue.add(item("a", 1)), AddResult::Swallowed);
        let before = Instant::now();
        let run = queue.next().await.unwrap();
        assert_eq!((run.waits(), run.trigger), (1, Trigger::Retry));
        assert_eq!(before.elapsed(), SECOND);
    }
}

/// Such as a deletion.
#[tokio::test(start_paused = true)]
async fn other_inputs_end_the_pause() {
    let queue = queue();
    queue.add(item("a", 1));
    put_back(&queue).await;
    assert_eq!(queue.add(Item::new("a", DETACH, 2)), AddResult::Queued);
    assert_eq!(settle(&queue), Some("a"));
    assert_eq!(queue.add(item("a", 1)), AddResult::Swallowed);
    assert_eq!(queue.add(Item::new("a", DETACH, 2)), AddResult::Queued);
    let run = take(&queue).unwrap();
    assert_eq!((run.failures, run.lane), (0, DETACH));
    run.finish(RunResult::Done);
    assert_eq!(queue.add(item("b", 1)), AddResult::Queued, "another key");
    queue.add(item("a", 1));
    assert!(queue.wake(&"a", CauseCode::default()));
    assert_eq!(take(&queue).map(|run| run.key), Some("b"));
    assert_eq!(take(&queue).map(|run| run.key), Some("a"));
}

/// A run that settles its key, after it put something back or not.
fn run(state: &mut QueueState<u32>, key: u32, puts_back: bool, now: Instant) {
    state.add(Item::new(key, ATTACH, 0), |_| (), now);
    let NextRun::Run(run) = state.next(now) else {
        panic!("it is ready")
    };
    if puts_back {
        state.count_put_back(&run, now);
    }
    state.finish(&run, RunResult::Done, now);
}

/// Also when nothing is put back any more, whether anything else runs or not.
#[test]
fn what_was_put_back_is_forgotten() {
    for runs_go_on in [false, true] {
        let mut now = Instant::now();
        let rng = Rng::with_seed(1);
        let (limits, observer) = (QueueLimits::default(), Arc::new(NoObserver));
        let mut state = QueueState::<u32>::new(plain_backoff(), limits, Rate::default(), rng, observer, now);
        for key in 0..10_000_u32 {
            run(&mut state, key, true, now);
            now += SECOND;
        }
        assert!(state.is_empty());
        assert!(state.put_backs() < 250, "{}", state.put_backs());
        now += 1_000 * SECOND;
        if runs_go_on {
            run(&mut state, 0, false, now);
        } else {
            state.stats(now);
        }
        assert_eq!(state.put_backs(), 0, "runs go on: {runs_go_on}");
    }
}
