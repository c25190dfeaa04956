use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};

use super::runner::{RUNS_IN_A_ROW, run};
use crate::queue::{Backoff, Builder, Item, Lane, LaneLimits, Observer, Queue, QueueLimits, Run, RunResult};

const ATTACH: Lane = Lane::new(0);
const DETACH: Lane = Lane::new(1);
const SECOND: Duration = Duration::from_secs(1);

/// One second, doubled up to a minute, without jitter.
fn plain_backoff() -> Backoff {
    Backoff::new(SECOND, 60 * SECOND, 2.0, 0).unwrap()
}

fn queue() -> Queue<&'static str> {
    Queue::new(plain_backoff())
}

/// How many runs of the attach and the detach lane there may be at a time.
fn limits(attach: usize, detach: usize) -> QueueLimits {
    let lane = |max_running| LaneLimits {
        max_running,
        rate_limited: false,
    };
    QueueLimits {
        lanes: vec![lane(attach), lane(detach)],
        ..QueueLimits::default()
    }
}

/// An item of the attach lane.
fn item(key: &'static str) -> Item<&'static str> {
    Item::new(key, ATTACH, 0)
}

#[derive(Default)]
struct Panics(Mutex<Vec<String>>);

impl Observer for Panics {
    fn panicked(&self, lane: Lane, key: &dyn Debug, message: &str) {
        self.0.lock().push(format!("{} {key:?} {message}", lane.index()));
    }
}

/// Starts a runner whose handler tells each run and answers with what `verdict` makes of it.
fn start<F, V>(queue: &Queue<&'static str>, verdict: F) -> (mpsc::UnboundedReceiver<Run<&'static str>>, Runner)
where
    F: Fn(Run<&'static str>) -> V + Send + Sync + 'static,
    V: Future<Output = RunResult> + Send + 'static,
{
    let (tell, told) = mpsc::unbounded_channel();
    let runner = tokio::spawn(run(queue.clone(), move |view: Run<&'static str>| {
        tell.send(view.clone()).unwrap();
        verdict(view)
    }));
    (told, runner)
}

type Runner = tokio::task::JoinHandle<()>;

#[tokio::test(start_paused = true)]
async fn runs_every_key_and_ends_when_closed_and_drained() {
    let queue = queue();
    let (mut told, runner) = start(&queue, |_| async {
        tokio::time::sleep(SECOND).await;
        RunResult::Done
    });
    let begin = Instant::now();
    for key in ["a", "b"] {
        queue.add(item(key));
    }
    assert_eq!(told.recv().await.unwrap().key, "a");
    assert_eq!(told.recv().await.unwrap().key, "b");
    queue.close();
    runner.await.unwrap();
    assert_eq!(begin.elapsed(), SECOND, "both ran at once and both were waited for");
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_is_retried_and_others_go_on() {
    let queue = queue();
    let (mut told, _runner) = start(&queue, |view| async move {
        if view.key == "bad" && view.attempt() < 4 {
            RunResult::Failed
        } else {
            RunResult::Done
        }
    });
    queue.add(item("bad"));
    queue.add(item("good"));
    let mut seen = Vec::new();
    for _ in 0..5 {
        let view = told.recv().await.unwrap();
        seen.push((view.key, view.attempt()));
    }
    assert_eq!(seen, [("bad", 1), ("good", 1), ("bad", 2), ("bad", 3), ("bad", 4)]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_its_key_and_nothing_else() {
    let panics = Arc::new(Panics::default());
    let queue = Builder {
        observer: panics.clone(),
        ..Builder::new(plain_backoff())
    }
    .build();
    let (mut told, runner) = start(&queue, |view| {
        assert!(view.key != "early" || view.attempt() > 1, "before the future");
        async move {
            assert!(
                view.key != "late" || view.attempt() > 1,
                "{}",
                String::from("inside of the future")
            );
            RunResult::Done
        }
    });
    for key in ["early", "late", "good"] {
        queue.add(item(key));
    }
    let mut attempts = HashMap::new();
    for _ in 0..5 {
        let view = timeout(5 * SECOND, told.recv()).await.unwrap().unwrap();
        attempts.insert(view.key, view.attempt());
    }
    assert_eq!(attempts, HashMap::from([("early", 2), ("late", 2), ("good", 1)]));
    queue.close();
    runner.await.unwrap();
    let mut panics = panics.0.lock().clone();
    panics.sort();
    assert_eq!(
        panics,
        ["0 \"early\" before the future", "0 \"late\" inside of the future"]
    );
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_never_ends_uses_only_its_own_slot() {
    let queue = Builder {
        limits: limits(2, 1),
        ..Builder::new(plain_backoff())
    }
    .build();
    let (mut told, runner) = start(&queue, |view| async move {
        if view.key == "stuck" {
            std::future::pending::<()>().await;
        }
        RunResult::Done
    });
    queue.add(item("stuck"));
    for key in ["a", "b", "c"] {
        queue.add(item(key));
    }
    queue.add(Item::new("d", DETACH, 0));
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(told.recv().await.unwrap().key);
    }
    seen.sort_unstable();
    assert_eq!(seen, ["a", "b", "c", "d", "stuck"]);
    let stats = queue.stats();
    assert_eq!(stats.lanes[ATTACH.index()].running, 1);

    // Cancelling the runner gives the key back as failed.
    runner.abort();
    assert!(runner.await.unwrap_err().is_cancelled());
    timeout(SECOND, queue.drained()).await.unwrap();
    assert_eq!(queue.failures(&"stuck"), 1);
    assert!(queue.is_held(&"stuck"));
}

#[tokio::test(start_paused = true)]
async fn the_lane_limit_bounds_the_tasks() {
    let queue = Builder {
        limits: limits(3, 0),
        ..Builder::new(plain_backoff())
    }
    .build();
    let most = Arc::new(Mutex::new((0_usize, 0_usize)));
    let counted = Arc::clone(&most);
    let (mut told, _runner) = start(&queue, move |_| {
        let counted = Arc::clone(&counted);
        async move {
            {
                let mut count = counted.lock();
                count.0 += 1;
                count.1 = count.1.max(count.0);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            counted.lock().0 -= 1;
            RunResult::Done
        }
    });
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        queue.add(item(key));
    }
    for _ in 0..8 {
        told.recv().await.unwrap();
    }
    queue.close();
    queue.drained().await;
    assert_eq!(most.lock().1, 3);
}

/// The watches of all drivers share the runtime with the runs of this one.
#[tokio::test]
async fn other_tasks_have_their_turn_while_many_runs_begin() {
    const MOST: usize = 2 * RUNS_IN_A_ROW;
    let queue = Queue::new(plain_backoff());
    for key in 0..1000 {
        queue.add(Item::new(Arc::<str>::from(key.to_string()), ATTACH, 0));
    }
    let (begun, begins) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (count, tell) = (begun.clone(), begins.clone());
    let runner = tokio::spawn(run(queue.clone(), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        tell.notify_one();
        async { RunResult::Done }
    }));
    // A task of its own: what a test's runtime waits for has its turn after 61 others.
    let other = tokio::spawn(async move {
        let (mut seen, mut longest) = (0, 0);
        while seen < 1000 {
            begins.notified().await;
            let now = begun.load(Ordering::Relaxed);
            longest = longest.max(now - seen);
            seen = now;
        }
        longest
    });
    let longest = other.await.unwrap();
    queue.close();
    runner.await.unwrap();
    assert!(longest <= MOST, "{longest} runs began while another task waited");
}
