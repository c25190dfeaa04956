//! The attributes of a span that name a VolumeAttachment or a PersistentVolume.

use crate::cache::Snapshot;
use crate::objects::{Volume, VolumeSource};
use crate::telemetry::Span;
use crate::telemetry::names::attr;

/// Attributes that name the attachment; shared by spans of both operations.
pub(crate) fn describe(span: &mut Span, driver: &str, snapshot: &Snapshot) {
    let attachment = &snapshot.attachment;
    span.set(attr::CSI_PLUGIN_NAME, driver);
    span.set(attr::VOLUME_ATTACHMENT_NAME, &*attachment.name);
    span.set(attr::VOLUME_ATTACHMENT_UID, &*attachment.uid);
    span.set(attr::NODE_NAME, &*attachment.node);
    match (attachment.volume_name(), snapshot.own_volume()) {
        (_, Some(volume)) => set_volume_attributes(span, volume),
        (Some(name), None) => span.set(attr::PERSISTENT_VOLUME_NAME, &**name),
        (None, None) => span.set(attr::VOLUME_INLINE, true),
    }
    if let Some(handle) = snapshot.volume_handle() {
        span.set(attr::CSI_VOLUME_ID, handle);
    }
}

/// Attributes that name a PersistentVolume and its claim.
pub(crate) fn set_volume_attributes(span: &mut Span, volume: &Volume) {
    span.set(attr::PERSISTENT_VOLUME_NAME, &*volume.name);
    if let VolumeSource::Csi(source) = &volume.spec.source {
        span.set(attr::CSI_VOLUME_ID, &*source.handle);
    }
    if volume.in_tree.is_some() {
        span.set(attr::MIGRATED, true);
    }
    if let Some(claim) = &volume.claim {
        span.set(attr::PERSISTENT_VOLUME_CLAIM_NAME, &*claim.name);
        span.set(attr::NAMESPACE_NAME, &*claim.namespace);
    }
    if let Some(class) = &volume.storage_class {
        span.set(attr::STORAGE_CLASS_NAME, &**class);
    }
}
