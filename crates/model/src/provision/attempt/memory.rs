//! What is remembered of a claim from one attempt to the next.

use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

use super::super::creation::Creation;
use crate::objects::Claim;

/// What is remembered of a claim while it is worked on. It is read from the object at each start; what is here besides is safe to forget
/// ([`Creation`]).
#[derive(Clone, Debug, Default)]
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
    /// Until when it is not saved again, whatever happens to the claim.
    pub(super) save_at: Option<Timestamp>,
    /// Whether it was told that a volume populator provisions the claim.
    pub(super) is_populated: bool,
    /// Whether it was told that the PersistentVolume is saved.
    pub(super) is_told: bool,
    /// Whether it was told that the driver made two volumes.
    pub(super) two_are_told: bool,
    /// Whether it was told that no object tells of the volume any more.
    pub(super) leak_is_told: bool,
    /// Whether it was told that something in the marker is ignored.
    pub(super) ignored_is_told: bool,
    /// A handle that the driver answered, and the other PersistentVolume that had it: it was somebody's, also when that is gone.
    pub(super) shared: Option<(Box<str>, Box<str>)>,
}

/// Until when a call is not made again that cannot succeed, and for which inputs, settings and connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Infeasible {
    pub until: Timestamp,
    pub fingerprint: u64,
    pub epoch: u64,
}

/// How long after a request for a retry the next one counts: users of a namespace can write them.
const RETRY_NOW_INTERVAL: Duration = Duration::from_secs(10);

/// The requests of people to try a claim now (`attacher.csi.dev/retry-now`).
#[derive(Clone, Debug, Default)]
pub struct RetryRequests {
    /// The value that was seen last.
    seen: Option<Box<str>>,
    /// Whether the claim was looked at: what it asked for before is nothing new.
    has_looked: bool,
    /// When one was heard last.
    heard_at: Option<Timestamp>,
}

impl RetryRequests {
    /// Whether the claim asks for a retry that it did not ask for before. Of several within 10 seconds the last one is heard after that
    /// time, when the claim is looked at for another reason.
    pub fn is_asked(&mut self, claim: &Claim, now: Timestamp) -> bool {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.seen.clone_from(&claim.retry_now);
            return false;
        }
        let is_early = self
            .heard_at
            .is_some_and(|at| now >= at && super::elapsed(at, now) < RETRY_NOW_INTERVAL);
        if self.seen == claim.retry_now || is_early {
            return false;
        }
        self.seen.clone_from(&claim.retry_now);
        let is_asked = claim.retry_now.is_some();
        if is_asked {
            self.heard_at = Some(now);
        }
        is_asked
    }
}

/// The pause after a failure to save, before the first doubling.
const INITIAL_SAVE_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause before a PersistentVolume is saved again, also of one that the API server refuses.
pub const MAX_SAVE_PAUSE: Duration = Duration::from_secs(30);

impl ClaimMemory {
    /// How long until the PersistentVolume is saved again, after one more failure; the longest time where it was refused.
    pub(super) fn save_pause(&mut self, is_refused: bool, now: Timestamp) -> Duration {
        let pause = INITIAL_SAVE_PAUSE.saturating_mul(1 << self.save_failures.min(16));
        self.save_failures = self.save_failures.saturating_add(1);
        let pause = if is_refused {
            MAX_SAVE_PAUSE
        } else {
            pause.min(MAX_SAVE_PAUSE)
        };
        self.save_at = now.saturating_add(pause).ok();
        pause
    }

    /// How long it is not to be saved yet.
    pub(super) fn save_rest(&self, now: Timestamp) -> Option<Duration> {
        let rest = super::elapsed(now, self.save_at?);
        // The clock may have been set back.
        (!rest.is_zero()).then(|| rest.min(MAX_SAVE_PAUSE))
    }

    /// What was held against the claim counts no more: somebody asks for a retry, or what stood in the way may be gone.
    pub fn end_holds(&mut self) {
        self.infeasible = None;
        self.save_at = None;
    }

    /// What is known of the volume; none before the first look.
    pub fn creation(&self) -> Option<&Creation> {
        self.creation.as_ref()
    }

    /// Whether a call may have created the volume, and nobody knows.
    pub fn is_uncertain(&self) -> bool {
        self.creation.as_ref().is_some_and(Creation::is_uncertain)
    }

    /// Whether a volume may be there of which no object tells: the claim has to be worked on though it is gone.
    pub fn holds_volume(&self) -> bool {
        super::holds_volume(self.creation.as_ref())
    }
}
