use std::time::Duration;

use futures::future::{join_all, select_all};
use tokio::sync::mpsc;
use tokio::time::{Instant, advance, timeout};

use super::super::{AddResult, Queue, RunResult};
use super::{SECOND, fail, item, limited, limits, queue, settle_all, take};

type Handed = mpsc::UnboundedReceiver<(&'static str, Duration)>;

/// Consumers that settle what they get and tell what it was and when.
fn consumers(queue: &Queue<&'static str>, count: usize) -> (Handed, Vec<tokio::task::JoinHandle<()>>) {
    let (tell, handed) = mpsc::unbounded_channel();
    let begin = Instant::now();
    let tasks = (0..count).map(|_| {
        let (queue, tell) = (queue.clone(), tell.clone());
        tokio::spawn(async move {
            while let Some(ticket) = queue.next().await {
                tell.send((ticket.key, begin.elapsed())).unwrap();
                ticket.finish(RunResult::Done);
            }
        })
    });
    (handed, tasks.collect())
}

#[tokio::test(start_paused = true)]
async fn an_add_wakes_a_waiting_consumer() {
    let queue = queue();
    let (mut handed, _tasks) = consumers(&queue, 1);
    tokio::task::yield_now().await;
    queue.add(item("a", 0));
    assert_eq!(handed.recv().await, Some(("a", Duration::ZERO)));
}

#[tokio::test(start_paused = true)]
async fn several_consumers_share_the_keys() {
    let queue = queue();
    let first = queue.clone();
    let second = queue.clone();
    let both = tokio::spawn(async move { tokio::join!(first.next(), second.next()) });
    tokio::task::yield_now().await;
    queue.add(item("a", 0));
    queue.add(item("b", 0));
    let (first, second) = both.await.unwrap();
    assert_ne!(first.unwrap().key, second.unwrap().key);
}

#[tokio::test(start_paused = true)]
async fn one_word_is_enough_for_many_keys() {
    let queue = limited(limits([1, 0, 0], 0, 0));
    for key in ["a", "b", "c", "d"] {
        queue.add(item(key, 0));
    }
    let consumers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.next().await })
        })
        .collect();
    tokio::task::yield_now().await;
    queue.set_limits(limits([0; 3], 0, 0));
    let tickets = timeout(SECOND, join_all(consumers)).await.unwrap();
    assert_eq!(tickets.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_consumer_passes_its_alarm_on() {
    let queue = queue();
    queue.add(item("a", 0));
    let run = take(&queue).unwrap();
    let (mut handed, _tasks) = consumers(&queue, 1);
    tokio::task::yield_now().await;
    // This consumer is the one that learns of the hold, and goes away while it waits for its end.
    let cancelled = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next().await.is_some() }
    });
    tokio::task::yield_now().await;
    run.finish(RunResult::RequeueAfter(SECOND));
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    cancelled.abort();
    let handed = timeout(2 * SECOND, handed.recv()).await.unwrap();
    assert_eq!(handed, Some(("a", SECOND)));
}

/// Of several consumers some go away when a key was added, and before they ran again: also the one that was woken for it. Whoever
/// is left has the key.
#[tokio::test(start_paused = true)]
async fn a_cancelled_next_loses_no_key() {
    const CONSUMERS: u32 = 4;
    // Each set of those that stay, but for none.
    for stay in 1..1_u32 << CONSUMERS {
        let queue = queue();
        let mut waiting: Vec<_> = (0..CONSUMERS).map(|_| Box::pin(queue.next())).collect();
        for next in &mut waiting {
            assert!(futures::poll!(next).is_pending());
        }
        queue.add(item("a", 0));
        let mut number = 0;
        waiting.retain(|_| {
            number += 1;
            stay & (1 << (number - 1)) != 0
        });
        let (handed, ..) = timeout(SECOND, select_all(waiting))
            .await
            .unwrap_or_else(|_| panic!("the key is lost to {stay:04b}"));
        assert_eq!(handed.as_ref().map(|ticket| ticket.key), Some("a"));
        handed.unwrap().finish(RunResult::Done);
        assert!(queue.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_shorter_hold_moves_the_alarm() {
    let queue = queue();
    queue.add(item("late", 0));
    queue.add(item("soon", 0));
    let (late, soon) = (take(&queue).unwrap(), take(&queue).unwrap());
    let (mut handed, _tasks) = consumers(&queue, 2);
    late.finish(RunResult::RequeueAfter(10 * SECOND));
    tokio::task::yield_now().await;
    soon.finish(RunResult::RequeueAfter(SECOND));
    assert_eq!(handed.recv().await, Some(("soon", SECOND)));
    assert_eq!(handed.recv().await, Some(("late", 10 * SECOND)));
}

#[tokio::test(start_paused = true)]
async fn pause_keeps_everything_and_hands_out_nothing() {
    let queue = queue();
    queue.add(item("held", 1));
    fail(&queue);
    queue.add(item("ready", 0));
    queue.pause();
    assert!(queue.stats().paused);
    assert_eq!(queue.add(item("new", 0)), AddResult::Queued);
    advance(10 * SECOND).await;
    assert!(take(&queue).is_none());
    assert_eq!((queue.len(), queue.failures(&"held")), (3, 1));
    queue.resume();
    assert_eq!(settle_all(&queue), ["ready", "new", "held"]);
}

#[tokio::test(start_paused = true)]
async fn resume_wakes_a_waiting_consumer() {
    let queue = queue();
    queue.pause();
    queue.add(item("a", 0));
    let (mut handed, _tasks) = consumers(&queue, 2);
    assert!(timeout(60 * SECOND, handed.recv()).await.is_err());
    queue.resume();
    assert_eq!(handed.recv().await, Some(("a", 60 * SECOND)));
}

#[tokio::test(start_paused = true)]
async fn close_ends_all_consumers_and_hands_out_no_more() {
    let queue = queue();
    let (mut handed, tasks) = consumers(&queue, 3);
    tokio::task::yield_now().await;
    queue.close();
    timeout(SECOND, join_all(tasks)).await.unwrap();
    assert_eq!(handed.recv().await, None);
    assert_eq!(queue.add(item("a", 0)), AddResult::Closed);
    assert!(queue.next().await.is_none());
    assert!(queue.is_empty() && queue.stats().closed);
}

#[tokio::test(start_paused = true)]
async fn drained_waits_for_the_runs_in_flight() {
    let queue = queue();
    for key in ["a", "b", "c"] {
        queue.add(item(key, 0));
    }
    let (first, second) = (take(&queue).unwrap(), take(&queue).unwrap());
    queue.close();
    assert!(queue.next().await.is_none(), "c stays where it is");
    let drained = tokio::spawn({
        let queue = queue.clone();
        async move { queue.drained().await }
    });
    first.finish(RunResult::Done);
    tokio::task::yield_now().await;
    assert!(!drained.is_finished());
    second.finish(RunResult::Failed);
    timeout(SECOND, drained).await.unwrap().unwrap();
    assert_eq!((queue.failures(&"b"), queue.len()), (1, 2));
    queue.drained().await;
}
