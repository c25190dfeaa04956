use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::super::{Backoff, Builder, CauseCode, Item, Lane, LaneLimits, Queue, QueueLimits, RunResult, Ticket};

const KEYS: usize = 64;
const PRODUCERS: usize = 8;
const CONSUMERS: usize = 8;
const ADDS: usize = 1_500;
const LANE_LIMIT: usize = 3;
const GROUP_LIMIT: usize = 2;

/// What the tasks check each other with.
#[derive(Default)]
struct World {
    /// The newest fingerprint that was added, for each key. Held while adding, so that adds and fingerprints agree in order.
    newest: Vec<parking_lot::Mutex<u64>>,
    /// The newest fingerprint that was settled.
    settled: Vec<AtomicU64>,
    running: Vec<AtomicBool>,
    in_lane: [AtomicUsize; 3],
    in_group: [AtomicUsize; 8],
    producing: AtomicUsize,
    progress: Notify,
}

impl World {
    fn new() -> Self {
        Self {
            newest: (0..KEYS).map(|_| parking_lot::Mutex::default()).collect(),
            settled: (0..KEYS).map(|_| AtomicU64::default()).collect(),
            running: (0..KEYS).map(|_| AtomicBool::default()).collect(),
            producing: AtomicUsize::new(PRODUCERS),
            ..Self::default()
        }
    }

    fn all_settled(&self) -> bool {
        self.producing.load(Ordering::SeqCst) == 0
            && (0..KEYS).all(|key| self.settled[key].load(Ordering::SeqCst) == *self.newest[key].lock())
    }
}

async fn produce(world: Arc<World>, queue: Queue<usize>, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..ADDS {
        let key = rng.usize(0..KEYS);
        {
            let mut newest = world.newest[key].lock();
            *newest += 1;
            let item = Item::new(key, Lane::new(rng.u8(0..3)), *newest).in_group(format!("group-{}", key % 8));
            queue.add(item);
        }
        match rng.u8(0..16) {
            0 => drop(queue.wake(&key, CauseCode::default())),
            1 => drop(queue.wake_all(CauseCode::default())),
            2..8 => tokio::task::yield_now().await,
            _ => {}
        }
    }
    world.producing.fetch_sub(1, Ordering::SeqCst);
    world.progress.notify_one();
}

async fn work(world: &World, ticket: Ticket<usize>, rng: &mut fastrand::Rng) {
    let (key, lane) = (ticket.key, ticket.lane.index());
    let was_running = world.running[key].swap(true, Ordering::SeqCst);
    assert!(!was_running, "two runs of key {key}");
    let in_lane = world.in_lane[lane].fetch_add(1, Ordering::SeqCst);
    assert!(in_lane < LANE_LIMIT, "too many runs in lane {lane}");
    let in_group = world.in_group[key % 8].fetch_add(1, Ordering::SeqCst);
    assert!(in_group < GROUP_LIMIT, "too many runs of one group");
    tokio::task::yield_now().await;
    world.in_group[key % 8].fetch_sub(1, Ordering::SeqCst);
    world.in_lane[lane].fetch_sub(1, Ordering::SeqCst);
    world.running[key].store(false, Ordering::SeqCst);
    let fingerprint = ticket.fingerprint;
    match rng.u8(0..8) {
        0 => ticket.finish(RunResult::Failed),
        1 => ticket.finish(RunResult::Requeue),
        2 => ticket.finish(RunResult::RequeueAfter(Duration::from_millis(1))),
        3 => drop(ticket),
        _ => {
            world.settled[key].store(fingerprint, Ordering::SeqCst);
            ticket.finish(RunResult::Done);
            world.progress.notify_one();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_tasks_lose_no_key_and_pass_no_limit() {
    let lane = LaneLimits {
        max_running: LANE_LIMIT,
        // `per_group` is for these.
        rate_limited: true,
    };
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(2), 2.0, 10).unwrap();
    let limits = QueueLimits {
        lanes: vec![lane; 3],
        per_group: GROUP_LIMIT,
        ..QueueLimits::default()
    };
    let queue = Builder {
        limits,
        ..Builder::new(backoff)
    }
    .build();
    let world = Arc::new(World::new());
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..PRODUCERS as u64 {
        tasks.spawn(produce(Arc::clone(&world), queue.clone(), seed));
    }
    for seed in 0..CONSUMERS as u64 {
        let (world, queue) = (Arc::clone(&world), queue.clone());
        tasks.spawn(async move {
            let mut rng = fastrand::Rng::with_seed(1_000 + seed);
            while let Some(ticket) = queue.next().await {
                work(&world, ticket, &mut rng).await;
            }
        });
    }
    let finished = timeout(Duration::from_mins(1), async {
        while !world.all_settled() {
            world.progress.notified().await;
        }
    });
    finished.await.expect("every key settles with its newest inputs");
    queue.close();
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    queue.drained().await;
    assert!(queue.is_empty());
}
