//! An operator: the store and the engine of production, over the models.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::calls::ModelDriver;
use super::cluster::Kind;
use super::mutants::Mutant;
use super::scenario::Scenario;
use super::service;
use super::watches::watch as feed;
use super::world::{DRIVER, World};
use crate::admin::Health;
use crate::api::{AttacherConfigSpec, DriverConfig};
use crate::decide::{Capabilities, DriverFacts, PublishSecrets};
use crate::driver::engine::Engine;
use crate::driver::fence::FencedClient;
use crate::driver::status::Publisher;
use crate::driver::{Context, DriverStatus};
use crate::events::Events;
use crate::kubernetes::Requests;
use crate::objects::{CsiNodeWire, PersistentVolumeWire, VolumeAttachmentWire};
use crate::store::{Reflected, Store, follow_from_list};
use crate::telemetry::{Metrics, Tracer};

const CALL_DEADLINE: Duration = Duration::from_secs(5);
const REQUEST_DEADLINE: Duration = Duration::from_secs(4);
/// Longest wait after a failure, where failures are retried at all.
pub const LONGEST_WAIT: Duration = Duration::from_secs(8);

thread_local! {
    static METRICS: Metrics = Metrics::default();
}

/// Who a replica is, and whether its process has ended.
#[derive(Clone)]
pub struct Life {
    pub number: usize,
    name: Arc<str>,
    over: Arc<AtomicBool>,
}

impl Life {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// An operator with its own cache.
pub struct Replica {
    world: World,
    life: Life,
    mutant: Mutant,
    context: Context,
    breaker: watch::Sender<[usize; 3]>,
    settings: watch::Sender<Arc<DriverConfig>>,
    engine: Arc<Mutex<Option<Engine>>>,
    starter: Option<AbortOnDropHandle<()>>,
    _watches: [AbortOnDropHandle<()>; 3],
}

impl Replica {
    /// A process starts: it watches, and does nothing yet.
    pub fn start(world: &World, number: usize, mutant: Mutant) -> Self {
        let life = Life {
            number,
            name: format!("operator{number}").into(),
            over: Arc::default(),
        };
        let metrics = METRICS.with(Clone::clone);
        let store = Store::default();
        if let Some(ignores) = mutant.deaf {
            store.be_deaf(ignores);
        }
        let breaker = watch::Sender::new([0; 3]);
        let seed = world.with(|state| state.rng.u64(..u64::MAX / 2));
        let watches = [
            watches::<VolumeAttachmentWire>(world, Kind::Attachment, &breaker, &store, seed),
            watches::<PersistentVolumeWire>(world, Kind::Volume, &breaker, &store, seed + 1000),
            watches::<CsiNodeWire>(world, Kind::Node, &breaker, &store, seed + 2000),
        ];
        let context = Context {
            store,
            requests: Requests::new(
                service::client(world, &life),
                "model",
                REQUEST_DEADLINE,
                metrics.clone(),
            ),
            metrics,
            events: Events::disabled(),
            tracer: Tracer::disabled(),
            logs: crate::telemetry::DriverLogs::default(),
            config_trace: crate::driver::ConfigTrace::default(),
        };
        let settings = world.with(|state| settings(&state.scenario, &mutant));
        Self {
            world: world.clone(),
            life,
            mutant,
            context,
            breaker,
            settings: watch::Sender::new(Arc::new(settings)),
            engine: Arc::default(),
            starter: None,
            _watches: watches,
        }
    }

    fn driver(&self) -> Arc<ModelDriver> {
        Arc::new(ModelDriver {
            world: self.world.clone(),
            life: self.life.clone(),
            store: self.context.store.clone(),
            omits: self.mutant.omits,
        })
    }

    /// Takes up the work as soon as the watches have listed everything.
    pub fn lead(&mut self) {
        let (context, settings) = (self.context.clone(), self.settings.subscribe());
        let (driver, slot, world, life) = (
            self.driver(),
            self.engine.clone(),
            self.world.clone(),
            self.life.clone(),
        );
        let (rules, stale) = (self.mutant.rules, self.mutant.stale);
        self.starter = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            if stale {
                context.store.wait_synced().await;
            } else {
                context.store.listed_anew().await;
            }
            let capabilities = Capabilities {
                publish_unpublish: true,
                ..Capabilities::default()
            };
            let facts = DriverFacts::new(DRIVER, capabilities);
            let publisher = Publisher::new(watch::Sender::new(DriverStatus::new()));
            world.note(life.name(), || "takes up the work".to_owned());
            let client = FencedClient::new(driver, None);
            let started = Engine::start_by(rules, context, settings, "config".into(), facts, client, publisher);
            // The store is this replica's own, so that there is no other engine to be in conflict with.
            *slot.lock() = started.ok();
        })));
    }

    /// Finishes what runs and does nothing more.
    pub async fn drain(&mut self) {
        self.starter = None;
        let engine = self.engine.lock().take();
        if let Some(engine) = engine {
            engine.drain().await;
        }
    }

    /// The process ends at once; what it sent is on its way.
    pub fn die(self) {
        self.life.over.store(true, Ordering::Relaxed);
        self.world
            .with(|state| state.backend.open.retain(|(replica, _)| *replica != self.life.number));
    }

    /// The connection to the driver is lost and comes back after a while.
    pub async fn reconnect(&self, after: Duration) {
        if let Some(engine) = &*self.engine.lock() {
            engine.pause();
        }
        tokio::time::sleep(after).await;
        if let Some(engine) = &*self.engine.lock() {
            engine.resume(FencedClient::new(self.driver(), None));
        }
    }

    pub fn reconfigure(&self) {
        let settings = self.settings.borrow().clone();
        if let Some(engine) = &*self.engine.lock() {
            engine.reconfigure(&settings);
        }
    }

    pub fn break_watch(&self, number: usize) {
        self.breaker.send_modify(|breaks| breaks[number] += 1);
    }
}

fn watches<K: Reflected>(
    world: &World,
    kind: Kind,
    breaker: &watch::Sender<[usize; 3]>,
    store: &Store,
    seed: u64,
) -> AbortOnDropHandle<()> {
    let (world, breaker) = (world.clone(), breaker.subscribe());
    let mut lists = seed;
    let events = move || {
        lists += 1;
        feed::<K>(&world, kind, breaker.clone(), lists)
    };
    let check = Health::new().check("watch");
    AbortOnDropHandle::new(tokio::spawn(follow_from_list(events, store.clone(), check)))
}

fn settings(scenario: &Scenario, mutant: &Mutant) -> DriverConfig {
    let spec = AttacherConfigSpec::new("unix:///model");
    let mut settings = DriverConfig::try_from(&spec).expect("the defaults are valid");
    settings.publish_secrets = PublishSecrets::all_of(&["ns"]);
    settings.timeouts.publish = CALL_DEADLINE;
    settings.timeouts.unpublish = CALL_DEADLINE;
    (settings.backoff.initial, settings.backoff.max) = if mutant.restless {
        (Duration::from_millis(1), Duration::from_millis(1))
    } else if scenario.faultless {
        (Duration::from_hours(1), Duration::from_hours(1))
    } else {
        (Duration::from_millis(500), LONGEST_WAIT)
    };
    let limit = std::num::NonZeroUsize::new(scenario.concurrency);
    settings.concurrency.attach = limit;
    settings.concurrency.detach = limit;
    settings
}
