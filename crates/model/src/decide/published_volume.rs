//! Which volume an attachment stands for, where that volume may be, and who else has it there.
//!
//! "Which volume, at which node ID, is this VolumeAttachment" is asked here and nowhere else, by attach, detach, comparison and
//! release, and by what is reported of them. Evidence counts in one order, and where there is none the answer is a refusal: no call is
//! made for a guess.

use jiff::SignedDuration;
use std::sync::Arc;

use super::attach::{csi_source, node_refusal};
use super::calls::VolumeOnNode;
use super::former_place::{FormerPlace, former_place, list_of, named_places};
use super::message::shown_handle;
use super::observed::{Claimant, Observed};
use super::refusal::Refusal;
use crate::api::names::finalizer_name;
use crate::objects::{Attachment, AttachmentSource, NoteFault, SecretReference, Volume, is_blank};

/// By how much the clocks of two API servers of a cluster may differ. Within it a volume that was made again cannot be distinguished
/// from the former one, so it is no longer than it must be.
const CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_secs(2);

/// The handle and secret of the volume that an attachment stands for: what was noted when it was claimed; else the spec that it
/// carries; else its PersistentVolume, unless that was created after the attachment was claimed.
///
/// A handle never changes, so a PersistentVolume with another one than the note was made later under the same name: it is not
/// the volume that was published. Where it is older than that, the note is wrong, and both are detached ([`published_beside_note`]). One
/// that is being deleted is fine, it waits for this very detach; one that was removed by force leaves the note.
pub fn published_volume<'a>(
    attachment: &'a Attachment,
    volume: Option<&'a Volume>,
) -> Result<(&'a str, Option<&'a SecretReference>), Refusal> {
    whole_note(attachment)?;
    let spec = match &attachment.source {
        AttachmentSource::Both(_) => return Err(Refusal::SourceTwice),
        AttachmentSource::Neither => return Err(Refusal::SourceMissing),
        AttachmentSource::Inline(spec) => spec,
        AttachmentSource::PersistentVolume(name) => match (volume, &attachment.volume_note) {
            (Some(volume), Some(note)) if handle(volume) == Some(&*note.handle) => &volume.spec,
            (_, Some(note)) => return Ok((&note.handle, note.secret.as_ref())),
            (Some(volume), None) if was_made_later(volume, attachment) => {
                return Err(volume_unknown(attachment, volume));
            }
            (Some(volume), None) => &volume.spec,
            (None, None) => return Err(Refusal::VolumeNotFound(name.clone())),
        },
    };
    let source = csi_source(attachment, spec)?;
    Ok((&source.handle, source.publish_secret.as_ref()))
}

/// The refusal where the PersistentVolume was made later, with what is known of it. A Secret of another driver is none for this one.
fn volume_unknown(attachment: &Attachment, volume: &Volume) -> Refusal {
    let own = volume.spec.csi().filter(|source| source.driver == attachment.attacher);
    Refusal::VolumeUnknown {
        attachment: attachment.name.clone(),
        attached: attachment.attached,
        node: attachment.node.clone(),
        volume: volume.name.clone(),
        handle: shown_handle(handle(volume).unwrap_or_default()),
        secret: own.and_then(|source| source.publish_secret.clone()).map(Box::new),
    }
}

/// Where the volume may be is not known while a part of the note is left out or not understood, and no write may take the place of that
/// part.
pub(super) fn whole_note(attachment: &Attachment) -> Result<(), Refusal> {
    let attachment_name = || attachment.name.clone();
    match attachment.note_fault.as_deref() {
        Some(NoteFault::TooLarge(too_large)) => Err(Refusal::NoteTooLarge {
            attachment: attachment_name(),
            bytes: too_large.bytes,
        }),
        Some(NoteFault::Unreadable) => Err(Refusal::NoteUnreadable {
            attachment: attachment_name(),
        }),
        None => Ok(()),
    }
}

/// The handle of the volume that an attachment stands for, if that is known ([`published_volume`]).
pub fn known_handle<'a>(attachment: &'a Attachment, volume: Option<&'a Volume>) -> Option<&'a str> {
    let noted = attachment.volume_note.as_ref().map(|note| &*note.handle);
    let found = || Some(published_volume(attachment, volume).ok()?.0);
    noted.or_else(found).filter(|handle| !is_blank(handle))
}

/// The handle of the volume that a call would be about, if that is known: of what is to be attached, that of its PersistentVolume.
pub fn wanted_handle<'a>(attachment: &'a Attachment, volume: Option<&'a Volume>) -> Option<&'a str> {
    let to_attach = attachment.deleting.is_none() && !attachment.attached;
    let described = volume.filter(|_| to_attach).and_then(handle);
    let described = described.filter(|handle| !is_blank(handle));
    described.or_else(|| known_handle(attachment, volume))
}

/// Whether two attachments are of one volume. Their handles decide: a PersistentVolume that was made again under its name is another
/// volume, and two PersistentVolumes of one handle are one. Only where a handle is not known does the name of the PersistentVolume count,
/// or what it says now; in doubt they are of one volume. That of an in-tree plug-in, whose handle may change, counts by its name as well.
pub fn is_same_volume(one: (&Attachment, Option<&Volume>), other: (&Attachment, Option<&Volume>)) -> bool {
    if are_of_in_tree(one.1, one.0, other.0) {
        return true;
    }
    match (wanted_handle(one.0, one.1), wanted_handle(other.0, other.1)) {
        (Some(one), Some(other)) => one == other,
        (known, others) => {
            let known = known.or_else(|| one.1.and_then(handle));
            let others = others.or_else(|| other.1.and_then(handle));
            let same_name = one.0.volume_name().is_some() && one.0.volume_name() == other.0.volume_name();
            same_name || (known.is_some() && known == others)
        }
    }
}

/// The handle that the PersistentVolume of an attachment has now, where the note has another one and this one may be published as well:
/// the note is wrong ([`contradicts_note`]), or a sidecar published it since.
///
/// A sidecar goes by the PersistentVolume, and changes no note. Before a call it puts the finalizer on it, as we do. After the call it
/// writes the status, in a later second than the PersistentVolume was made in; where it was ended before that, what is not attached shows
/// nothing of the call.
pub fn published_beside_note<'a>(attachment: &Attachment, volume: Option<&'a Volume>) -> Option<&'a str> {
    let volume = volume?;
    let (_, now) = other_handle(attachment, volume)?;
    let is_protected = volume.finalizers.contains(&finalizer_name(&attachment.attacher));
    let writer = attachment.other_writer.as_ref();
    let is_later = || writer.is_some_and(|writer| Some(writer.time) > volume.created);
    let may_be_of_sidecar = is_protected && (!attachment.attached || is_later());
    ((may_be_of_sidecar || contradicts_note(volume, attachment)) && !is_blank(now)).then_some(now)
}

/// Whether the note of an attachment names another handle than its PersistentVolume, which is older than the attachment: it was not
/// made again after the claim, and the API server lets nobody change the handle of a CSI volume, so somebody changed the note. What is
/// translated from an in-tree volume is left out, as its labels may change.
pub fn contradicts_note(volume: &Volume, attachment: &Attachment) -> bool {
    volume.in_tree.is_none() && is_older(volume, attachment) && other_handle(attachment, volume).is_some()
}

/// Whether the PersistentVolume that an attachment names has another handle than the attachment was claimed for: it was made
/// again under its name, unless it [contradicts the note](contradicts_note). One of an in-tree plug-in that is older than the attachment
/// was not: its handle is made of its labels as well, and they were changed. Answers both handles, that of the attachment first.
pub fn replaced<'n, 'v>(attachment: &'n Attachment, volume: &'v Volume) -> Option<(&'n str, &'v str)> {
    let is_relabelled = volume.in_tree.is_some() && is_older(volume, attachment);
    other_handle(attachment, volume).filter(|_| !is_relabelled)
}

/// Whether two attachments are of one in-tree volume, whatever handles they noted: both name this PersistentVolume, which is older than
/// both.
fn are_of_in_tree(volume: Option<&Volume>, one: &Attachment, other: &Attachment) -> bool {
    let volume = volume.filter(|volume| volume.in_tree.is_some());
    volume.is_some_and(|volume| {
        let mut both = [one, other].into_iter();
        both.all(|attachment| attachment.volume_name() == Some(&volume.name) && is_older(volume, attachment))
    })
}

/// Whether a PersistentVolume was there before an attachment. Both times are those of the API server, in seconds: what was made in one
/// second may have been made in any order.
fn is_older(volume: &Volume, attachment: &Attachment) -> bool {
    let times = volume.created.zip(attachment.created);
    times.is_some_and(|(volume, attachment)| volume < attachment)
}

/// The handle that an attachment noted and the one that its PersistentVolume has, where they differ.
fn other_handle<'n, 'v>(attachment: &'n Attachment, volume: &'v Volume) -> Option<(&'n str, &'v str)> {
    let noted = &*attachment.volume_note.as_ref()?.handle;
    let now = handle(volume)?;
    (attachment.volume_name() == Some(&volume.name) && noted != now).then_some((noted, now))
}

/// Whether a PersistentVolume was created after an attachment that was claimed without a note, as the sidecar claims: then it is
/// not the volume that was claimed, and may be another one. Where our finalizer is on it, as it is before a claim, the difference of
/// two clocks proves nothing.
pub(super) fn was_made_later(volume: &Volume, attachment: &Attachment) -> bool {
    let finalizer = finalizer_name(&attachment.attacher);
    let to_claim = attachment.deleting.is_none() && !attachment.attached;
    if to_claim && !attachment.finalizers.contains(&finalizer) {
        return false;
    }
    let (Some(volume_made), Some(attachment_made)) = (volume.created, attachment.created) else {
        return false;
    };
    let difference = if volume.finalizers.contains(&finalizer) {
        CLOCK_DIFFERENCE
    } else {
        SignedDuration::ZERO
    };
    volume_made.duration_since(attachment_made) > difference
}

fn handle(volume: &Volume) -> Option<&str> {
    volume.spec.csi().map(|source| &*source.handle)
}

/// Every place where the volume may be. First where the CSINode says, as the Go sidecar does. A node that is shut down or
/// gone has no CSINode, or one without the driver: then what was noted when the attachment was claimed. A node that came
/// back under its name with another ID leaves the volume with the old one, where the sidecar forgets it; we do not, unless a
/// person confirmed that it is not there. After it, what may be published beside the note ([`published_beside_note`]). What is confirmed is the
/// first list; the second is asked for, and is never empty.
pub(super) fn places<'a>(
    observed: &Observed<'a>,
    volume_id: &'a str,
) -> Result<(Vec<VolumeOnNode<'a>>, Vec<VolumeOnNode<'a>>), Refusal> {
    let attachment = observed.attachment;
    if is_blank(volume_id) {
        return Err(Refusal::BlankHandle);
    }
    let registered = observed.node.registered();
    let mut ids = registered.into_iter().chain(attachment.node_id.as_deref()).peekable();
    if ids.peek().is_none() {
        let missing = node_refusal(observed);
        return Err(if attachment.node_id_is_blank {
            Refusal::BlankNodeAnnotation(Box::new(missing))
        } else {
            missing
        });
    }
    let handles = [volume_id]
        .into_iter()
        .chain(published_beside_note(attachment, observed.volume));
    let now = handles.flat_map(|handle| ids.clone().filter_map(|node_id| VolumeOnNode::new(handle, node_id)));
    let former = attachment.volume_note.iter().flat_map(|note| &note.former);
    let mut places: Vec<VolumeOnNode<'a>> = Vec::with_capacity(1);
    for place in now.chain(former.filter_map(VolumeOnNode::of_former)) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let Some(current) = places.first().copied() else {
        return Err(node_refusal(observed));
    };
    let said = attachment.not_attached_at.as_deref();
    let named = said.map(|said| named_places(said, &places)).unwrap_or_default();
    let is_confirmed = |place: &VolumeOnNode<'a>| {
        let former = former_place(*place, current);
        former.is_some_and(|former| named.contains(&former))
    };
    Ok(places.into_iter().partition(is_confirmed))
}

/// What a person sets the annotation to, so that it confirms this former place beside those that it confirms now; none for a place that
/// nobody can confirm, or where the list would be read otherwise.
pub fn confirmation(observed: &Observed<'_>, place: VolumeOnNode<'_>) -> Option<String> {
    let (volume_id, _) = published_volume(observed.attachment, observed.volume).ok()?;
    let (confirmed, asked) = places(observed, volume_id).ok()?;
    let current = *asked.first()?;
    former_place(place, current)?;
    let mut list: Vec<FormerPlace<'_>> = Vec::new();
    for place in confirmed.iter().copied().chain([place]) {
        list.extend(former_place(place, current).filter(|place| !list.contains(place)));
    }
    let known: Vec<VolumeOnNode<'_>> = confirmed.iter().chain(&asked).copied().collect();
    let is_clear = named_places(&list_of(&list, ToString::to_string), &known) == list;
    is_clear.then(|| list_of(&list, FormerPlace::in_command))
}

/// Two PersistentVolumes may have one handle, and the attachments of both may be on one node: whoever goes first must not
/// take the volume from the other.
pub(super) fn attachment_still_using<'a>(observed: &Observed<'a>) -> Option<&'a Arc<Attachment>> {
    observed.neighbours.here.as_ref().filter(|other| is_in_use(other))
}

/// Another attachment that is attached at a place of this one: a node ID can be given to another node. Its own detach will ask for the
/// place, and a pod uses the volume there meanwhile.
pub(super) fn user_of<'a>(observed: &Observed<'a>, place: VolumeOnNode<'_>) -> Option<&'a Arc<Attachment>> {
    let others = observed.neighbours.claimed.iter();
    let mut users = others.filter(|other| is_in_use(&other.attachment) && other.holds(place, observed.attachment));
    users.next().map(|other| &other.attachment)
}

/// The other attachments that are claimed for one of these places and not attached. One of them may have been published by an
/// operator that has died, whose record of it is still on its way.
pub(super) fn claims_to_renew<'a>(observed: &Observed<'a>, places: &[VolumeOnNode<'_>]) -> Vec<&'a Arc<Attachment>> {
    let finalizer = &observed.driver.finalizer;
    let others = observed.neighbours.claimed.iter();
    let others = others.filter(|other| places.iter().any(|place| other.holds(*place, observed.attachment)));
    others
        .map(|other| &other.attachment)
        .filter(|other| other.deleting.is_none() && !other.attached && other.finalizers.contains(finalizer))
        .collect()
}

impl Claimant {
    fn holds(&self, place: VolumeOnNode<'_>, beside: &Attachment) -> bool {
        let (volume, registered) = (self.volume.as_deref(), self.registered.as_deref());
        is_claimed_for(&self.attachment, volume, registered, place, beside)
    }
}

/// Whether an attachment stands for the volume at a place, and the place is not to be taken from it for the sake of `beside`.
/// `volume` is the PersistentVolume that it names, `registered` the ID that the CSINode of its node says, if these are known.
///
/// Where the handle is not known, or may have changed with the labels of an in-tree volume, that it names the same PersistentVolume as
/// `beside` counts; where no node ID was noted, as when
/// somebody removed it, the CSINode's counts. What is attached is also where its node is now, from where its own detach will take it. In
/// doubt it keeps the place.
pub fn is_claimed_for(
    attachment: &Attachment,
    volume: Option<&Volume>,
    registered: Option<&str>,
    place: VolumeOnNode<'_>,
    beside: &Attachment,
) -> bool {
    let by_handle = || match known_handle(attachment, volume) {
        Some(handle) => handle == place.volume_id || published_beside_note(attachment, volume) == Some(place.volume_id),
        None => {
            volume.and_then(handle) == Some(place.volume_id)
                || (attachment.volume_name().is_some() && attachment.volume_name() == beside.volume_name())
        }
    };
    let same_volume = are_of_in_tree(volume, attachment, beside) || by_handle();
    let noted = attachment.node_id.as_deref();
    let is_registered = registered == Some(place.node_id) && (attachment.attached || noted.is_none());
    let on_node = noted.is_none() && attachment.attached && attachment.node == beside.node;
    same_volume && (noted == Some(place.node_id) || is_registered || on_node)
}

/// Whether a VolumeAttachment holds the place that it names: it is wanted, and attached or claimed by the owner of the finalizer.
pub fn holds_its_place(attachment: &Attachment, finalizer: &str) -> bool {
    attachment.deleting.is_none() && (attachment.attached || attachment.finalizers.contains(finalizer))
}

/// Whether an attachment is attached and wanted.
pub fn is_in_use(attachment: &Attachment) -> bool {
    attachment.deleting.is_none() && attachment.attached
}
