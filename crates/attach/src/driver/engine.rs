//! What attaching does for one driver, from the first handshake to the end of the driver.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::attempt::failure_writes::FailureWriteLimiter;
use super::attempt::in_flight::InFlightCalls;
use super::capability::{is_confirmed_otherwise, may_need_attach};
use super::context::{DriverContext, SharedContext};
use super::reconcile_sync::turns::ListTurns;
use super::secret_waiters::SecretWaits;
use super::{attempt, reconcile_sync, release};
use crate::api::validated::DriverConfig;
use crate::cache::{AttacherKey, EnqueueCause, LANE_NAMES, Registration, Route, RouteConflict};
use crate::decide::DriverFacts;
use crate::objects::SecretReference;
use crate::queue::{Backoff, LaneLimits, QueueLimits, Run, RunResult};
use crate::schedule;
use crate::traces::LifecycleTraces;
use csi_attacher_runtime::connect::handshake::CSI_DRIVER_PAUSE;
use csi_attacher_runtime::queue_metrics::LaneNames;
use csi_attacher_runtime::{Start, Work, Workplace, backoff};

/// How many volumes of one driver are released at once.
const RELEASES_AT_ONCE: usize = 100;

pub(super) type Engine = csi_attacher_runtime::Engine<DriverContext>;

/// What ends with an engine.
pub struct Guards {
    reconciler: Option<AbortOnDropHandle<()>>,
    /// Takes back what a former engine left.
    _undo: AbortOnDropHandle<()>,
    _registration: Registration,
}

/// Takes over the work of a driver; refused when another one already does.
pub(super) fn start(context: SharedContext, start: Start) -> Result<Engine, RouteConflict> {
    let place = Workplace::new::<DriverContext>(start, &context.metrics);
    let (facts, queue) = (place.facts.clone(), place.queue.clone());
    let secrets = Arc::new(SecretWaits::new(queue.clone(), place.status.clone()));
    let (tracer, metrics) = (context.tracer.clone(), context.metrics.clone());
    let lifecycles = LifecycleTraces::new(facts.clone(), queue.clone(), tracer, metrics, place.config.clone());
    let (pending, waiting) = (lifecycles.clone(), secrets.clone());
    let route = Route {
        settled: Arc::new(move |attachment, rest, ended| {
            if ended.secret.is_some() {
                waiting.waits.ended();
            }
            pending.end_settled(attachment, rest, ended.lifecycle);
        }),
        facts: facts.clone(),
        config: place.config_name.clone(),
        queue,
    };
    let registration = context.store.register(route)?;
    context.attempts.hand_over(&facts.name, &place.queue, &context.store);
    context.metrics.init_driver(&facts.name);
    let requests = place.requests(context.requests);
    let work = Arc::new(DriverContext {
        place,
        context: SharedContext { requests, ..context },
        live_release: tokio::sync::Mutex::default(),
        in_flight: InFlightCalls::default(),
        list_turns: ListTurns::default(),
        secrets,
        failures: FailureWriteLimiter::new(tokio::time::Instant::now()),
        lifecycles,
        capability_missed: Notify::new(),
    });
    let undo = AbortOnDropHandle::new(schedule::spawn(attempt::resume_unfinished(work.clone())));
    let guards = Guards {
        reconciler: None,
        _undo: undo,
        _registration: registration,
    };
    let mut engine = Engine::start(work.clone(), guards);
    if facts.capabilities.allow_comparisons() {
        let reconciler = schedule::spawn(reconcile_sync::run(work));
        engine.guards.reconciler = Some(AbortOnDropHandle::new(reconciler));
    } else {
        // The driver may have been able to list before.
        work.status.reconcile_result(None);
    }
    Ok(engine)
}

impl Work for DriverContext {
    type Key = AttacherKey;
    type Guards = Guards;

    const LANE_NAMES: LaneNames = LANE_NAMES;

    fn limits(config: &DriverConfig, facts: &DriverFacts) -> Option<(QueueLimits, Backoff)> {
        Some((limits(config, facts), backoff(&config.backoff)))
    }

    async fn run(&self, run: &Run<AttacherKey>) -> RunResult {
        match run.key.clone() {
            AttacherKey::Attachment(name) => attempt::run(self, run, &name).await,
            AttacherKey::Volume(name) => release::run(self, run, &name).await,
        }
    }

    fn resume(&self, restores: bool) {
        if restores {
            self.queue.wake_all(EnqueueCause::Retry.into());
        }
    }

    fn reconfigured(&self, config: &DriverConfig) {
        let is_allowed = |secret: &SecretReference| config.publish_secrets.allows(&secret.namespace, &secret.name);
        self.secrets.waits.keep_allowed(is_allowed);
        self.queue.wake_all(EnqueueCause::Config.into());
    }

    /// Resolves when the driver, which has no calls, is found to have published something before, or may need attaches after all.
    async fn doubts_admission(&self) {
        tokio::select! {
            () = self.capability_missed.notified() => {}
            () = may_need_attach(&self.context, &self.facts, CSI_DRIVER_PAUSE) => {}
        }
    }

    fn is_admitted_otherwise(&self, config: &DriverConfig) -> bool {
        is_confirmed_otherwise(&self.facts, config, || self.context.store.marks(&self.facts))
    }

    async fn finish(&self, guards: &mut Guards) {
        guards.reconciler = None;
    }

    fn finished(&self) {
        self.context.attempts.keep(&self.facts.name, &self.queue);
    }

    /// The traces of what is pending end, and the numbers of its attempts.
    fn end_pending(&self) -> Box<dyn FnOnce() + Send> {
        let (lifecycles, attempts) = (self.lifecycles.clone(), self.context.attempts.clone());
        let driver = self.facts.name.clone();
        Box::new(move || {
            lifecycles.end_all();
            attempts.forget(&driver);
        })
    }
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
