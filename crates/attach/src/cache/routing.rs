//! From an object that changed to the queue of the driver that cares.
//!
//! A queue takes a key without ever waiting, so that a stuck driver cannot hold up the watches or another driver.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::api::condition::ConditionReason;
use crate::decide::{self, DriverFacts, Policy, SecretState, Snapshot, observe};
use crate::objects::{Attachment, Volume};
use crate::queue::{Item, Lane, Queue, Remembered};
use crate::telemetry::names;
use csi_attacher_runtime::EnqueueCause;
use csi_attacher_runtime::queue_metrics::LaneNames;

/// Lane of attachments that are wanted.
pub const ATTACH: Lane = Lane::new(0);
/// Lane of attachments that are being deleted: a burst of one kind never starves the other.
pub const DETACH: Lane = Lane::new(1);
/// Lane of what needs no call: PersistentVolumes that may be released, and what is attached and still to be noted or protected. After
/// a sidecar there may be tens of thousands of the latter, which no attach is to wait for.
pub const VOLUME: Lane = Lane::new(2);

/// The queues of the Go sidecar by lane: attaches and detaches make up one, PersistentVolumes the other.
pub const LANE_NAMES: LaneNames = &[
    names::QUEUE_VOLUME_ATTACHMENT,
    names::QUEUE_VOLUME_ATTACHMENT,
    names::QUEUE_PERSISTENT_VOLUME,
];

/// The lane that an attachment belongs to as it is now. `forced` says that it is worked on though it looks settled.
pub fn lane_of(attachment: &Attachment, forced: bool) -> Lane {
    match attachment.deleting {
        Some(_) => DETACH,
        None if attachment.attached && !forced => VOLUME,
        None => ATTACH,
    }
}

/// What a driver works on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttacherKey {
    /// The name of a VolumeAttachment.
    Attachment(Arc<str>),
    /// The name of a PersistentVolume.
    Volume(Arc<str>),
}

/// Where the work of one driver goes.
#[derive(Clone)]
pub struct Route {
    /// What decisions need to know of the driver.
    pub facts: Arc<DriverFacts>,
    /// Name of the AttacherConfig that runs it.
    pub config: Arc<str>,
    /// Receives the keys of the driver.
    pub queue: Queue<AttacherKey>,
    /// Called for attachments that leave the queue without an attempt.
    pub settled: SettledCallback,
}

/// Why an attachment needs no attempt any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAttemptReason {
    /// There is nothing to do about it as it is now.
    Settled,
    /// The object is not there any more.
    Gone,
}

/// What is remembered of a key while it is in the queue; of it the cache knows only whether its attachment is forced.
type Memory = <AttacherKey as Remembered>::Memory;

/// Called for attachments that need no attempt any more, with what was remembered of them; must neither wait nor use the store.
pub type SettledCallback = Arc<dyn Fn(&Attachment, NoAttemptReason, Memory) + Send + Sync>;

impl Route {
    /// Adds a VolumeAttachment to the queue of its driver, or takes it out when there is nothing to do about it. Nothing else adds one.
    pub(super) fn enqueue_attachment(&self, snapshot: &Snapshot, cause: EnqueueCause) {
        let attachment = &snapshot.attachment;
        let key = AttacherKey::Attachment(attachment.name.clone());
        let volume = snapshot.volume.as_deref();
        // From when that is asked for until the key is settled.
        let remembered = self.queue.remember(&key, |memory| memory.forces(&attachment.uid));
        let forced = cause == EnqueueCause::ForceSync || remembered == Some(true);
        if !decide::needs_work(attachment, volume, &self.facts) && !forced {
            let ended = self.queue.forget(&key).unwrap_or_default();
            (self.settled)(attachment, NoAttemptReason::Settled, ended);
            return;
        }
        let policy = Policy::default();
        let observed = observe(snapshot, &self.facts, &policy, SecretState::NotLoaded);
        let lane = lane_of(attachment, forced);
        let item = Item::new(key, lane, decide::attachment_fingerprint(&observed));
        let item = item.in_group(attachment.node.clone()).because(cause.into());
        self.queue.add_and_remember(item, |memory| {
            if cause == EnqueueCause::ForceSync {
                memory.forced = Some(attachment.uid.clone());
            }
        });
    }

    /// An attachment is gone. Its key leaves the queue, unless another attachment has the name (`is_named`).
    pub(super) fn forget_gone(&self, gone: &Attachment, is_named: bool) {
        let key = AttacherKey::Attachment(gone.name.clone());
        let ended = if is_named {
            self.queue.remember(&key, std::mem::take)
        } else {
            self.queue.forget(&key)
        };
        (self.settled)(gone, NoAttemptReason::Gone, ended.unwrap_or_default());
    }

    /// Adds a PersistentVolume to the queue, if it may have to be released.
    pub(super) fn enqueue_volume(&self, volume: &Volume, attachments: usize, cause: EnqueueCause) {
        if !decide::may_release(volume, &self.facts) {
            return;
        }
        let fingerprint = decide::volume_fingerprint(volume, attachments, &self.facts);
        let item = Item::new(AttacherKey::Volume(volume.name.clone()), VOLUME, fingerprint);
        self.queue.add(item.because(cause.into()));
    }
}

/// Why a driver cannot be served: another engine serves it, which would publish everything twice; or serves one whose finalizer has the same
/// name, so that one would release what the other holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteConflict {
    /// The driver that is refused.
    pub driver: Arc<str>,
    /// The driver that is served.
    pub other: Arc<DriverFacts>,
    /// The AttacherConfig of that driver.
    pub config: Arc<str>,
}

impl fmt::Display for RouteConflict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (driver, config, DriverFacts { name, finalizer, .. }) = (&self.driver, &self.config, &*self.other);
        if name == driver {
            return write!(
                formatter,
                "driver {driver} is already served by AttacherConfig {config}; delete one of the two"
            );
        }
        write!(
            formatter,
            "driver {driver} has the same finalizer {finalizer} as driver {name} of AttacherConfig {config}; run one of \
             them in an operator of its own"
        )
    }
}

impl RouteConflict {
    /// The reason that the condition Stalled shows.
    pub fn reason(&self) -> ConditionReason {
        if self.driver == self.other.name {
            ConditionReason::EndpointConflict
        } else {
            ConditionReason::FinalizerCollision
        }
    }
}

pub(super) type Routes = HashMap<Arc<str>, Route>;

/// Adds a driver, unless it is in conflict with one that runs.
pub(super) fn add_route(routes: &mut Routes, route: Route) -> Result<(), RouteConflict> {
    let own = &route.facts;
    let mut known = routes.values();
    if let Some(known) = known.find(|it| it.facts.name == own.name || it.facts.finalizer == own.finalizer) {
        return Err(RouteConflict {
            driver: own.name.clone(),
            other: known.facts.clone(),
            config: known.config.clone(),
        });
    }
    routes.insert(own.name.clone(), route);
    Ok(())
}
