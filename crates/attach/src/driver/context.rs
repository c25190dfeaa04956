//! [`DriverContext`]: what every attempt of one driver shares.

use parking_lot::RwLock;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

use super::attempt::failure_writes::FailureWriteLimiter;
use super::attempt::in_flight::InFlightCalls;
use super::secret_waiters::SecretWaits;
use super::shared_context::SharedContext;
use crate::api::validated::DriverConfig;
use crate::cache::{AttacherKey, Snapshot};
use crate::decide::DriverFacts;
use crate::queue::Queue;
use crate::telemetry::Tracer;
use crate::traces::LifecycleTraces;
use csi_attacher_runtime::fence::FencedClient;
use csi_attacher_runtime::state::DriverStateSender;

/// The parts of a driver that outlive an attempt, and the settings in use.
pub(super) struct DriverContext {
    pub context: SharedContext,
    pub facts: Arc<DriverFacts>,
    pub config_name: Arc<str>,
    /// The settings in use; each attempt reads them again.
    pub config: watch::Receiver<Arc<DriverConfig>>,
    pub queue: Queue<AttacherKey>,
    pub publisher: DriverStateSender,
    /// Held while a live volume is released: other than one that is being deleted, it may be attached again meanwhile.
    pub live_release: tokio::sync::Mutex<()>,
    pub in_flight: InFlightCalls,
    /// The Secrets that attachments wait for.
    pub secrets: Arc<SecretWaits>,
    /// Which failures are written on the attachments.
    pub failures: FailureWriteLimiter,
    pub lifecycles: LifecycleTraces,
    /// Notified when something was found that was published before the driver lost the calls.
    pub capability_missed: Notify,
    pub(super) client: RwLock<FencedClient>,
}

impl DriverContext {
    /// The client for the connection that stands now.
    pub fn client(&self) -> FencedClient {
        self.client.read().clone()
    }

    /// The tracer with the driver's own settings, as they are now.
    pub fn tracer(&self) -> Tracer {
        self.lifecycles.tracer()
    }

    /// As [`DriverContext::client`], for the volume of an attachment.
    pub fn client_for(&self, snapshot: &Snapshot) -> FencedClient {
        let client = self.client();
        // In-line volumes never count: they were translated before they came here, and the Go sidecar does not count them.
        let in_tree = snapshot.volume.as_ref().is_some_and(|volume| volume.in_tree.is_some());
        if in_tree { client.migrated() } else { client }
    }
}
