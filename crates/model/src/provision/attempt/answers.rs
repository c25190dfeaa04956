//! What an answer changes, and whether the attempt is over.

use std::sync::Arc;

use super::memory::Infeasible;
use super::step::{Due, Pending, StalePatch};
use super::{ClaimAttempt, ClaimEvent, ClaimNote, ClaimView, MAX_STALE, UndoFailure, Verdict, not_kept};
use crate::answer::{ApiError, ApiErrorKind};
use crate::attempt::{CallEnd, LeaseLost};
use crate::decide::{Failure, ReleaseRefusal, grpc_code};
use crate::objects::{Claim, Volume};
use crate::provision::action::ClaimReason;
use crate::provision::classify::{CreateErrorClass, create_error, delete_answer};
use crate::provision::creation::{Creation, Deletion};
use crate::provision::marker::MarkerState;
use crate::provision::observed::{ProvisionerSecretState, RolePhase};
use crate::provision::ownership::is_own_claim;
use crate::provision::persistent_volume::{handle_of, is_saved};
use crate::provision::plan::CreatePlan;
use crate::provision::refusal::ProvisionRefusal;
use crate::provision::response::{AnsweredVolume, NewVolume};
use crate::provision::seen::Seen;
use crate::provision::settle::{CreateOutcome, created, is_wanted_there, undone};

/// The HTTP status of an object that exists already.
const CONFLICT: u16 = 409;

impl ClaimAttempt {
    /// Takes in an answer; the end of the attempt, if it ends by it.
    pub(super) fn take(&mut self, view: &impl ClaimView, event: ClaimEvent) -> Option<Verdict> {
        match (self.pending.take(), event) {
            (_, ClaimEvent::Begin) => {
                self.begin(view);
                None
            }
            (Some(Pending::ReadClaim(patch)), ClaimEvent::Read(read)) => match read {
                Ok(()) => {
                    self.claim_is_live = true;
                    let StalePatch { of, error } = patch.filter(|_| self.is_unchanged(view))?;
                    self.patch_refused(view, *of, error.meant())
                }
                Err(error) if error.kind == ApiErrorKind::NotFound => None,
                Err(error) => Some(self.request_failed(view, error)),
            },
            (Some(Pending::ReadVolume(unsaved)), ClaimEvent::Read(read)) => self.volume_was_read(view, unsaved, read),
            (Some(Pending::Secret(secret)), ClaimEvent::Read(read)) => {
                self.secret = match ProvisionerSecretState::of_read(read) {
                    Ok(state) => state,
                    Err(error) => {
                        // It may be there as it should, unless what came is not what it should be.
                        self.needed = Some(secret.reference).filter(|_| error.kind == ApiErrorKind::Malformed);
                        return Some(self.request_failed(view, error));
                    }
                };
                self.needed = (self.secret != ProvisionerSecretState::Loaded).then(|| secret.reference.clone());
                self.secret_of = Some(secret);
                // That request may have waited for long, and somebody may have made the PersistentVolume since it was looked for.
                self.saved_is_live = false;
                None
            }
            (Some(Pending::Create(plan, before)), ClaimEvent::Created(answer)) => {
                self.was_called(view, &plan, *before, answer)
            }
            (Some(Pending::Delete(volume)), ClaimEvent::Deleted(answer)) => self.was_undone(view, volume, answer),
            (Some(Pending::Save(name)), ClaimEvent::Saved(answer)) => self.was_saved(view, name, answer),
            (Some(pending), ClaimEvent::Patched(answer)) => self.was_patched(view, pending, answer),
            // An answer to something that was not asked.
            _ => Some(self.failed(view)),
        }
    }

    /// A call that cannot succeed is not made again before its time, unless an input, the settings or the connection have changed.
    fn begin(&mut self, view: &impl ClaimView) {
        self.epoch = view.epoch();
        let Some(held) = &mut self.memory.infeasible else {
            return;
        };
        held.until = super::within(held.until, Self::infeasible_rest(view), view.now());
        let held = *held;
        // Where the claim is not known, nothing is called.
        let Some(claim) = view.claim().here() else { return };
        let holds =
            held.epoch == self.epoch && held.until > view.now() && held.fingerprint == super::fingerprint(view, &claim);
        if !holds {
            self.memory.infeasible = None;
        }
    }

    pub(super) fn request_failed(&mut self, view: &impl ClaimView, error: ApiError) -> Verdict {
        self.notes.push(ClaimNote::RequestFailed(error));
        self.failed(view)
    }

    fn was_patched(
        &mut self,
        view: &impl ClaimView,
        pending: Pending,
        answer: Result<Option<Arc<Claim>>, ApiError>,
    ) -> Option<Verdict> {
        match answer {
            Ok(shown) => self.patched(view, pending, shown.as_deref()),
            // The claim went; whose last copy it was says no more.
            Err(error) if error.kind == ApiErrorKind::NotFound => {
                if let Pending::Unmark(told) = pending {
                    self.tell_end(told.map(|note| *note));
                    self.memory.creation = Some(Creation::Never);
                }
                None
            }
            Err(error) if error.kind == ApiErrorKind::Stale && self.stale < MAX_STALE => {
                self.stale += 1;
                let of = Box::new(pending);
                self.due = Some(Due::ReadClaim(StalePatch { of, error }));
                None
            }
            Err(error) => self.patch_refused(view, pending, error),
        }
    }

    /// The API server did not take a patch of the claim, or it is not known whether it did.
    fn patch_refused(&mut self, view: &impl ClaimView, pending: Pending, error: ApiError) -> Option<Verdict> {
        if let Pending::RefuseRelease(refusal) = pending {
            self.release_refused(refusal);
            return None;
        }
        let takes_off = matches!(
            pending,
            Pending::Unmark(_) | Pending::Reschedule(..) | Pending::LetGo(..)
        );
        self.memory.unmark_lost |= takes_off && error.may_have_happened();
        Some(self.request_failed(view, error))
    }

    /// Whether the claim is still the copy that the last patch was made from.
    fn is_unchanged(&self, view: &impl ClaimView) -> bool {
        let now = view.claim().here();
        let known = self.memory.last.as_ref().zip(now);
        known.is_some_and(|(known, now)| known.resource_version.is_same(now.resource_version))
    }

    /// A request to let the claim go is refused, whether its answer can be written or not. The outcome of the call is looked for all the
    /// same.
    fn release_refused(&mut self, refusal: ReleaseRefusal) {
        let claim = self.memory.last.as_ref();
        self.answered_request = claim.and_then(|claim| claim.release.clone());
        self.notes.push(ClaimNote::ReleaseRefused(refusal));
    }

    /// A patch of the claim was carried out. What the API server answered, `shown`, says whether it was kept: what a webhook takes off or
    /// puts back is not written again in this attempt, nor is a call made that would come to the same. The cache does not say it: by now it
    /// may have what somebody wrote after that, as kube-scheduler which selects the same node again.
    fn patched(&mut self, view: &impl ClaimView, pending: Pending, shown: Option<&Claim>) -> Option<Verdict> {
        let driver = &*view.driver().name;
        // It may be gone by now, whatever the answer shows.
        let shown = shown.filter(|_| view.claim().here().is_some());
        let marker = shown.map(|claim| MarkerState::of(claim, driver));
        let is_kept = marker.as_ref().zip(shown).is_none_or(|(marker, claim)| match &pending {
            Pending::Mark => marker
                .recorded()
                .is_some_and(|known| *known.writer == *view.policy().identity),
            Pending::Reschedule(node, _) => !marker.is_own() && claim.selected_node.as_ref() != Some(node),
            Pending::Unmark(_) | Pending::LetGo(..) => !marker.is_own(),
            _ => true,
        });
        if matches!(pending, Pending::Mark) {
            self.memory.unmark_lost = false;
            self.memory.mark_is_stripped = marker.is_some_and(|marker| marker.recorded().is_none());
        }
        if !is_kept {
            return Some(self.request_failed(view, not_kept("PersistentVolumeClaim")));
        }
        match pending {
            Pending::Mark => return None,
            // A webhook puts back what a marker said that is not there any more: it says nothing, and nobody waits for it.
            Pending::Unmark(_) if shown.is_some_and(|claim| MarkerState::is_left_over(claim, driver)) => {
                return Some(Verdict::Done);
            }
            Pending::Unmark(told) => self.tell_end(told.map(|note| *note)),
            Pending::RefuseRelease(refusal) => {
                self.release_refused(refusal);
                return None;
            }
            Pending::LetGo(words, name) => self.notes.push(ClaimNote::LetGo(words, name)),
            Pending::Reschedule(node, cause) => self.notes.push(ClaimNote::Rescheduled(node, cause)),
            _ => {}
        }
        // The marker is off: nothing is left over.
        self.memory.unmark_lost = false;
        self.memory.creation = Some(Creation::Never);
        None
    }

    fn was_called(
        &mut self,
        view: &impl ClaimView,
        plan: &Arc<CreatePlan>,
        before: Creation,
        answer: Result<Option<AnsweredVolume>, CallEnd>,
    ) -> Option<Verdict> {
        let claim = self.memory.last.clone()?;
        let (answer, failure) = match answer {
            Ok(answer) => (Ok(answer), None),
            Err(CallEnd::Failed(failure)) => (Err(()), Some(failure)),
            Err(CallEnd::LeaseLost(lost)) => {
                if lost == LeaseLost::NotStarted {
                    self.memory.creation = Some(before);
                }
                self.notes.push(ClaimNote::LeaseLost(lost));
                return Some(Verdict::LeaseLost);
            }
        };
        let is_refused = |failure: &Failure| create_error(failure.code) != CreateErrorClass::Uncertain;
        if failure.as_ref().is_some_and(is_refused) {
            self.memory.refused_with.clone_from(&plan.secret);
        }
        let unknown = Failure::plain("");
        let told = failure.as_ref().unwrap_or(&unknown);
        let before = self.memory.known_before_answer(before, failure.as_ref());
        let (creation, outcome) = created(&before, plan, answer.map_err(|()| told), &claim);
        self.memory.creation = Some(self.with_owner(creation));
        let outcome = unless_wanted_elsewhere(view, plan, outcome);
        if matches!(outcome, CreateOutcome::Uncertain | CreateOutcome::OtherCallOpen) {
            // The driver may still work on it: whatever changed meanwhile waits for the backoff. But a claim that nobody wants any more does
            // not: its end waits for the outcome.
            if self.is_wanted(view) {
                self.memory.last = view.claim().here().or(self.memory.last.take());
            }
            self.called_with = None;
        }
        match outcome {
            CreateOutcome::Created => None,
            CreateOutcome::Faulty(fault) => {
                self.notes.push(ClaimNote::Faulty(fault));
                None
            }
            CreateOutcome::InvalidAnswer(invalid) => {
                self.notes.push(ClaimNote::InvalidAnswer(invalid));
                Some(self.failed(view))
            }
            outcome => self.call_failed(view, outcome, failure.unwrap_or(unknown)),
        }
    }

    /// A call ended without a volume that can be used.
    fn call_failed(&mut self, view: &impl ClaimView, outcome: CreateOutcome, failure: Failure) -> Option<Verdict> {
        // A claim that nobody wants any more is let go at once, and any claim by a role that ends.
        let is_wanted = view.role() == RolePhase::Serving && self.is_wanted(view);
        let is_let_go = !is_wanted && matches!(self.memory.creation, Some(Creation::Refused));
        let is_infeasible = outcome == CreateOutcome::Infeasible;
        let reschedule = match &outcome {
            CreateOutcome::Rescheduled(write) => Some(write.clone()),
            _ => None,
        };
        let is_retried = reschedule.is_none() && !is_let_go;
        let note = ClaimNote::CallFailed(Box::new(outcome), failure, is_retried);
        self.notes.push(note);
        if reschedule.is_some() {
            self.due = reschedule.map(Due::Reschedule);
            return None;
        }
        if is_infeasible {
            self.hold_infeasible(view);
            return None;
        }
        is_retried.then(|| self.failed(view))
    }

    /// A volume that was another PersistentVolume's stays that, whenever the driver answers it.
    fn with_owner(&self, creation: Creation) -> Creation {
        let Creation::Created(mut volume) = creation else {
            return creation;
        };
        let known = self
            .memory
            .shared
            .as_ref()
            .filter(|(handle, _)| *handle == volume.handle);
        volume.owner = volume.owner.or_else(|| known.map(|(_, owner)| owner.clone()));
        Creation::Created(volume)
    }

    fn hold_infeasible(&mut self, view: &impl ClaimView) {
        let rest = Self::infeasible_rest(view);
        let until = view.now().saturating_add(rest);
        self.memory.infeasible = until.ok().map(|until| Infeasible {
            until,
            fingerprint: self.fingerprint(view),
            epoch: self.epoch,
        });
    }

    fn was_undone(
        &mut self,
        view: &impl ClaimView,
        volume: Box<NewVolume>,
        answer: Result<(), CallEnd>,
    ) -> Option<Verdict> {
        let failure = match answer {
            Ok(()) => None,
            Err(CallEnd::Failed(failure)) => Some(failure),
            Err(CallEnd::LeaseLost(lost)) => {
                if lost == LeaseLost::NotStarted {
                    self.memory.creation = Some(Creation::Created(volume));
                }
                self.notes.push(ClaimNote::LeaseLost(lost));
                return Some(Verdict::LeaseLost);
            }
        };
        let code = failure.as_ref().map_or(Some(grpc_code::OK), |failure| failure.code);
        let known = undone(&volume, code, view.policy().orphans);
        let is_there = matches!(known, Creation::Created(_));
        self.memory.creation = Some(known);
        match failure {
            Some(failure) if is_there => {
                if delete_answer(code, view.policy().orphans) == Deletion::NotDeleted {
                    self.memory.refused_with.clone_from(&volume.plan.secret);
                }
                let handle = volume.handle.clone();
                self.notes.push(ClaimNote::UndoFailed(UndoFailure { handle, failure }));
                Some(self.failed(view))
            }
            failure => {
                self.notes.push(ClaimNote::Undone(volume.handle.clone(), failure));
                // The next one is asked for after a backoff: it may be no better. Where nobody wants one there is no next one.
                (volume.fault.is_some() && self.is_wanted(view)).then(|| self.failed(view))
            }
        }
    }

    /// The driver made two volumes. Told once at the decision, as the claim may be gone, or carry no marker that could be taken off.
    pub(super) fn tell_two_volumes(&mut self, creation: &Creation, saved: Option<&Volume>) {
        let (Creation::Created(new), Some(saved)) = (creation, saved) else {
            return;
        };
        let note = ClaimNote::TwoVolumes {
            volume: new.plan.name.clone(),
            saved: handle_of(saved).into(),
            lost: new.handle.clone(),
        };
        self.tell_once(|memory| &mut memory.two_are_told, note);
    }

    /// The PersistentVolume is saved: told once, and whether another one has its volume. Nobody would see that before one of them is to be
    /// deleted.
    pub(super) fn tell_saved(&mut self, view: &impl ClaimView, name: &str, handle: &str) {
        self.memory.end_save();
        let by = self.memory.saved_by.take();
        if std::mem::replace(&mut self.memory.is_told, true) {
            return;
        }
        self.saved = Some((name.into(), handle.into()));
        self.notes.push(match by {
            Some(reason @ (ClaimReason::UndoVolume | ClaimReason::KeepVolume)) => {
                ClaimNote::Recorded(reason, name.into(), handle.into())
            }
            _ => ClaimNote::Saved(name.into(), handle.into()),
        });
        if let Seen::Here(owner) = view.handle_owner(handle, name) {
            let cause = Box::new(ProvisionRefusal::handle_shared(handle, &owner));
            self.notes.push(ClaimNote::HandleShared(name.into(), cause));
        }
    }

    /// A PersistentVolume that may be there is read; one that the API server refuses is told at once, and saved again. An answer 401 refuses
    /// nothing, and stores nothing.
    fn was_saved(&mut self, view: &impl ClaimView, name: Box<str>, answer: Result<(), ApiError>) -> Option<Verdict> {
        match answer {
            Ok(()) => {
                let handle = match &self.memory.creation {
                    Some(Creation::Created(volume)) => volume.handle.clone(),
                    _ => Box::default(),
                };
                self.tell_saved(view, &name, &handle);
                None
            }
            Err(error) if error.status == Some(CONFLICT) || error.may_have_happened() => {
                self.due = Some(Due::ReadVolume(name, error));
                None
            }
            Err(error) => Some(self.save_later(view, error)),
        }
    }

    fn save_later(&mut self, view: &impl ClaimView, error: ApiError) -> Verdict {
        let is_refused = !error.is_transient();
        let (pause, is_told) = self.memory.save_pause(&error, view.now());
        self.notes.push(ClaimNote::SaveFailed(error, is_told.then_some(pause)));
        if view.claim().here().is_none() && is_refused {
            let plan = self.memory.creation.as_ref().and_then(Creation::plan);
            let name = plan.map(|plan| plan.name.clone()).unwrap_or_default();
            let cause = "its PersistentVolumeClaim is gone, and its PersistentVolume cannot be saved";
            let note = ClaimNote::PossiblyLeaked(name, cause);
            self.tell_once(|memory| &mut memory.leak_is_told, note);
        }
        Verdict::Rest(pause)
    }

    fn volume_was_read(
        &mut self,
        view: &impl ClaimView,
        unsaved: Option<ApiError>,
        read: Result<(), ApiError>,
    ) -> Option<Verdict> {
        match read {
            Ok(()) => self.saved_is_live = true,
            Err(error) if error.kind == ApiErrorKind::NotFound => self.saved_is_live = true,
            Err(error) => return Some(self.request_failed(view, error)),
        }
        let error = unsaved?;
        let Some(Creation::Created(new)) = &self.memory.creation else {
            return None;
        };
        let claim = self.memory.last.as_ref()?;
        let there = view.volume(&new.plan.name);
        let Some(there) = there.as_deref().here() else {
            // It is not there: that was no answer to believe, or it went since.
            return Some(self.save_later(view, error));
        };
        if is_saved(there, claim, &view.driver().name, &new.handle) {
            let (name, handle) = (new.plan.name.clone(), new.handle.clone());
            self.tell_saved(view, &name, &handle);
        }
        None
    }
}

/// What a claim wants after the call counts: one that wants another volume keeps its node. The write that takes the node off has the marker
/// of the call as its condition: one of another driver is not ours to take off.
fn unless_wanted_elsewhere(view: &impl ClaimView, plan: &CreatePlan, outcome: CreateOutcome) -> CreateOutcome {
    let is_wanted_there = |now: &Claim| is_own_claim(now, view.driver()) && is_wanted_there(plan, now);
    match outcome {
        CreateOutcome::Rescheduled(_) if !view.claim().here().is_some_and(|now| is_wanted_there(&now)) => {
            CreateOutcome::Failed
        }
        outcome => outcome,
    }
}
