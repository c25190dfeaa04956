//! What is remembered of a claim from one attempt to the next.

use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

use super::super::creation::Creation;
use crate::objects::Claim;

/// What is remembered of a claim while it is worked on. It is read from the object at each start; what is here besides is safe to forget
/// ([`Creation`]).
#[derive(Debug, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one thing that was told, or was lost"
)]
pub struct ClaimMemory {
    /// The last copy: the claim may be gone, and its volume there.
    pub(super) last: Option<Arc<Claim>>,
    /// What is known of the volume; none before the first look.
    pub(super) creation: Option<Creation>,
    /// Whether a write that takes the marker off brought no answer.
    pub(super) unmark_lost: bool,
    /// Since when the class is missing, or that of another provisioner.
    pub(super) class_missing_since: Option<Timestamp>,
    /// Since when the PersistentVolume is known to be saved.
    pub(super) saved_since: Option<Timestamp>,
    /// A call that cannot succeed with its arguments.
    pub(super) infeasible: Option<Infeasible>,
    /// Failures in a row to save the PersistentVolume.
    pub(super) save_failures: u32,
    /// Whether it was told that a volume populator provisions the claim.
    pub(super) is_populated: bool,
    /// Whether it was told that the PersistentVolume is saved.
    pub(super) is_told: bool,
    /// Whether it was told that the driver made two volumes.
    pub(super) two_are_told: bool,
}

/// Until when a call is not made again that cannot succeed, and for which inputs, settings and connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Infeasible {
    pub until: Timestamp,
    pub fingerprint: u64,
    pub epoch: u64,
}

/// The pause after a failure to save, before the first doubling.
const INITIAL_SAVE_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
pub(super) const MAX_SAVE_PAUSE: Duration = Duration::from_secs(30);

impl ClaimMemory {
    /// How long until the PersistentVolume is saved again, after one more failure.
    pub(super) fn save_pause(&mut self) -> Duration {
        let pause = INITIAL_SAVE_PAUSE.saturating_mul(1 << self.save_failures.min(16));
        self.save_failures = self.save_failures.saturating_add(1);
        pause.min(MAX_SAVE_PAUSE)
    }

    /// Whether a volume may be there of which no object tells: the claim has to be worked on though it is gone.
    pub fn holds_volume(&self) -> bool {
        match &self.creation {
            Some(Creation::Created(_)) => true,
            Some(creation) => creation.uncertain_plan().is_some(),
            None => false,
        }
    }
}
