//! [`SharedContext`]: what all drivers share; [`DriverContext`]: what every attempt of one driver shares.

use csi_attacher_model::attempt;
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::Notify;

use super::attempt::failure_writes::FailureWriteLimiter;
use super::attempt::in_flight::InFlightCalls;
use super::attempt::unfinished::UnfinishedPublishes;
use super::reconcile_sync::list::PageCall;
use super::reconcile_sync::turns::ListTurns;
use super::secret_waiters::SecretWaits;
use crate::apiserver::Requests;
use crate::cache::{AttacherKey, Snapshot, Store};
use crate::decide::{self, DriverFacts, KeepReason, Write};
use crate::events::EventRecorder;
use crate::objects::Volume;
use crate::progress::UnfinishedAttempts;
use crate::telemetry::{Metrics, Tracer};
use crate::traces::LifecycleTraces;
use csi_attacher_runtime::Workplace;
use csi_attacher_runtime::fence::FencedClient;

/// What all drivers share.
#[derive(Clone)]
pub struct SharedContext {
    /// The observed state of the cluster.
    pub store: Store,
    /// Writes to the API server.
    pub requests: Requests,
    /// Events.
    pub events: EventRecorder,
    /// Metrics.
    pub metrics: Metrics,
    /// Traces.
    pub tracer: Tracer,
    /// What one engine of a driver leaves to the next.
    pub unfinished: UnfinishedPublishes,
    /// The same about attempts.
    pub attempts: UnfinishedAttempts,
    /// The rules that all engines work by.
    pub rules: Rules,
}

impl SharedContext {
    /// Without Events and traces, by the rules of the product.
    pub fn new(store: Store, requests: Requests, metrics: Metrics) -> Self {
        Self {
            store,
            requests,
            events: EventRecorder::disabled(),
            metrics,
            tracer: Tracer::disabled(),
            unfinished: UnfinishedPublishes::default(),
            attempts: UnfinishedAttempts::default(),
            rules: Rules::default(),
        }
    }
}

/// The rules that an engine works by, as values: a test of the tests hands in wrong ones. By default [`decide::attachment`],
/// [`decide::settle`] and [`decide::volume`].
#[derive(Clone, Copy)]
pub struct Rules {
    /// About VolumeAttachments.
    pub attempt: attempt::Rules,
    /// What releases a PersistentVolume, or why it is kept.
    pub volume: fn(&Volume, usize, &DriverFacts) -> Result<Write, KeepReason>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            attempt: attempt::Rules::default(),
            volume: decide::volume,
        }
    }
}

/// The parts of a driver that outlive an attempt, and the settings in use.
pub struct DriverContext {
    pub(super) place: Workplace<AttacherKey>,
    pub(super) context: SharedContext,
    /// Held while a live volume is released: other than one that is being deleted, it may be attached again meanwhile.
    pub(super) live_release: tokio::sync::Mutex<()>,
    pub(super) in_flight: InFlightCalls,
    pub(super) list_turns: ListTurns,
    pub(super) secrets: Arc<SecretWaits>,
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
    /// What a page of ListVolumes is asked for with, as it is now.
    pub(super) fn page_call(&self) -> PageCall {
        (self.client(), self.config.borrow().timeouts.list_volumes)
    }

    /// As [`DriverContext::client`], for the volume of an attachment.
    pub fn client_for(&self, snapshot: &Snapshot) -> FencedClient {
        let client = self.client();
        // In-line volumes never count: they were translated before they came here, and the Go sidecar does not count them.
        let in_tree = snapshot.volume.as_ref().is_some_and(|volume| volume.in_tree.is_some());
        if in_tree { client.migrated() } else { client }
    }
}
