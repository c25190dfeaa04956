//! The two operations: attach and detach.

use super::Attachment;

named! {
    /// What a VolumeAttachment asks for: an attach while it exists, a detach while it is being deleted. The word is that of
    /// `status.lastFailure.operation` and of the metrics.
    pub enum Operation {
        /// ControllerPublishVolume.
        Attach = "attach",
        /// ControllerUnpublishVolume.
        Detach = "detach",
    }
}

impl Operation {
    /// The operation that an attachment asks for.
    pub fn of(attachment: &Attachment) -> Self {
        if attachment.deleting.is_some() {
            Self::Detach
        } else {
            Self::Attach
        }
    }
}
