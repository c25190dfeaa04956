//! What could not be read, and what would make it readable.

use serde::Serialize;
use std::fmt;

use crate::error::{EXIT_ERROR, EXIT_UNKNOWN};

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "reason", content = "message")]
pub enum GapReason {
    Forbidden,
    Failed(String),
}

/// A read that did not succeed, so that the explanation goes without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// `get`, `list` or `watch`.
    pub verb: &'static str,
    /// API group; empty for the core group.
    pub group: String,
    /// Resource in the plural.
    pub resource: String,
    /// Namespace, when the resource has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(flatten)]
    pub reason: GapReason,
}

impl Gap {
    /// The exit code where nothing can be said for that: without a permission nothing is known, and else nobody answered.
    pub const fn exit_code(&self) -> u8 {
        match self.reason {
            GapReason::Forbidden => EXIT_UNKNOWN,
            GapReason::Failed(_) => EXIT_ERROR,
        }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}", self.verb, self.resource)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in namespace {namespace}")?;
        }
        match &self.reason {
            GapReason::Forbidden => write!(
                f,
                ": forbidden; missing RBAC rule: {{apiGroups: [\"{}\"], resources: [\"{}\"], verbs: [\"{}\"]}}",
                self.group, self.resource, self.verb
            ),
            GapReason::Failed(message) => write!(f, ": {message}"),
        }
    }
}
