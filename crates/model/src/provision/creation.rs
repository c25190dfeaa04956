//! What is known of the volume of a claim, and of the deletion of a volume.

use std::sync::Arc;

use super::request::CreatePlan;
use super::response::NewVolume;

/// What is known of the volume of one claim. Only the answer of a call changes it, or a person's release.
///
/// It is read from the object at each start ([`Creation::of_marker`]). `Refused` and `Created` live in memory only: CreateVolume is
/// idempotent by name (CSI spec, "CreateVolume"), so that a repeated call finds out what was forgotten.
#[derive(Clone, Debug, PartialEq)]
pub enum Creation {
    /// No call was made.
    Never,
    /// The last call was answered with an error that says: there is no volume. Or the volume was deleted with OK.
    Refused,
    /// A call may have created it, and nobody knows.
    Uncertain(UncertainCall),
    /// It is there, and no PersistentVolume is known to name it.
    Created(Box<NewVolume>),
}

/// A call of which nobody knows whether it created a volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UncertainCall {
    /// What it was called with; none when a process that has ended made it. Then the marker says what matters.
    pub plan: Option<Arc<CreatePlan>>,
    /// Whether the last answer was INTERNAL or UNKNOWN: only the second such answer in a row is final.
    pub doubtful: bool,
}

impl Creation {
    /// What is known at the start, from whether the claim carries a marker of the driver.
    pub fn of_marker(has_marker: bool) -> Self {
        if has_marker {
            Self::Uncertain(UncertainCall::default())
        } else {
            Self::Never
        }
    }

    /// Whether a call may have created a volume, and nobody knows.
    pub const fn is_uncertain(&self) -> bool {
        matches!(self, Self::Uncertain(_))
    }

    /// The plan of an uncertain call of this process.
    pub(super) fn uncertain_plan(&self) -> Option<&Arc<CreatePlan>> {
        match self {
            Self::Uncertain(call) => call.plan.as_ref(),
            Self::Never | Self::Refused | Self::Created(_) => None,
        }
    }

    /// Stable name, for spans.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Refused => "refused",
            Self::Uncertain(_) => "uncertain",
            Self::Created(_) => "created",
        }
    }
}

/// What is known of the deletion of the volume of a PersistentVolume. It lives in memory only: DeleteVolume of a volume that is not
/// there is answered with OK (CSI spec, "DeleteVolume").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deletion {
    /// No call was made, or the last one was answered with an error that says: nothing is deleted.
    #[default]
    NotDeleted,
    /// A call may have deleted it, and nobody knows.
    Uncertain,
    /// The driver answered OK, or what the settings take for it.
    Deleted,
}
