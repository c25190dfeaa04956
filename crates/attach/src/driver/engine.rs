//! The queue of a driver and the task that works it off, from the first handshake to the end of the driver.

use parking_lot::RwLock;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use super::attempt;
use super::attempt::failure_writes::FailureWriteLimiter;
use super::attempt::in_flight::InFlightCalls;
use super::capability::is_confirmed_otherwise;
use super::context::DriverContext;
use super::secret_waiters::SecretWaits;
use super::shared_context::SharedContext;
use super::{reconcile_sync, release};
use crate::api::validated::DriverConfig;
use crate::apiserver::Throttle;
use crate::cache::{AttacherKey, EnqueueCause, LANE_NAMES, Registration, Route, RouteConflict};
use crate::decide::DriverFacts;
use crate::lease::Term;
use crate::objects::SecretReference;
use crate::queue::{Builder, LaneLimits, Queue, QueueLimits};
use crate::schedule;
use crate::traces::LifecycleTraces;
use csi_attacher_runtime::fence::FencedClient;
use csi_attacher_runtime::queue_metrics::QueueMetrics;
use csi_attacher_runtime::queue_settings::{api_limit, backoff, failures_per_second};
use csi_attacher_runtime::{DriverStateSender, runner};

/// How many volumes of one driver are released at once.
const RELEASES_AT_ONCE: usize = 100;

/// A queue at work. Dropped without [`Engine::drain`], as when the driver's task panics, its runs are cancelled: a second
/// engine for the same driver must not find the first one still calling.
pub struct Engine {
    work: Arc<DriverContext>,
    runner: AbortOnDropHandle<()>,
    reconciler: Option<AbortOnDropHandle<()>>,
    /// Takes back what a former engine left.
    _undo: AbortOnDropHandle<()>,
    /// That of the requests to the API server.
    api_limit: Throttle,
    _registration: Registration,
}

impl Engine {
    /// Takes over the work of a driver; refused when another one already does.
    pub(super) fn start(
        context: SharedContext,
        config: watch::Receiver<Arc<DriverConfig>>,
        config_name: Arc<str>,
        facts: DriverFacts,
        client: FencedClient,
        publisher: DriverStateSender,
    ) -> Result<Self, RouteConflict> {
        let facts = Arc::new(facts);
        let settings = config.borrow().clone();
        let observer = QueueMetrics::new(facts.name.clone(), LANE_NAMES, &context.metrics);
        let queue = Builder::new(backoff(&settings.backoff))
            .limits(limits(&settings, &facts))
            .failures_per_second(failures_per_second())
            .observer(Arc::new(observer))
            .build();
        let secrets = Arc::new(SecretWaits::new(queue.clone(), publisher.clone()));
        let (tracer, metrics) = (context.tracer.clone(), context.metrics.clone());
        let lifecycles = LifecycleTraces::new(facts.clone(), queue.clone(), tracer, metrics, config.clone());
        let (pending, waiting) = (lifecycles.clone(), secrets.clone());
        let route = Route {
            settled: Arc::new(move |attachment, rest, ended| {
                if ended.secret.is_some() {
                    waiting.waits.ended();
                }
                pending.end_settled(attachment, rest, ended.lifecycle);
            }),
            facts: facts.clone(),
            config: config_name.clone(),
            queue: queue.clone(),
        };
        let registration = context.store.register(route)?;
        context.metrics.init_driver(&facts.name);
        let api_limit = Throttle::new(api_limit(&settings));
        // Where the API server asks this driver to wait, the others go on.
        let requests = context.requests.for_driver(facts.name.clone(), api_limit.clone());
        let context = SharedContext { requests, ..context };
        let client = RwLock::new(client);
        let work = Arc::new(DriverContext {
            context,
            facts,
            config_name,
            config,
            queue,
            publisher,
            live_release: tokio::sync::Mutex::default(),
            in_flight: InFlightCalls::default(),
            secrets,
            failures: FailureWriteLimiter::new(tokio::time::Instant::now()),
            lifecycles,
            capability_missed: Notify::new(),
            client,
        });
        let undo = AbortOnDropHandle::new(schedule::spawn(attempt::resume_unfinished(work.clone())));
        let runner = AbortOnDropHandle::new(schedule::spawn(run_queue(work.clone())));
        let able = work.facts.capabilities;
        let lists = able.publish_unpublish && able.list_volumes && able.list_volumes_published_nodes;
        let reconciler = lists.then(|| AbortOnDropHandle::new(schedule::spawn(reconcile_sync::run(work.clone()))));
        Ok(Self {
            work,
            runner,
            reconciler,
            _undo: undo,
            api_limit,
            _registration: registration,
        })
    }

    /// The queue, for counts.
    pub fn queue(&self) -> &Queue<AttacherKey> {
        &self.work.queue
    }

    /// What its runs work with.
    #[cfg(test)]
    pub(super) fn work(&self) -> &Arc<DriverContext> {
        &self.work
    }
}

impl csi_attacher_runtime::Engine for Engine {
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
            self.work.queue.wake_all(EnqueueCause::Retry.into());
        }
        self.work.queue.resume();
    }

    /// Calls that run keep their settings. What failed is tried at once: the change may be the cure.
    fn reconfigure(&self, config: &DriverConfig) {
        self.work.queue.set_limits(limits(config, &self.work.facts));
        self.work.queue.set_backoff(backoff(&config.backoff));
        self.api_limit.set(api_limit(config));
        let is_allowed = |secret: &SecretReference| config.publish_secrets.allows(&secret.namespace, &secret.name);
        self.work.secrets.waits.keep_allowed(is_allowed);
        self.work.queue.wake_all(EnqueueCause::Config.into());
    }

    /// Resolves when the driver, which has no calls, is found to have published something before.
    async fn doubts_admission(&self) {
        self.work.capability_missed.notified().await;
    }

    fn is_admitted_otherwise(&self, config: &DriverConfig) -> bool {
        is_confirmed_otherwise(&self.work.facts, config)
    }

    /// The results of runs in flight are written as ever, without waiting for the driver's own limit of requests: there is a deadline
    /// for this, and what is in flight is bounded.
    async fn drain(self) {
        drop(self.reconciler);
        self.work.queue.close();
        self.api_limit.set(None);
        if let Err(error) = self.runner.await {
            tracing::error!(driver = &*self.work.facts.name, %error, "the driver's runner ended badly");
        }
    }

    fn drained(&self) -> impl Future<Output = ()> + Send + 'static {
        let queue = self.work.queue.clone();
        async move { queue.drained().await }
    }

    /// The traces of what is pending end.
    fn end_pending(&self) -> Box<dyn FnOnce() + Send> {
        let lifecycles = self.work.lifecycles.clone();
        Box::new(move || lifecycles.end_all())
    }
}

/// Works the queue off, until it is closed and what ran has ended.
async fn run_queue(work: Arc<DriverContext>) {
    let queue = work.queue.clone();
    runner::run(queue, move |run| {
        let work = work.clone();
        async move {
            let verdict = match run.key().clone() {
                AttacherKey::Attachment(name) => attempt::run(&work, &run, &name).await,
                AttacherKey::Volume(name) => release::run(&work, &run, &name).await,
            };
            work.publisher.attempt_ended();
            verdict
        }
    })
    .await;
}

/// The limits of the queue, from the settings of a driver.
///
/// A run keeps its slot until its end: the call together with the writes before and after it. What waits for something
/// else, as for a backoff, for another node to let go of the volume or for a call to the same volume and node, is no run.
pub(super) fn limits(config: &DriverConfig, facts: &DriverFacts) -> QueueLimits {
    let limits = &config.concurrency;
    let lane = |max: Option<NonZeroUsize>| LaneLimits {
        max_running: max.map_or(0, NonZeroUsize::get),
        // A driver that is served without calls has no calls to be limited.
        rate_limited: facts.capabilities.publish_unpublish,
    };
    QueueLimits {
        // The order of the lanes is that of `cache::{ATTACH, DETACH, VOLUME}`. Releasing volumes calls no driver; its
        // bound only keeps a burst from flooding the API server.
        lanes: vec![
            lane(limits.attach),
            lane(limits.detach),
            LaneLimits {
                max_running: RELEASES_AT_ONCE,
                rate_limited: false,
            },
        ],
        per_group: limits.per_node.map_or(0, NonZeroUsize::get),
        max_running: limits.total.map_or(0, NonZeroUsize::get),
        starts_per_second: limits.calls_per_second.map_or(0, NonZeroU32::get).into(),
    }
}
