//! What must be there before a call: the Secret, and the writes that announce the call.

use std::sync::Arc;

use super::step::{Answer, Event, Patch, Read, Step, View};
use super::{Attempt, DecisionInputs, DeniedSecret, FailureCause, LeaseLost, Note, Phase, Verdict};
use crate::answer::{ApiError, ApiErrorKind};
use crate::api::permissions;
use crate::decide::patch::{self, WriteTarget};
use crate::decide::{self, Failure, Neighbours, Refusal, ReleaseRefusal, Snapshot, Write};
use crate::objects::{Attachment, SecretReference};

/// A write on the way to a call, on which no call depends that was made.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    write: Write,
    /// The copies that it was made from.
    copy: Snapshot,
    purpose: Purpose,
    /// It was refused as stale, and its object is being read.
    refused: Option<ApiError>,
}

/// What it is for.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// The finalizer on the PersistentVolume.
    Protect,
    /// The finalizer and the place on the VolumeAttachment.
    Claim,
    /// A finalizer goes that comes from no publish.
    Unmark,
    /// The claim of another VolumeAttachment, of this number, for a place that this detach holds. Nobody publishes it there meanwhile,
    /// and what was sent about it before is void.
    Renew(usize),
    /// The finalizer goes as a person asked, for what allows it.
    Release(String, &'static str),
    /// That is refused.
    RefuseRelease(ReleaseRefusal),
}

impl Purpose {
    /// What a failure says.
    fn failure(&self, copy: &Snapshot) -> String {
        match self {
            Self::Protect => "could not add PersistentVolume finalizer".to_owned(),
            Self::Claim => "could not save VolumeAttachment".to_owned(),
            Self::Unmark => "could not remove the finalizer".to_owned(),
            Self::Renew(_) => format!("could not renew the claim of VolumeAttachment {}", copy.attachment.name),
            Self::Release(..) => "could not remove the finalizer on request".to_owned(),
            Self::RefuseRelease(_) => "could not answer the request to release the volume".to_owned(),
        }
    }
}

impl Attempt {
    pub(super) fn secret_answered(
        &mut self,
        view: &dyn View,
        reference: &SecretReference,
        answer: Result<(), ApiError>,
    ) -> Step {
        let Err(error) = answer else {
            self.has_secret = true;
            return self.observe_afresh(view);
        };
        let SecretReference { namespace, name } = reference;
        let mut text = format!("failed to load secret \"{namespace}/{name}\": {error}");
        if error.is_forbidden() {
            self.denied_secret = Some(DeniedSecret::Forbidden(reference.clone()));
            text = format!("{text}; {}", permissions::required_role(reference));
        }
        self.record_failure(view, Failure::plain(text), FailureCause::of_secret(&error))
    }

    /// Records what the call needs and does not have.
    pub(super) fn refuse(&mut self, view: &dyn View, refusal: &Refusal) -> Step {
        self.denied_secret = DeniedSecret::by(refusal);
        self.lacks_capability = matches!(refusal, Refusal::CapabilityLost(_)) && view.driver().stalls();
        let failure = Failure::plain(refusal.to_string());
        self.record_failure(view, failure, FailureCause::Missing(refusal.reason()))
    }

    pub(super) fn claim(&mut self, view: &dyn View, inputs: &DecisionInputs, write: Write) -> Step {
        let write = match view.traceparent() {
            Some(traceparent) => patch::with_trace(write, &traceparent),
            None => write,
        };
        self.send_prepared(write, inputs.snapshot.clone(), Purpose::Claim)
    }

    /// Renews the claims of others from this number on; none when all are.
    pub(super) fn renew(&mut self, view: &dyn View, from: usize, renewed: &[&Arc<Attachment>]) -> Option<Step> {
        for (number, other) in renewed.iter().enumerate().skip(from) {
            let Some(write) = patch::renew(other) else { continue };
            if !view.may_start() {
                return Some(self.lease_lost(LeaseLost::NotStarted));
            }
            let copy = Snapshot {
                attachment: (*other).clone(),
                volume: None,
                node: None,
                neighbours: Neighbours::default(),
            };
            return Some(self.send_prepared(write, copy, Purpose::Renew(number)));
        }
        None
    }

    /// Removes the finalizer on request, if the object is still the one that was judged.
    pub(super) fn release_on_request(
        &mut self,
        view: &dyn View,
        inputs: &DecisionInputs,
        request: String,
        basis: &'static str,
    ) -> Step {
        let Some(write) = patch::release_on_request(&inputs.snapshot.attachment, &view.driver().finalizer) else {
            return self.observe(view);
        };
        // The judgement took a while. Whoever leads the driver now has judged for itself, or has not.
        if !view.may_start() {
            return self.lease_lost(LeaseLost::NotStarted);
        }
        self.send_prepared(write, inputs.snapshot.clone(), Purpose::Release(request, basis))
    }

    /// Answers on the object that a request is refused. The detach goes on as if there were none, whether the answer can be written or
    /// not.
    pub(super) fn refuse_release(&mut self, view: &dyn View, inputs: &DecisionInputs, refusal: ReleaseRefusal) -> Step {
        let attachment = &inputs.snapshot.attachment;
        let answer = decide::release_answer(attachment, &refusal);
        match answer.and_then(|answer| patch::refuse_release(attachment, &answer)) {
            Some(write) => self.send_prepared(write, inputs.snapshot.clone(), Purpose::RefuseRelease(refusal)),
            None => self.observe(view),
        }
    }

    pub(super) fn send_prepared(&mut self, write: Write, copy: Snapshot, purpose: Purpose) -> Step {
        let claims = matches!(purpose, Purpose::Claim).then_some(self.policy.leaving);
        let patch = Patch {
            write: write.clone(),
            copy: copy.clone(),
            resends: 0,
            claims,
        };
        self.phase = Phase::Prepare(Box::new(Prepared {
            write,
            copy,
            purpose,
            refused: None,
        }));
        Step::Write(patch)
    }

    pub(super) fn prepared(&mut self, view: &dyn View, prepared: Prepared, event: Event) -> Step {
        match event {
            Event::Wrote(Ok(_)) => self.prepared_taken(view, prepared),
            Event::Wrote(Err(error)) => self.prepared_refused(view, prepared, error),
            Event::Read(answer) => match &prepared.refused {
                _ if has_changed(view, &prepared.copy, &prepared.write.target, &answer) => self.observe(view),
                Some(error) => self.prepared_failed(view, &prepared, &error.clone().meant()),
                None => self.end(Verdict::Failed),
            },
            // The AttacherConfig is left since.
            _ => self.observe(view),
        }
    }

    fn prepared_taken(&mut self, view: &dyn View, prepared: Prepared) -> Step {
        match prepared.purpose {
            Purpose::Protect | Purpose::Claim | Purpose::Unmark => {
                self.note(Note::Prepared(prepared.write.target));
                self.observe(view)
            }
            Purpose::Renew(number) => self.renewed(view, number + 1),
            Purpose::Release(request, basis) => {
                self.note(Note::ReleasedOnRequest(request, basis));
                self.end(Verdict::Done)
            }
            Purpose::RefuseRelease(refusal) => {
                self.note(Note::ReleaseRefused(refusal));
                self.observe(view)
            }
        }
    }

    /// When it was made from a stale copy, everything is observed again; when the object is as we knew it, the API server means its
    /// refusal.
    fn prepared_refused(&mut self, view: &dyn View, mut prepared: Prepared, error: ApiError) -> Step {
        let target = prepared.write.target.clone();
        match error.kind {
            ApiErrorKind::NotFound => return self.observe(view),
            ApiErrorKind::Stale if is_newer(view, &prepared.copy, &target) => return self.observe(view),
            ApiErrorKind::Stale => {
                let read = Read::Again(target, Box::new(prepared.copy.clone()));
                prepared.refused = Some(error);
                self.phase = Phase::Prepare(Box::new(prepared));
                return Step::Read(read);
            }
            // Once more: the answer may have been that to another request.
            ApiErrorKind::NotKept if self.not_kept.replace(target.clone()).as_ref() != Some(&target) => {
                return self.observe(view);
            }
            _ => {}
        }
        self.prepared_failed(view, &prepared, &error)
    }

    fn prepared_failed(&mut self, view: &dyn View, prepared: &Prepared, error: &ApiError) -> Step {
        let Some(snapshot) = self.snapshot().cloned() else {
            return self.end(Verdict::Failed);
        };
        // What is left of the claim is what the failure is about.
        let left = self
            .newest(view)
            .filter(|left| error.kind == ApiErrorKind::NotKept && left.operation() == snapshot.operation());
        let about = left.unwrap_or(snapshot);
        let failure = Failure::plain(format!("{}: {error}", prepared.purpose.failure(&prepared.copy)));
        if let Purpose::RefuseRelease(refusal) = &prepared.purpose {
            let note = prepared.copy.attachment.release.as_ref();
            self.answered_request = note.map(|note| note.request.clone());
            self.note(Note::ReleaseRefused(refusal.clone()));
            self.note(Note::AnswerNotSaved(failure));
            return self.observe(view);
        }
        if error.is_out_of_order() && !self.is_upkeep(view, &about) {
            // One more write, about an error that is the API server's own, would not help.
            return self.fail(view, about, failure, FailureCause::Other);
        }
        self.fail_before_call(view, about, failure, FailureCause::Other)
    }

    /// Ends an attempt that did not get as far as its call, with the failure on the VolumeAttachment.
    pub(super) fn fail_before_call(
        &mut self,
        view: &dyn View,
        about: Snapshot,
        failure: Failure,
        cause: FailureCause,
    ) -> Step {
        if self.is_upkeep(view, &about) {
            self.note(Note::UpkeepFailed(Box::new(about), failure));
            let verdict = self.failed(view);
            return self.end(verdict);
        }
        self.record_failure_about(view, about, failure, cause)
    }

    /// What is attached, whose volume is only to be protected or noted again, has not failed to attach: it shows no attachError, and no
    /// attach is counted as failed.
    fn is_upkeep(&self, view: &dyn View, about: &Snapshot) -> bool {
        let is_forced = self.inputs.as_ref().is_some_and(|inputs| inputs.forced);
        decide::is_settled(&about.attachment, &view.driver().finalizer) && !is_forced
    }
}

/// Whether the cache has another copy of an object than that in `copy`, so that a write made from it may well be refused. Of ten
/// VolumeAttachments that protect one volume at the same time, nine are refused and find there what the tenth wrote.
pub(super) fn is_newer(view: &dyn View, copy: &Snapshot, target: &WriteTarget) -> bool {
    view.version(target) != copy.version(target)
}

/// The same, or that the object is gone, by the answer to its read after a write that was refused as stale.
pub(super) fn has_changed(view: &dyn View, copy: &Snapshot, target: &WriteTarget, answer: &Answer) -> bool {
    matches!(answer, Err(error) if error.kind == ApiErrorKind::NotFound) || is_newer(view, copy, target)
}
