//! Attaching: an early-return ladder in the order of the Go sidecar's checks.
//!
//! As much as possible is checked before our finalizer goes onto the attachment, because from then on it cannot be
//! deleted without a ControllerUnpublishVolume. What was called for already gets a finalizer back that it has lost before all checks.

use std::sync::Arc;

use super::action::{Action, IgnoreReason};
use super::calls::{AccessMode, PublishRequest, VolumeOnNode};
use super::driver_facts::{DriverFacts, ReleaseWithoutCall};
use super::message::shown_handle;
use super::observed::{DetachWait, NodeEntry, Observed, SecretState};
use super::refusal::Refusal;
use super::{is_claimed, patch, protect, published_volume, volume, was_called_for};
use crate::objects::{
    Attachment, AttachmentSource, CsiSource, SecretReference, Volume, VolumeSource, VolumeSpec, is_blank,
};

pub(super) fn decide<'a>(observed: &Observed<'a>) -> Action<'a> {
    let finalizer = &observed.driver.finalizer;
    if has_lost_finalizer(observed.attachment, finalizer) {
        // Before everything else, and also while the AttacherConfig is being deleted: it waits for what is held.
        return Action::Claim(patch::hold_again(observed.attachment, finalizer));
    }
    if observed.attachment.attached && !observed.forced {
        return keep_attached(observed);
    }
    if observed.policy.leaving && !observed.attachment.finalizers.contains(finalizer) {
        return Action::Refuse(Refusal::Leaving(observed.driver.name.clone()));
    }
    steps(observed).unwrap_or_else(Action::Refuse)
}

/// What is still to be written about an attachment that is attached: that its volume must not vanish, which volume it is, and at which
/// node ID. No call to the driver comes of it.
fn keep_attached<'a>(observed: &Observed<'a>) -> Action<'a> {
    let (attachment, driver) = (observed.attachment, observed.driver);
    if let Some(volume) = protect::unprotected(attachment, observed.volume, driver) {
        return Action::ProtectVolume(patch::protect_volume(volume, &driver.finalizer));
    }
    let claim = partly_noted(attachment, observed.volume, driver).and_then(|(noted, source)| {
        let node_id = noted.or_else(|| attach_node_id(observed).ok())?;
        allowed(observed, source).ok()?;
        claim(observed, node_id, source).ok()
    });
    claim.unwrap_or(Action::Ignore(IgnoreReason::AlreadyAttached))
}

/// The claim for a place; a refusal when its note would be too large.
fn claim<'a>(observed: &Observed<'_>, node_id: &str, source: &CsiSource) -> Result<Action<'a>, Refusal> {
    let (attachment, driver) = (observed.attachment, observed.driver);
    let claim = patch::claim(attachment, driver, node_id, source);
    claim.map(Action::Claim).map_err(|too_large| Refusal::NoteTooLarge {
        attachment: attachment.name.clone(),
        bytes: too_large.bytes,
    })
}

/// Whether a wanted attachment for which a call may have been made has lost our finalizer: a webhook or another controller took it off.
/// The API server would let it go as soon as it is deleted, and the volume would stay attached. That there may have been a call shows what
/// was noted together with the finalizer ([`was_called_for`]): what was marked as attached without a call has neither. What is being
/// deleted takes no finalizer any more.
pub fn has_lost_finalizer(attachment: &Attachment, finalizer: &str) -> bool {
    let described = matches!(
        attachment.source,
        AttachmentSource::PersistentVolume(_) | AttachmentSource::Inline(_)
    );
    let wanted = attachment.deleting.is_none();
    wanted && described && was_called_for(attachment) && !attachment.finalizers.contains(finalizer)
}

/// The volume of what is attached and of whose claim a part is missing, with the node ID that it has: the sidecar writes no note of the
/// volume, and somebody may have taken the node ID away. What is missing is written while there is what tells it: a PersistentVolume that
/// is made again under the same name would be another volume, and a node that is gone has no CSINode.
pub(super) fn partly_noted<'a>(
    attachment: &'a Attachment,
    volume: Option<&'a Volume>,
    driver: &DriverFacts,
) -> Option<(Option<&'a str>, &'a CsiSource)> {
    let attached = published_volume::is_in_use(attachment);
    if !attached || attachment.note_fault.is_some() || !attachment.finalizers.contains(&driver.finalizer) {
        return None;
    }
    let (noted, node_id) = (attachment.volume_note.as_deref(), attachment.node_id.as_deref());
    let spec: &'a VolumeSpec = match (&attachment.source, noted, node_id) {
        (AttachmentSource::PersistentVolume(_), None, Some(_)) => {
            let volume = volume.filter(|volume| !published_volume::was_made_later(volume, attachment));
            &volume?.spec
        }
        (AttachmentSource::PersistentVolume(_), Some(_), None) => &volume?.spec,
        (AttachmentSource::Inline(spec), Some(_), None) => spec,
        _ => return None,
    };
    let source = spec.csi().filter(|source| source.driver == driver.name)?;
    let is_noted = noted.is_none_or(|note| note.handle == source.handle);
    (is_noted && !is_blank(&source.handle)).then_some((node_id, source))
}

fn steps<'a>(observed: &Observed<'a>) -> Result<Action<'a>, Refusal> {
    let attachment = observed.attachment;
    let (spec, source) = published(observed)?;
    let secret = allowed(observed, source)?;
    if let (AttachmentSource::PersistentVolume(_), Some(volume)) = (&attachment.source, observed.volume)
        && !volume.finalizers.contains(&observed.driver.finalizer)
    {
        let write = patch::protect_volume(volume, &observed.driver.finalizer);
        return Ok(Action::ProtectVolume(write));
    }
    let capability = volume::capability(spec, source, observed)?;
    if let (Some(secret), SecretState::NotLoaded) = (secret, observed.credentials) {
        return Ok(Action::LoadCredentials(secret));
    }
    let node_id = attach_node_id(observed)?;
    if let Some(rival) = detaching_elsewhere(observed, capability.mode) {
        return Ok(Action::AwaitDetach(rival));
    }
    let claimed = attachment.finalizers.contains(&observed.driver.finalizer);
    let is_elsewhere = observed.neighbours.in_use_elsewhere && capability.mode.is_for_one_node();
    if claimed && attachment.attached && is_elsewhere {
        // Which of the two is right only a person knows, and a repair here may take the volume from a pod there.
        return Ok(Action::Ignore(IgnoreReason::AlreadyAttached));
    }
    let noted = attachment.volume_note.as_ref().map(|note| &note.handle);
    if !claimed || attachment.node_id.as_deref() != Some(node_id) || noted != Some(&source.handle) {
        return claim(observed, node_id, source);
    }
    // What is attached is in use, and a node ID may change though the machine stays: nothing is taken back then.
    let former = attachment.volume_note.iter().filter(|_| !attachment.attached);
    let former = former.flat_map(|note| &note.former);
    Ok(Action::Publish(PublishRequest {
        place: VolumeOnNode::new(&source.handle, node_id).ok_or(Refusal::BlankHandle)?,
        capability,
        read_only: source.read_only && observed.driver.capabilities.publish_readonly,
        volume_context: &source.attributes,
        former: former.filter_map(VolumeOnNode::of_former).collect(),
    }))
}

/// The publish secret that the attach needs.
pub(super) fn secret<'a>(observed: &Observed<'a>) -> Result<Option<&'a SecretReference>, Refusal> {
    if observed.attachment.attached && !observed.forced {
        return Ok(None);
    }
    let (_, source) = published(observed)?;
    allowed(observed, source)
}

/// What is to be published. It is this driver's.
fn published<'a>(observed: &Observed<'a>) -> Result<(&'a VolumeSpec, &'a CsiSource), Refusal> {
    let spec = match &observed.attachment.source {
        AttachmentSource::Both(_) => return Err(Refusal::SourceTwice),
        AttachmentSource::Neither => return Err(Refusal::SourceMissing),
        AttachmentSource::Inline(spec) => spec,
        AttachmentSource::PersistentVolume(name) => &live_volume(observed, name)?.spec,
    };
    let source = csi_source(observed.attachment, spec)?;
    same_driver(observed, source)?;
    if is_blank(&source.handle) {
        return Err(Refusal::BlankHandle);
    }
    published_volume::whole_note(observed.attachment)?;
    if let AttachmentSource::PersistentVolume(_) = observed.attachment.source
        && let Some(volume) = observed.volume
    {
        not_replaced(observed.attachment, volume)?;
        if observed.attachment.volume_note.is_none() {
            // What a claim without a note was about must be known: it becomes a former place.
            published_volume::published_volume(observed.attachment, observed.volume)?;
        }
    }
    complete(observed, spec)?;
    Ok((spec, source))
}

/// What is attached stands for the volume that was claimed. The one that has its name now is not published in its place.
pub fn not_replaced(attachment: &Attachment, volume: &Volume) -> Result<(), Refusal> {
    let Some((noted, now)) = published_volume::replaced(attachment, volume).filter(|_| attachment.attached) else {
        return Ok(());
    };
    let (noted, now) = (shown_handle(noted), shown_handle(now));
    let (attachment_name, volume_name) = (attachment.name.clone(), volume.name.clone());
    Err(if published_volume::contradicts_note(volume, attachment) {
        Refusal::NoteContradicted {
            attachment: attachment_name,
            volume: volume_name,
            noted,
            now,
        }
    } else {
        Refusal::VolumeReplaced {
            attachment: attachment_name,
            volume: volume_name,
            attached: noted,
            now,
        }
    })
}

/// What is too large is not kept, and a volume is not published without its attributes.
fn complete(observed: &Observed<'_>, spec: &VolumeSpec) -> Result<(), Refusal> {
    let Some(too_large) = &spec.too_large else {
        return Ok(());
    };
    let object = match observed.attachment.volume_name() {
        Some(name) => format!("PersistentVolume {name}"),
        None => format!("the in-line volume of VolumeAttachment {}", observed.attachment.name),
    };
    Err(Refusal::VolumeTooLarge {
        object: object.into(),
        field: too_large.field,
        bytes: too_large.bytes,
    })
}

/// The publish secret of a volume, if the driver may be given it. Asked before anything is written or read: nobody is to
/// learn by us whether there is such a Secret.
fn allowed<'a>(observed: &Observed<'a>, source: &'a CsiSource) -> Result<Option<&'a SecretReference>, Refusal> {
    match &source.publish_secret {
        Some(secret) if !observed.may_give(secret) => Err(observed.secret_refusal(secret)),
        secret => Ok(secret.as_ref()),
    }
}

/// The attachment that is about to give up a volume that can be on one node only. Once its detach failed, nobody waits for
/// it any more: its node may be dead.
fn detaching_elsewhere(observed: &Observed<'_>, mode: AccessMode) -> Option<Arc<str>> {
    if !mode.is_for_one_node() || observed.detach_wait == DetachWait::Expired {
        return None;
    }
    leaving(observed).map(|other| other.name.clone())
}

/// The first attachment of the volume on another node whose detach is under way.
pub(super) fn leaving<'a>(observed: &Observed<'a>) -> Option<&'a Arc<Attachment>> {
    let leaving = |other: &&Arc<Attachment>| is_leaving(other, &observed.driver.finalizer);
    observed.neighbours.elsewhere.iter().find(leaving)
}

/// Whether an attachment is about to give up its volume: its detach is under way and has not failed. `finalizer` is that
/// of its driver. A refusal that is recorded says nothing of a later call, whose outcome was perhaps not written down.
pub fn is_leaving(attachment: &Attachment, finalizer: &str) -> bool {
    is_detaching(attachment, finalizer) && attachment.detach_error.is_none()
}

/// Whether the detach of an attachment is not over, however often it failed. An attach elsewhere does not wait for it once it failed;
/// where that fails too, as the driver has the volume at the first node, the end of the detach is what helps it.
///
/// Somebody else's write may have taken our finalizer off before that, while another finalizer keeps the object: a merge patch replaces
/// the whole list. What was called for says so, and "attached", until it is let go: our own write takes what was noted along with the
/// finalizer ([`patch::release`]). A sidecar leaves the node ID, so that what is not attached counts as detached.
pub fn is_detaching(attachment: &Attachment, finalizer: &str) -> bool {
    let lost = || attachment.attached && was_called_for(attachment);
    attachment.deleting.is_some() && (attachment.finalizers.contains(finalizer) || lost())
}

/// Whether an attachment of the volume on another node is not detached yet.
pub(super) fn is_held_elsewhere(observed: &Observed<'_>) -> bool {
    let finalizer = &observed.driver.finalizer;
    let mut elsewhere = observed.neighbours.elsewhere.iter();
    elsewhere.any(|other| is_detaching(other, finalizer))
}

/// The PersistentVolume, if it may be attached.
fn live_volume<'a>(observed: &Observed<'a>, name: &Arc<str>) -> Result<&'a Volume, Refusal> {
    match observed.volume {
        None => Err(Refusal::VolumeNotFound(name.clone())),
        Some(volume) if volume.deleting => Err(Refusal::VolumeDeleting(name.clone())),
        Some(volume) => Ok(volume),
    }
}

/// Asked before our finalizer goes onto the volume: what is not this driver's must not be held by us. (Detaching does
/// not ask: whatever was claimed under our finalizer went through this driver.)
fn same_driver(observed: &Observed<'_>, source: &CsiSource) -> Result<(), Refusal> {
    if source.driver == observed.driver.name {
        return Ok(());
    }
    Err(Refusal::OtherDriver {
        volume: source.driver.clone(),
        attacher: observed.driver.name.clone(),
    })
}

/// The CSI source of a volume, whoever its driver is.
pub(super) fn csi_source<'a>(attachment: &Attachment, spec: &'a VolumeSpec) -> Result<&'a CsiSource, Refusal> {
    let inline = matches!(attachment.source, AttachmentSource::Inline(_));
    match &spec.source {
        VolumeSource::Csi(source) => Ok(source),
        VolumeSource::Untranslated(error) => Err(Refusal::Untranslated((**error).clone())),
        VolumeSource::Other if inline => Err(Refusal::InlineNotCsi),
        VolumeSource::Other => Err(Refusal::NotCsi),
    }
}

/// Attaching takes the node ID from the CSINode alone: an annotation may name a node that was replaced since.
fn attach_node_id<'a>(observed: &Observed<'a>) -> Result<&'a str, Refusal> {
    observed.node.registered().ok_or_else(|| node_refusal(observed))
}

pub(super) fn node_refusal(observed: &Observed<'_>) -> Refusal {
    let (node, driver) = (observed.attachment.node.clone(), observed.driver.name.clone());
    match observed.node {
        NodeEntry::Missing => Refusal::NodeNotFound(node),
        NodeEntry::BlankId => Refusal::BlankNodeId { node, driver },
        NodeEntry::WithoutDriver | NodeEntry::Registered(_) => Refusal::DriverNotOnNode { node, driver },
    }
}

/// A driver without ControllerPublishVolume: nothing is called. Such a driver may have had the calls before, and answer without
/// them by mistake: what it may have published then is let go only as far as [`ReleaseWithoutCall`] says.
pub(super) fn trivial<'a>(observed: &Observed<'a>) -> Action<'a> {
    let (attachment, driver) = (observed.attachment, observed.driver);
    let release = patch::release(attachment, &driver.finalizer);
    let keep = || Action::Refuse(Refusal::CapabilityLost(driver.name.clone()));
    let claimed = is_claimed(attachment, driver);
    let releasable = match driver.release {
        ReleaseWithoutCall::Nothing => false,
        ReleaseWithoutCall::Unclaimed => !claimed,
        ReleaseWithoutCall::AttachNotRequired | ReleaseWithoutCall::Confirmed => true,
    };
    if attachment.deleting.is_some() {
        return match release {
            None => Action::Ignore(IgnoreReason::NothingToDetach),
            Some(write) if releasable => Action::Release(write),
            Some(_) => keep(),
        };
    }
    if attachment.attached {
        return Action::Ignore(IgnoreReason::AlreadyAttached);
    }
    match (driver.release, release) {
        (ReleaseWithoutCall::Unclaimed, Some(_)) if claimed => keep(),
        // Attached and with the finalizer it would look like one that was published.
        (ReleaseWithoutCall::Unclaimed, Some(write)) => Action::Release(write),
        _ => Action::MarkAttached(patch::attached(attachment, None)),
    }
}
