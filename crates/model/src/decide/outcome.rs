//! How an effect ended.

use crate::objects::StringMap;

/// How an effect ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// ControllerPublishVolume answered OK with this publish context.
    Published(StringMap),
    /// ControllerUnpublishVolume answered OK.
    Unpublished,
    /// An attach could not be done.
    AttachFailed(Failure),
    /// A detach could not be done.
    DetachFailed(Failure),
}

/// Something that did not work, in the words that go onto the attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The text, free of secrets.
    pub message: String,
    /// The gRPC status number when the driver answered one.
    pub code: Option<i32>,
}

impl Failure {
    /// A failure that is no gRPC status.
    pub fn plain(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: None,
        }
    }
}
