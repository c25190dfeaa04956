//! Why an attempt failed, beside what the driver answered.

use crate::apiserver::{ApiError, ApiErrorKind};
use crate::telemetry::names::error_type;

/// Why an attempt failed, beside what the driver answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::driver) enum FailureCause {
    /// Something that the call needs is missing, so that the driver was not even asked: what, as `error.type` has it.
    Missing(&'static str),
    Conflict,
    /// The driver refuses a detach at a former ID of the node, about which a person can do something.
    FormerNode,
    /// The driver's answer, or anything else.
    Other,
}

impl FailureCause {
    /// Why the Secret cannot be read.
    pub fn of_secret(error: &ApiError) -> Self {
        match error.kind {
            ApiErrorKind::NotFound => Self::Missing(error_type::SECRET_MISSING),
            // Who is not known (401) lacks no right.
            ApiErrorKind::Forbidden if error.is_forbidden() => Self::Missing(error_type::SECRET_FORBIDDEN),
            _ => Self::Other,
        }
    }

    /// Value of the attribute `error.type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing(what) => what,
            Self::Conflict => error_type::CONFLICT,
            Self::FormerNode | Self::Other => error_type::OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_secret_cannot_be_read() {
        for (status, kind, expected) in [
            (
                404,
                ApiErrorKind::NotFound,
                FailureCause::Missing(error_type::SECRET_MISSING),
            ),
            (
                403,
                ApiErrorKind::Forbidden,
                FailureCause::Missing(error_type::SECRET_FORBIDDEN),
            ),
            (401, ApiErrorKind::Forbidden, FailureCause::Other),
            (503, ApiErrorKind::Unavailable, FailureCause::Other),
        ] {
            let error = ApiError {
                kind,
                message: String::new(),
                status: Some(status),
                retry_after: None,
            };
            assert_eq!(FailureCause::of_secret(&error), expected, "{status}");
        }
    }
}
