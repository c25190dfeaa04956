//! What is known of the calls for an attachment. It is read from the attachment alone, and so survives every restart.

use super::driver_facts::DriverFacts;
use super::grpc_code;
use crate::api::names::{NODE_ID_ANNOTATION, VOLUME_ANNOTATION};
use crate::objects::Attachment;

/// Whether an attachment carries our finalizer from a publish: a call may have been made for it, so the finalizer goes only
/// after ControllerUnpublishVolume answered OK.
///
/// A finalizer that stands there alone, on an attachment that was never attached, comes from no publish.
pub fn is_claimed(attachment: &Attachment, driver: &DriverFacts) -> bool {
    let used = was_called_for(attachment) || attachment.attached || attachment.has_publish_context;
    used && attachment.finalizers.contains(&driver.finalizer)
}

/// Whether an attachment was claimed for a call: its node ID or the note of its volume tells it. Both are written together with the
/// finalizer, before the first call; the Go sidecar writes no note. What was marked as attached without a call has neither. What somebody
/// blanked, made too large or unreadable was there.
pub fn was_called_for(attachment: &Attachment) -> bool {
    claim_annotations(attachment).next().is_some()
}

/// The annotations of an attachment that tell that it was claimed for a call. They go when it is let go.
pub(super) fn claim_annotations(attachment: &Attachment) -> impl Iterator<Item = &'static str> {
    let has_node_id = attachment.node_id.is_some() || attachment.node_id_is_blank;
    let has_note = attachment.volume_note.is_some() || attachment.note_fault.is_some();
    let known = [(has_node_id, NODE_ID_ANNOTATION), (has_note, VOLUME_ANNOTATION)];
    known.into_iter().filter(|(is_there, _)| *is_there).map(|(_, key)| key)
}

/// Whether a gRPC status number means that the call did nothing and is over. The others leave open whether the driver
/// still works on it; the list is that of the Kubernetes CSI sidecars.
pub fn is_final(code: i32) -> bool {
    !matches!(
        code,
        grpc_code::OK
            | grpc_code::CANCELLED
            | grpc_code::DEADLINE_EXCEEDED
            | grpc_code::UNAVAILABLE
            | grpc_code::RESOURCE_EXHAUSTED
            | grpc_code::ABORTED
    )
}
