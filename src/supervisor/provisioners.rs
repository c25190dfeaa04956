//! The tasks that provision: one for each AttacherConfig that has the section, beside the task that attaches for it. Each has a connection and
//! a Lease of its own, so that neither role holds up, restarts or ends the other.
//!
//! Claims and classes are watched while there is such a task, and not before; Nodes from the first driver with topology on.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info};

use csi_attacher_provision::{self as provision, NodeWatch, Nodes, ProvisionRole, QueueSlot, clear_queue};
use kube::Client;

use super::attach_nodes::AttachNodes;
use super::attach_volumes::AttachVolumes;
use super::drivers::{HEALTHY, Name, ended, ended_task, pause_after};
use super::election::LeaderElectionMode;
use super::plan::requires_restart;
use super::provisioning_findings::QueueExamination;
use super::provisioning_state::{Begins, ProvisioningState};
use super::saturation::Saturation;
use super::status_author::DriverLeader;
use crate::api::DriverConfig;
use crate::driver::SharedContext;
use crate::findings::FindingsHandle;
use crate::health::Health;
use crate::lease::{LeaderElectionConfig, LeaderState};
use crate::objects::{NodeLabelsWire, PersistentVolumeClaimWire, StorageClassWire};
use crate::reflect::reflect;
use crate::runtime::reservation::Reservations;
use crate::runtime::{DriverState, DriverStateSender, DriverTask};

/// What provisioning needs besides what attaching has.
#[derive(Clone)]
pub struct ProvisionSetup {
    /// For the watches.
    pub client: Client,
    /// How long the outcome of a call has to be unknown before a person may let a claim go.
    pub stuck_after: Duration,
}

/// The task of one driver.
struct RunningProvisioner {
    task: AbortHandle,
    config: Arc<DriverConfig>,
    settings: watch::Sender<Arc<DriverConfig>>,
    status: watch::Receiver<DriverState>,
    queue: QueueSlot,
    /// What the queue shows.
    seen: QueueExamination,
    elects: bool,
    lease_state: Arc<Mutex<Option<watch::Receiver<LeaderState>>>>,
    /// Whether it needs the list of Nodes.
    needs_nodes: Arc<AtomicBool>,
    stop: CancellationToken,
    removed: Arc<AtomicBool>,
    /// When it is started again after a fault.
    restart_at: Option<Instant>,
    /// Whether it is to end for good, or with other settings.
    is_ending: bool,
    started: Instant,
    faults: u32,
}

/// The watches, and what they feed.
struct Watched {
    context: provision::SharedContext,
    _watches: [AbortOnDropHandle<()>; 2],
}

/// All tasks that provision, by the name of their AttacherConfig.
pub(super) struct Provisioners {
    context: SharedContext,
    /// None in place of the sidecar, where there is no section.
    pub setup: Option<ProvisionSetup>,
    watched: Option<Watched>,
    wanted: BTreeMap<String, Arc<DriverConfig>>,
    running: BTreeMap<String, RunningProvisioner>,
    tasks: JoinSet<()>,
    reservations: Reservations,
    /// Cancels the calls that still run when there is no more time for them to finish.
    pub cut_off: CancellationToken,
}

impl Provisioners {
    pub fn new(context: SharedContext) -> Self {
        Self {
            context,
            setup: None,
            watched: None,
            wanted: BTreeMap::new(),
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
            reservations: Reservations::default(),
            cut_off: CancellationToken::new(),
        }
    }

    /// Whether no task runs.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// When each AttacherConfig was created: of two for the same driver the older one is served.
    pub fn set_creation_times(&self, ages: BTreeMap<Name, Option<jiff::Timestamp>>) {
        self.reservations.set_ages(ages);
    }

    /// Starts, changes and stops tasks so that those run whose settings have the section.
    pub fn apply(&mut self, configs: &BTreeMap<String, Arc<DriverConfig>>, elections: &LeaderElectionMode) {
        let wanted = configs.iter().filter(|(_, config)| config.provisioning.is_some());
        self.wanted = wanted.map(|(name, config)| (name.clone(), config.clone())).collect();
        for (name, running) in &mut self.running {
            match self.wanted.get(name) {
                Some(config) if !requires_restart(&running.config, config) => {
                    if running.config != *config {
                        running.config = config.clone();
                        running.settings.send_replace(config.clone());
                    }
                }
                other => {
                    running.removed.store(other.is_none(), Ordering::Relaxed);
                    running.is_ending = true;
                    running.stop.cancel();
                }
            }
        }
        self.start_missing(elections);
    }

    /// Starts the tasks that are wanted and do not run: new ones, and those whose pause after a fault is over.
    pub fn start_missing(&mut self, elections: &LeaderElectionMode) {
        let now = Instant::now();
        self.running
            .retain(|name, running| running.restart_at.is_none() || self.wanted.contains_key(name));
        let due = |running: &RunningProvisioner| running.restart_at.is_some_and(|at| at <= now);
        let missing: Vec<(String, Arc<DriverConfig>)> = self
            .wanted
            .iter()
            .filter(|(name, _)| self.running.get(*name).is_none_or(due))
            .map(|(name, config)| (name.clone(), config.clone()))
            .collect();
        for (name, config) in missing {
            let faults = self.running.remove(&name).map_or(0, |running| running.faults);
            self.spawn(&name, config, faults, elections);
        }
        if self.running.is_empty() {
            // Nobody reads what is watched.
            self.watched = None;
        }
    }

    fn spawn(&mut self, name: &str, config: Arc<DriverConfig>, faults: u32, elections: &LeaderElectionMode) {
        let Some(setup) = self.setup.clone() else { return };
        let context = &self.context;
        let watched = self.watched.get_or_insert_with(|| Watched::start(context, &setup));
        let (settings, settings_seen) = watch::channel(config.clone());
        let (status, mut status_seen) = watch::channel(DriverState::default());
        // The status is written anew, as the task is another one.
        status_seen.mark_changed();
        let (queue, needs_nodes) = (QueueSlot::default(), Arc::<AtomicBool>::default());
        let (stop, removed) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
        let lease_state = Arc::new(Mutex::new(None));
        let election = election_for(elections, &config);
        let elects = election.is_some();
        let task = DriverTask {
            role: ProvisionRole {
                context: watched.context.clone(),
                queue: queue.clone(),
                needs_nodes: needs_nodes.clone(),
            },
            name: Name::from(name),
            config: settings_seen,
            election,
            reservations: self.reservations.clone(),
            known_as: Arc::default(),
            lease_state: lease_state.clone(),
            stop: stop.clone(),
            cut_off: self.cut_off.clone(),
            removed: removed.clone(),
            status: DriverStateSender::new(status),
        };
        let task = self.tasks.spawn(task.run());
        info!(config = name, endpoint = %config.endpoint, "task that provisions started");
        let running = RunningProvisioner {
            task,
            config,
            settings,
            status: status_seen,
            queue,
            seen: QueueExamination::default(),
            elects,
            lease_state,
            needs_nodes,
            stop,
            removed,
            restart_at: None,
            is_ending: false,
            started: Instant::now(),
            faults,
        };
        self.running.insert(name.to_owned(), running);
    }

    /// Lets all end.
    pub fn stop_all(&mut self) {
        self.wanted.clear();
        for running in self.running.values_mut() {
            running.is_ending = true;
            running.stop.cancel();
        }
    }

    /// Waits for a task to end, and does what is meant to happen then.
    pub async fn ended(&mut self, elections: &LeaderElectionMode) {
        let running = self.running.iter().map(|(name, running)| (name, &running.task));
        let (name, fault) = ended_task(&mut self.tasks, running).await;
        if let Some(fault) = &fault {
            error!(config = name, %fault, "the task that provisions failed");
        }
        if let Some(running) = self.running.get_mut(&name) {
            clear_queue(&running.queue, &self.context.metrics);
            if running.is_ending {
                self.running.remove(&name);
            } else {
                if running.started.elapsed() >= HEALTHY {
                    running.faults = 0;
                }
                let last = running.status.borrow().clone();
                running.status = ended(last);
                running.status.mark_changed();
                running.restart_at = Some(Instant::now() + pause_after(running.faults));
                running.faults = running.faults.saturating_add(1);
            }
        }
        self.start_missing(elections);
    }

    /// What the task of an AttacherConfig is at; none when it has none.
    pub fn state(&self, name: &str) -> Option<ProvisioningState> {
        let running = self.running.get(name)?;
        let reads_nodes = running.needs_nodes.load(Ordering::Relaxed);
        let failures = self.watched.iter().flat_map(|watched| {
            let claims = watched.context.store.lists().failure();
            let nodes = watched.context.nodes.nodes().lists().failure();
            [claims, nodes.filter(|_| reads_nodes)].into_iter().flatten()
        });
        // PersistentVolumes and VolumeAttachments are watched for attaching.
        let failures: Vec<String> = failures.chain(self.context.store.lists().failure()).collect();
        Some(ProvisioningState {
            task: running.status.borrow().clone(),
            is_elsewhere: running.lead() == DriverLeader::Other,
            begins: Begins::of(&running.config),
            reads_nodes,
            watch_failure: (!failures.is_empty()).then(|| failures.join("; ")),
            health: running.seen.health.clone(),
        })
    }

    /// Who provisions for the driver of an AttacherConfig; none when nobody is to.
    pub fn lead(&self, name: &str) -> Option<DriverLeader> {
        self.running.get(name).map(RunningProvisioner::lead)
    }

    /// Which limits make the work of an AttacherConfig wait; none where nothing is provisioned.
    pub fn saturation(&self, name: &str) -> Option<&Saturation> {
        self.running.get(name).map(|running| &running.seen.saturation)
    }

    /// The names of the drivers that a task works for, which the settings have.
    pub fn names_in_use(&self) -> impl Iterator<Item = String> {
        self.running
            .values()
            .filter_map(|running| running.config.driver_name.clone())
    }

    /// How many claims carry a marker of the driver of an AttacherConfig: what was created for them is not known. None before the first
    /// complete list.
    pub fn markers(&self, name: &str) -> Option<usize> {
        let (Some(running), Some(watched)) = (self.running.get(name), &self.watched) else {
            return Some(0);
        };
        let driver = running.config.driver_name.as_deref().unwrap_or_default();
        watched.context.store.marked(driver)
    }

    /// The PersistentVolumes of the driver of an AttacherConfig that are being deleted and are held for their volume.
    pub fn volumes_in_deletion(&self, name: &str) -> Vec<Arc<str>> {
        let (Some(running), Some(watched)) = (self.running.get(name), &self.watched) else {
            return Vec::new();
        };
        let driver = running.config.driver_name.as_deref().unwrap_or_default();
        let mut names = Vec::new();
        watched.context.volumes.for_each(&mut |volume| {
            let provisioner = volume.lifecycle.provisioned_by.as_deref();
            let of = provisioner.or_else(|| volume.spec.csi().map(|source| &*source.driver));
            if volume.deleting && volume.lifecycle.finalizer_at.is_some() && of == Some(driver) {
                names.push(volume.name.clone());
            }
        });
        names
    }

    /// The AttacherConfigs whose tasks have changed since this was asked last.
    pub fn take_changed(&mut self) -> impl Iterator<Item = String> {
        let changed = self.running.iter_mut().filter_map(|(name, running)| {
            let is_new = running.status.has_changed().unwrap_or(true);
            running.status.mark_unchanged();
            is_new.then(|| name.clone())
        });
        changed.collect::<Vec<_>>().into_iter()
    }

    /// Looks at each queue, and shows what there is.
    pub fn examine_queues(&mut self, insights: &FindingsHandle) {
        let stuck_after = self.setup.as_ref().map_or(Duration::MAX, |setup| setup.stuck_after);
        for (name, running) in &mut self.running {
            // Locked to the end: see `clear_queue`.
            let slot = running.queue.lock();
            let Some(queue) = &*slot else {
                running.seen = QueueExamination::default();
                continue;
            };
            let (context, config) = (&self.context, &running.config);
            running
                .seen
                .examine(context, queue, config, stuck_after, (insights, name));
        }
    }
}

impl RunningProvisioner {
    /// Who provisions for the driver.
    fn lead(&self) -> DriverLeader {
        DriverLeader::of(self.elects, &self.lease_state, false)
    }
}

impl Watched {
    fn start(context: &SharedContext, setup: &ProvisionSetup) -> Self {
        let store = provision::Store::recorded_by(context.store.lists().answers());
        let volumes = Arc::new(AttachVolumes(context.store.clone()));
        provision::VolumeCache::listen(&*volumes, store.volume_listener());
        let nodes = Nodes::new(Arc::new(AttachNodes(context.store.clone())));
        nodes.listen(store.node_listener());
        // The status of the AttacherConfigs says what cannot be watched. Readiness does not: attaching goes on.
        let health = Health::new();
        let watches = [
            tokio::spawn(reflect::<PersistentVolumeClaimWire, _>(
                setup.client.clone(),
                store.clone(),
                health.check("watch/persistentvolumeclaims"),
            )),
            tokio::spawn(reflect::<StorageClassWire, _>(
                setup.client.clone(),
                store.clone(),
                health.check("watch/storageclasses"),
            )),
        ];
        let client = setup.client.clone();
        let check = health.check("watch/nodes");
        let start = move |nodes| {
            let watch = reflect::<NodeLabelsWire, _>(client, nodes, check);
            AbortOnDropHandle::new(tokio::spawn(watch))
        };
        Self {
            context: provision::SharedContext {
                store,
                volumes,
                nodes: Arc::new(NodeWatch::new(nodes, Box::new(start))),
                requests: context.requests.clone(),
                events: context.events.clone(),
                metrics: context.metrics.clone(),
                tracer: context.tracer.clone(),
                stuck_after: setup.stuck_after,
            },
            _watches: watches.map(AbortOnDropHandle::new),
        }
    }
}

/// How the Leases of the role are competed for: as those of attaching, by a name of their own. No former release has held one.
fn election_for(elections: &LeaderElectionMode, config: &DriverConfig) -> Option<LeaderElectionConfig> {
    elections.config_for(config).map(|election| election.after(None))
}
