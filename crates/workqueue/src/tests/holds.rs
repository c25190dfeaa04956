use std::time::Duration;

use tokio::time::{Instant, advance, timeout};

use super::super::{AddResult, Backoff, Builder, RunResult, Trigger};
use super::{ATTACH, SECOND, fail, item, limited, limits, queue, settle, take};

#[tokio::test(start_paused = true)]
async fn a_failed_key_is_held_for_growing_delays() {
    let queue = queue();
    queue.add(item("a", 1));
    let mut held = Duration::ZERO;
    for (failures, seconds) in (0..).zip([1, 2, 4, 8, 16, 32, 60, 60]) {
        let before = Instant::now();
        let run = queue.next().await.unwrap();
        assert_eq!((run.failures, run.attempt()), (failures, failures + 1));
        assert_eq!(run.trigger, if failures == 0 { Trigger::Event } else { Trigger::Retry });
        assert_eq!(run.retry_delay, seconds * SECOND);
        assert_eq!(before.elapsed(), held);
        held = run.retry_delay;
        assert_eq!(run.waited(), Duration::ZERO, "a hold is no waiting for a slot");
        run.finish(RunResult::Failed);
        assert!(queue.is_held(&"a"));
        assert_eq!(queue.failures(&"a"), failures + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_hold_is_the_delay_of_the_ticket() {
    let backoff = Backoff::new(10 * SECOND, 60 * SECOND, 2.0, 50).unwrap();
    let queue = Builder {
        rng: fastrand::Rng::with_seed(3),
        ..Builder::new(backoff)
    }
    .build();
    queue.add(item("a", 1));
    let run = take(&queue).unwrap();
    let delay = run.retry_delay;
    let is_drawn = (5 * SECOND..=15 * SECOND).contains(&delay) && delay != 10 * SECOND;
    assert!(is_drawn, "{delay:?}");
    advance(SECOND).await;
    let failed_at = Instant::now();
    run.finish(RunResult::Failed);
    assert_eq!(queue.held()[0].1, failed_at + delay);
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
    assert_eq!(run.retry_delay, SECOND);
    run.finish(RunResult::Failed);
    let before = Instant::now();
    let run = queue.next().await.unwrap();
    assert_eq!((before.elapsed(), run.retry_delay), (SECOND, 7 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn absurd_delays_neither_panic_nor_end() {
    let backoff = Backoff::new(Duration::MAX, Duration::MAX, f64::MAX, 100).unwrap();
    let queue = Builder {
        rng: fastrand::Rng::with_seed(1),
        ..Builder::new(backoff)
    }
    .build();
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
    let queue = limited(limits([1, 0, 0], 0, 0));
    queue.add(item("a", 1));
    fail(&queue);
    let ready_at = Instant::now() + SECOND;
    queue.add(item("busy", 1));
    let busy = take(&queue).unwrap();
    advance(3 * SECOND).await;
    busy.finish(RunResult::Done);
    let run = take(&queue).unwrap();
    assert_eq!((run.ready_since, run.lane), (ready_at, ATTACH));
    assert_eq!(run.waited(), 2 * SECOND);
}
