//! A hash of what a decision reads: it differs after a change that may help, and not after an echo of our own writes.
//!
//! A failed attempt is tried again after its backoff; an event wakes it earlier only when the fingerprint changed. What
//! we write ourselves on the way to an attach (our finalizers, the node ID, errors) is therefore not part of it.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::driver_facts::DriverFacts;
use super::observed::Observed;
use super::refusal::Refusal;
use super::{attach, published_volume};
use crate::objects::Volume;

/// Fingerprint of everything that decides about an attachment.
pub fn attachment_fingerprint(observed: &Observed<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let attachment = observed.attachment;
    (&attachment.uid, &attachment.attacher, &attachment.source).hash(&mut hasher);
    (attachment.attached, &attachment.retry_now).hash(&mut hasher);
    // No write of ours makes it so.
    attachment.note_fault.hash(&mut hasher);
    let is_deleting = attachment.deleting.is_some();
    is_deleting.hash(&mut hasher);
    if is_deleting {
        // We write these only on the way to an attach, so a change now is somebody else's.
        let is_held = attachment.finalizers.contains(&observed.driver.finalizer);
        (is_held, &attachment.node_id).hash(&mut hasher);
        attachment.volume_note.hash(&mut hasher);
        attachment.not_attached_at.hash(&mut hasher);
        published_volume::published_beside_note(attachment, observed.volume).hash(&mut hasher);
        // The answer to it is our own write.
        attachment.release.as_ref().map(|note| &note.request).hash(&mut hasher);
        let user = published_volume::attachment_still_using(observed);
        user.is_some().hash(&mut hasher);
    } else {
        attach::leaving(observed).is_some().hash(&mut hasher);
        attach::is_held_elsewhere(observed).hash(&mut hasher);
        // A person was asked to note it. We note what is known only.
        let claimed = published_volume::published_volume(attachment, observed.volume);
        matches!(claimed, Err(Refusal::VolumeUnknown { .. })).hash(&mut hasher);
    }
    let volume = observed.volume;
    let volume = volume.map(|volume| (&volume.uid, volume.deleting, &volume.spec));
    (volume, observed.node).hash(&mut hasher);
    hasher.finish()
}

/// Fingerprint of everything that decides about a PersistentVolume.
pub fn volume_fingerprint(volume: &Volume, attachments: usize, driver: &DriverFacts) -> u64 {
    let mut hasher = DefaultHasher::new();
    let is_held = volume.finalizers.contains(&driver.finalizer);
    let is_unserved = volume.is_in_tree_without(&driver.name);
    (&volume.uid, volume.deleting, is_held, is_unserved, attachments > 0).hash(&mut hasher);
    hasher.finish()
}
