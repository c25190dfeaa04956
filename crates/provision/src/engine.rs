//! The queue of a driver and the task that works it off, from the first handshake to the end of the driver.

use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

use crate::api::validated::{DriverConfig, Provisioning};
use crate::apiserver::Throttle;
use crate::attempt;
use crate::cache::Registration;
use crate::clock;
use crate::context::{DriverContext, SharedContext, provisioner_facts};
use crate::decide::DriverFacts;
use crate::deletion;
use crate::key::{ClaimCause, WorkKey};
use crate::lanes::{LANE_NAMES, limits};
use crate::lease::Term;
use crate::nodes::DriverNodes;
use crate::open_calls::OpenCalls;
use crate::queue::{Builder, Queue, QueueLimits};
use crate::runtime::fence::FencedClient;
use crate::runtime::queue_metrics::QueueMetrics;
use crate::runtime::queue_settings::{api_limit, backoff, failures_per_second};
use crate::runtime::secret_waits::SecretWaits;
use crate::runtime::{self, Start, runner};
use crate::schedule;
use crate::topology_waits::TopologyWaits;

/// How long the end of a role waits for markers that go.
const MARKERS_OFF_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether all keys were handed out.
const HANDED_OUT_INTERVAL: Duration = Duration::from_millis(20);

/// A queue at work. Dropped without [`runtime::Engine::drain`], as when the driver's task panics, its runs are cancelled: a second engine
/// for the same driver must not find the first one still calling.
pub struct Engine {
    work: Arc<DriverContext>,
    runner: AbortOnDropHandle<()>,
    /// That of the requests to the API server.
    api_limit: Throttle,
    open_calls: Arc<OpenCalls>,
    _registration: Registration,
}

impl Engine {
    /// Takes over the work of a driver; none when another engine already does.
    pub(crate) fn start(
        context: SharedContext,
        start: Start,
        settings: &Provisioning,
        open_calls: Arc<OpenCalls>,
    ) -> Option<Self> {
        let Start {
            name,
            config,
            facts,
            client,
            publisher,
        } = start;
        context.metrics.init_provisioning(&facts.name);
        let observer = QueueMetrics::new(facts.name.clone(), LANE_NAMES, &context.metrics);
        let queue = Builder::new(backoff(&settings.backoff))
            .limits(limits(settings))
            .failures_per_second(failures_per_second())
            .observer(Arc::new(observer))
            .build();
        let api_limit = Throttle::new(api_limit(&config.borrow()));
        // Where the API server asks this driver to wait, the others go on.
        let requests = context.requests.for_driver(facts.name.clone(), api_limit.clone());
        let context = SharedContext { requests, ..context };
        let work = Arc::new(DriverContext {
            driver: provisioner_facts(&facts),
            // Of the engine and not of the process: a late write of an engine that has ended must not meet a marker of the next one.
            identity: identity(&facts.name).into(),
            config_name: name,
            config,
            secrets: SecretWaits::new(queue.clone(), ClaimCause::Secret),
            topology: TopologyWaits::new(DriverNodes::new(facts.name.clone(), context.nodes.nodes().clone())),
            queue,
            publisher,
            stopping: false.into(),
            epoch: 0.into(),
            client: RwLock::new(client),
            facts,
            context,
        });
        let registration = work.context.store.register(work.clone())?;
        open_calls.hand_over(&work);
        work.enqueue_all(ClaimCause::Resync);
        let runner = AbortOnDropHandle::new(schedule::spawn(run_queue(work.clone())));
        Some(Self {
            work,
            runner,
            api_limit,
            open_calls,
            _registration: registration,
        })
    }

    /// The queue, for counts.
    pub fn queue(&self) -> &Queue<WorkKey> {
        &self.work.queue
    }
}

/// As external-provisioner has it: the start in milliseconds, a random number, the driver.
fn identity(driver: &str) -> String {
    let (started, random) = (clock::now().as_millisecond(), fastrand::u32(..));
    format!("{started}-{random}-{driver}")
}

impl runtime::Engine for Engine {
    fn facts(&self) -> &DriverFacts {
        &self.work.facts
    }

    fn term(&self) -> Option<Term> {
        self.work.client().term().cloned()
    }

    fn pause(&self) {
        self.work.queue.pause();
    }

    fn resume(&self, client: FencedClient, restores: bool) {
        *self.work.client.write() = client;
        if restores {
            self.work.epoch.fetch_add(1, Ordering::Relaxed);
            self.work.queue.wake_all(ClaimCause::Retry.into());
        }
        self.work.queue.resume();
    }

    /// Calls that run keep their settings. What failed is tried at once: the change may be the cure.
    fn reconfigure(&self, config: &DriverConfig) {
        self.api_limit.set(api_limit(config));
        let Some(settings) = &config.provisioning else {
            // The task is about to be stopped.
            return;
        };
        self.work.queue.set_limits(limits(settings));
        self.work.queue.set_backoff(backoff(&settings.backoff));
        self.work.epoch.fetch_add(1, Ordering::Relaxed);
        self.work.queue.wake_all(ClaimCause::Config.into());
        // Nothing is remembered of claims that were looked at while the role was off.
        self.work.enqueue_all(ClaimCause::Config);
    }

    async fn doubts_admission(&self) {
        std::future::pending::<()>().await;
    }

    fn is_admitted_otherwise(&self, _: &DriverConfig) -> bool {
        false
    }

    /// Calls in flight end and are recorded, without waiting for the driver's own limit of requests: there is a deadline for this.
    ///
    /// Before that, every claim has its turn once more, without a call: the markers that no open call needs go. Whether the role ends for
    /// good is not known here: the section may be removed, or the process be the last one of the operator. For the next leader a claim
    /// without a marker is one less that it has to call for. It waits for that no longer than [`MARKERS_OFF_WITHIN`], and what arrives
    /// late is refused, as its own marker is another one. Who lost the Lease writes nothing.
    async fn drain(self) {
        self.work.stopping.store(true, Ordering::Relaxed);
        self.api_limit.set(None);
        if self.work.client().may_start() {
            run_all_once(&self.work.queue).await;
        }
        self.work.queue.close();
        if let Err(error) = self.runner.await {
            tracing::error!(driver = &*self.work.facts.name, %error, "the driver's runner ended badly");
        }
        self.open_calls.keep(&self.work);
    }

    fn drained(&self) -> impl Future<Output = ()> + Send + 'static {
        let queue = self.work.queue.clone();
        async move { queue.drained().await }
    }

    fn end_pending(&self) -> Box<dyn FnOnce() + Send> {
        Box::new(|| {})
    }
}

/// Hands out every key that waits, whatever it waits for, and returns when that is done or takes too long.
async fn run_all_once(queue: &Queue<WorkKey>) {
    // None of these runs makes a call, and none of them waits for one.
    queue.set_limits(QueueLimits::default());
    queue.wake_all(ClaimCause::Resync.into());
    queue.resume();
    let handed_out = async {
        while queue.stats().lanes.iter().any(|lane| lane.ready > 0) {
            tokio::time::sleep(HANDED_OUT_INTERVAL).await;
        }
    };
    if tokio::time::timeout(MARKERS_OFF_WITHIN, handed_out).await.is_err() {
        tracing::warn!("markers are left on PersistentVolumeClaims, as there was no time to take all of them off");
    }
}

/// Works the queue off, until it is closed and what ran has ended.
async fn run_queue(work: Arc<DriverContext>) {
    let queue = work.queue.clone();
    runner::run(queue, move |run| {
        let work = work.clone();
        async move {
            let result = match run.key() {
                WorkKey::Claim(key) => attempt::run(&work, &run, key).await,
                WorkKey::Volume(key) => deletion::run(&work, &run, key).await,
            };
            work.publisher.attempt_ended();
            result
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ClaimKey;
    use crate::lanes::CREATE;
    use crate::queue::{Backoff, Item, LaneLimits, RunResult};
    use parking_lot::Mutex;

    /// Held keys, those of a paused queue, and those above the limits have their turn; and the end of the role waits for none of them long.
    #[tokio::test(start_paused = true)]
    async fn every_key_that_waits_runs_once_more_before_the_end() {
        let one = LaneLimits {
            max_running: 1,
            rate_limited: true,
        };
        let limits = QueueLimits {
            lanes: vec![one],
            per_group: 1,
            ..QueueLimits::default()
        };
        let queue: Queue<WorkKey> = Builder::new(Backoff::default()).limits(limits).build();
        let runs = Arc::new(Mutex::new(Vec::new()));
        let (seen, ends) = (runs.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let is_ending = ends.clone();
        let runner = schedule::spawn(runner::run(queue.clone(), move |run| {
            let WorkKey::Claim(key) = run.key() else {
                panic!("no claim")
            };
            seen.lock().push(key.uid.clone());
            let uid = key.uid.clone();
            let is_ending = is_ending.load(Ordering::Relaxed);
            async move {
                if is_ending {
                    return RunResult::Done;
                }
                if uid.as_ref() == "calls" {
                    std::future::pending::<()>().await;
                }
                RunResult::RequeueAfter(Duration::from_mins(10))
            }
        }));
        let add = |uid: &str| {
            let key = WorkKey::Claim(ClaimKey {
                uid: uid.into(),
                name: "web/data".into(),
            });
            queue.add(Item::new(key, CREATE, 0).in_group("fast"));
        };
        add("held");
        tokio::time::sleep(Duration::from_secs(1)).await;
        add("calls");
        tokio::time::sleep(Duration::from_secs(1)).await;
        add("waits");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(runs.lock().len(), 2);
        queue.pause();
        ends.store(true, Ordering::Relaxed);
        let started = tokio::time::Instant::now();
        run_all_once(&queue).await;
        queue.close();
        assert!(started.elapsed() < MARKERS_OFF_WITHIN);
        let mut ended = runs.lock().split_off(2);
        ended.sort();
        assert_eq!(ended, [Arc::<str>::from("held"), Arc::<str>::from("waits")]);
        runner.abort();
    }
}
