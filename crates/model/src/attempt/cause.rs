//! Why an attempt failed, beside what the driver answered.

use crate::answer::{ApiError, ApiErrorKind};
use crate::decide::Failure;

/// Why an attempt failed, beside what the driver answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureCause {
    /// Something that the call needs is missing, so that the driver was not even asked: what, as `error.type` has it.
    Missing(&'static str),
    /// Another writer was first, again and again.
    Conflict,
    /// The driver refuses a detach at a former ID of the node, about which a person can do something.
    FormerNode,
    /// The driver attached the volume, and that cannot be stored.
    NotRecorded,
    /// The driver's answer, or anything else.
    Other,
}

impl FailureCause {
    /// The Secret is not there.
    pub const SECRET_MISSING: Self = Self::Missing("secret_missing");
    /// The operator may not read the Secret.
    pub const SECRET_FORBIDDEN: Self = Self::Missing("secret_forbidden");
    /// A copy that the call rests on can be neither watched nor read.
    pub const UNCONFIRMED: Self = Self::Missing("unconfirmed");

    /// Why the Secret cannot be read.
    pub fn of_secret(error: &ApiError) -> Self {
        match error.kind {
            ApiErrorKind::NotFound => Self::SECRET_MISSING,
            // A client that is not authenticated (401) lacks no permission.
            ApiErrorKind::Forbidden if error.is_forbidden() => Self::SECRET_FORBIDDEN,
            _ => Self::Other,
        }
    }

    /// The failure of a [`FailureCause::NotRecorded`], and why the result is not stored.
    pub(super) fn not_recorded(why: &str) -> Failure {
        Failure::plain(format!(
            "the driver attached the volume; the result cannot be stored: {why}"
        ))
    }

    /// Value of the attribute `error.type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing(what) => what,
            Self::Conflict => "conflict",
            Self::FormerNode | Self::NotRecorded | Self::Other => "_OTHER",
        }
    }
}
