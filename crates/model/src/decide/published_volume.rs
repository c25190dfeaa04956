//! Which volume was published, where it may be, and who else uses it there: what a detach and a release rest on.

use std::sync::Arc;

use super::attach::{csi_source, node_refusal};
use super::calls::VolumeOnNode;
use super::observed::{NodeEntry, Observed};
use super::refusal::Refusal;
use crate::objects::{Attachment, AttachmentSource, SecretReference, Volume, VolumeSource};

/// The volume's handle and secret. A PersistentVolume that is being deleted is fine, it waits for this very detach; one
/// that was removed by force leaves the copy that was noted on the attachment when it was claimed. A handle never
/// changes, so a volume with another one was made later under the same name: it is not the one that was published.
pub(super) fn published_volume<'a>(observed: &Observed<'a>) -> Result<(&'a str, Option<&'a SecretReference>), Refusal> {
    let attachment = observed.attachment;
    let spec = match &attachment.source {
        AttachmentSource::Both(_) => return Err(Refusal::SourceTwice),
        AttachmentSource::Neither => return Err(Refusal::SourceMissing),
        AttachmentSource::Inline(spec) => spec,
        AttachmentSource::PersistentVolume(name) => match (observed.volume, &attachment.volume_note) {
            (Some(volume), Some(note)) if handle(volume) == Some(&*note.handle) => &volume.spec,
            (_, Some(note)) => return Ok((&note.handle, note.secret.as_ref())),
            (Some(volume), None) => &volume.spec,
            (None, None) => return Err(Refusal::VolumeNotFound(name.clone())),
        },
    };
    let source = csi_source(observed, spec)?;
    Ok((&source.handle, source.publish_secret.as_ref()))
}

fn handle(volume: &Volume) -> Option<&str> {
    match &volume.spec.source {
        VolumeSource::Csi(source) => Some(&source.handle),
        VolumeSource::Untranslated(_) | VolumeSource::Other => None,
    }
}

/// Every place where the volume may be. First where the CSINode says, as the Go sidecar does. A node that is shut down or
/// gone has no CSINode, or one without the driver: then what was noted when the attachment was claimed. A node that came
/// back under its name with another ID leaves the volume with the old one, where the sidecar forgets it; we do not, unless a
/// person confirmed that it is not there. That is the first list; the second is asked for, and is never empty.
pub(super) fn places<'a>(
    observed: &Observed<'a>,
    volume_id: &'a str,
) -> Result<(Vec<VolumeOnNode<'a>>, Vec<VolumeOnNode<'a>>), Refusal> {
    let attachment = observed.attachment;
    let registered = match observed.node {
        NodeEntry::Registered(node_id) => Some(node_id),
        NodeEntry::Missing | NodeEntry::WithoutDriver => None,
    };
    let ids = registered.into_iter().chain(attachment.node_id.as_deref());
    let now = ids.map(|node_id| VolumeOnNode { volume_id, node_id });
    let former = attachment.volume_note.iter().flat_map(|note| &note.former);
    let mut places: Vec<VolumeOnNode<'a>> = Vec::with_capacity(1);
    for place in now.chain(former.map(VolumeOnNode::from)) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let Some(current) = places.first().map(|place| place.node_id) else {
        return Err(node_refusal(observed, observed.node));
    };
    let is_confirmed = |place: &VolumeOnNode<'_>| place.node_id != current && is_not_at(attachment, place.node_id);
    Ok(places.into_iter().partition(is_confirmed))
}

/// Whether a person said by the annotation that the volume is not attached at a node ID.
fn is_not_at(attachment: &Attachment, node_id: &str) -> bool {
    let said = attachment.not_attached_at.as_deref().unwrap_or_default();
    // An ID may have a comma in it.
    said == node_id || said.split(',').any(|id| id.trim() == node_id)
}

/// Two PersistentVolumes may have one handle, and the attachments of both may be on one node: whoever goes first must not
/// take the volume from the other.
pub(super) fn attachment_still_using<'a>(observed: &Observed<'a>) -> Option<&'a Arc<Attachment>> {
    observed.neighbours.here.as_ref().filter(|other| is_in_use(other))
}

/// Whether another attachment is attached at a former place of this one: a node ID can be given to another node. Its own detach will
/// ask for the place, and a pod uses the volume there meanwhile.
pub(super) fn is_in_use_at(observed: &Observed<'_>, place: VolumeOnNode<'_>) -> bool {
    let mut others = observed.neighbours.claimed.iter();
    others.any(|other| {
        let same_volume = match &other.volume_note {
            Some(note) => *note.handle == *place.volume_id,
            // The sidecar notes no volume.
            None => other.volume_name().is_some() && other.volume_name() == observed.attachment.volume_name(),
        };
        same_volume && other.node_id.as_deref() == Some(place.node_id) && is_in_use(other)
    })
}

/// The other attachments that are claimed for one of these places and not attached. One of them may have been published by an
/// operator that has died, whose record of it is still on its way.
pub(super) fn claims_to_renew<'a>(observed: &Observed<'a>, places: &[VolumeOnNode<'_>]) -> Vec<&'a Arc<Attachment>> {
    let others = observed.neighbours.claimed.iter();
    let finalizer = &observed.driver.finalizer;
    let claimed =
        others.filter(|other| other.deleting.is_none() && !other.attached && other.finalizers.contains(finalizer));
    claimed
        .filter(|other| places.iter().any(|place| is_claimed_for(other, *place)))
        .collect()
}

/// Whether the claim of an attachment names a place.
pub fn is_claimed_for(attachment: &Attachment, place: VolumeOnNode<'_>) -> bool {
    let noted = attachment.volume_note.as_ref().map(|note| &*note.handle);
    noted == Some(place.volume_id) && attachment.node_id.as_deref() == Some(place.node_id)
}

/// Whether an attachment is attached and wanted.
pub fn is_in_use(attachment: &Attachment) -> bool {
    attachment.deleting.is_none() && attachment.attached
}
