//! The findings about one VolumeAttachment.

use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::EventReason;
use crate::api::condition::ConditionReason;
use crate::decide::{DriverFacts, NodeEntry, is_for_one_node, is_settled, replaced};
use crate::objects::{Attachment, AttachmentSource, Operation, Volume};

named! {
    /// What can be wrong, the worst first; the word is the value of the metric label `kind`.
    pub enum FindingKind {
        /// A volume that one node at a time may have is attached to two.
        AttachedTwice = "attached_twice",
        /// The PersistentVolume of what is attached has another handle than was noted: it was created again, and its name stands for
        /// another volume now, or the note is wrong.
        VolumeReplaced = "volume_replaced",
        /// The CSINode names another node ID than the one at which the volume was published: it may be another machine.
        NodeIdChanged = "node_id_changed",
        /// Another client writes the status of VolumeAttachments while this operator leads the driver: two attachers serve it.
        OtherAttacher = "other_attacher",
        /// An attach has lasted too long: it keeps failing, or never began.
        AttachStuck = "attach_stuck",
        /// A detach has lasted too long.
        DetachStuck = "detach_stuck",
        /// The PersistentVolume is gone: once kube-controller-manager was restarted, it knows of the volume only by the Node.
        VolumeGone = "volume_gone",
        /// The node has no CSINode (any more).
        NodeGone = "node_gone",
        /// The node's CSINode does not name the driver (any more), or has a blank node ID for it.
        DriverNotOnNode = "driver_not_on_node",
        /// An in-line volume that its pod does not use any more: after a restart the attach/detach controller knows in-line
        /// volumes only from the pods that use them, and never asks for this detach.
        InlineLeftOver = "inline_left_over",
        /// The CSIDriver says that attaching is not required: the attachment ends with the pods that use the volume.
        LeftOver = "left_over",
        /// The CSIDriver says that attaching is not required: nobody makes VolumeAttachments for this driver.
        AttachNotRequired = "attach_not_required",
        /// There is no CSIDriver of the driver's name.
        CSIDriverMissing = "csidriver_missing",
        /// The driver announces no PUBLISH_UNPUBLISH_VOLUME, and no CSIDriver says that attaching is not required: volumes are marked attached
        /// without a call.
        AttachedWithoutCall = "attached_without_call",
        /// A volume that no object tells of may be left in the storage system.
        PossibleLeak = "possible_leak",
        /// A PersistentVolume is Released, and its claim is there: its volume is not deleted.
        ReleasedWhileBound = "released_while_bound",
        /// The volume of a Released PersistentVolume is that of another one as well.
        HandleShared = "handle_shared",
        /// A person has to say what becomes of the volume of a PersistentVolume.
        NeedsDecision = "needs_decision",
        /// A claim has waited for its volume too long.
        ProvisionStuck = "provision_stuck",
        /// The deletion of a volume has lasted too long.
        DeleteStuck = "delete_stuck",
        /// The class of a claim is missing.
        ClassMissing = "class_missing",
        /// A claim carries the marker of another driver.
        MarkerOfAnotherDriver = "marker_of_another_driver",
    }
}

impl FindingKind {
    /// The reason of the Event about it.
    pub const fn event_reason(self) -> EventReason {
        self.reasons().0
    }

    /// The reason of the condition that shows it.
    pub const fn condition_reason(self) -> ConditionReason {
        self.reasons().1
    }

    const fn reasons(self) -> (EventReason, ConditionReason) {
        match self {
            Self::AttachedTwice => (EventReason::AttachedTwice, ConditionReason::AttachedTwice),
            Self::VolumeReplaced => (EventReason::VolumeReplaced, ConditionReason::VolumeReplaced),
            Self::NodeIdChanged => (EventReason::NodeIdChanged, ConditionReason::NodeIdChanged),
            Self::OtherAttacher => (EventReason::OtherAttacher, ConditionReason::OtherAttacher),
            Self::AttachStuck => (EventReason::AttachStuck, ConditionReason::AttachmentsStuck),
            Self::DetachStuck => (EventReason::DetachStuck, ConditionReason::AttachmentsStuck),
            Self::VolumeGone => (EventReason::VolumeGone, ConditionReason::VolumeGone),
            Self::NodeGone => (EventReason::NodeGone, ConditionReason::NodeGone),
            Self::DriverNotOnNode => (EventReason::DriverNotOnNode, ConditionReason::DriverNotOnNode),
            Self::InlineLeftOver => (EventReason::InlineLeftOver, ConditionReason::InlineLeftOver),
            Self::LeftOver => (EventReason::LeftOver, ConditionReason::LeftOver),
            Self::AttachNotRequired => (EventReason::AttachNotRequired, ConditionReason::AttachNotRequired),
            Self::CSIDriverMissing => (EventReason::CSIDriverMissing, ConditionReason::CSIDriverMissing),
            Self::AttachedWithoutCall => (EventReason::AttachedWithoutCall, ConditionReason::AttachedWithoutCall),
            Self::PossibleLeak => (EventReason::VolumePossiblyLeaked, ConditionReason::PossiblyLeaked),
            Self::ReleasedWhileBound => (EventReason::ReleasedWhileBound, ConditionReason::ReleasedWhileBound),
            Self::HandleShared => (EventReason::HandleShared, ConditionReason::HandleShared),
            Self::NeedsDecision => (EventReason::NeedsDecision, ConditionReason::NeedsDecision),
            Self::ProvisionStuck => (EventReason::ProvisionStuck, ConditionReason::ProvisioningStuck),
            Self::DeleteStuck => (EventReason::DeleteStuck, ConditionReason::DeletesStuck),
            Self::ClassMissing => (EventReason::ClassMissing, ConditionReason::ClassMissing),
            Self::MarkerOfAnotherDriver => (EventReason::MarkerOfAnotherDriver, ConditionReason::ProvisioningFailing),
        }
    }

    /// Those about attachments, or else those about provisioning: each role examines its own objects.
    pub fn of_role(attaches: bool) -> impl Iterator<Item = Self> {
        let all = Self::ALL.iter().copied();
        all.filter(move |kind| (*kind < Self::PossibleLeak) == attaches)
    }

    /// That the attach or detach which an attachment asks for is stuck.
    pub(super) fn stuck(attachment: &Attachment) -> Self {
        match Operation::of(attachment) {
            Operation::Attach => Self::AttachStuck,
            Operation::Detach => Self::DetachStuck,
        }
    }

    /// Whether an operation waits.
    pub const fn is_stuck(self) -> bool {
        matches!(
            self,
            Self::AttachStuck | Self::DetachStuck | Self::ProvisionStuck | Self::DeleteStuck
        )
    }

    /// How long it must have been seen before it counts: `stuck_after` where it may pass by itself. A stuck operation has lasted long by
    /// definition.
    pub fn min_age(self, stuck_after: Duration) -> Duration {
        match self {
            kind if kind.is_stuck() => Duration::ZERO,
            Self::PossibleLeak
            | Self::ReleasedWhileBound
            | Self::AttachedTwice
            | Self::VolumeReplaced
            | Self::NodeIdChanged
            | Self::OtherAttacher => Duration::ZERO,
            _ => stuck_after,
        }
    }
}

/// A write counts as one beside ours when it is this much later than our taking of the Lease: clocks differ, and a sidecar
/// that hands over may write a last time.
const AFTER_TAKEOVER: SignedDuration = SignedDuration::from_secs(10);
/// For how long a write says that another attacher is at work.
const RECENT_WRITE: Duration = Duration::from_mins(10);

/// Everything that is read about one VolumeAttachment.
#[derive(Clone, Copy, Debug)]
pub struct FindingInput<'a> {
    /// The attachment that is examined.
    pub attachment: &'a Attachment,
    /// The PersistentVolume that it names, if there is one.
    pub volume: Option<&'a Volume>,
    /// What the node's CSINode says of the driver.
    pub node: NodeEntry<'a>,
    /// Another node to which the same volume is attached by an attachment that is not being deleted. It may name another
    /// PersistentVolume of the same handle, or describe the volume itself.
    pub attached_at: Option<&'a str>,
    /// Another node for which a later attachment of the same in-line volume was made.
    pub wanted_at: Option<&'a str>,
    /// The driver.
    pub driver: &'a DriverFacts,
    /// `spec.attachRequired` of the CSIDriver; none when it is not known.
    pub attach_required: Option<bool>,
    /// Since when this process leads the driver, at the latest: what another client wrote before may be known to be older. None where that is
    /// not known.
    pub leads_since: Option<Timestamp>,
}

/// What is wrong with one VolumeAttachment, as far as its objects say, the worst first; see [`FindingKind::min_age`].
/// `stuck_after` is how long an attach or detach may take.
pub fn findings(input: &FindingInput<'_>, now: Timestamp, stuck_after: Duration) -> BTreeSet<FindingKind> {
    let mut kinds = BTreeSet::new();
    if is_stuck(input, now, stuck_after) {
        kinds.insert(FindingKind::stuck(input.attachment));
    }
    if is_written_by_another(input, now) {
        kinds.insert(FindingKind::OtherAttacher);
    }
    // One that is being deleted is on its way out: what is gone does not matter to it any more.
    if input.attachment.deleting.is_none() {
        of_surroundings(input, &mut kinds);
    }
    kinds
}

fn is_stuck(input: &FindingInput<'_>, now: Timestamp, stuck_after: Duration) -> bool {
    let attachment = input.attachment;
    let finalizer = &input.driver.finalizer;
    if is_settled(attachment, finalizer) {
        return false;
    }
    let never_began = attachment.deleting.is_none() && !attachment.finalizers.contains(finalizer);
    // What began and has not failed may be one long call. It has more time, but not for ever: it may as well be that the
    // driver went away in the middle of it.
    let limit = if attachment.pending_error().is_some() || never_began {
        stuck_after
    } else {
        stuck_after.saturating_mul(2)
    };
    attachment.pending_since().is_some_and(|since| age(since, now) > limit)
}

/// Nobody but the attacher of the driver writes the status of a VolumeAttachment.
fn is_written_by_another(input: &FindingInput<'_>, now: Timestamp) -> bool {
    let (Some(writer), Some(since)) = (&input.attachment.other_writer, input.leads_since) else {
        return false;
    };
    writer.time.duration_since(since) > AFTER_TAKEOVER && age(writer.time, now) < RECENT_WRITE
}

fn of_surroundings(input: &FindingInput<'_>, kinds: &mut BTreeSet<FindingKind>) {
    let attachment = input.attachment;
    if input.attach_required == Some(false) {
        kinds.insert(FindingKind::LeftOver);
    }
    if is_attached_twice(input) {
        kinds.insert(FindingKind::AttachedTwice);
    }
    let gone = input.node == NodeEntry::Missing;
    match &attachment.source {
        AttachmentSource::Inline(spec) => {
            let moved = input.wanted_at.is_some() && is_for_one_node(spec.access_modes);
            if gone || moved {
                kinds.insert(FindingKind::InlineLeftOver);
                return;
            }
        }
        AttachmentSource::PersistentVolume(_) | AttachmentSource::Both(_) => match input.volume {
            None => {
                kinds.insert(FindingKind::VolumeGone);
            }
            Some(volume) if attachment.attached && replaced(attachment, volume).is_some() => {
                kinds.insert(FindingKind::VolumeReplaced);
            }
            Some(_) => {}
        },
        AttachmentSource::Neither => {}
    }
    let of_node = match input.node {
        NodeEntry::Missing => Some(FindingKind::NodeGone),
        NodeEntry::WithoutDriver | NodeEntry::BlankId => Some(FindingKind::DriverNotOnNode),
        NodeEntry::Registered(node_id) => {
            let published_at = attachment.node_id.as_deref().filter(|_| attachment.attached);
            let differs = published_at.is_some_and(|id| id != node_id);
            differs.then_some(FindingKind::NodeIdChanged)
        }
    };
    kinds.extend(of_node);
}

fn is_attached_twice(input: &FindingInput<'_>) -> bool {
    let attachment = input.attachment;
    let modes = match &attachment.source {
        AttachmentSource::Inline(spec) => Some(spec.access_modes),
        _ => input.volume.map(|volume| volume.spec.access_modes),
    };
    attachment.attached && input.attached_at.is_some() && modes.is_some_and(is_for_one_node)
}

/// Zero when the clocks disagree.
pub fn age(since: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(since).try_into().unwrap_or(Duration::ZERO)
}
