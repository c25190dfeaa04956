use std::time::Duration;

use tokio::time::{Instant, advance, timeout};

use super::super::{AddResult, Backoff, Builder, CauseCode, Item, RunResult, Trigger};
use super::{ATTACH, DETACH, SECOND, fail, item, limited, limits, plain_backoff, queue, settle, take};

const ALMOST: Duration = Duration::from_millis(999);

#[tokio::test(start_paused = true)]
async fn a_failed_key_is_held_for_growing_delays() {
    let queue = queue();
    queue.add(item("a", 1));
    for (failures, seconds) in (0..).zip([1, 2, 4, 8, 16, 32, 60, 60]) {
        let before = Instant::now();
        let run = queue.next().await.unwrap();
        assert_eq!((run.failures(), run.attempt()), (failures, failures + 1));
        assert_eq!(
            run.trigger(),
            if failures == 0 { Trigger::Event } else { Trigger::Retry }
        );
        assert_eq!(run.retry_delay(), seconds * SECOND);
        if failures > 0 {
            assert_eq!(
                before.elapsed(),
                [1, 2, 4, 8, 16, 32, 60][failures as usize - 1] * SECOND
            );
        }
        assert_eq!(run.waited(), Duration::ZERO, "a hold is no waiting for a slot");
        run.finish(RunResult::Failed);
        assert!(queue.is_held(&"a"));
        assert_eq!(queue.failures(&"a"), failures + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_hold_is_the_delay_of_the_ticket() {
    let backoff = Backoff::new(10 * SECOND, 60 * SECOND, 2.0, 50).unwrap();
    let queue = Builder::new(backoff).rng(fastrand::Rng::with_seed(3)).build();
    queue.add(item("a", 1));
    let run = take(&queue).unwrap();
    let delay = run.retry_delay();
    assert!(
        delay >= 5 * SECOND && delay <= 15 * SECOND && delay != 10 * SECOND,
        "{delay:?}"
    );
    advance(SECOND).await;
    let failed_at = Instant::now();
    run.finish(RunResult::Failed);
    assert_eq!(queue.held()[0].1, failed_at + delay);
}

#[tokio::test(start_paused = true)]
async fn done_clears_the_failures() {
    let queue = queue();
    queue.add(item("a", 1));
    fail(&queue);
    queue.next().await.unwrap().finish(RunResult::Done);
    assert_eq!((queue.failures(&"a"), queue.is_empty()), (0, true));
    queue.add(item("a", 1));
    assert_eq!(take(&queue).unwrap().retry_delay(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn an_add_with_the_failed_inputs_is_swallowed() {
    let queue = queue();
    queue.add(item("a", 1));
    fail(&queue);
    advance(ALMOST).await;
    assert_eq!(queue.add(item("a", 1)), AddResult::Swallowed);
    assert!(take(&queue).is_none());
    advance(Duration::from_millis(1)).await;
    let run = take(&queue).unwrap();
    assert_eq!((run.trigger(), run.failures()), (Trigger::Retry, 1));
}

#[tokio::test(start_paused = true)]
async fn an_add_with_other_inputs_wakes_and_resets() {
    let queue = queue();
    queue.add(item("a", 1));
    fail(&queue);
    assert_eq!(queue.add(item("a", 2)), AddResult::Queued);
    let run = take(&queue).unwrap();
    assert_eq!(
        (run.trigger(), run.failures(), run.fingerprint()),
        (Trigger::Event, 0, 2)
    );
    assert_eq!(run.retry_delay(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_swallowed_add_still_moves_the_key() {
    let queue = queue();
    queue.add(item("a", 1));
    fail(&queue);
    assert_eq!(queue.add(Item::new("a", DETACH, 1)), AddResult::Swallowed);
    assert_eq!(queue.next().await.unwrap().lane(), DETACH);
}

#[tokio::test(start_paused = true)]
async fn inputs_are_compared_when_a_dirty_run_fails() {
    // (inputs at the start, adds during the run, verdict, failures afterwards, held)
    let cases: [(u64, &[u64], RunResult, u32, bool); 7] = [
        (1, &[1], RunResult::Failed, 1, true),
        (1, &[2], RunResult::Failed, 0, false),
        (1, &[2, 1], RunResult::Failed, 1, true),
        (1, &[2], RunResult::FailedWith { fingerprint: 2 }, 1, true),
        (1, &[1], RunResult::FailedWith { fingerprint: 2 }, 0, false),
        (1, &[], RunResult::FailedWith { fingerprint: 2 }, 1, true),
        (1, &[1], RunResult::Done, 0, false),
    ];
    for (start, adds, verdict, failures, held) in cases {
        let queue = queue();
        queue.add(item("a", start));
        let run = take(&queue).unwrap();
        for fingerprint in adds {
            queue.add(item("a", *fingerprint));
        }
        run.finish(verdict);
        assert_eq!(
            (queue.failures(&"a"), queue.is_held(&"a")),
            (failures, held),
            "{start} {adds:?} {verdict:?}"
        );
        assert_eq!(take(&queue).is_some(), !held, "{start} {adds:?} {verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_inputs_given_with_the_failure_are_those_that_count() {
    let queue = queue();
    queue.add(item("a", 1));
    take(&queue).unwrap().finish(RunResult::FailedWith { fingerprint: 2 });
    assert_eq!(queue.add(item("a", 2)), AddResult::Swallowed);
    assert_eq!(queue.add(item("a", 1)), AddResult::Queued);
}

#[tokio::test(start_paused = true)]
async fn new_inputs_reset_a_retry_that_waits_for_a_slot() {
    let queue = limited(limits([1, 0, 0], 0, 0));
    queue.add(item("a", 1));
    fail(&queue);
    queue.add(item("busy", 0));
    let busy = take(&queue).unwrap();
    advance(SECOND).await;
    assert!(take(&queue).is_none());
    assert_eq!(queue.add(item("a", 1)), AddResult::Waiting);
    assert_eq!(queue.failures(&"a"), 1);
    assert_eq!(queue.add(item("a", 2)), AddResult::Waiting);
    busy.finish(RunResult::Done);
    let run = take(&queue).unwrap();
    assert_eq!((run.failures(), run.trigger()), (0, Trigger::Event));
}

#[tokio::test(start_paused = true)]
async fn again_and_after_leave_the_failure_count() {
    let queue = queue();
    queue.add(item("a", 1));
    fail(&queue);
    queue.next().await.unwrap().finish(RunResult::Requeue);
    let run = take(&queue).unwrap();
    assert_eq!((run.trigger(), run.failures()), (Trigger::Again, 1));
    run.finish(RunResult::RequeueAfter(5 * SECOND));
    let before = Instant::now();
    let run = queue.next().await.unwrap();
    assert_eq!(before.elapsed(), 5 * SECOND);
    assert_eq!((run.trigger(), run.failures()), (Trigger::Again, 1));
}

#[tokio::test(start_paused = true)]
async fn any_add_ends_a_delay_that_is_no_failure() {
    for fingerprint in [1, 2] {
        let queue = queue();
        queue.add(item("a", 1));
        take(&queue).unwrap().finish(RunResult::RequeueAfter(5 * SECOND));
        assert_eq!(queue.add(item("a", fingerprint)), AddResult::Queued);
        assert!(take(&queue).is_some());

        let dirty = super::queue();
        dirty.add(item("a", 1));
        let run = take(&dirty).unwrap();
        dirty.add(item("a", fingerprint));
        run.finish(RunResult::RequeueAfter(5 * SECOND));
        assert_eq!(take(&dirty).unwrap().trigger(), Trigger::Event);
    }
}

#[tokio::test(start_paused = true)]
async fn wake_runs_a_held_key_and_keeps_its_count() {
    let queue = queue();
    assert!(!queue.wake(&"a", CauseCode::default()), "nothing to wake");
    queue.add(item("a", 1));
    assert!(!queue.wake(&"a", CauseCode::default()), "ready already");
    fail(&queue);
    assert!(queue.wake(&"a", CauseCode::default()));
    let run = take(&queue).unwrap();
    assert_eq!(
        (run.trigger(), run.failures(), run.retry_delay()),
        (Trigger::Wake, 1, 2 * SECOND)
    );
}

#[tokio::test(start_paused = true)]
async fn a_wake_during_a_run_is_not_lost() {
    // (verdict, what triggers the next run at once)
    for (verdict, trigger) in [
        (RunResult::Failed, Some(Trigger::Wake)),
        (RunResult::RequeueAfter(SECOND), Some(Trigger::Wake)),
        (RunResult::Requeue, Some(Trigger::Again)),
        (RunResult::Done, None),
    ] {
        let queue = queue();
        queue.add(item("a", 1));
        let run = take(&queue).unwrap();
        assert!(queue.wake(&"a", CauseCode::default()));
        run.finish(verdict);
        assert_eq!(take(&queue).map(|run| run.trigger()), trigger, "{verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wake_all_wakes_in_the_order_of_the_holds() {
    let queue = queue();
    for (key, seconds) in [("c", 3), ("a", 1), ("b", 2)] {
        queue.add(item(key, 1));
        take(&queue).unwrap().finish(RunResult::RequeueAfter(seconds * SECOND));
    }
    assert_eq!(queue.wake_all(CauseCode::default()), 3);
    assert_eq!(super::settle_all(&queue), ["a", "b", "c"]);
    assert_eq!(queue.wake_all(CauseCode::default()), 0);
}

#[tokio::test(start_paused = true)]
async fn forget_drops_what_waits() {
    let queue = queue();
    assert!(queue.forget(&"a").is_none());
    queue.add(item("a", 1));
    assert!(queue.forget(&"a").is_some());
    assert!(take(&queue).is_none());
    queue.add(item("a", 1));
    fail(&queue);
    assert!(queue.forget(&"a").is_some());
    assert_eq!((queue.failures(&"a"), queue.is_empty()), (0, true));
    assert!(timeout(600 * SECOND, queue.next()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn forget_during_a_run_takes_hold_when_it_ends() {
    let verdicts = [
        RunResult::Failed,
        RunResult::Requeue,
        RunResult::RequeueAfter(SECOND),
        RunResult::Done,
    ];
    for verdict in verdicts {
        let queue = queue();
        queue.add(item("a", 1));
        let run = take(&queue).unwrap();
        queue.add(item("a", 2));
        assert!(queue.forget(&"a").is_some());
        run.finish(verdict);
        assert!(queue.is_empty(), "{verdict:?}");

        // An add after it is about a new object of the same name.
        queue.add(item("a", 1));
        let run = take(&queue).unwrap();
        queue.forget(&"a");
        queue.add(item("a", 1));
        run.finish(verdict);
        let new = take(&queue).unwrap();
        assert_eq!((new.failures(), new.trigger()), (0, Trigger::Event), "{verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_ticket_counts_as_failed() {
    let queue = queue();
    queue.add(item("a", 1));
    drop(take(&queue).unwrap());
    assert_eq!((queue.failures(&"a"), queue.is_held(&"a")), (1, true));
    assert_eq!(queue.add(item("a", 1)), AddResult::Swallowed);
    assert_eq!(queue.next().await.unwrap().attempt(), 2);
}

#[tokio::test(start_paused = true)]
async fn another_backoff_holds_for_the_next_run() {
    let queue = queue();
    queue.add(item("a", 1));
    let run = take(&queue).unwrap();
    queue.set_backoff(Backoff::new(7 * SECOND, 7 * SECOND, 1.0, 0).unwrap());
    assert_eq!(run.retry_delay(), SECOND);
    run.finish(RunResult::Failed);
    let before = Instant::now();
    let run = queue.next().await.unwrap();
    assert_eq!((before.elapsed(), run.retry_delay()), (SECOND, 7 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn absurd_delays_neither_panic_nor_end() {
    let backoff = Backoff::new(Duration::MAX, Duration::MAX, f64::MAX, 100).unwrap();
    let queue = Builder::new(backoff).rng(fastrand::Rng::with_seed(1)).build();
    for key in ["a", "b", "c"] {
        queue.add(item(key, 1));
    }
    take(&queue).unwrap().finish(RunResult::Failed);
    take(&queue).unwrap().finish(RunResult::RequeueAfter(Duration::MAX));
    assert_eq!(settle(&queue), Some("c"));
    assert!(timeout(3_600 * SECOND, queue.next()).await.is_err());
    assert_eq!(queue.held().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_ended_while_the_lane_was_full_counts_as_waiting() {
    let queue = Builder::new(plain_backoff()).limits(limits([1, 0, 0], 0, 0)).build();
    queue.add(item("a", 1));
    fail(&queue);
    let ready_at = Instant::now() + SECOND;
    queue.add(item("busy", 1));
    let busy = take(&queue).unwrap();
    advance(3 * SECOND).await;
    busy.finish(RunResult::Done);
    let run = take(&queue).unwrap();
    assert_eq!(
        (run.ready_since(), run.waited(), run.lane()),
        (ready_at, 2 * SECOND, ATTACH)
    );
}
