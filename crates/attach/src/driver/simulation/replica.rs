//! A process of the operator: store, driver tasks and candidates of production, over the models.

use futures::StreamExt as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::{AttachRole, SharedContext};
use super::calls::ModelDriver;
use super::cluster::Kind;
use super::connector::{Link, ModelConnector};
use super::invariants::NOT_HELD_BACK;
use super::mutants::{Flaw, Mutant, has_flaw};
use super::process::Process;
use super::scenario::{DRIVERS, Scenario};
use super::watches::watch as feed;
use super::world::{State, World};
use super::{leases, secrets, service};
use crate::api::validated::{PublishSecrets, SecretNames};
use crate::api::{AttacherConfigSpec, DriverConfig};
use crate::apiserver::{RequestSlots, Requests, SlotLimits};
use crate::cache::{Index, Store};
use crate::objects::{CsiNodeWire, PersistentVolumeWire, VolumeAttachmentWire};
use crate::reflect::{COMPARE_INTERVAL, CachedKind, Sink as _, WatchedKind, compare, follow_from_list, from_lists};
use crate::telemetry::Metrics;
use csi_attacher_base::health::Health;
use csi_attacher_kube::lease::{LeaderElectionConfig, LeaderElections, LeaseTimings};
use csi_attacher_runtime::reservation::Reservations;
use csi_attacher_runtime::{DriverStateSender, DriverTask};

const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// How long a process waits for an answer of the API server.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(4);
/// Longest wait after a failure, where failures are retried at all.
pub const LONGEST_WAIT: Duration = Duration::from_secs(8);
/// How long a process that is told to end may take, before it is killed.
const GRACE: Duration = Duration::from_secs(30);

thread_local! {
    static METRICS: Metrics = Metrics::default();
}

/// A process with its own cache, at work for all drivers.
pub struct Replica {
    world: World,
    pub process: Process,
    mutant: Mutant,
    breaker: watch::Sender<[usize; 3]>,
    served: Vec<Served>,
    stop: CancellationToken,
    _watches: [AbortOnDropHandle<()>; 3],
}

/// A driver that a process serves.
struct Served {
    settings: watch::Sender<Arc<DriverConfig>>,
    /// The namespace whose Lease is held as well.
    place: watch::Sender<usize>,
    link: Arc<Mutex<Link>>,
    task: AbortOnDropHandle<()>,
}

impl Replica {
    /// A process starts.
    pub fn start(world: &World, number: usize, mutant: Mutant) -> Self {
        let process = Process::new(world, number);
        let metrics = METRICS.with(Clone::clone);
        let store = Store::with_rules(mutant.cache_rules());
        let breaker = watch::Sender::new([0; 3]);
        let seed = world.with(|state| state.rng.u64(..u64::MAX / 2));
        let watched = Watched {
            world,
            process: &process,
            breaker: &breaker,
            store: &store,
        };
        let watches = [
            watched.kind::<VolumeAttachmentWire>(Kind::Attachment, seed),
            watched.kind::<PersistentVolumeWire>(Kind::Volume, seed + 1000),
            watched.kind::<CsiNodeWire>(Kind::Node, seed + 2000),
        ];
        let client = service::client(world, &process);
        let requests = Requests::new(client.clone(), "model", REQUEST_DEADLINE, metrics.clone());
        let requests = requests.with_slots(RequestSlots::new(SlotLimits::default()));
        let context = SharedContext {
            rules: mutant.rules.unwrap_or_default(),
            ..SharedContext::new(store.clone(), requests, metrics.clone())
        };
        let office = LeaderElections {
            clock: process.clock().source().into(),
            rules: mutant.lease_rules(),
            ..LeaderElections::new(client, process.name().to_owned())
        };
        let stop = CancellationToken::new();
        let reservations = Reservations::default();
        let (count, variant, place) = world.with(|state| (state.scenario.drivers, state.settings, state.place));
        let served = (0..count).map(|driver| {
            let settings = world.with(|state| settings(&state.scenario, &mutant, driver, variant));
            let settings = watch::Sender::new(Arc::new(settings));
            let moves = watch::Sender::new(place);
            let link = Arc::default();
            let model = ModelDriver {
                world: world.clone(),
                process: process.clone(),
                store: store.clone(),
                driver,
                place,
                omits: mutant.omits,
                resends: mutant.resends,
            };
            let parts = Parts {
                world: world.clone(),
                context: context.clone(),
                driver,
                settings: settings.subscribe(),
                reservations: reservations.clone(),
                office: office.clone(),
                connector: ModelConnector {
                    driver: Arc::new(model),
                    metrics: metrics.clone(),
                    link: Arc::clone(&link),
                },
            };
            let task = process.run(serve(parts, moves.subscribe(), stop.clone()));
            Served {
                settings,
                place: moves,
                link,
                task: AbortOnDropHandle::new(tokio::spawn(task)),
            }
        });
        Self {
            world: world.clone(),
            served: served.collect(),
            process,
            mutant,
            breaker,
            stop,
            _watches: watches,
        }
    }

    /// The process is told to end: it finishes what runs, and is killed when that takes too long.
    pub async fn end(mut self) {
        self.stop.cancel();
        let served = std::mem::take(&mut self.served);
        let ended = futures::future::join_all(served.into_iter().map(|served| served.task));
        if tokio::time::timeout(GRACE, ended).await.is_err() {
            self.world.note(self.process.name(), || "is killed".to_owned());
            // It does not live to take back what it would.
            self.world.with(|state| state.must_undo.clear());
        }
        self.die();
    }

    /// The process ends at once; what it sent is on its way.
    pub fn die(self) {
        self.process.end();
        let number = self.process.number();
        self.world
            .with(|state| state.backend.open.retain(|open| open.process != number));
    }

    /// The connection to a driver is lost and comes back after a while.
    pub fn reconnect(&self, driver: usize, after: Duration) {
        if let Some(served) = self.served.get(driver) {
            served.link.lock().lose(after);
        }
    }

    /// All drivers get other settings.
    pub fn reconfigure(&self, variant: usize) {
        for (driver, served) in self.served.iter().enumerate() {
            let other = |state: &mut State| settings(&state.scenario, &self.mutant, driver, variant);
            served.settings.send_replace(Arc::new(self.world.with(other)));
        }
    }

    /// The process hears after a while which Leases are held as well.
    pub fn move_leases(&self, after: Duration) {
        let world = self.world.clone();
        let places: Vec<watch::Sender<usize>> = self.served.iter().map(|served| served.place.clone()).collect();
        tokio::spawn(self.process.run(async move {
            tokio::time::sleep(after).await;
            let place = world.with(|state| state.place);
            for sender in places {
                sender.send_if_modified(|known| std::mem::replace(known, place) != place);
            }
        }));
    }

    pub fn break_watch(&self, number: usize) {
        self.breaker.send_modify(|breaks| breaks[number] += 1);
    }
}

/// What a driver's tasks are made of.
struct Parts {
    world: World,
    context: SharedContext,
    driver: usize,
    settings: watch::Receiver<Arc<DriverConfig>>,
    reservations: Reservations,
    office: LeaderElections,
    connector: ModelConnector,
}

impl Parts {
    fn election(&self, place: usize) -> Option<LeaderElectionConfig> {
        let lease = self.world.with(|state| state.scenario.lease)?;
        let timing = LeaseTimings::new(lease.duration, lease.renew_deadline, lease.retry_period);
        let timing = timing.expect("the times of scenarios are those of an election");
        let election = self.office.config_for(&leases::namespace(leases::OWN), timing);
        Some(election.holding(&[leases::namespace(place)]))
    }

    fn task(&self, election: Option<LeaderElectionConfig>, stop: CancellationToken) -> DriverTask<AttachRole> {
        DriverTask {
            role: AttachRole {
                context: self.context.clone(),
                queue: Arc::default(),
            },
            name: DRIVERS[self.driver].into(),
            config: self.settings.clone(),
            election,
            reservations: self.reservations.clone(),
            known_as: Arc::default(),
            lease_status: Arc::default(),
            stop,
            cut_off: CancellationToken::new(),
            removed: Arc::new(AtomicBool::new(false)),
            status: DriverStateSender::new(watch::Sender::default()),
        }
    }
}

/// Serves a driver as the supervisor does: a change of the namespaces ends its task and starts another.
async fn serve(parts: Parts, mut place: watch::Receiver<usize>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let here = *place.borrow_and_update();
        let election = parts.election(here);
        let token = stop.child_token();
        let task = parts.task(election, token.clone());
        let mut running = pin!(task.run_over(parts.connector.under(here)));
        tokio::select! {
            biased;
            () = &mut running => continue,
            changed = place.changed() => {
                token.cancel();
                running.await;
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// What the watches of a process are made of.
struct Watched<'a> {
    world: &'a World,
    process: &'a Process,
    breaker: &'a watch::Sender<[usize; 3]>,
    store: &'a Store,
}

impl Watched<'_> {
    fn kind<K: WatchedKind>(&self, kind: Kind, seed: u64) -> AbortOnDropHandle<()>
    where
        K::Record: CachedKind<Index>,
    {
        let (world, breaker) = (self.world.clone(), self.breaker.subscribe());
        let mut rounds = seed;
        let events = move || {
            rounds += 50;
            let (world, breaker, mut lists) = (world.clone(), breaker.clone(), rounds);
            let mut watch = move || {
                lists += 1;
                feed::<K>(&world, kind, breaker.clone(), lists)
            };
            if has_flaw(Flaw::Resuming) {
                return watch().left_stream();
            }
            from_lists(watch).right_stream()
        };
        let check = Health::new().check("watch");
        let follow = follow_from_list(events, self.store.clone(), check);
        let (world, store) = (self.world.clone(), self.store.clone());
        // What the production asks the API server for now and then.
        let compare = async move {
            loop {
                tokio::time::sleep(COMPARE_INTERVAL).await;
                tokio::time::sleep(world.with(|state| state.stalled_for())).await;
                let version = world.with(|state| state.cluster.version()).to_string();
                compare::<K, _>(&store, store.newest::<K::Record>(), Some(&version));
            }
        };
        let (world, store) = (self.world.clone(), self.store.clone());
        // Untrue answers may say that an object is gone which lists go on showing.
        let held_back = async move {
            store.lists().distrusted().await;
            world.with(|state| {
                if state.cluster.restores.is_empty() && state.scenario.lies == 0 {
                    let detail = || format!("{kind:?} or another kind");
                    state.journal.violated(NOT_HELD_BACK, detail);
                }
            });
            std::future::pending::<()>().await;
        };
        let all = async move {
            tokio::select! {
                biased;
                () = follow => {}
                () = compare => {}
                () = held_back => {}
            }
        };
        AbortOnDropHandle::new(tokio::spawn(self.process.run(all)))
    }
}

fn settings(scenario: &Scenario, mutant: &Mutant, driver: usize, variant: usize) -> DriverConfig {
    let mut spec = AttacherConfigSpec::new("unix:///model");
    spec.driver_name = Some(DRIVERS[driver].to_owned());
    let mut settings = DriverConfig::try_from(&spec).expect("the defaults are valid");
    settings.publish_secrets = if has_flaw(Flaw::Generous) {
        PublishSecrets::Any
    } else {
        PublishSecrets::Listed(Arc::new([(secrets::namespace(driver).into(), SecretNames::All)].into()))
    };
    settings.timeouts.publish = CALL_DEADLINE;
    settings.timeouts.unpublish = CALL_DEADLINE;
    let short = if variant == 3 { 250 } else { 500 };
    (settings.backoff.initial, settings.backoff.max) = if mutant.restless {
        (Duration::from_millis(1), Duration::from_millis(1))
    } else if scenario.faultless {
        (Duration::from_hours(1), Duration::from_hours(1))
    } else {
        (Duration::from_millis(short), LONGEST_WAIT)
    };
    let limit = std::num::NonZeroUsize::new(if variant == 1 { 1 } else { scenario.concurrency });
    settings.concurrency.attach = limit;
    settings.concurrency.detach = limit;
    settings.concurrency.per_node = std::num::NonZeroUsize::new(usize::from(variant == 2));
    settings.reconcile_sync.enabled = scenario.lists.is_some();
    settings.reconcile_sync.interval = scenario.lists.unwrap_or(settings.reconcile_sync.interval);
    settings
}
