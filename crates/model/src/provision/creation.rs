//! What is known of the volume of a claim, and of the deletion of a volume.

use std::sync::Arc;

use super::driver::ProvisionerFacts;
use super::persistent_volume::is_of_claim_and_driver;
use super::plan::CreatePlan;
use super::response::NewVolume;
use crate::objects::{Claim, Volume};

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
    /// Whether the last answer was one that drivers give as well while they work on it, such as INTERNAL: only the second such answer in a
    /// row is final.
    pub doubtful: bool,
    /// The ID of the volume that it made, where a PersistentVolume of the volume's name has taken that over.
    pub handle: Option<Box<str>>,
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

    /// A call with this plan may have created it; for `doubtful` see [`UncertainCall`].
    pub(super) fn uncertain(plan: Arc<CreatePlan>, doubtful: bool) -> Self {
        Self::Uncertain(UncertainCall {
            plan: Some(plan),
            doubtful,
            handle: None,
        })
    }

    /// What is known after a look at the PersistentVolumes, to be asked before each decision.
    ///
    /// A PersistentVolume of the volume's name, `saved`, that has its handle takes it over, whichever claim that names by now: from then on
    /// its deletion is that of the PersistentVolume. Should that be gone one day while the claim is there and carries the marker, only a call
    /// says what there is. `owner` is another PersistentVolume of the driver with the handle of the volume: it was somebody's, and is never
    /// deleted here, also after that PersistentVolume is gone.
    ///
    /// What only the marker says ends with the marker: a process that has ended may take it off late, and knew what it did. A call for a
    /// claim without a marker would make a volume that a crash loses.
    #[must_use]
    pub fn revised(
        self,
        claim: &Claim,
        gone: bool,
        driver: &ProvisionerFacts,
        saved: Option<&Volume>,
        owner: Option<&str>,
    ) -> Self {
        let is_recorded = saved.is_some_and(|saved| self.is_recorded_by(saved, driver));
        let is_saved = saved.is_some_and(|saved| self.is_saved_in(saved, claim, driver));
        // The copy of a claim that is gone says nothing: the answer to taking its marker off may be lost.
        let is_marked = claim.marker_at.is_some() && !gone;
        match self {
            Self::Uncertain(call) if !is_marked && (is_saved || call.plan.is_none()) => Self::Never,
            Self::Created(_) if is_recorded && !is_marked => Self::Never,
            Self::Created(_) if is_recorded => self.asked_again(),
            Self::Created(mut volume) => {
                volume.owner = volume.owner.or_else(|| owner.map(Box::from));
                Self::Created(volume)
            }
            known => known,
        }
    }

    /// What is known once only a call says what has become of a volume that was created.
    pub(super) fn asked_again(self) -> Self {
        let Self::Created(volume) = self else { return self };
        let NewVolume { plan, handle, .. } = *volume;
        Self::Uncertain(UncertainCall {
            plan: Some(plan),
            doubtful: false,
            handle: Some(handle),
        })
    }

    /// Whether a PersistentVolume of the volume's name was made for the claim by the driver, or is the record of the volume.
    pub(super) fn is_saved_in(&self, saved: &Volume, claim: &Claim, driver: &ProvisionerFacts) -> bool {
        is_of_claim_and_driver(saved, claim, driver) || self.is_recorded_by(saved, driver)
    }

    /// Whether a PersistentVolume of the volume's name is the record of the volume: it is the driver's, and has the handle that is known.
    pub(super) fn is_recorded_by(&self, saved: &Volume, driver: &ProvisionerFacts) -> bool {
        let handle = match self {
            Self::Created(volume) => Some(&volume.handle),
            Self::Uncertain(call) => call.handle.as_ref(),
            Self::Never | Self::Refused => None,
        };
        let named = saved.spec.csi().zip(handle);
        named.is_some_and(|(source, handle)| source.driver == driver.name && source.handle == *handle)
    }

    /// Whether a call may have created a volume, and nobody knows.
    pub const fn is_uncertain(&self) -> bool {
        matches!(self, Self::Uncertain(_))
    }

    /// The plan of the call of this process that made the volume, or may have.
    pub(super) fn plan(&self) -> Option<&Arc<CreatePlan>> {
        match self {
            Self::Created(volume) => Some(&volume.plan),
            known => known.uncertain_plan(),
        }
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
