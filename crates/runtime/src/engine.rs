//! What works for one driver, whatever the role: its queue, the task that works it off, and what its runs have in common.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::api::validated::{BackoffSettings, DriverConfig};
use crate::apiserver::{RateLimit, Requests, Throttle};
use crate::decide::DriverFacts;
use crate::fence::{FencedClient, OpenCalls};
use crate::lease::Term;
use crate::queue::{Backoff, Builder, Key, Queue, QueueLimits, Run, RunResult};
use crate::queue_metrics::{LaneNames, QueueMetrics};
use crate::role::Start;
use crate::runner;
use crate::schedule;
use crate::state::DriverStateSender;
use crate::telemetry::Metrics;

/// Failed attempts that one queue goes on with in a second, and as many that only wait. A backoff of milliseconds, or thousands of keys
/// that fail, would else take the processor from all other drivers. With the default backoff it takes 6,000 failing keys to reach it.
const FAILURES_PER_SECOND: u32 = 100;

/// How long a key is left alone after the Lease was lost. Its queue ends long before that.
pub const LEASE_LOST_REST: Duration = Duration::from_mins(1);

/// What the runs for one driver have in common, whatever the role.
pub struct Workplace<K: Key> {
    /// The driver, as it was admitted.
    pub facts: Arc<DriverFacts>,
    /// Name of the AttacherConfig.
    pub config_name: Arc<str>,
    /// The settings in use; each run reads them again.
    pub config: watch::Receiver<Arc<DriverConfig>>,
    /// What is to be worked on.
    pub queue: Queue<K>,
    /// Where the state goes.
    pub status: DriverStateSender,
    /// The settings that were taken into use last.
    settings: Mutex<Arc<DriverConfig>>,
    /// That of the requests to the API server.
    api_limit: Throttle,
    client: RwLock<FencedClient>,
}

impl<K: Key> Workplace<K> {
    /// With an empty queue.
    pub fn new<W: Work<Key = K>>(start: Start, metrics: &Metrics) -> Self {
        let Start {
            name,
            config,
            facts,
            client,
            status,
        } = start;
        let settings = config.borrow().clone();
        let observer = QueueMetrics::new(facts.name.clone(), W::LANE_NAMES, metrics);
        let (limits, backoff) = W::limits(&settings, &facts).unwrap_or_default();
        let queue = Builder {
            limits,
            failures_per_second: FAILURES_PER_SECOND.into(),
            observer: Arc::new(observer),
            ..Builder::new(backoff)
        };
        Self {
            facts: Arc::new(facts),
            config_name: name,
            config,
            queue: queue.build(),
            status,
            api_limit: Throttle::new(api_limit(&settings)),
            settings: Mutex::new(settings),
            client: RwLock::new(client),
        }
    }

    /// Requests for this driver: where the API server asks it to wait, the others go on.
    pub fn requests(&self, of_all: Requests) -> Requests {
        of_all.for_driver(self.facts.name.clone(), self.api_limit.clone())
    }

    /// The client for the connection that stands now.
    pub fn client(&self) -> FencedClient {
        self.client.read().clone()
    }
}

/// What a role does for one driver.
pub trait Work: Deref<Target = Workplace<Self::Key>> + Send + Sync + 'static {
    /// What is worked on.
    type Key: Key;
    /// What ends with the engine: its tasks beside the queue, its place in the cache.
    type Guards: Send + Sync + 'static;

    /// The queues of the sidecar that the lanes count for.
    const LANE_NAMES: LaneNames;

    /// The limits of the queue and the waits after failures; none where the settings do not ask for the role any more.
    fn limits(config: &DriverConfig, facts: &DriverFacts) -> Option<(QueueLimits, Backoff)>;

    /// Works on a key.
    fn run(&self, run: &Run<Self::Key>) -> impl Future<Output = RunResult> + Send;

    /// The connection is lost: no further calls are begun.
    fn pause(&self) {
        self.queue.pause();
    }

    /// There is a new connection. If it `restores` the driver, whatever failed before is tried at once: the cause may be gone with the old
    /// one.
    fn resume(&self, restores: bool);

    /// Settings have changed by which attempts go. What failed is to be tried at once: the change may be the cure.
    fn reconfigured(&self, config: &DriverConfig);

    /// Resolves when it met something for which [`Role::admit`](crate::Role::admit) has to be asked again.
    fn doubts_admission(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Whether these settings admit the driver otherwise than it was admitted.
    fn is_admitted_otherwise(&self, _config: &DriverConfig) -> bool {
        false
    }

    /// The last that is begun, before the queue is closed.
    fn finish(&self, _guards: &mut Self::Guards) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The engine has ended, however: also where the end of its calls could not be waited for, or its task panicked.
    fn finished(&self) {}

    /// What is to be done after the end when the AttacherConfig is gone: nobody goes on with what is pending.
    fn end_pending(&self) -> Box<dyn FnOnce() + Send> {
        Box::new(|| {})
    }
}

/// A queue at work. Dropped without [`Engine::drain`], as when the driver's task panics, its runs are cancelled: a second engine for the
/// same driver must not find the first one still calling.
pub struct Engine<W: Work> {
    work: Arc<W>,
    runner: AbortOnDropHandle<()>,
    /// What ends with it.
    pub guards: W::Guards,
}

impl<W: Work> Engine<W> {
    /// Works the queue off from now on.
    pub fn start(work: Arc<W>, guards: W::Guards) -> Self {
        let runner = AbortOnDropHandle::new(schedule::spawn(run_queue(work.clone())));
        Self { work, runner, guards }
    }

    /// What its runs work with.
    pub fn work(&self) -> &Arc<W> {
        &self.work
    }

    /// The queue, for counts.
    pub fn queue(&self) -> &Queue<W::Key> {
        &self.work.queue
    }

    /// What it works for.
    pub fn facts(&self) -> &DriverFacts {
        &self.work.facts
    }

    /// The term of the Lease in which it works; none when there is no election. What it knows of the objects is good for this term only.
    pub fn term(&self) -> Option<Term> {
        self.work.client().term().cloned()
    }

    /// As [`Work::pause`]. Tells which calls are open yet.
    pub fn pause(&self) -> OpenCalls {
        self.work.pause();
        self.work.client().open_calls()
    }

    /// Goes on over a new connection, in the same term; as [`Work::resume`].
    pub fn resume(&self, client: FencedClient, restores: bool) {
        let client = client.following(&self.work.client());
        *self.work.client.write() = client;
        self.work.resume(restores);
        self.work.queue.resume();
    }

    /// Takes settings into use, as far as they have changed. Calls that run keep theirs.
    pub fn reconfigure(&self, config: &Arc<DriverConfig>) {
        let former = std::mem::replace(&mut *self.work.settings.lock(), config.clone());
        if *config == former {
            return;
        }
        self.work.api_limit.set(api_limit(config));
        let Some((limits, backoff)) = W::limits(config, &self.work.facts) else {
            // The task is about to be stopped.
            return;
        };
        self.work.queue.set_limits(limits);
        self.work.queue.set_backoff(backoff);
        if config.may_cure(&former) {
            self.work.reconfigured(config);
        }
    }

    /// Starts no further runs and waits for those in flight. Their results are written as ever, without waiting for the driver's own limit
    /// of requests: there is a deadline for this, and what is in flight is bounded.
    pub async fn drain(mut self) {
        self.work.api_limit.set(None);
        self.work.finish(&mut self.guards).await;
        self.work.queue.close();
        if let Err(error) = (&mut self.runner).await {
            tracing::error!(driver = &*self.work.facts.name, %error, "the driver's runner ended badly");
        }
    }

    /// Resolves when no run is left, also when its [`Engine::drain`] was given up.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + use<W> {
        let queue = self.work.queue.clone();
        async move { queue.drained().await }
    }
}

impl<W: Work> Drop for Engine<W> {
    fn drop(&mut self) {
        // What runs yet is not to go on after it was written down.
        self.work.queue.close();
        self.runner.abort();
        self.work.finished();
    }
}

/// The limit of the requests to the API server for a driver; none when the settings have none.
fn api_limit(config: &DriverConfig) -> Option<RateLimit> {
    config.kubernetes_api.map(|limit| RateLimit {
        per_second: f64::from(limit.qps.get()),
        burst: limit.burst.get(),
    })
}

/// The waits after failures. Settings were validated when the AttacherConfig was read, so that the fall-backs here are never taken.
pub fn backoff(settings: &BackoffSettings) -> Backoff {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let jitter_percent = (settings.jitter * 100.0).round().clamp(0.0, 100.0) as u8;
    Backoff::new(settings.initial, settings.max, settings.factor, jitter_percent).unwrap_or_default()
}

/// Works the queue off, until it is closed and what ran has ended.
async fn run_queue<W: Work>(work: Arc<W>) {
    let queue = work.queue.clone();
    runner::run(queue, move |run| {
        let work = work.clone();
        async move {
            let result = work.run(&run).await;
            work.status.attempt_ended();
            result
        }
    })
    .await;
}
