//! The tasks that provision: one for each AttacherConfig that has the section, beside the task that attaches for it. Each has a connection and
//! a Lease of its own, so that neither role holds up, restarts or ends the other.
//!
//! Claims and classes are watched while there is such a task, and not before; Nodes from the first driver with topology on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;
use tracing::error;

use csi_attacher_model::provision::{ProvisionerFacts, is_own_volume};
use csi_attacher_provision::{self as provision, NodeWatch, Nodes, ProvisionRole, RoleLinks, clear_queue, open_claims};
use kube::Client;

use super::attach_cache::AttachCache;
use super::election::LeaderElectionMode;
use super::provisioning_findings::QueueExamination;
use super::provisioning_state::{Begins, ProvisioningState};
use super::saturation::Saturation;
use super::status_author::DriverLeader;
use super::tasks::{Configs, NewTask, RunningTask, TaskKind, Tasks};
use crate::api::DriverConfig;
use crate::api::names::provisioner_lease_name;
use crate::api::provisioning_status::ProvisioningLease;
use crate::driver::SharedContext;
use crate::findings::FindingsHandle;
use crate::health::Health;
use crate::objects::{NodeLabelsWire, PersistentVolumeClaimWire, StorageClassWire};
use crate::reflect::{CachedKind, Sink, WatchedKind, reflect};
use crate::runtime::DriverPhase;

/// What provisioning needs besides what attaching has.
#[derive(Clone)]
pub struct ProvisionSetup {
    /// For the watches.
    pub client: Client,
    /// How long the outcome of a call has to be unknown before a person may let a claim go.
    pub stuck_after: Duration,
    /// Cancelled when a watch ends that is still needed, as by a panic: nobody fills the cache any more, and it looks like a quiet cluster.
    pub failed: CancellationToken,
}

impl ProvisionSetup {
    /// Runs the watch of a kind until the handle is dropped. If it ends before that, that is told.
    fn watch<K, S: Sink>(&self, sink: S, health: &Health) -> AbortOnDropHandle<()>
    where
        K: WatchedKind<Record: CachedKind<S::Tables>>,
    {
        let kind = K::PLURAL;
        let watch = reflect::<K, S>(self.client.clone(), sink, health.check(kind));
        let (watch, failed) = (AbortOnDropHandle::new(tokio::spawn(watch)), self.failed.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let ended = watch.await;
            error!(kind, ?ended, "a watch that provisioning needs has ended");
            failed.cancel();
        }))
    }
}

/// What is kept of a task that provisions besides what is kept of all.
pub(super) struct ProvisionTask {
    links: RoleLinks,
    seen: QueueExamination,
}

/// What makes the tasks that provision.
pub(super) struct Provisioning {
    context: SharedContext,
    election: LeaderElectionMode,
    /// None in place of the sidecar, where there is no section.
    pub setup: Option<ProvisionSetup>,
    watched: Option<ProvisioningWatches>,
}

/// The watches, and what they feed.
struct ProvisioningWatches {
    context: provision::SharedContext,
    _watches: [AbortOnDropHandle<()>; 2],
    /// Cancelled with them: nobody lists any more.
    over: CancellationToken,
    _ends: DropGuard,
}

impl TaskKind for Provisioning {
    type Role = ProvisionRole;
    type Own = ProvisionTask;

    const NAME: &str = "task that provisions";

    fn prepare(
        &mut self,
        config: &DriverConfig,
        former: Option<ProvisionTask>,
    ) -> Option<NewTask<ProvisionRole, ProvisionTask>> {
        let setup = self.setup.as_ref()?;
        let context = &self.context;
        let watched = self
            .watched
            .get_or_insert_with(|| ProvisioningWatches::start(context, setup));
        let links = RoleLinks {
            open_calls: former.map(|former| former.links.open_calls).unwrap_or_default(),
            ..RoleLinks::default()
        };
        Some(NewTask {
            role: ProvisionRole {
                context: watched.context.clone(),
                links: links.clone(),
            },
            election: self.election.config_for(config),
            own: ProvisionTask {
                links,
                seen: QueueExamination::default(),
            },
        })
    }

    fn ended(&self, own: &ProvisionTask) {
        clear_queue(&own.links.queue, &self.context.metrics);
    }

    fn unused(&mut self) {
        // Nobody reads what is watched.
        self.watched = None;
    }
}

impl Provisioning {
    pub fn new(context: SharedContext, election: LeaderElectionMode) -> Self {
        Self {
            context,
            election,
            setup: None,
            watched: None,
        }
    }
}

impl Tasks<Provisioning> {
    /// Starts, changes and stops tasks so that those run whose settings have the section.
    pub fn apply_sections(&mut self, configs: &Configs) {
        let wanted = configs.iter().filter(|(_, config)| config.provisioning.is_some());
        let wanted = wanted.map(|(name, config)| (name.clone(), config.clone()));
        self.apply(wanted.collect());
    }

    fn watched(&self) -> Option<&ProvisioningWatches> {
        self.kind.watched.as_ref()
    }

    /// The task of an AttacherConfig whose settings have the section. Of a section that was removed nothing is said any more, though its last
    /// calls may run for hours.
    fn shown(&self, name: &str) -> Option<&RunningTask<ProvisionTask>> {
        self.get(name).filter(|running| !running.is_removed())
    }

    /// What the task of an AttacherConfig is at; none when nobody is to provision.
    pub fn state(&self, name: &str) -> Option<ProvisioningState> {
        let running = self.shown(name)?;
        let reads_nodes = running.own.links.needs_nodes.load(Ordering::Relaxed);
        let failures = self.watched().into_iter().flat_map(|watched| {
            let claims = watched.context.store.lists().failure();
            let nodes = watched.context.nodes.nodes().lists().failure();
            [claims, nodes.filter(|_| reads_nodes)].into_iter().flatten()
        });
        // PersistentVolumes and VolumeAttachments are watched for attaching.
        let failures: Vec<String> = failures.chain(self.kind.context.store.lists().failure()).collect();
        let task = running.status.borrow().clone();
        let is_unreached = matches!(task.phase, DriverPhase::Unreachable { .. });
        Some(ProvisioningState {
            task,
            holds_claims: is_unreached && self.markers(name).is_some_and(|marked| marked > 0),
            is_elsewhere: running.lead() == DriverLeader::Other,
            begins: Begins::of(&running.config),
            reads_nodes,
            scheduled_by_capacity: running.own.links.scheduled_by_capacity.load(Ordering::Relaxed),
            watch_failure: (!failures.is_empty()).then(|| failures.join("; ")),
            health: running.own.seen.health.clone(),
            pending: running.own.seen.pending.clone(),
            lease: running.config.driver_name.as_deref().and_then(|driver| {
                Some(ProvisioningLease {
                    name: provisioner_lease_name(driver),
                    namespace: running.lease_namespace.clone()?,
                })
            }),
        })
    }

    /// Who provisions for the driver of an AttacherConfig; none when nobody is to.
    pub fn lead(&self, name: &str) -> Option<DriverLeader> {
        self.shown(name).map(RunningTask::lead)
    }

    /// Which limits make the work of an AttacherConfig wait; none where this replica does not provision for it.
    pub fn saturation(&self, name: &str) -> Option<&Saturation> {
        let works = |running: &&RunningTask<ProvisionTask>| running.own.links.queue.lock().is_some();
        self.shown(name)
            .filter(works)
            .map(|running| &running.own.seen.saturation)
    }

    /// The names of the drivers that a task works for, which the settings have.
    pub fn names_in_use(&self) -> impl Iterator<Item = String> {
        self.all().filter_map(|running| running.config.driver_name.clone())
    }

    /// How many claims carry a marker of the driver of an AttacherConfig, or have a call open without one: what was created for them is not
    /// known. None before the first complete list, and without a task: nobody looks.
    pub fn markers(&self, name: &str) -> Option<usize> {
        let (running, watched) = (self.get(name)?, self.watched()?);
        let driver = running.config.driver_name.as_deref().unwrap_or_default();
        let slot = running.own.links.queue.lock();
        let open = slot.as_ref().map_or(0, |(_, queue)| open_claims(queue));
        watched.context.store.marked(driver).map(|marked| marked.max(open))
    }

    /// Lists anew what [`Self::markers`] counts; resolves when that is done, at once where there is no task, and when the watches end before or
    /// the API server forbids a list: no marker could be taken off then either.
    pub fn relist(&self, name: &str) -> impl Future<Output = ()> + Send + use<> {
        let watched = self.get(name).and(self.watched());
        let watched = watched.map(|watched| (watched.context.store.clone(), watched.over.clone()));
        async move {
            if let Some((store, over)) = watched {
                over.run_until_cancelled(store.lists().clone().relist_permitted()).await;
            }
        }
    }

    /// The PersistentVolumes of the driver of an AttacherConfig that are being deleted and are held for their volume. None is known without a
    /// task; nor are the [`Self::markers`] then.
    pub fn volumes_in_deletion(&self, name: &str) -> Vec<Arc<str>> {
        let Some(running) = self.get(name) else {
            return Vec::new();
        };
        let driver = ProvisionerFacts {
            name: running.config.driver_name.as_deref().unwrap_or_default().into(),
            ..ProvisionerFacts::default()
        };
        let mut names = Vec::new();
        self.kind.context.store.for_each_volume_in_deletion(|volume| {
            if volume.lifecycle.finalizer_at.is_some() && is_own_volume(volume, &driver) {
                names.push(volume.name.clone());
            }
        });
        names
    }

    pub fn examine_queues(&mut self, insights: &FindingsHandle) {
        let setup = self.kind.setup.as_ref();
        let stuck_after = setup.map_or(Duration::MAX, |setup| setup.stuck_after);
        let context = self.kind.context.clone();
        for (name, running) in self.named_mut() {
            let own = &mut running.own;
            // Locked to the end: see `clear_queue`.
            let slot = own.links.queue.lock();
            let Some(queue) = &*slot else {
                own.seen = QueueExamination::default();
                continue;
            };
            own.seen
                .examine(&context, queue, &running.config, stuck_after, (insights, name));
        }
    }
}

impl ProvisioningWatches {
    fn start(context: &SharedContext, setup: &ProvisionSetup) -> Self {
        let store = provision::Store::recorded_by(context.store.lists().answers());
        let volumes = Arc::new(AttachCache(context.store.clone()));
        provision::VolumeCache::listen(&*volumes, store.volume_listener());
        let nodes = Nodes::new(volumes.clone(), context.store.lists().answers());
        nodes.listen(store.node_listener());
        // The status of the AttacherConfigs says what cannot be watched. Readiness does not: attaching goes on.
        let health = Health::new();
        let claims = setup.watch::<PersistentVolumeClaimWire, _>(store.clone(), &health);
        let classes = setup.watch::<StorageClassWire, _>(store.clone(), &health);
        let for_nodes = setup.clone();
        let start = move |nodes| for_nodes.watch::<NodeLabelsWire, _>(nodes, &health);
        let over = CancellationToken::new();
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
            _watches: [claims, classes],
            _ends: over.clone().drop_guard(),
            over,
        }
    }
}
