//! [`MalformedSpec`]: a spec that cannot be read.

use super::condition::shorten_message;

/// A spec that does not have the shape of AttacherConfigSpec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct MalformedSpec {
    /// Path of the first field that cannot be read, such as `spec.timeouts.publish`.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

impl MalformedSpec {
    /// The reason is cut, because serde repeats the refused value in it.
    pub(super) fn new(field: impl Into<String>, reason: &str) -> Self {
        Self {
            field: field.into(),
            reason: shorten_message(reason),
        }
    }
}
