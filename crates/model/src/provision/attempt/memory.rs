//! What is remembered of a claim from one attempt to the next.

use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

use super::super::action::ClaimReason;
use super::super::classify::{CreateErrorClass, create_error};
use super::super::creation::{Creation, UncertainCall};
use super::super::marker::{MarkerState, marked_since};
use super::super::seen::Seen;
use super::super::trouble::Trouble;
use super::step::{ClaimView, ListMoment, Verdict};
use crate::ListRests;
use crate::answer::ApiError;
use crate::decide::Failure;
use crate::findings::age;
use crate::objects::{Claim, SecretReference};

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
    pub(super) creation: Option<Creation>,
    /// Whether somebody else may have called for the claim and left no marker. What the first answer says is known from then on.
    pub(super) others_may_have_called: bool,
    /// Whether the call was planned while nobody wanted its volume: Secrets that only a PersistentVolume names may be missing in it.
    pub(super) planned_unwanted: bool,
    /// The former engine of this process that wrote the marker which what is known of the open call goes with; none where this one did.
    pub(super) marked_by: Option<Arc<str>>,
    /// Whether a write that takes the marker off brought no answer.
    pub(super) unmark_lost: bool,
    /// Whether a marker of ours was stored without what it says, as an admission webhook does it: no call was made under it.
    pub(super) mark_is_stripped: bool,
    /// How often in a row it rested because something was not known.
    pub(super) rests: ListRests,
    /// Since when the claim waits for lists that show what a first call is made from, as a watch is broken.
    pub(super) lists_since: Option<ListMoment>,
    /// Whether it was told that it does.
    pub(super) is_told_of_lists: bool,
    /// Since when the class is missing, or that of another provisioner; or not known as it is.
    pub(super) class_missing_since: Option<Timestamp>,
    pub(super) node_missing_since: Option<Timestamp>,
    /// Since when the PersistentVolume is known to be saved.
    pub(super) saved_since: Option<Timestamp>,
    pub(super) infeasible: Option<Infeasible>,
    /// The Secret of a call that the driver refused: a change of it may be the cure.
    pub(super) refused_with: Option<SecretReference>,
    /// Failures in a row to save the PersistentVolume.
    pub(super) save_failures: u32,
    /// Whether it was told that the API server refuses it.
    pub(super) refusal_is_told: bool,
    /// Until when it is not saved again, whatever happens to the claim.
    pub(super) save_at: Option<Timestamp>,
    /// The rule by which it was to be saved last, until that is told: the answer may be lost, and the claim be deleted since.
    pub(super) saved_by: Option<ClaimReason>,
    pub(super) is_populated: bool,
    pub(super) is_told: bool,
    pub(super) two_are_told: bool,
    /// Whether it was told that no object tells of the volume any more.
    pub(super) leak_is_told: bool,
    pub(super) trouble: Option<Trouble>,
    pub(super) uncertain_since: Option<Timestamp>,
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

/// The requests of people to try a claim or a PersistentVolume now (`attacher.csi.dev/retry-now`).
#[derive(Clone, Debug, Default)]
pub struct RetryRequests {
    /// The value that was seen last.
    seen: Option<Box<str>>,
    /// Whether the object was looked at: what it asked for before is nothing new.
    has_looked: bool,
    heard_at: Option<Timestamp>,
    /// Whether one was heard that no attempt was made for yet.
    is_due: bool,
}

impl RetryRequests {
    /// Whether a request was heard since this was asked last: the next attempt is the one that was asked for, whyever it is made.
    pub fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }

    /// Whether the object asks for a retry that it did not ask for before, by the value of its annotation. Of several within 10 seconds the
    /// last one is heard after that time, when the object is looked at for another reason.
    pub fn is_asked(&mut self, value: Option<&str>, now: Timestamp) -> bool {
        if !std::mem::replace(&mut self.has_looked, true) {
            self.seen = value.map(Box::from);
            return false;
        }
        let is_early = self
            .heard_at
            .is_some_and(|at| now >= at && age(at, now) < RETRY_NOW_INTERVAL);
        if self.seen.as_deref() == value || is_early {
            return false;
        }
        self.seen = value.map(Box::from);
        let is_asked = value.is_some();
        if is_asked {
            self.is_due = true;
            self.heard_at = Some(now);
        }
        is_asked
    }
}

/// The pause after a failure to save, before the first doubling.
const INITIAL_SAVE_PAUSE: Duration = Duration::from_millis(100);
/// The pause after the first save that was forbidden.
const FORBIDDEN_SAVE_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause before a PersistentVolume is saved again, also of one that the API server refuses.
const MAX_SAVE_PAUSE: Duration = Duration::from_secs(30);

impl ClaimMemory {
    /// How long until the PersistentVolume is saved again, after one more failure; and whether that is told, of one that was refused.
    ///
    /// The longest time where it was refused for what it is. A permission may be missing for a moment only, as on an API server that has
    /// just started: these tries are soon, and told once, until they are as rare.
    pub(super) fn save_pause(&mut self, error: &ApiError, now: Timestamp) -> (Duration, bool) {
        let is_refused = !error.is_transient();
        let initial = match (is_refused, error.is_forbidden()) {
            (false, _) => INITIAL_SAVE_PAUSE,
            (true, true) => FORBIDDEN_SAVE_PAUSE,
            (true, false) => MAX_SAVE_PAUSE,
        };
        let pause = initial
            .saturating_mul(1 << self.save_failures.min(16))
            .min(MAX_SAVE_PAUSE);
        self.save_failures = self.save_failures.saturating_add(1);
        self.save_at = now.saturating_add(pause).ok();
        let is_told = (is_refused && !self.refusal_is_told) || pause == MAX_SAVE_PAUSE;
        self.refusal_is_told |= is_refused;
        (pause, is_told)
    }

    /// The PersistentVolume is saved.
    pub(super) fn end_save(&mut self) {
        (self.save_failures, self.save_at, self.refusal_is_told) = (0, None, false);
    }

    /// How long it is not to be saved yet.
    pub(super) fn save_rest(&mut self, now: Timestamp) -> Option<Duration> {
        let until = super::within(self.save_at?, MAX_SAVE_PAUSE, now);
        self.save_at = Some(until);
        let rest = age(now, until);
        (!rest.is_zero()).then_some(rest)
    }

    /// The claim was there before it was served here: whoever served it may have called, and the driver still work on that. A sidecar
    /// leaves no marker, nor does every engine. What was looked at before is known as it is.
    pub fn expect_calls_of_others(&mut self) {
        self.others_may_have_called |= self.creation.is_none();
    }

    /// No node is selected for the claim. Nothing is remembered of one that was never called for, as the event that ends the wait is
    /// enough; but that somebody else may have called for it is, however long the wait.
    pub(super) fn rest_for_consumer(&mut self) -> Verdict {
        if !self.others_may_have_called {
            return Verdict::Done;
        }
        *self = Self {
            last: self.last.take(),
            others_may_have_called: true,
            ..Self::default()
        };
        Verdict::Rest(super::LONG_REST)
    }

    /// A call is made, planned by this rule unless it repeats one of this process.
    pub(super) fn is_called(&mut self, before: &Creation, reason: ClaimReason) {
        if before.uncertain_plan().is_none() {
            self.planned_unwanted = reason == ClaimReason::FindOut;
        }
    }

    /// What is known of the volume. A call that was planned while nobody wanted it is planned again from the marker once somebody does; but a
    /// volume that cannot be used is undone as it was made.
    pub(super) fn planned_again(&mut self, known: Creation, marker: &MarkerState, is_wanted: bool) -> Creation {
        let is_of_use = match &known {
            Creation::Created(volume) => volume.is_usable(),
            known => known.uncertain_plan().is_some(),
        };
        if is_wanted && is_of_use && marker.recorded().is_some() && std::mem::take(&mut self.planned_unwanted) {
            return Creation::Uncertain(UncertainCall::default());
        }
        known
    }

    /// What counts as known before a call that is answered now. A driver that lets nobody in makes no volume for anybody, and
    /// whoever deletes the claim then need not wait for a person.
    pub(super) fn known_before_answer(&mut self, before: Creation, failure: Option<&Failure>) -> Creation {
        if failure.is_some_and(|failure| create_error(failure.code) == CreateErrorClass::NotAdmitted) {
            return before;
        }
        let others_may_have_called = std::mem::take(&mut self.others_may_have_called);
        match before {
            // What it was called with nobody knows.
            Creation::Never | Creation::Refused if others_may_have_called => {
                Creation::Uncertain(UncertainCall::default())
            }
            known => known,
        }
    }

    /// What was held against the claim counts no more: somebody asks for a retry, or what stood in the way may be gone.
    pub fn end_holds(&mut self) {
        self.infeasible = None;
        self.save_at = None;
    }

    /// What another engine of this process goes on with for the claim, after that of `writer` has ended; none where nothing is known of an
    /// open call, or its marker was written by somebody else since, who may have called. An engine that ended before its first call has
    /// left the marker of the one before it.
    ///
    /// Where a claim never had a marker, as `leakProtection` may have it, only this process knows of the call. Another one may have finished
    /// it, so that the driver is asked what there is.
    #[must_use]
    pub fn continued(&self, claim: &Claim, driver: &str, writer: &str) -> Option<Self> {
        let marker = MarkerState::of(claim, driver);
        let marked_by = marker.recorded().map(|known| &*known.writer);
        let is_same = if let Some(marked_by) = marked_by {
            *marked_by == *writer || self.marked_by.as_deref() == Some(marked_by)
        } else {
            let was_marked = self.last.as_ref().is_none_or(|last| last.marker_at.is_some());
            claim.marker_at.is_none() && !was_marked && claim.volume_name.is_none()
        };
        (is_same && self.holds_volume()).then(|| {
            let mut known = self.clone();
            known.marked_by = marked_by.map(Into::into);
            if marked_by.is_none() {
                known.creation = known.creation.map(Creation::asked_again);
            }
            known.end_holds();
            known
        })
    }

    /// The driver has other capabilities than when an open call was planned: it is planned anew, by the marker, as after a restart. What the
    /// driver does not announce any more must not be asked for (CSI spec, "CreateVolume"), and its refusal of that would say nothing of the
    /// volume.
    pub fn forget_plan(&mut self) {
        if matches!(self.creation, Some(Creation::Uncertain(_))) {
            self.creation = Some(Creation::Uncertain(UncertainCall::default()));
        }
    }

    /// Name of the volume of which no object tells where the claim is gone and no PersistentVolume of that name is there; none where that
    /// was told, or a PersistentVolume told of it.
    pub fn lost(&self) -> Option<&str> {
        let is_told = self.leak_is_told || self.unmark_lost || self.saved_since.is_some();
        let plan = self.creation.as_ref().and_then(Creation::plan)?;
        (!is_told).then_some(&*plan.name)
    }

    /// What is known of the volume; none before the first look.
    pub fn creation(&self) -> Option<&Creation> {
        self.creation.as_ref()
    }

    /// Why nothing goes on, as it was told last.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// Since when this process does not know what a call did.
    pub fn uncertain_since(&self) -> Option<Timestamp> {
        self.uncertain_since
    }

    /// Since when that is so of a call that a process which has ended made, as its marker says; none where this one made the call.
    pub(super) fn open_since(&self, view: &impl ClaimView) -> Option<Timestamp> {
        match (&self.creation, view.claim()) {
            (Some(Creation::Uncertain(UncertainCall { plan: None, .. })), Seen::Here(claim)) => {
                marked_since(&claim, &view.driver().name)
            }
            _ => None,
        }
    }

    /// Whether a call may have created the volume, and nobody knows. What is saved is known, also while its call would be repeated
    /// should the PersistentVolume go.
    pub fn is_uncertain(&self) -> bool {
        self.saved_since.is_none() && self.creation.as_ref().is_some_and(Creation::is_uncertain)
    }

    /// Whether it was told that the PersistentVolume is saved, and that is still there as far as is known.
    pub fn is_saved(&self) -> bool {
        self.is_told
    }

    /// Whether a volume may be there of which no object tells: the claim has to be worked on though it is gone.
    pub fn holds_volume(&self) -> bool {
        self.creation.as_ref().and_then(Creation::plan).is_some()
    }
}
