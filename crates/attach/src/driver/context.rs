//! [`DriverContext`]: what every attempt of one driver shares.

use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::Notify;

use super::attempt::failure_writes::FailureWriteLimiter;
use super::attempt::in_flight::InFlightCalls;
use super::reconcile_sync::turns::ListTurns;
use super::secret_waiters::SecretWaits;
use super::shared_context::SharedContext;
use crate::cache::{AttacherKey, Snapshot};
use crate::traces::LifecycleTraces;
use csi_attacher_runtime::Workplace;
use csi_attacher_runtime::fence::FencedClient;

/// The parts of a driver that outlive an attempt, and the settings in use.
pub struct DriverContext {
    pub(super) place: Workplace<AttacherKey>,
    pub(super) context: SharedContext,
    /// Held while a live volume is released: other than one that is being deleted, it may be attached again meanwhile.
    pub(super) live_release: tokio::sync::Mutex<()>,
    pub(super) in_flight: InFlightCalls,
    /// The listings for requests to release.
    pub(super) list_turns: ListTurns,
    /// The Secrets that attachments wait for.
    pub(super) secrets: Arc<SecretWaits>,
    /// Which failures are written on the attachments.
    pub(super) failures: FailureWriteLimiter,
    pub(super) lifecycles: LifecycleTraces,
    /// Notified when something was found that was published before the driver lost the calls.
    pub(super) capability_missed: Notify,
}

impl Deref for DriverContext {
    type Target = Workplace<AttacherKey>;

    fn deref(&self) -> &Self::Target {
        &self.place
    }
}

impl DriverContext {
    /// As [`DriverContext::client`], for the volume of an attachment.
    pub fn client_for(&self, snapshot: &Snapshot) -> FencedClient {
        let client = self.client();
        // In-line volumes never count: they were translated before they came here, and the Go sidecar does not count them.
        let in_tree = snapshot.volume.as_ref().is_some_and(|volume| volume.in_tree.is_some());
        if in_tree { client.migrated() } else { client }
    }
}
