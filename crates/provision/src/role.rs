//! Provisioning as a role of a driver's task.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

use crate::api::condition::ConditionReason;
use crate::api::names::provisioner_lease_name;
use crate::api::validated::DriverConfig;
use crate::apiserver::Requests;
use crate::context::{DriverContext, SharedContext, provisioner_facts};
use crate::decide::DriverFacts;
use crate::engine;
use crate::key::WorkKey;
use crate::open_calls::OpenCalls;
use crate::queue::Queue;
use crate::reflect::Lists;
use crate::runtime::{DriverStateSender, Engine, Refusal, Role, Start};
use crate::telemetry::Metrics;

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

/// Provisions for one driver.
#[derive(Clone)]
pub struct ProvisionRole {
    /// What all drivers share.
    pub context: SharedContext,
    /// Where the supervisor finds the queue while there is one.
    pub queue: QueueSlot,
    /// Where the supervisor finds whether the driver needs the list of Nodes.
    pub needs_nodes: Arc<AtomicBool>,
    /// What is known of open calls when an engine ends.
    pub open_calls: Arc<OpenCalls>,
}

impl Role for ProvisionRole {
    type Work = DriverContext;

    fn lists(&self) -> &Lists {
        self.context.store.lists()
    }

    /// Nodes, for a driver with topology: without theirs a volume would be made in a zone that no node of its pod is in. They are watched
    /// from the first such driver on.
    fn lists_of(&self, facts: &DriverFacts) -> Option<Lists> {
        let has_topology = provisioner_facts(facts).capabilities.accessibility_constraints;
        self.needs_nodes.store(has_topology, Ordering::Relaxed);
        has_topology.then(|| {
            self.context.nodes.start();
            self.context.nodes.nodes().lists().clone()
        })
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

    /// Also one without CREATE_DELETE_VOLUME: each of its claims is told that nothing can be provisioned, and no call is made.
    async fn admit(&self, facts: &DriverFacts, _: &DriverConfig, _: &str) -> Result<DriverFacts, Refusal> {
        Ok(facts.clone())
    }

    fn start(&self, start: Start) -> Result<Engine<DriverContext>, Refusal> {
        let driver = start.facts.name.clone();
        let is_asked_for = start.config.borrow().provisioning.is_some();
        let engine = is_asked_for.then(|| engine::start(self.context.clone(), start, self.open_calls.clone()));
        let engine = engine.flatten().ok_or_else(|| Refusal {
            reason: ConditionReason::EndpointConflict,
            message: format!(
                "driver {driver} is already provisioned for by another AttacherConfig; delete one of the two"
            ),
        })?;
        *self.queue.lock() = Some((driver, engine.queue().clone()));
        Ok(engine)
    }

    fn vacancies(&self) -> watch::Receiver<()> {
        self.context.store.vacancies()
    }

    fn ended(&self, _: &DriverStateSender) {
        clear_queue(&self.queue, &self.context.metrics);
    }
}
