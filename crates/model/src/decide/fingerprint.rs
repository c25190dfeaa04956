//! A hash of what a decision reads: it differs after a change that may help, and not after an echo of our own writes.
//!
//! A failed attempt is tried again after its backoff; an event wakes it earlier only when the fingerprint changed. What
//! we write ourselves on the way to an attach (our finalizers, the node ID, errors) is therefore not part of it.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::driver_facts::DriverFacts;
use super::observed::{NodeEntry, Observed};
use super::refusal::Refusal;
use super::{attach, published_volume};
use crate::objects::{AttachmentSource, Volume, VolumeSource, VolumeSpec};

/// Fingerprint of everything that decides about an attachment.
pub fn attachment_fingerprint(observed: &Observed<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let attachment = observed.attachment;
    attachment.uid.hash(&mut hasher);
    attachment.attacher.hash(&mut hasher);
    attachment.attached.hash(&mut hasher);
    attachment.retry_now.hash(&mut hasher);
    // No write of ours makes it so.
    attachment.note_fault.hash(&mut hasher);
    attachment.deleting.is_some().hash(&mut hasher);
    if attachment.deleting.is_some() {
        // We write these only on the way to an attach, so a change now is somebody else's.
        attachment
            .finalizers
            .contains(&observed.driver.finalizer)
            .hash(&mut hasher);
        attachment.node_id.hash(&mut hasher);
        attachment.volume_note.hash(&mut hasher);
        attachment.not_attached_at.hash(&mut hasher);
        published_volume::published_beside_note(attachment, observed.volume).hash(&mut hasher);
        // The answer to it is our own write.
        attachment.release.as_ref().map(|note| &note.request).hash(&mut hasher);
        published_volume::attachment_still_using(observed)
            .is_some()
            .hash(&mut hasher);
    } else {
        attach::leaving(observed).is_some().hash(&mut hasher);
        attach::is_held_elsewhere(observed).hash(&mut hasher);
        // A person was asked to note it. We note what is known only.
        let claimed = published_volume::published_volume(attachment, observed.volume);
        matches!(claimed, Err(Refusal::VolumeUnknown { .. })).hash(&mut hasher);
    }
    std::mem::discriminant(&attachment.source).hash(&mut hasher);
    match &attachment.source {
        AttachmentSource::Inline(spec) => hash_spec(spec, &mut hasher),
        AttachmentSource::PersistentVolume(name) | AttachmentSource::Both(name) => name.hash(&mut hasher),
        AttachmentSource::Neither => {}
    }
    observed.volume.is_some().hash(&mut hasher);
    if let Some(volume) = observed.volume {
        volume.uid.hash(&mut hasher);
        volume.deleting.hash(&mut hasher);
        hash_spec(&volume.spec, &mut hasher);
    }
    match observed.node {
        NodeEntry::Missing => 0_u8.hash(&mut hasher),
        NodeEntry::WithoutDriver => 1_u8.hash(&mut hasher),
        NodeEntry::BlankId => 2_u8.hash(&mut hasher),
        NodeEntry::Registered(node_id) => node_id.hash(&mut hasher),
    }
    hasher.finish()
}

/// Fingerprint of everything that decides about a PersistentVolume.
pub fn volume_fingerprint(volume: &Volume, attachments: usize, driver: &DriverFacts) -> u64 {
    let mut hasher = DefaultHasher::new();
    volume.uid.hash(&mut hasher);
    volume.deleting.hash(&mut hasher);
    volume.finalizers.contains(&driver.finalizer).hash(&mut hasher);
    volume.is_in_tree_without(&driver.name).hash(&mut hasher);
    (attachments > 0).hash(&mut hasher);
    hasher.finish()
}

fn hash_spec(spec: &VolumeSpec, hasher: &mut DefaultHasher) {
    spec.access_modes.hash(hasher);
    spec.block.hash(hasher);
    spec.mount_options.hash(hasher);
    spec.too_large.hash(hasher);
    std::mem::discriminant(&spec.source).hash(hasher);
    match &spec.source {
        VolumeSource::Csi(source) => {
            source.driver.hash(hasher);
            source.handle.hash(hasher);
            source.read_only.hash(hasher);
            source.fs_type.hash(hasher);
            source.attributes.hash(hasher);
            source.publish_secret.hash(hasher);
        }
        VolumeSource::Untranslated(error) => error.hash(hasher),
        VolumeSource::Other => {}
    }
}
