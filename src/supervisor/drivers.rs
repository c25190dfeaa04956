//! The running driver tasks: what starts, changes and ends them, and what their AttacherConfigs show of them.

use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::attachment_conditions;
use super::deletion::{DeletionState, Remaining};
use super::election::LeaderElectionMode;
use super::gauges;
use super::observed::ObservedDrivers;
use super::provisioners::Provisioning;
use super::provisioning_conditions;
use super::provisioning_state::ProvisioningState;
use super::saturation::{RoleLimits, Saturation};
use super::status::{self, Comparisons, ProvisioningFacts, StatusInput};
use super::status_author::DriverLeader;
use super::tasks::{Configs, Name, NewTask, RunningTask, TaskKind, Tasks};
use super::writer::{StatusPart, TrackedConfig};
use crate::api::names::finalizer_name;
use crate::api::{AttacherConfigStatus, DriverConfig};
use crate::cache::AttacherKey;
use crate::clock;
use crate::decide::Capabilities;
use crate::driver::{AttachRole, SharedContext};
use crate::findings::FindingsHandle;
use crate::queue::Queue;
use crate::runtime::{DriverPhase, DriverState};

/// Attachments that are looked at while the cache is locked.
const ATTACHMENTS_AT_ONCE: usize = 256;

/// What makes the tasks that attach.
pub(super) struct Attaching {
    context: SharedContext,
    election: LeaderElectionMode,
}

/// What is kept of a task that attaches besides what is kept of all.
pub(super) struct AttachTask {
    queue: Arc<Mutex<Option<Queue<AttacherKey>>>>,
    saturation: Saturation,
}

impl TaskKind for Attaching {
    type Role = AttachRole;
    type Own = AttachTask;

    const NAME: &str = "driver task";

    fn prepare(
        &mut self,
        config: &DriverConfig,
        _former: Option<AttachTask>,
    ) -> Option<NewTask<AttachRole, AttachTask>> {
        let election = self.election.config_for(config);
        let election = election.map(|election| election.after(config.former_lease.as_deref()));
        let own = AttachTask {
            queue: Arc::default(),
            saturation: Saturation::default(),
        };
        Some(NewTask {
            role: AttachRole {
                context: self.context.clone(),
                queue: own.queue.clone(),
            },
            election,
            own,
        })
    }

    fn ended(&self, own: &AttachTask) {
        *own.queue.lock() = None;
    }
}

/// All driver tasks by the name of their AttacherConfig.
pub(super) struct Drivers {
    pub context: SharedContext,
    pub tasks: Tasks<Attaching>,
    /// What was found about attachments, which the status shows.
    pub insights: FindingsHandle,
    pub provisioners: Tasks<Provisioning>,
    observed: ObservedDrivers,
}

impl Drivers {
    pub fn new(context: SharedContext, election: LeaderElectionMode) -> Self {
        Self {
            provisioners: Tasks::new(Provisioning::new(context.clone(), election.clone())),
            tasks: Tasks::new(Attaching {
                context: context.clone(),
                election,
            }),
            context,
            insights: FindingsHandle::default(),
            observed: ObservedDrivers::default(),
        }
    }

    /// What cancels the calls that still run when there is no more time for them to finish.
    pub fn set_cut_off(&mut self, cut_off: &CancellationToken) {
        self.tasks.cut_off = cut_off.clone();
        self.provisioners.cut_off = cut_off.clone();
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.provisioners.is_empty()
    }

    /// Whether a task of either role works for an AttacherConfig, or is finishing its calls.
    pub fn has_task(&self, name: &str) -> bool {
        self.tasks.get(name).is_some() || self.provisioners.get(name).is_some()
    }

    /// The names of all drivers that a task of either role works for.
    pub fn names_in_use(&self) -> BTreeSet<String> {
        let attaching = self.tasks.all().filter_map(RunningTask::answered_name);
        attaching.chain(self.provisioners.names_in_use()).collect()
    }

    /// Starts, changes and stops tasks so that those run that are wanted: those that provision after those that attach.
    pub fn apply(&mut self, wanted: Configs) {
        self.tasks.apply(wanted);
        self.provisioners.apply_sections(self.tasks.wanted());
    }

    /// Waits for a task to end, and does what is meant to happen then; for ever when there is none.
    pub async fn ended(&mut self) {
        tokio::select! {
            biased;
            () = self.tasks.ended() => {}
            () = self.provisioners.ended() => {}
        }
    }

    /// The driver that the settings in use of an AttacherConfig name: not those of a spec that is refused.
    pub fn specified(&self, name: &str) -> Option<&str> {
        self.tasks.wanted().get(name)?.driver_name.as_deref()
    }

    pub fn stop_all(&mut self) {
        self.provisioners.stop_all();
        self.tasks.stop_all();
    }

    /// Starts the tasks again whose pause after a fault is over.
    pub fn restart_due(&mut self) {
        self.tasks.start_missing();
        self.provisioners.start_missing();
    }

    pub fn phase(&self, name: &str) -> Option<DriverPhase> {
        self.tasks
            .get(name)
            .map(|running| running.status.borrow().phase.clone())
    }

    /// Whether a driver has ControllerPublishVolume, as it has answered last.
    pub fn announces_publish(&self, name: &str) -> Option<bool> {
        let status = self.tasks.get(name)?.status.borrow();
        status.plugin.as_ref().map(|plugin| plugin.publishes)
    }

    /// Sets when each AttacherConfig was created: of two for the same driver the older one is served.
    pub fn set_creation_times(&self, ages: BTreeMap<Name, Option<Timestamp>>) {
        self.provisioners.reservations.set_ages(ages.clone());
        self.tasks.reservations.set_ages(ages);
    }

    /// Sets the name of a driver that runs and may not have answered yet.
    pub fn set_known_as(&self, name: &str, driver: Option<&str>) {
        if let Some(running) = self.tasks.get(name) {
            let driver = driver.map(Name::from);
            let change = |known: &mut Option<Name>| std::mem::replace(known, driver.clone()) != driver;
            running.known_as.send_if_modified(change);
        }
    }

    /// Observes who works for these drivers, by the name of their AttacherConfig, and for no other ones: nothing runs for them here.
    pub fn observe(&mut self, drivers: BTreeMap<String, String>) {
        let election = &self.tasks.kind.election;
        self.observed.set(drivers, election, &self.context.metrics);
    }

    /// Who leads the driver of an AttacherConfig, as far as known.
    pub fn lead(&self, name: &str) -> DriverLeader {
        let by_task = self.tasks.get(name).map(RunningTask::lead);
        by_task
            .or_else(|| self.observed.attacher(name))
            .unwrap_or(DriverLeader::Nobody)
    }

    /// Resolves for each driver that runs when it has stopped.
    pub fn all_stopped(&self) -> FuturesUnordered<impl Future<Output = ()> + use<>> {
        let states = self.tasks.all().map(|running| running.status.clone());
        let stopped = async |mut status: watch::Receiver<DriverState>| {
            let _ended = status.wait_for(|status| status.phase == DriverPhase::Stopped).await;
        };
        states.map(stopped).collect()
    }

    /// The AttacherConfigs whose drivers have changed since this was asked last.
    pub fn take_changed(&mut self) -> BTreeSet<String> {
        let mut changed = self.tasks.take_changed();
        changed.extend(self.provisioners.take_changed());
        changed
    }

    /// The status that an AttacherConfig should show after the one that is known.
    pub fn status(
        &self,
        name: &str,
        entry: &TrackedConfig,
        holder: &str,
        deletion: DeletionState,
    ) -> AttacherConfigStatus {
        let known = &entry.written;
        let running = self.tasks.get(name);
        let provisioning = self.provisioners.state(name);
        let driver = running.map(|running| running.status.borrow().clone());
        let plugin = driver.as_ref().and_then(|driver| driver.plugin.as_ref());
        let store = &self.context.store;
        let counts = plugin.map(|plugin| store.counts(&plugin.name)).unwrap_or_default();
        let pending = counts.attaching + counts.detaching > 0;
        let oldest = plugin
            .filter(|_| pending)
            .and_then(|plugin| store.oldest_pending(&plugin.name));
        let queue = running.and_then(|running| running.own.queue.lock().clone());
        let failing = queue.map(|queue| attachment_conditions::failing(&queue.stats()));
        let insight = plugin.and_then(|plugin| self.insights.summary(&plugin.name));
        // What was attached or detached since the last scan is not shown as stuck.
        let mut stuck = insight.iter().flat_map(|insight| &insight.stuck);
        let stuck = stuck.find(|stuck| store.is_pending(&stuck.name, &stuck.uid));
        let former = known.leader_election.as_ref();
        let former = former.and_then(|lease| lease.namespace.as_deref());
        let compares = running.is_some_and(|running| running.config.reconcile_sync.enabled)
            && plugin.is_some_and(|plugin| Capabilities::of_names(&plugin.capabilities).allow_comparisons());
        let facts = StatusInput {
            comparisons: if compares {
                Comparisons::Made
            } else {
                Comparisons::NotMade
            },
            insight: insight.as_deref(),
            stuck,
            generation: entry.object.metadata.generation,
            holder,
            holds_former_lease: running.is_some_and(|running| holds_former_lease(running, former)),
            specified: self.specified(name),
            named_by_spec: entry.named_by_spec(),
            driver: driver.as_ref(),
            problem: entry.problem.as_ref(),
            deletion,
            watch_failure: store.lists().failure(),
            lease_warning: running.and_then(RunningTask::lease_warning),
            is_of_one_state: store.lists().is_of_one_state(),
            counts,
            failing: failing.map(|(operations, _)| operations),
            failing_upkeep: failing.map_or(0, |(_, upkeep)| upkeep),
            is_last_pending: driver.as_ref().is_some_and(|driver| self.is_last_pending(driver)),
            oldest: oldest.as_deref(),
            saturation: running.map(|running| &running.own.saturation),
            provisioning_saturation: self.provisioners.saturation(name),
            provisioning: self.provisioning_facts(name, entry, provisioning.as_ref()),
        };
        status::status(&facts, known, clock::now())
    }

    /// What is known of provisioning; `here` is what a task of this replica is at. Without one only settings in use switch the role off, or
    /// another AttacherConfig that has it.
    fn provisioning_facts<'a>(
        &self,
        name: &str,
        entry: &TrackedConfig,
        here: Option<&'a ProvisioningState>,
    ) -> ProvisioningFacts<'a> {
        if let Some(state) = here {
            return ProvisioningFacts::Here(state);
        }
        if self.may_be_provisioned_elsewhere(name) {
            return ProvisioningFacts::Elsewhere;
        }
        let driver = self.observed.driver(name);
        let is_left = driver.is_some_and(|driver| self.provisioners.is_left_to_another(name, driver));
        if entry.problem.is_some() && !self.tasks.wanted().contains_key(name) && !is_left {
            ProvisioningFacts::Unused
        } else {
            ProvisioningFacts::Off
        }
    }

    /// Whether what failed last at a driver is an attach or detach that is pending still.
    fn is_last_pending(&self, driver: &DriverState) -> bool {
        let last = driver.last_failure.as_ref();
        let known = last.and_then(|failure| self.context.store.attachment(&failure.attachment));
        known.is_some_and(|known| !known.attachment.attached || known.attachment.deleting.is_some())
    }

    /// The status with what this replica knows of provisioning, and else `known`.
    pub fn provisioning_status(
        &self,
        name: &str,
        generation: Option<i64>,
        holder: &str,
        known: &AttacherConfigStatus,
    ) -> AttacherConfigStatus {
        match self.provisioners.state(name) {
            Some(state) => provisioning_conditions::status_with(&state, generation, holder, known, clock::now()),
            None => known.clone(),
        }
    }

    /// What this replica says of an AttacherConfig, if anything: the author of the status all but what another replica knows of
    /// provisioning, and a replica that provisions and is not the author that alone.
    pub fn part_of_status(&self, name: &str, is_author: bool) -> Option<StatusPart> {
        match (is_author, self.provisioners.lead(name)) {
            (true, Some(DriverLeader::Other)) => Some(StatusPart::AllButProvisioning),
            (true, None) if self.may_be_provisioned_elsewhere(name) => Some(StatusPart::AllButProvisioning),
            (true, _) => Some(StatusPart::All),
            // Who holds the own Lease and waits for that of a sidecar is taken for the leader by all others.
            (false, Some(DriverLeader::Ours | DriverLeader::Next)) => Some(StatusPart::Provisioning),
            (false, _) => None,
        }
    }

    /// Sets the gauges from the queues of the drivers that are known by name, and finds out which limits delay work.
    pub fn update_gauges(&mut self) {
        for (_, running) in self.tasks.named_mut() {
            let own = &mut running.own;
            // Locked to the end: who takes the queue away removes the gauges afterwards, and they must not come back.
            let queue = own.queue.lock();
            let Some(queue) = &*queue else {
                own.saturation = Saturation::default();
                continue;
            };
            let stats = queue.stats();
            let limits = RoleLimits::attaching(&running.config);
            own.saturation.observe(&stats, Some(&limits), Instant::now());
            let plugin = running.status.borrow().plugin.clone();
            if let Some(plugin) = plugin {
                gauges::set(&self.context, &plugin.name, &stats, &running.config, &own.saturation);
            }
        }
        self.provisioners.examine_queues(&self.insights);
    }

    /// What of the driver of an AttacherConfig is to be detached, released or found out, and nobody else will; unknown before the first
    /// complete list. Where the driver's name is not known that of all drivers, as each may be the one. `provisions` says whether the
    /// settings in use have the section or, without any, its latest spec may have it: without a task for that, as after a restart with a
    /// spec that is not in use, nobody knows what is left of it.
    pub fn remaining(&self, name: &str, driver: Option<&str>, provisions: bool) -> Option<Remaining> {
        let store = &self.context.store;
        if !store.lists().is_synced() {
            return None;
        }
        let drivers = driver.map_or_else(|| self.seen(), |driver| BTreeSet::from([Name::from(driver)]));
        let mut remaining = Remaining::nothing();
        let mut finalizers = Vec::new();
        for driver in &drivers {
            if !self.tasks.is_left_to_another(name, driver) {
                let finalizer = finalizer_name(driver);
                remaining.attachments += store.claimed(driver, &finalizer);
                finalizers.push(finalizer);
            }
        }
        store.for_each_volume_in_deletion(|volume| {
            if finalizers.iter().any(|finalizer| volume.finalizers.contains(finalizer)) {
                remaining.volumes.push(volume.name.clone());
            }
        });
        // What is provisioned is known by the AttacherConfig alone, and may be of a driver of which nothing is attached.
        let is_left = driver.is_some_and(|driver| self.provisioners.is_left_to_another(name, driver));
        if !is_left && (provisions || self.provisioners.get(name).is_some()) {
            remaining.volumes.extend(self.provisioners.volumes_in_deletion(name));
            remaining.claims = self.provisioners.markers(name);
        }
        remaining.volumes.sort_unstable();
        remaining.volumes.dedup();
        Some(remaining)
    }

    /// The drivers of which there are attachments, or volumes in deletion.
    fn seen(&self) -> BTreeSet<Name> {
        let store = &self.context.store;
        let mut drivers = BTreeSet::new();
        // In parts, as the cache is locked meanwhile.
        for names in store.attachment_names().chunks(ATTACHMENTS_AT_ONCE) {
            store.for_each_attachment(names, |view| {
                drivers.insert(view.attachment.attacher.clone());
            });
        }
        store.for_each_volume_in_deletion(|volume| {
            drivers.extend(volume.spec.csi().map(|source| source.driver.clone()));
        });
        drivers
    }

    /// Whether nothing is claimed any more for an AttacherConfig that is being deleted: its settings say so, and no claim that was
    /// decided before is being written; and no other replica may work by settings that this one does not have.
    pub fn claims_ended(&self, name: &str) -> bool {
        let (attaching, provisioning) = (self.tasks.get(name), self.provisioners.get(name));
        attaching.is_none_or(RunningTask::claims_ended)
            && provisioning.is_none_or(RunningTask::claims_ended)
            && !self.may_be_served_elsewhere(name)
    }

    /// Whether another replica may work for an AttacherConfig for which nothing runs here. What it does for another AttacherConfig does not
    /// count.
    fn may_be_served_elsewhere(&self, name: &str) -> bool {
        let Some(driver) = self.observed.driver(name) else {
            return false;
        };
        let is_attached_for = self.observed.attacher(name).is_some_and(DriverLeader::may_be_other);
        (is_attached_for && !self.tasks.is_left_to_another(name, driver)) || self.may_be_provisioned_elsewhere(name)
    }

    /// The same of provisioning alone.
    fn may_be_provisioned_elsewhere(&self, name: &str) -> bool {
        let Some(driver) = self.observed.driver(name) else {
            return false;
        };
        let is_provisioned_for = self.observed.provisioner(name).is_some_and(DriverLeader::may_be_other);
        is_provisioned_for && !self.provisioners.is_left_to_another(name, driver)
    }

    /// Whether the metadata of an AttacherConfig is left to another replica: the one that leads its `driver`. Where that one attaches for another
    /// AttacherConfig it may have no settings for this one, and waits for who provisions for it; so that one writes as well.
    pub fn is_metadata_left_to_another(&self, name: &str, driver: Option<&str>) -> bool {
        let provisions = matches!(
            self.provisioners.lead(name),
            Some(DriverLeader::Ours | DriverLeader::Next)
        );
        let is_attached_for_another = driver.is_some_and(|driver| self.tasks.is_left_to_another(name, driver));
        self.lead(name) == DriverLeader::Other && !(provisions && is_attached_for_another)
    }

    /// Whether the driver of an AttacherConfig is served, and publishes.
    pub fn publishes(&self, name: &str) -> bool {
        let Some(running) = self.tasks.get(name) else {
            return false;
        };
        let status = running.status.borrow();
        status.phase == DriverPhase::Running && status.plugin.as_ref().is_some_and(|plugin| plugin.publishes)
    }

    /// A task that lists all objects once more that an AttacherConfig may wait for.
    pub fn list_anew(&self, name: &str) -> AbortOnDropHandle<()> {
        let (store, provisioned) = (self.context.store.clone(), self.provisioners.relist(name));
        AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::join!(store.lists().relist(), provisioned);
        }))
    }
}

/// Whether a task serves its driver, and holds the Lease in this namespace for that.
fn holds_former_lease(running: &RunningTask<AttachTask>, namespace: Option<&str>) -> bool {
    !running.is_ending
        && running.status.borrow().phase == DriverPhase::Running
        && running.config.former_lease.as_deref() == namespace
}
