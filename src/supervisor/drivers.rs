//! The running driver tasks: what starts, changes and ends them, and what their AttacherConfigs show of them.

use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info};

use super::deletion::{DeletionState, Remaining};
use super::election::LeaderElectionMode;
use super::gauges;
use super::plan::ConfigProblem;
use super::provisioners::Provisioners;
use super::provisioning_conditions;
use super::saturation::{RoleLimits, Saturation};
use super::status::{self, StatusInput};
use super::status_author::DriverLeader;
use super::writer::StatusPart;
use crate::api::condition::ConditionReason;
use crate::api::names::finalizer_name;
use crate::api::{AttacherConfigStatus, DriverConfig};
use crate::cache::AttacherKey;
use crate::clock;
use crate::driver::{AttachRole, SharedContext};
use crate::findings::FindingsHandle;
use crate::lease::LeaderState;
use crate::queue::Queue;
use crate::runtime::reservation::Reservations;
use crate::runtime::{DriverPhase, DriverState, DriverStateSender, DriverTask};

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// A task that ran for so long was well; its next fault counts as the first.
pub(super) const HEALTHY: Duration = Duration::from_mins(10);

/// The name of a driver, or of its AttacherConfig.
pub(super) type Name = Arc<str>;

/// A driver task, or the wish for one while the one before still finishes.
struct RunningTask {
    task: AbortHandle,
    config: Arc<DriverConfig>,
    settings: watch::Sender<Arc<DriverConfig>>,
    status: watch::Receiver<DriverState>,
    queue: Arc<Mutex<Option<Queue<AttacherKey>>>>,
    saturation: Saturation,
    known_as: Arc<watch::Sender<Option<Name>>>,
    elects: bool,
    lease_state: Arc<Mutex<Option<watch::Receiver<LeaderState>>>>,
    stop: CancellationToken,
    removed: Arc<AtomicBool>,
    /// What happens when the task ends.
    then: AfterExit,
    started: Instant,
    faults: u32,
}

impl RunningTask {
    /// The settings of this task, or of the one that follows it.
    fn next_config(&self) -> &Arc<DriverConfig> {
        match &self.then {
            AfterExit::Start(next) => next,
            _ => &self.config,
        }
    }

    /// Whether it serves the driver, and holds the Lease in this namespace for that.
    fn holds_former_lease(&self, namespace: Option<&str>) -> bool {
        self.then == AfterExit::Again
            && self.status.borrow().phase == DriverPhase::Running
            && self.config.former_lease.as_deref() == namespace
    }
}

#[derive(Clone, Debug, PartialEq)]
enum AfterExit {
    /// Start it again: it should not have ended.
    Again,
    /// Start it with these settings.
    Start(Arc<DriverConfig>),
    Nothing,
    /// Start it at this time.
    At(Instant),
}

/// All driver tasks by the name of their AttacherConfig.
pub(super) struct Drivers {
    context: SharedContext,
    running: BTreeMap<String, RunningTask>,
    tasks: JoinSet<()>,
    /// What was found about attachments, which the status shows.
    pub insights: FindingsHandle,
    /// How each driver that is started from now on competes for its Lease.
    pub election: LeaderElectionMode,
    reservations: Reservations,
    /// Those that provision.
    pub provisioners: Provisioners,
    /// Cancels the calls that still run when there is no more time for them to finish.
    pub cut_off: CancellationToken,
}

impl Drivers {
    pub fn new(context: SharedContext) -> Self {
        Self {
            provisioners: Provisioners::new(context.clone()),
            context,
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
            insights: FindingsHandle::default(),
            election: LeaderElectionMode::None,
            reservations: Reservations::default(),
            cut_off: CancellationToken::new(),
        }
    }

    /// The name that a driver answered.
    pub fn name(&self, name: &str) -> Option<String> {
        let status = self.running.get(name)?.status.borrow();
        status.plugin.as_ref().map(|plugin| plugin.name.clone())
    }

    /// Whether no task of either role runs.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.provisioners.is_empty()
    }

    /// The names of all drivers that a task of either role works for.
    pub fn names_in_use(&self) -> BTreeSet<String> {
        let answered = |status: &watch::Receiver<DriverState>| {
            let status = status.borrow();
            status.plugin.as_ref().map(|plugin| plugin.name.clone())
        };
        let attaching = self.running.values().filter_map(|running| answered(&running.status));
        attaching.chain(self.provisioners.names_in_use()).collect()
    }

    /// Starts, changes and stops the tasks that provision, after those that attach.
    pub fn apply_provisioners(&mut self) {
        let configs = self.configs();
        self.provisioners.apply(&configs, &self.election);
    }

    /// Waits for a task to end; the name of its AttacherConfig, if it was one that attaches. What is to happen after the end of one that
    /// provisions, has happened.
    pub async fn any_ended(&mut self) -> Option<String> {
        let Self {
            tasks,
            running,
            provisioners,
            election,
            ..
        } = self;
        tokio::select! {
            biased;
            name = ended_of(tasks, running), if !tasks.is_empty() => Some(name),
            () = provisioners.ended(election), if !provisioners.is_empty() => None,
            else => std::future::pending().await,
        }
    }

    /// The settings of each driver that runs or is about to.
    pub fn configs(&self) -> BTreeMap<String, Arc<DriverConfig>> {
        let running = self.running.iter();
        let kept = running.filter(|(_, running)| running.then != AfterExit::Nothing);
        kept.map(|(name, running)| (name.clone(), running.next_config().clone()))
            .collect()
    }

    /// Starts a driver; `known_as` is its name if it answered once, as it may not have answered yet.
    pub fn start(&mut self, name: &str, config: Arc<DriverConfig>, known_as: Option<&str>) {
        if let Some(finishing) = self.running.get_mut(name) {
            // An object that was deleted and made again: the old task still finishes.
            finishing.then = AfterExit::Start(config);
            return;
        }
        self.spawn(name, config, known_as.map(Name::from), 0);
    }

    /// Starts the task of a driver again, which is known by the same name.
    fn respawn(&mut self, name: &str, config: Arc<DriverConfig>, faults: u32) {
        let known_as = self
            .running
            .remove(name)
            .and_then(|running| running.known_as.borrow().clone());
        self.spawn(name, config, known_as, faults);
    }

    fn spawn(&mut self, name: &str, config: Arc<DriverConfig>, known_as: Option<Name>, faults: u32) {
        let (settings, settings_seen) = watch::channel(config.clone());
        let (status, mut status_seen) = watch::channel(DriverState::default());
        // The status is written anew, as the task is another one.
        status_seen.mark_changed();
        let queue = Arc::new(Mutex::new(None));
        let known_as = Arc::new(watch::Sender::new(known_as));
        let lease_state = Arc::new(Mutex::new(None));
        let election = self.election.config_for(&config);
        let elects = election.is_some();
        let stop = CancellationToken::new();
        let removed = Arc::new(AtomicBool::new(false));
        let task = DriverTask {
            role: AttachRole {
                context: self.context.clone(),
                queue: queue.clone(),
            },
            name: Name::from(name),
            config: settings_seen,
            election,
            reservations: self.reservations.clone(),
            known_as: known_as.clone(),
            lease_state: lease_state.clone(),
            stop: stop.clone(),
            cut_off: self.cut_off.clone(),
            removed: removed.clone(),
            status: DriverStateSender::new(status),
        };
        let task = self.tasks.spawn(task.run());
        info!(config = name, endpoint = %config.endpoint, "driver task started");
        let running = RunningTask {
            task,
            config,
            settings,
            status: status_seen,
            queue,
            saturation: Saturation::default(),
            known_as,
            elects,
            lease_state,
            stop,
            removed,
            then: AfterExit::Again,
            started: Instant::now(),
            faults,
        };
        self.running.insert(name.to_owned(), running);
    }

    pub fn reload(&mut self, name: &str, config: Arc<DriverConfig>) {
        let Some(running) = self.running.get_mut(name) else {
            return;
        };
        if let AfterExit::Start(next) = &mut running.then {
            *next = config;
            return;
        }
        running.config = config.clone();
        running.settings.send_replace(config);
    }

    /// Lets a driver claim nothing new.
    pub fn leave(&mut self, name: &str) {
        let Some(running) = self.running.get(name) else {
            return;
        };
        let config = running.next_config();
        if !config.leaving {
            let config = DriverConfig {
                leaving: true,
                ..(**config).clone()
            };
            self.reload(name, Arc::new(config));
        }
    }

    pub fn restart(&mut self, name: &str, config: Arc<DriverConfig>) {
        let Some(running) = self.running.get_mut(name) else {
            return;
        };
        if matches!(running.then, AfterExit::At(_)) {
            // The task ended by a fault and waits: there is nothing to finish.
            return self.respawn(name, config, 0);
        }
        running.then = AfterExit::Start(config);
        running.stop.cancel();
    }

    /// Ends a driver whose AttacherConfig is gone.
    pub fn stop(&mut self, name: &str) {
        let Some(running) = self.running.get_mut(name) else {
            return;
        };
        let waiting = matches!(running.then, AfterExit::At(_));
        running.then = AfterExit::Nothing;
        running.removed.store(true, Ordering::Relaxed);
        running.stop.cancel();
        if waiting {
            self.running.remove(name);
        }
    }

    pub fn stop_all(&mut self) {
        self.provisioners.stop_all();
        for running in self.running.values_mut() {
            running.then = AfterExit::Nothing;
            running.stop.cancel();
        }
    }

    /// Ends a task as a panic would.
    #[cfg(test)]
    pub fn abort_for_test(&self, name: &str) {
        self.running[name].task.abort();
    }

    /// Waits for a task to end; returns the name of its AttacherConfig.
    pub async fn ended(&mut self) -> String {
        ended_of(&mut self.tasks, &self.running).await
    }

    /// Does what was meant to happen after the end of a task.
    pub fn after_end(&mut self, name: &str) {
        let Some(running) = self.running.get_mut(name) else {
            return;
        };
        match std::mem::replace(&mut running.then, AfterExit::Nothing) {
            AfterExit::Nothing => {
                self.running.remove(name);
            }
            AfterExit::Start(config) => self.respawn(name, config, 0),
            AfterExit::Again | AfterExit::At(_) => {
                if running.started.elapsed() >= HEALTHY {
                    running.faults = 0;
                }
                running.then = AfterExit::At(Instant::now() + pause_after(running.faults));
                running.faults = running.faults.saturating_add(1);
                let last = running.status.borrow().clone();
                running.status = ended(last);
                *running.queue.lock() = None;
            }
        }
    }

    /// Starts the tasks again whose pause after a fault is over.
    pub fn restart_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self
            .running
            .iter()
            .filter(|(_, running)| matches!(running.then, AfterExit::At(at) if at <= now))
            .map(|(name, running)| (name.clone(), running.config.clone(), running.faults))
            .collect();
        for (name, config, faults) in due {
            self.respawn(&name, config, faults);
        }
        self.provisioners.start_missing(&self.election);
    }

    /// What a driver is at.
    pub fn phase(&self, name: &str) -> Option<DriverPhase> {
        self.running
            .get(name)
            .map(|running| running.status.borrow().phase.clone())
    }

    /// Sets when each AttacherConfig was created: of two for the same driver the older one is served.
    pub fn set_creation_times(&self, ages: BTreeMap<Name, Option<Timestamp>>) {
        self.provisioners.set_creation_times(ages.clone());
        self.reservations.set_ages(ages);
    }

    /// Sets the name of a driver that runs and may not have answered yet.
    pub fn set_known_as(&self, name: &str, driver: Option<&str>) {
        if let Some(running) = self.running.get(name) {
            running.known_as.send_replace(driver.map(Name::from));
        }
    }

    /// Who leads the driver of an AttacherConfig, as far as known.
    pub fn lead(&self, name: &str) -> DriverLeader {
        let Some(running) = self.running.get(name) else {
            return DriverLeader::Nobody;
        };
        let is_known = running.known_as.borrow().is_some();
        DriverLeader::of(running.elects, &running.lease_state, is_known)
    }

    /// Resolves for each driver that runs when it has stopped.
    pub fn all_stopped(&self) -> FuturesUnordered<impl Future<Output = ()> + use<>> {
        let states = self.running.values().map(|running| running.status.clone());
        let stopped = async |mut status: watch::Receiver<DriverState>| {
            let _ended = status.wait_for(|status| status.phase == DriverPhase::Stopped).await;
        };
        states.map(stopped).collect()
    }

    /// The AttacherConfigs whose drivers have changed since this was asked last.
    pub fn take_changed(&mut self) -> BTreeSet<String> {
        let running = self.running.iter_mut();
        let changed = running.filter_map(|(name, running)| {
            let is_new = running.status.has_changed().unwrap_or(true);
            running.status.mark_unchanged();
            is_new.then(|| name.clone())
        });
        let changed: BTreeSet<String> = changed.collect();
        changed.into_iter().chain(self.provisioners.take_changed()).collect()
    }

    /// Changes with every change of what is cached.
    pub fn cache_generation(&self) -> u64 {
        self.context.store.generation()
    }

    /// The status that an AttacherConfig should show after `known`.
    pub fn status(
        &self,
        name: &str,
        generation: Option<i64>,
        problem: Option<&ConfigProblem>,
        holder: &str,
        known: &AttacherConfigStatus,
        deletion: DeletionState,
    ) -> AttacherConfigStatus {
        let running = self.running.get(name);
        let provisioning = self.provisioners.state(name);
        let driver = running.map(|running| running.status.borrow().clone());
        let plugin = driver.as_ref().and_then(|driver| driver.plugin.as_ref());
        let store = &self.context.store;
        let counts = plugin.map(|plugin| store.counts(&plugin.name)).unwrap_or_default();
        let pending = counts.attaching + counts.detaching > 0;
        let oldest = plugin
            .filter(|_| pending)
            .and_then(|plugin| store.oldest_pending(&plugin.name));
        let queue = running.and_then(|running| running.queue.lock().clone());
        let failing = queue.map_or(0, |queue| queue.stats().lanes.iter().map(|lane| lane.failing).sum());
        let insight = plugin.and_then(|plugin| self.insights.summary(&plugin.name));
        // What was attached or detached since the last scan is not shown as stuck.
        let mut stuck = insight.iter().flat_map(|insight| &insight.stuck);
        let stuck = stuck.find(|stuck| store.is_pending(&stuck.name, &stuck.uid));
        let former = known.leader_election.as_ref();
        let former = former.and_then(|lease| lease.namespace.as_deref());
        let facts = StatusInput {
            insight: insight.as_deref(),
            stuck,
            generation,
            holder,
            holds_former_lease: running.is_some_and(|running| running.holds_former_lease(former)),
            driver: driver.as_ref(),
            problem,
            deletion,
            watch_failure: store.lists().failure(),
            counts,
            failing,
            oldest: oldest.as_deref(),
            saturation: running.map(|running| &running.saturation),
            provisioning_saturation: self.provisioners.saturation(name),
            provisioning: provisioning.as_ref(),
        };
        status::status(&facts, known, clock::now())
    }

    /// The status with what this replica knows of provisioning, and else `known`.
    pub fn provisioning_status(
        &self,
        name: &str,
        generation: Option<i64>,
        known: &AttacherConfigStatus,
    ) -> AttacherConfigStatus {
        match self.provisioners.state(name) {
            Some(state) => provisioning_conditions::status_with(&state, generation, known, clock::now()),
            None => known.clone(),
        }
    }

    /// What this replica says of an AttacherConfig, if anything: the author of the status all but what another replica knows of
    /// provisioning, and a replica that provisions and is not the author that alone.
    pub fn part_of_status(&self, name: &str, is_author: bool) -> Option<StatusPart> {
        match (is_author, self.provisioners.lead(name)) {
            (true, Some(DriverLeader::Other)) => Some(StatusPart::AllButProvisioning),
            (true, _) => Some(StatusPart::All),
            (false, Some(DriverLeader::Ours)) => Some(StatusPart::Provisioning),
            (false, _) => None,
        }
    }

    /// Sets the gauges from the queues of the drivers that are known by name, and finds out which limits delay work.
    pub fn update_gauges(&mut self) {
        for running in self.running.values_mut() {
            // Locked to the end: who takes the queue away removes the gauges afterwards, and they must not come back.
            let queue = running.queue.lock();
            let Some(queue) = &*queue else {
                running.saturation = Saturation::default();
                continue;
            };
            let stats = queue.stats();
            let limits = RoleLimits::attaching(&running.config);
            running.saturation.observe(&stats, &limits, Instant::now());
            let plugin = running.status.borrow().plugin.clone();
            if let Some(plugin) = plugin {
                gauges::set(&self.context, &plugin.name, &stats, &running.config);
                let reasons = ConditionReason::ATTACHING_SATURATED;
                gauges::set_saturated(&self.context.metrics, &plugin.name, reasons, &running.saturation);
            }
        }
        self.provisioners.examine_queues(&self.insights);
    }

    /// What of the driver of an AttacherConfig is to be detached, released or found out; unknown before the first complete list.
    pub fn remaining(&self, name: &str, driver: &str) -> Option<Remaining> {
        let store = &self.context.store;
        let finalizer = finalizer_name(driver);
        store.lists().is_synced().then(|| {
            let mut volumes = store.protected(&finalizer).0;
            volumes.extend(self.provisioners.volumes_in_deletion(name));
            volumes.sort_unstable();
            volumes.dedup();
            Remaining {
                attachments: store.claimed(driver, &finalizer),
                volumes,
                claims: self.provisioners.markers(name),
            }
        })
    }

    /// The PersistentVolumes that carry a driver's finalizer and are not being deleted.
    pub fn left_protected(&self, driver: &str) -> Vec<Name> {
        self.context.store.protected(&finalizer_name(driver)).1
    }

    /// Whether nothing is claimed any more for an AttacherConfig that is being deleted: its settings say so, and no claim that was
    /// decided before is being written.
    pub fn claims_ended(&self, name: &str) -> bool {
        self.running
            .get(name)
            .is_none_or(|running| running.settings.borrow().leaving && running.status.borrow().claims == 0)
    }

    /// Whether the driver of an AttacherConfig is served, and publishes.
    pub fn publishes(&self, name: &str) -> bool {
        let Some(running) = self.running.get(name) else {
            return false;
        };
        let status = running.status.borrow();
        status.phase == DriverPhase::Running && status.plugin.as_ref().is_some_and(|plugin| plugin.publishes)
    }

    /// A task that lists all objects once more.
    pub fn list_anew(&self) -> AbortOnDropHandle<()> {
        let store = self.context.store.clone();
        AbortOnDropHandle::new(tokio::spawn(async move { store.lists().relist().await }))
    }
}

/// Waits for a task that attaches to end; returns the name of its AttacherConfig.
async fn ended_of(tasks: &mut JoinSet<()>, running: &BTreeMap<String, RunningTask>) -> String {
    let running = running.iter().map(|(name, running)| (name, &running.task));
    let (name, fault) = ended_task(tasks, running).await;
    if let Some(fault) = fault {
        error!(config = name, %fault, "the driver task failed");
    }
    name
}

/// Waits for one of some tasks to end; returns its name, which is empty where it has none any more, and its fault.
pub(super) async fn ended_task<'a>(
    tasks: &mut JoinSet<()>,
    mut running: impl Iterator<Item = (&'a String, &'a AbortHandle)>,
) -> (String, Option<JoinError>) {
    let (id, fault) = match tasks.join_next_with_id().await {
        Some(Ok((id, ()))) => (id, None),
        Some(Err(error)) => (error.id(), Some(error)),
        None => return std::future::pending().await,
    };
    let name = running.find_map(|(name, task)| (task.id() == id).then(|| name.clone()));
    (name.unwrap_or_default(), fault)
}

/// How long a task that ended by a fault is away, after so many others.
pub(super) fn pause_after(faults: u32) -> Duration {
    INITIAL_BACKOFF.saturating_mul(1 << faults.min(6)).min(MAX_BACKOFF)
}

/// The state of a driver whose task ended by a fault: what it reported stays known.
pub(super) fn ended(last: DriverState) -> watch::Receiver<DriverState> {
    let phase = DriverPhase::Unreachable {
        reason: ConditionReason::Restarting,
        message: "the driver's task ended by a fault of the operator and is started again".to_owned(),
    };
    watch::channel(DriverState { phase, ..last }).1
}
