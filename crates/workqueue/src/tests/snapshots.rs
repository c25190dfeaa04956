use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, advance};

use super::super::{Builder, Item, Lane, LaneStats, Observer, RunResult};
use super::{ATTACH, DETACH, SECOND, VOLUME, fail, item, limited, limits, plain_backoff, queue, take};

#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn put(&self, lane: Lane, what: &str) {
        self.0.lock().push(format!("{} {what}", lane.index()));
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Observer for Recorder {
    fn added(&self, lane: Lane) {
        self.put(lane, "added");
    }

    fn retried(&self, lane: Lane) {
        self.put(lane, "retried");
    }

    fn depth(&self, lane: Lane, depth: usize) {
        self.put(lane, &format!("depth {depth}"));
    }

    fn waited(&self, lane: Lane, waited: Duration) {
        self.put(lane, &format!("waited {waited:?}"));
    }

    fn worked(&self, lane: Lane, worked: Duration) {
        self.put(lane, &format!("worked {worked:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_observer_is_called_for_each_move() {
    let observer = Arc::new(Recorder::default());
    let queue = Builder {
        observer: observer.clone(),
        ..Builder::new(plain_backoff())
    }
    .build();
    queue.add(item("a", 1));
    queue.add(item("a", 1));
    assert_eq!(observer.taken(), ["0 added", "0 depth 1"]);
    queue.add(Item::new("a", DETACH, 1));
    assert_eq!(observer.taken(), ["0 depth 0", "1 added", "1 depth 1"]);
    advance(SECOND).await;
    let run = take(&queue).unwrap();
    assert_eq!(observer.taken(), ["1 depth 0", "1 waited 1s"]);
    advance(2 * SECOND).await;
    run.finish(RunResult::Failed);
    assert_eq!(observer.taken(), ["1 worked 2s", "1 retried"]);
    queue.add(Item::new("a", DETACH, 1));
    assert!(observer.taken().is_empty(), "a swallowed add is none");
    let run = queue.next().await.unwrap();
    assert_eq!(observer.taken(), ["1 added", "1 depth 1", "1 depth 0", "1 waited 0ns"]);
    run.finish(RunResult::Done);
    assert_eq!(observer.taken(), ["1 worked 0ns"]);
    queue.add(item("a", 1));
    queue.forget(&"a");
    assert_eq!(observer.taken(), ["0 added", "0 depth 1", "0 depth 0"]);
}

#[tokio::test(start_paused = true)]
async fn stats_tell_counts_and_ages() {
    let queue = limited(limits([1, 2, 0], 0, 0));
    let begin = Instant::now();
    queue.add(Item::new("failing", DETACH, 1));
    fail(&queue);
    advance(SECOND / 2).await;
    queue.add(item("long", 1));
    let long = take(&queue).unwrap();
    advance(SECOND / 4).await;
    queue.add(item("waiting", 1));
    queue.add(item("waiting too", 1));
    queue.add(Item::new("short", DETACH, 1));
    let short = take(&queue).unwrap();
    let stats = queue.stats();
    assert_eq!(
        stats.lanes[ATTACH.index()],
        LaneStats {
            ready: 2,
            running: 1,
            oldest_ready_since: Some(begin + 3 * SECOND / 4),
            oldest_unblocked_since: Some(begin + 3 * SECOND / 4),
            oldest_pending: Some(("long", begin + SECOND / 2)),
            longest_running: Some(SECOND / 4),
            unfinished: SECOND / 4,
            ..LaneStats::default()
        }
    );
    assert_eq!(
        stats.lanes[DETACH.index()],
        LaneStats {
            running: 1,
            held: 1,
            failing: 1,
            oldest_pending: Some(("failing", begin)),
            longest_running: Some(Duration::ZERO),
            ..LaneStats::default()
        }
    );
    assert_eq!(stats.lanes[VOLUME.index()], LaneStats::default());
    assert!(!stats.paused && !stats.closed);

    // Both detach runs count towards the unfinished work, the longer one is the longest.
    advance(SECOND).await;
    let retry = take(&queue).unwrap();
    assert_eq!((retry.key, retry.pending_since), ("failing", begin));
    advance(SECOND).await;
    let detach = &queue.stats().lanes[DETACH.index()];
    assert_eq!(detach.unfinished, 3 * SECOND);
    assert_eq!(detach.longest_running, Some(2 * SECOND));
    drop((long, short, retry));
}

#[tokio::test(start_paused = true)]
async fn a_key_is_pending_from_the_first_add_after_done() {
    let queue = queue();
    let begin = Instant::now();
    queue.add(item("a", 1));
    advance(SECOND).await;
    queue.add(item("a", 2));
    fail(&queue);
    advance(SECOND).await;
    queue.add(item("a", 3));
    let run = take(&queue).unwrap();
    assert_eq!(run.pending_since, begin);
    queue.add(item("a", 4));
    advance(SECOND).await;
    run.finish(RunResult::Done);
    assert_eq!(take(&queue).unwrap().pending_since, begin + 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn held_keys_are_listed_in_the_order_of_their_times() {
    let queue = queue();
    let begin = Instant::now();
    queue.add(item("failed", 1).in_group("node"));
    fail(&queue);
    queue.add(item("asked", 1));
    take(&queue).unwrap().finish(RunResult::RequeueAfter(3 * SECOND));
    let held = [("failed", begin + SECOND), ("asked", begin + 3 * SECOND)];
    assert_eq!(queue.held(), held);
    assert_eq!((queue.failures(&"failed"), queue.failures(&"asked")), (1, 0));
    let held = &queue.stats().lanes[ATTACH.index()];
    assert_eq!((held.held, held.failing), (2, 1));
    assert_eq!(held.oldest_pending.as_ref().map(|(_, since)| *since), Some(begin));
}

#[tokio::test(start_paused = true)]
async fn stats_say_what_keeps_ready_keys_from_running() {
    let queue = limited(limits([3, 0, 0], 1, 0));
    for key in ["b1", "b2"] {
        queue.add(item(key, 0).in_group("busy"));
    }
    let running = take(&queue).unwrap();
    let start = Instant::now();
    advance(SECOND).await;
    let runs = ["x", "y"].map(|key| {
        queue.add(item(key, 0).in_group(key));
        take(&queue).unwrap()
    });
    queue.add(item("z", 0).in_group("z"));
    let lane = queue.stats().lanes.swap_remove(ATTACH.index());
    assert_eq!((lane.ready, lane.blocked), (2, 1));
    assert_eq!(lane.oldest_blocked, Some(("busy".into(), start)));
    assert_eq!(lane.oldest_unblocked_since, Some(start + SECOND));
    assert_eq!(lane.oldest_ready_since, Some(start));
    running.finish(RunResult::Done);
    let lane = queue.stats().lanes.swap_remove(ATTACH.index());
    assert_eq!((lane.blocked, lane.oldest_blocked), (0, None));
    assert_eq!(lane.oldest_unblocked_since, Some(start));
    drop(runs);
}
