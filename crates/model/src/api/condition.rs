//! Status conditions by the rules of the Kubernetes API conventions and kstatus, as a pure function.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Longest message of a condition or failure in bytes; longer ones are cut. The API server's own limit is 32 KiB, but
/// a status is read by people and sent to every watcher.
pub const MAX_MESSAGE_BYTES: usize = 1024;

/// What the messages of the conditions of a driver begin with where it is attached for and not provisioned for.
pub const OF_PROVISIONING: &str = "provisioning: ";

const ELLIPSIS: &str = "…";

named! {
    /// The aspects of an AttacherConfig that have a condition.
    pub enum ConditionType {
        /// Volumes of the driver are being attached and detached.
        Ready,
        /// A change is being applied (kstatus: "in progress").
        Reconciling,
        /// Only a person can fix it (kstatus: "failed").
        Stalled,
        /// The driver answers on its endpoint.
        DriverReachable,
        /// Work waits because a limit of `spec.concurrency` or `spec.provisioning.concurrency` is reached.
        Saturated,
        /// No attach or detach is stuck or keeps failing.
        AttachmentsHealthy,
        /// Attachments, volumes, nodes and CSIDriver fit together.
        AttachmentsConsistent,
        /// Volumes of the driver are being provisioned; absent while spec.provisioning is.
        ProvisioningReady,
        /// No PersistentVolumeClaim waits for its volume for want of something, or keeps failing; absent while spec.provisioning is.
        ProvisioningHealthy,
        /// No deletion of a volume keeps failing or waits for a person; absent while spec.provisioning is.
        DeletionHealthy,
    }
}

named! {
    /// Whether an aspect holds; unknown while nothing can be said of it.
    #[allow(missing_docs, reason = "the words say it")]
    pub enum ConditionStatus {
        True,
        False,
        Unknown,
    }
}

impl ConditionType {
    /// Whether it is about provisioning alone: it is absent while spec.provisioning is, and written by the replica that provisions.
    pub fn is_of_provisioning(name: &str) -> bool {
        let kind = Self::of_word(name);
        matches!(
            kind,
            Some(Self::ProvisioningReady | Self::ProvisioningHealthy | Self::DeletionHealthy)
        )
    }
}

impl ConditionReason {
    /// Why an AttacherConfig waits for a person: reasons of the condition Stalled, where that is True.
    pub const STALLING: [Self; 15] = [
        Self::InvalidSpec,
        Self::EndpointConflict,
        Self::DriverNameMismatch,
        Self::FinalizerCollision,
        Self::DriverInvalid,
        Self::TlsInvalid,
        Self::SecretMissing,
        Self::SecretForbidden,
        Self::LeaseForbidden,
        Self::IdentityConflict,
        Self::CapabilityLost,
        Self::NotSupported,
        Self::DistributedProvisioner,
        Self::Forbidden,
        Self::FinalizerNotWritten,
    ];
    /// Why attaching is saturated: lane, rate, group.
    pub const ATTACHING_SATURATED: [Self; 3] = [Self::LaneFull, Self::RateLimited, Self::NodeLimit];
    /// Why provisioning is saturated: lane, rate, group.
    pub const PROVISIONING_SATURATED: [Self; 3] = [
        Self::ProvisioningLaneFull,
        Self::ProvisioningRateLimited,
        Self::ClassLimit,
    ];
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

named! {
    /// Why a condition has its status: one CamelCase word that programs can match on.
    #[allow(missing_docs, reason = "a reason without a comment is that of the `FindingKind` with this name")]
    pub enum ConditionReason {
        /// The driver is connected and work is done.
        Running,
        /// The driver's connection is being set up.
        Connecting,
        /// The watches have not delivered everything yet.
        Syncing,
        /// Another replica holds the driver's Lease; this one is ready to take over.
        Standby,
        /// `spec.provisioning.mode` is Disabled.
        Disabled,
        /// A permission is missing to list or watch objects; the message names the rule.
        Forbidden,
        /// What runs is being finished before a change or the end.
        Draining,
        /// `spec.suspend` is true.
        Suspended,
        /// The driver's task ended by a fault of the operator; it is started again.
        Restarting,
        /// The latest spec is in use.
        UpToDate,
        /// The spec breaks a rule; the message names the field.
        InvalidSpec,
        /// The driver answers another name than `spec.driverName`.
        DriverNameMismatch,
        /// An AttacherConfig that goes before this one has the same driver or endpoint.
        EndpointConflict,
        /// Another AttacherConfig's driver has the same finalizer name.
        FinalizerCollision,
        /// The driver does not announce PUBLISH_UNPUBLISH_VOLUME any more, while volumes may be attached.
        CapabilityLost,
        /// The driver cannot do what is asked of it, or this version cannot; the message says what.
        NotSupported,
        /// The nodes of the driver provision for it, each for itself; the message names an object that shows it.
        DistributedProvisioner,
        /// The driver answers.
        Connected,
        /// The driver does not answer; see DriverReachable.
        DriverUnreachable,
        /// Nothing is at the socket's path.
        SocketMissing,
        /// Something else than a socket is at the path.
        NotASocket,
        /// The socket's permissions forbid it.
        PermissionDenied,
        /// Nobody listens on the socket.
        ConnectionRefused,
        /// The endpoint cannot be dialled for another reason.
        DialFailed,
        /// There is no TLS connection; the message says which side refused the other, and why.
        TlsFailed,
        /// The Secret with the certificates is not there.
        SecretMissing,
        /// A Secret may not be read: that with the certificates, or with AttachmentsHealthy that of a volume. The message names the
        /// missing permission and the value of the chart that grants it.
        SecretForbidden,
        /// A volume names a Secret that `spec.publishSecrets` does not list; the message has the entry that is missing.
        SecretNotAllowed,
        /// The driver's Lease may not be read or written; the message names the missing permission.
        LeaseForbidden,
        /// Another process of the same identity has taken the driver's Lease from this replica.
        IdentityConflict,
        /// The Secret with the certificates cannot be read now: the API server does not answer as it should.
        SecretUnreadable,
        /// The Secret with the certificates cannot be used; the message names the key in it.
        TlsInvalid,
        /// What answers speaks no gRPC.
        NoGrpc,
        /// The driver did not answer in time.
        Timeout,
        /// The driver answered a call of the handshake with an error.
        CallFailed,
        /// Probe answered that the driver is not ready.
        DriverNotReady,
        /// The driver's answers break the CSI specification.
        DriverInvalid,
        /// Nothing keeps failing.
        NoFailures,
        /// At least one attachment keeps failing; the message names the last one.
        AttachmentsFailing,
        /// At least one attach or detach has lasted too long; the message names the oldest.
        AttachmentsStuck,
        /// At least one PersistentVolumeClaim failed, or waits for something; the message names the oldest.
        ProvisioningFailing,
        /// At least one PersistentVolumeClaim has been pending for too long; the message names the oldest.
        ProvisioningStuck,
        /// The outcome of a CreateVolume has been unknown for too long; the message names the oldest PersistentVolumeClaim.
        ProvisioningUncertain,
        ClassMissing,
        /// The deletion of at least one volume failed; the message names the oldest.
        DeletesFailing,
        /// The deletion of at least one volume has lasted too long; the message names the oldest.
        DeletesStuck,
        /// `spec.provisioning.deletion` is Hold, and volumes would be deleted otherwise.
        VolumesHeld,
        ReleasedWhileBound,
        NeedsDecision,
        HandleShared,
        /// A volume may be left in the storage system.
        PossiblyLeaked,
        /// Attachments, volumes, nodes and CSIDriver fit together.
        Consistent,
        AttachedTwice,
        VolumeReplaced,
        NodeIdChanged,
        OtherAttacher,
        VolumeGone,
        NodeGone,
        DriverNotOnNode,
        InlineLeftOver,
        LeftOver,
        AttachNotRequired,
        CSIDriverMissing,
        AttachedWithoutCall,
        /// The driver answers repairs with OK and lists volumes otherwise still.
        MismatchRepeating,
        /// Nothing stands in the way.
        NotStalled,
        /// No limit of `spec.concurrency` or `spec.provisioning.concurrency` makes work wait.
        NotSaturated,
        /// As many calls run as `concurrency.attach` or `concurrency.detach` lets run, and more wait.
        LaneFull,
        /// Work waits for `concurrency.callsPerSecond`.
        RateLimited,
        /// As many calls run for a node as `concurrency.perNode` lets run, and more wait.
        NodeLimit,
        /// As many calls run as `provisioning.concurrency.create` or `provisioning.concurrency.delete` lets run, and more wait.
        ProvisioningLaneFull,
        /// PersistentVolumeClaims or PersistentVolumes wait for `provisioning.concurrency.callsPerSecond`.
        ProvisioningRateLimited,
        /// As many CreateVolume calls run for a class as `spec.provisioning.concurrency.perClass` lets run, and more wait.
        ClassLimit,
        /// The AttacherConfig is being deleted and waits for its volumes (`spec.deletionPolicy`).
        WaitingForDetach,
        /// The finalizer of `spec.deletionPolicy` cannot be written.
        FinalizerNotWritten,
        /// The operator is stopping, or the AttacherConfig is deleted, not served any more and held by finalizers of others.
        Stopped,
    }
}

/// A wanted condition, before it is compared with the one in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Which aspect.
    pub type_: ConditionType,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, in one word.
    pub reason: ConditionReason,
    /// Why, in a sentence; may be empty. It is cut to [`MAX_MESSAGE_BYTES`].
    pub message: String,
}

impl ConditionUpdate {
    /// A wanted condition.
    pub fn new(
        type_: ConditionType,
        status: impl Into<ConditionStatus>,
        reason: ConditionReason,
        message: impl Into<String>,
    ) -> Self {
        Self {
            type_,
            status: status.into(),
            reason,
            message: message.into(),
        }
    }
}

/// Says something else of an aspect that is among the updates.
pub fn replace(
    updates: &mut [ConditionUpdate],
    kind: ConditionType,
    status: impl Into<ConditionStatus>,
    reason: ConditionReason,
    message: &str,
) {
    if let Some(update) = updates.iter_mut().find(|update| update.type_ == kind) {
        *update = ConditionUpdate::new(kind, status, reason, message);
    }
}

/// Returns `current` with `updates` taken over; the caller compares the result with `current` to skip a write.
///
/// * `lastTransitionTime` becomes `now` (whole seconds, as the API stores it) only when the status of that condition
///   changed or the condition is new; a new reason or message alone keeps the old time.
/// * `observedGeneration` of each updated condition becomes `generation`.
/// * Conditions that are not in `updates`, also those of other writers, stay as they are, in their place. New ones are
///   appended in the order of `updates`. When a type occurs twice in `current`, only the first is kept, because the
///   API server refuses a list map with duplicate keys.
pub fn merge(
    current: &[Condition],
    updates: &[ConditionUpdate],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut merged: Vec<Condition> = Vec::with_capacity(current.len() + updates.len());
    for condition in current {
        if merged.iter().all(|kept| kept.type_ != condition.type_) {
            merged.push(condition.clone());
        }
    }
    for update in updates {
        let is_meant = |condition: &&mut Condition| condition.type_ == update.type_.as_str();
        match merged.iter_mut().find(is_meant) {
            Some(condition) => *condition = updated(Some(condition), update, generation, now),
            None => merged.push(updated(None, update, generation, now)),
        }
    }
    merged
}

fn updated(old: Option<&Condition>, update: &ConditionUpdate, generation: Option<i64>, now: Timestamp) -> Condition {
    let last_transition_time = match old {
        Some(old) if old.status == update.status.as_str() => old.last_transition_time.clone(),
        _ => truncate_to_seconds(now),
    };
    Condition {
        type_: update.type_.as_str().to_owned(),
        status: update.status.as_str().to_owned(),
        reason: update.reason.as_str().to_owned(),
        message: shorten_message(&update.message),
        observed_generation: generation,
        last_transition_time,
    }
}

/// What a condition of this type says, if it is of that type and with a status and a reason of ours.
pub fn read(condition: &Condition, type_: ConditionType) -> Option<ConditionUpdate> {
    Some(ConditionUpdate {
        type_: (type_.as_str() == condition.type_).then_some(type_)?,
        status: ConditionStatus::of_word(&condition.status)?,
        reason: ConditionReason::of_word(&condition.reason)?,
        message: condition.message.clone(),
    })
}

/// A time in whole seconds, as `metav1.Time` is written.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// A time as the API stores it. A status with fractions of a second would differ from its own copy in the API server
/// and be written again and again.
pub fn truncate_to_seconds(time: Timestamp) -> Time {
    Time(whole_seconds(time))
}

/// Cuts a text to [`MAX_MESSAGE_BYTES`] at a character boundary and marks the cut.
pub fn shorten_message(message: &str) -> String {
    if message.len() <= MAX_MESSAGE_BYTES {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MAX_MESSAGE_BYTES - ELLIPSIS.len());
    let kept = message.get(..end).unwrap_or_default();
    format!("{kept}{ELLIPSIS}")
}
