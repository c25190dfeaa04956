//! The two operations: attach and detach.

use super::Attachment;

/// What a VolumeAttachment asks for: an attach while it exists, a detach while it is being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// ControllerPublishVolume.
    Attach,
    /// ControllerUnpublishVolume.
    Detach,
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

    /// The word of `status.lastFailure.operation` and of the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Detach => "detach",
        }
    }
}
