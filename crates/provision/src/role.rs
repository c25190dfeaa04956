//! Provisioning as a role of a driver's task.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::api::condition::ConditionReason;
use crate::api::names::provisioner_lease_name;
use crate::api::validated::DriverConfig;
use crate::apiserver::{CapacityWire, CsiDriverWire, Requests};
use crate::context::{DriverContext, SharedContext, provisioner_facts};
use crate::decide::DriverFacts;
use crate::engine;
use crate::key::WorkKey;
use crate::open_calls::OpenCalls;
use crate::provision::{CapacityManager, capacity_selector, check_central};
use crate::queue::Queue;
use crate::reflect::{Lists, Sink as _};
use crate::runtime::{DriverStateSender, Engine, Refusal, Role, Start};
use crate::telemetry::Metrics;

/// So many CSIStorageCapacities are looked at. One of a node is enough, and others are not to be expected among what is asked for.
const CAPACITIES: usize = 500;

/// So long a driver waits for what is only told of it.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// What is said of a driver for which kube-scheduler goes by CSIStorageCapacities: those of a former csi-provisioner, if there are any.
pub const STALE_CAPACITY: &str = "CSIDriver.spec.storageCapacity is true, and nobody writes CSIStorageCapacity objects: set it to false, \
                                  or kube-scheduler goes by objects that are not updated any more";

/// What is said of a driver that makes no volumes.
pub fn not_supported(driver: &str) -> String {
    format!(
        "driver {driver} does not announce CREATE_DELETE_VOLUME, so that no volume can be provisioned; remove spec.provisioning"
    )
}

/// The name of a driver and its queue, while an engine works for it.
pub type QueueSlot = Arc<Mutex<Option<(Arc<str>, Queue<WorkKey>)>>>;

/// For how many claims a volume may be there that no PersistentVolume is known to name, as this process knows; most of them carry a marker.
pub fn open_claims(queue: &Queue<WorkKey>) -> usize {
    let mut open = 0;
    queue.remember_all(|_, memory| open += usize::from(memory.claim.known.holds_volume()));
    open
}

/// Empties the slot of an engine that has ended, and removes what the metrics show of its work. In this order: whoever counts claims
/// holds the slot meanwhile, and the series do not come back.
pub fn clear_queue(slot: &QueueSlot, metrics: &Metrics) {
    let ended = slot.lock().take();
    if let Some((driver, _)) = ended {
        metrics.forget_provisioning(&driver);
    }
}

/// What the role of a driver shares with the supervisor.
#[derive(Clone, Default)]
pub struct RoleLinks {
    /// The queue, while there is one.
    pub queue: QueueSlot,
    /// Whether the driver needs the list of Nodes.
    pub needs_nodes: Arc<AtomicBool>,
    /// Whether kube-scheduler goes by CSIStorageCapacities of the driver.
    pub scheduled_by_capacity: Arc<AtomicBool>,
    /// Whether the driver makes no volumes, which the log says then.
    pub lacks_calls: Arc<AtomicBool>,
    /// What is known of open calls, from one engine and one task to the next.
    pub open_calls: Arc<OpenCalls>,
}

/// Provisions for one driver.
#[derive(Clone)]
pub struct ProvisionRole {
    /// What all drivers share.
    pub context: SharedContext,
    /// What the supervisor sees of it.
    pub links: RoleLinks,
}

impl ProvisionRole {
    /// Refuses a driver that its nodes provision for.
    async fn refuse_distributed(&self, driver: &str) -> Result<(), Refusal> {
        let Some(selector) = capacity_selector(driver) else {
            return Ok(());
        };
        let requests = &self.context.requests;
        let listed = requests.list_metadata::<CapacityWire>(&selector, CAPACITIES).await;
        let listed = listed.map(|capacities| capacities.into_iter().map(CapacityManager::from).collect());
        let is_working = self.links.queue.lock().is_some();
        check_central(driver, listed, is_working).map_err(|refusal| Refusal {
            reason: refusal.reason(),
            message: refusal.to_string(),
        })
    }

    /// Whether kube-scheduler goes by CSIStorageCapacities of a driver; none where that cannot be read soon: the API server may ask to wait for
    /// minutes.
    async fn is_scheduled_by_capacity(&self, driver: &str) -> Option<bool> {
        let found = self.context.requests.find::<CsiDriverWire>(driver);
        let found = timeout(TOLD_WITHIN, found).await.ok()?.ok()?;
        Some(found.is_some_and(|found| found.is_scheduled_by_capacity()))
    }

    /// Tells whether kube-scheduler goes by CSIStorageCapacities of a driver that is admitted.
    fn tell_capacity(&self, driver: &str, is_so: bool) {
        let was_so = self.links.scheduled_by_capacity.swap(is_so, Ordering::Relaxed);
        if is_so && !was_so {
            tracing::warn!(driver, "{STALE_CAPACITY}");
        }
    }

    /// Tells that a driver that is admitted makes no volumes, once until it does: the engine works all the same.
    fn tell_support(&self, config: &str, facts: &DriverFacts) {
        let (driver, lacks_calls) = (&*facts.name, !facts.capabilities.create_delete_volume);
        let lacked_calls = self.links.lacks_calls.swap(lacks_calls, Ordering::Relaxed);
        if lacks_calls && !lacked_calls {
            let (reason, error) = (ConditionReason::NotSupported.as_str(), not_supported(driver));
            tracing::warn!(config, driver, reason, error, "cannot provision for the driver");
        } else if lacked_calls && !lacks_calls {
            tracing::info!(config, driver, "the driver announces CREATE_DELETE_VOLUME now");
        }
    }
}

impl Role for ProvisionRole {
    type Work = DriverContext;

    fn lists(&self, _: &DriverFacts) -> Lists {
        self.context.store.lists().clone()
    }

    /// Nodes, for a driver with topology: without theirs a volume would be made in a zone that no node of its pod is in. They are watched
    /// from the first such driver on.
    fn lists_of(&self, facts: &DriverFacts) -> Option<Lists> {
        let has_topology = provisioner_facts(facts).capabilities.accessibility_constraints;
        self.links.needs_nodes.store(has_topology, Ordering::Relaxed);
        has_topology.then(|| {
            self.context.nodes.start();
            self.context.nodes.nodes().lists().clone()
        })
    }

    /// PersistentVolumes, VolumeAttachments and CSINodes, which attaching watches; and Nodes, as above.
    fn proofs_of(&self, facts: &DriverFacts) -> Vec<Lists> {
        let has_topology = provisioner_facts(facts).capabilities.accessibility_constraints;
        let nodes = has_topology.then(|| self.context.nodes.nodes().lists().clone());
        std::iter::once(self.context.volumes.lists()).chain(nodes).collect()
    }

    fn requests(&self) -> &Requests {
        &self.context.requests
    }

    fn metrics(&self) -> &Metrics {
        &self.context.metrics
    }

    /// Attaching shows the driver.
    fn driver_metrics(&self) -> Option<&Metrics> {
        None
    }

    /// That of external-provisioner, so that a sidecar and this role never both work.
    fn lease(&self, driver: &str) -> String {
        provisioner_lease_name(driver)
    }

    /// That of external-provisioner, which is the same for all drivers.
    fn finalizer(&self, _: &str) -> Option<String> {
        None
    }

    fn needs_lists_first(&self, _: &DriverFacts) -> bool {
        false
    }

    /// Also one without CREATE_DELETE_VOLUME: its claims are told that nothing can be provisioned, its PersistentVolumes that no volume can be
    /// deleted, and no call is made. But none that its nodes provision for, whatever the mode: also what is only finished has calls that
    /// another node would have to answer.
    async fn admit(&self, facts: &DriverFacts, config: &DriverConfig, name: &str) -> Result<DriverFacts, Refusal> {
        if config.provisioning.is_some() {
            let driver = &*facts.name;
            // Not one after the other: the first one may take as long as a request is waited for.
            let (central, by_capacity) =
                tokio::join!(self.refuse_distributed(driver), self.is_scheduled_by_capacity(driver));
            central?;
            self.tell_support(name, facts);
            // What cannot be read says nothing: what was known stays.
            if let Some(is_so) = by_capacity {
                self.tell_capacity(driver, is_so);
            }
        }
        Ok(facts.clone())
    }

    fn start(&self, start: Start) -> Result<Engine<DriverContext>, Refusal> {
        let driver = start.facts.name.clone();
        let is_asked_for = start.config.borrow().provisioning.is_some();
        let engine = is_asked_for.then(|| engine::start(self.context.clone(), start, self.links.open_calls.clone()));
        let engine = engine.flatten().ok_or_else(|| Refusal {
            reason: ConditionReason::EndpointConflict,
            message: format!(
                "driver {driver} is already provisioned for by another AttacherConfig; delete one of the two"
            ),
        })?;
        *self.links.queue.lock() = Some((driver, engine.queue().clone()));
        Ok(engine)
    }

    fn vacancies(&self) -> watch::Receiver<()> {
        self.context.store.vacancies()
    }

    fn ended(&self, _: &DriverStateSender) {
        clear_queue(&self.links.queue, &self.context.metrics);
    }
}
