//! How many failures a second a queue goes on with.

use std::time::Duration;

use tokio::time::advance;

use super::super::{AddResult, Backoff, Builder, Queue, Rate, RunResult};
use super::{ATTACH, SECOND, take, take_all};
use crate::Item;

const INITIAL: Duration = Duration::from_millis(1);

/// A queue with a backoff of a millisecond that goes on with ten failures a second.
fn hasty() -> Queue<u32> {
    let backoff = Backoff::new(INITIAL, INITIAL, 1.0, 0).unwrap();
    Builder {
        failures_per_second: Rate::from(10),
        ..Builder::new(backoff)
    }
    .build()
}

/// Adds so many keys, whose runs all end so.
fn end(queue: &Queue<u32>, keys: std::ops::Range<u32>, result: RunResult) {
    for key in keys.clone() {
        queue.add(Item::new(key, ATTACH, 0));
    }
    let runs = take_all(queue);
    assert_eq!(runs.len(), keys.len(), "what never failed does not wait");
    for run in runs {
        run.finish(result);
    }
}

/// How long the next failure would wait.
fn next_delay(queue: &Queue<u32>, key: u32) -> Duration {
    queue.add(Item::new(key, ATTACH, 0));
    let run = take(queue).unwrap();
    let delay = run.retry_delay;
    run.finish(RunResult::Done);
    delay
}

#[tokio::test(start_paused = true)]
async fn a_second_of_failures_waits_for_its_backoff_only() {
    let queue = hasty();
    end(&queue, 0..9, RunResult::Failed);
    assert_eq!(next_delay(&queue, 100), INITIAL);
}

#[tokio::test(start_paused = true)]
async fn many_failures_wait_until_they_are_paid_for() {
    let queue = hasty();
    end(&queue, 0..30, RunResult::Failed);
    let delay = next_delay(&queue, 100);
    assert!((2.0..=2.2).contains(&delay.as_secs_f64()), "{delay:?}");
    // Those that failed before the debt was there come at once, fail again, and wait as long as the debt is then.
    advance(INITIAL).await;
    let runs = take_all(&queue);
    assert_eq!(runs.len(), 30);
    assert!(runs.iter().all(|run| run.retry_delay >= SECOND * 2));
    for run in runs {
        run.finish(RunResult::Failed);
    }
    advance(SECOND).await;
    assert_eq!(take_all(&queue).len(), 0);
    advance(SECOND * 4).await;
    assert_eq!(take_all(&queue).len(), 30);
}

#[tokio::test(start_paused = true)]
async fn what_succeeds_costs_nothing() {
    let queue = hasty();
    for key in 0..1000 {
        assert_eq!(next_delay(&queue, key), INITIAL);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_longer_than_a_minute_for_others() {
    let queue = hasty();
    end(&queue, 0..10_000, RunResult::Failed);
    assert_eq!(next_delay(&queue, 20_000), SECOND * 60);
    // And the debt does not grow beyond that.
    advance(SECOND * 70).await;
    for run in take_all(&queue) {
        run.finish(RunResult::Done);
    }
    assert_eq!(next_delay(&queue, 20_001), INITIAL);
}

#[tokio::test(start_paused = true)]
async fn waits_cost_those_who_fail_nothing_and_the_other_way_round() {
    let queue = hasty();
    end(&queue, 0..5000, RunResult::Waits { fingerprint: 0 });
    assert_eq!(next_delay(&queue, 10_000), INITIAL, "nothing failed");
    end(&queue, 10_000..15_000, RunResult::Failed);
    queue.add(Item::new(20_000, ATTACH, 0));
    let run = take(&queue).unwrap();
    assert_eq!((run.retry_delay, run.wait_delay), (SECOND * 60, SECOND * 60));
    run.finish(RunResult::Done);
    // What is waited for comes: all go on at once, whatever they would have been held for.
    for key in 0..5000 {
        queue.add(Item::new(key, ATTACH, 1));
    }
    let runs = take_all(&queue);
    assert!(runs.len() >= 5000);
    for run in runs {
        run.finish(RunResult::Done);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_a_row_of_failures_and_a_failure_one_of_waits() {
    let backoff = Backoff::new(SECOND, 60 * SECOND, 2.0, 0).unwrap();
    let queue: Queue<u32> = Builder::new(backoff).build();
    queue.add(Item::new(1, ATTACH, 0));
    let waits = RunResult::Waits { fingerprint: 0 };
    // (result, the hold if the next run fails and if it waits, both in seconds, and the waits in a row before it)
    let cases = [
        (waits, 1, 2, 1),
        (waits, 1, 4, 2),
        (RunResult::Failed, 2, 1, 0),
        (RunResult::Failed, 4, 1, 0),
        (waits, 1, 2, 1),
    ];
    for (result, failed, waits, in_a_row) in cases {
        queue.next().await.unwrap().finish(result);
        let again = queue.add(Item::new(1, ATTACH, 0));
        assert_eq!(again, AddResult::Swallowed, "the inputs are the same");
        let run = queue.next().await.unwrap();
        assert_eq!((run.retry_delay, run.wait_delay), (SECOND * failed, SECOND * waits));
        assert_eq!(run.waits(), in_a_row);
        run.finish(RunResult::Requeue);
    }
}
