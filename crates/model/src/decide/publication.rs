//! What is known of a volume at its node. It is read from the attachment alone, and so survives every restart.

use super::driver_facts::DriverFacts;
use super::grpc_code;
use crate::objects::Attachment;

/// Whether a volume is published to the node of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publication {
    /// It was never claimed by us, and nothing was ever called.
    Never,
    /// The driver's last answer to ControllerPublishVolume was an error that says: it is not.
    Refused,
    /// It may be: a call timed out or was cut off, or nothing is recorded since the claim.
    Uncertain,
    /// The driver said so.
    Published,
}

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
/// blanked or made too large was there.
pub fn was_called_for(attachment: &Attachment) -> bool {
    attachment.node_id.is_some()
        || attachment.node_id_is_blank
        || attachment.volume_note.is_some()
        || attachment.note_too_large.is_some()
}

/// Reads the state from what is stored on the object. In doubt it is uncertain: an error of ours that came after a call
/// covers the one of the driver, and an API server before 1.34 does not store its code.
pub fn publication(attachment: &Attachment, driver: &DriverFacts) -> Publication {
    if attachment.attached {
        return Publication::Published;
    }
    if !attachment.finalizers.contains(&driver.finalizer) {
        return Publication::Never;
    }
    let code = attachment.attach_error.as_ref().and_then(|error| error.code);
    match code {
        Some(code) if is_final(code) => Publication::Refused,
        _ => Publication::Uncertain,
    }
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
