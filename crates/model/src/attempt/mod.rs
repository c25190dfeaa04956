//! One attempt at a VolumeAttachment, as a value: observe, decide, perform one effect, apply the answer, decide again.
//!
//! An [`Attempt`] performs nothing. [`Attempt::next`] takes the answer to the last [`Step`] as an [`Event`] and says the next step; the
//! shell performs it. What happened on the way comes as [`Note`]s, for logs, Events, metrics and spans. An attempt ends with a
//! [`Verdict`]. So the same attempt runs against a real API server and through every order of events of a model.
//!
//! The story in the order of the files: `mod.rs` observes and decides, `copies.rs` reads the objects for which the cache is not enough,
//! `prepare.rs` reads the Secret and writes what must be there before a call, `call.rs` calls the driver, `record.rs` writes down what
//! came of it, `undo.rs` takes a volume back whose VolumeAttachment vanished during the call.

mod call;
mod cause;
mod copies;
mod note;
mod prepare;
mod record;
mod step;
mod undo;
mod undo_state;

pub use cause::FailureCause;
pub use note::{Note, Undone, Vanished};
pub use step::{
    Answer, Call, CallEnd, Event, LeaseLost, Patch, Read, ReadTarget, Rules, RunningWatches, Step, Take, Verdict, View,
};

use std::sync::Arc;

use crate::decide::patch::WriteTarget;
use crate::decide::{
    self, Action, DetachWait, DriverFacts, Failure, Observed, OwnedVolumeOnNode, Policy, PublishRequest, Refusal,
    SecretState, Snapshot, VolumeOnNode, observe,
};
use crate::objects::{Attachment, SecretReference};
use prepare::{Prepared, Purpose};
use record::{FailureWrite, Record, Recorded};
use undo_state::{End, Undo};

/// An attempt observes once more after each step that prepares the call, of which there are fewer; more of it means that somebody changes
/// the objects under our hands.
const MAX_OBSERVATIONS: usize = 16;

/// One attempt.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and no state")]
pub struct Attempt {
    /// Name of the VolumeAttachment.
    name: Arc<str>,
    /// The settings as they were when the attempt began; whether the driver is being left is read each time.
    policy: Arc<Policy>,
    /// What the last decision was made from.
    inputs: Option<Arc<DecisionInputs>>,
    phase: Phase,
    observations: usize,
    /// The shell has opened the span of the attempt.
    is_open: bool,
    /// The Secret that the volume needs, once it was asked for.
    needed_secret: Option<SecretReference>,
    /// It was read, and is still the one that is needed.
    has_secret: bool,
    denied_secret: Option<DeniedSecret>,
    /// The driver lacks a call that it had when the volume was published, and stalls for that.
    lacks_capability: bool,
    /// The driver was called.
    has_called: bool,
    /// The API server was asked for the PersistentVolume, and for the CSINode, as what the cache has of them was not enough.
    has_read_volume: bool,
    has_read_node: bool,
    /// The object whose last answer did not show what was written.
    not_kept: Option<WriteTarget>,
    /// The request to release that was refused in an answer that cannot be written.
    answered_request: Option<Box<str>>,
    /// The UID of the VolumeAttachment for which the end of a release of its live volume was waited for.
    released_for: Option<Box<str>>,
    /// The volume was taken back from where earlier tries may have left it.
    is_retracted: bool,
    /// A write that records the volume as attached may have been taken in.
    may_be_on_record: bool,
    /// Places where nobody else may call meanwhile.
    places: Vec<OwnedVolumeOnNode>,
    /// Why the driver did not take the volume from the first of them where it did not.
    not_detached: Option<(Failure, FailureCause)>,
    /// The Publish whose outcome is not on record.
    publish: Option<Publish>,
    /// What happened, with what it was decided from.
    notes: Vec<(Option<Arc<DecisionInputs>>, Note)>,
}

/// What a decision was made from.
#[derive(Clone, Debug)]
struct DecisionInputs {
    snapshot: Snapshot,
    policy: Arc<Policy>,
    detach_wait: DetachWait,
    forced: bool,
    credentials: SecretState,
    release_answered: bool,
}

/// A ControllerPublishVolume whose outcome is not on record: should its VolumeAttachment vanish, the volume is taken back.
#[derive(Clone, Debug)]
pub struct Publish {
    /// What was known when the call was decided on.
    pub snapshot: Snapshot,
    /// Where the volume may be.
    pub place: OwnedVolumeOnNode,
    /// The Secret of the call.
    pub secret: Option<SecretReference>,
}

impl Publish {
    /// Whether this is the VolumeAttachment of the Publish, and any replica knows by it that the volume may be attached.
    pub fn is_claimed_by(&self, known: &Attachment, driver: &DriverFacts) -> bool {
        *known.uid == *self.snapshot.attachment.uid && decide::may_be_in_use(known, driver)
    }
}

/// Why the driver is not given the Secret that the volume names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeniedSecret {
    /// The operator may not read it.
    Forbidden(SecretReference),
    /// The AttacherConfig does not list it.
    NotAllowed(SecretReference, Refusal),
}

impl DeniedSecret {
    /// What a refusal says of the Secret; none when it is about something else.
    pub fn by(refusal: &Refusal) -> Option<Self> {
        match refusal {
            Refusal::SecretNotAllowed { secret, .. } => Some(Self::NotAllowed(secret.clone(), refusal.clone())),
            _ => None,
        }
    }
}

/// What the attempt waits for.
#[derive(Clone, Debug, Default)]
enum Phase {
    /// For its beginning.
    #[default]
    Begin,
    /// For its span.
    Open,
    /// For an object for which what the cache has is not enough.
    Copy(ReadTarget),
    /// For the Secret.
    Secret(SecretReference),
    /// For the end of a release of the live volume.
    LiveRelease,
    /// For the answer to a write on the way to a call, or to the read after a stale one.
    Prepare(Box<Prepared>),
    /// For the places of a call.
    Take,
    /// For the driver's answer to ControllerPublishVolume.
    Published,
    /// For the place, and then for the answer, at the former place of this number.
    Former { number: usize, is_called: bool },
    /// For the driver's answer to ControllerUnpublishVolume at the place of this number.
    Unpublished { number: usize },
    /// For the evidence about a request to release.
    Evidence,
    /// For the writes that record a result.
    Record(Box<Record>),
    /// For its turn, and then for the writes, that put a failure on the object.
    Failure(Box<FailureWrite>),
    /// For what becomes of a Publish whose VolumeAttachment may be gone.
    Undo(Undo),
    /// For nothing any more.
    Over,
}

impl Attempt {
    /// An attempt at the VolumeAttachment of this name, by these settings.
    pub fn new(name: Arc<str>, policy: Policy) -> Self {
        Self {
            name,
            policy: Arc::new(policy),
            ..Self::default()
        }
    }

    /// An attempt that only finds out what became of a Publish which a former engine left without an outcome in the same term of the
    /// Lease. In another term nothing is known of it: whoever led meanwhile may have attached the volume there.
    pub fn resume(publish: Publish, policy: Policy) -> Self {
        let mut attempt = Self::new(publish.snapshot.attachment.name.clone(), policy);
        attempt.publish = Some(publish);
        attempt.phase = Phase::Undo(Undo::resumed());
        attempt
    }

    /// Takes in the answer to the last step; the next one. What happened on the way is in [`Attempt::take_notes`].
    pub fn next(&mut self, view: &dyn View, event: Event) -> Step {
        match (std::mem::replace(&mut self.phase, Phase::Over), event) {
            (Phase::Open, Event::Done) => self.opened(view),
            (Phase::Begin | Phase::Open, _) => self.observe(view),
            (Phase::Copy(target), Event::Read(answer)) => self.copy_answered(view, &target, answer),
            (Phase::Secret(reference), Event::Secret(answer)) => self.secret_answered(view, &reference, answer),
            (Phase::LiveRelease, _) => self.observe_afresh(view),
            (Phase::Prepare(prepared), event) => self.prepared(view, *prepared, event),
            (Phase::Take, Event::Taken) => self.places_taken(view),
            (Phase::Take, Event::Occupied(other)) => self.end(Verdict::AwaitCall(other)),
            (Phase::Published, Event::Called(answer)) => self.published(view, answer),
            (Phase::Former { number, is_called }, event) => self.former_answered(view, number, is_called, event),
            (Phase::Unpublished { number }, Event::Called(answer)) => self.unpublished(view, number, answer),
            (Phase::Evidence, Event::Evidence(answer)) => self.release_judged(view, answer),
            (Phase::Record(record), event) => self.recorded(view, *record, event),
            (Phase::Failure(note), event) => self.failure_noted(view, *note, event),
            (Phase::Undo(undo), event) => self.undone(view, undo, event),
            // No shell sends what nobody asked for. The next attempt observes everything again.
            (_, _) => self.end(Verdict::Failed),
        }
    }

    /// What happened since this was asked last, each with the objects that it was decided from: those of the next decision may be
    /// others.
    pub fn take_notes(&mut self) -> Vec<(Option<Snapshot>, Note)> {
        let notes = std::mem::take(&mut self.notes).into_iter();
        notes
            .map(|(inputs, note)| (inputs.map(|inputs| inputs.snapshot.clone()), note))
            .collect()
    }

    /// Where nobody else may call the driver meanwhile.
    pub fn places(&self) -> &[OwnedVolumeOnNode] {
        &self.places
    }

    /// The Publish whose outcome is not on record, while there is one.
    pub fn publish(&self) -> Option<&Publish> {
        self.publish.as_ref()
    }

    /// The Secret that the volume needs, once it was asked for.
    pub fn needed_secret(&self) -> Option<&SecretReference> {
        self.needed_secret.as_ref()
    }

    /// The Secret that calls are made with: that of a Publish whose outcome is not on record, or else the one that was read.
    pub fn secret(&self) -> Option<&SecretReference> {
        match &self.publish {
            Some(publish) => publish.secret.as_ref(),
            None => self.needed_secret.as_ref().filter(|_| self.has_secret),
        }
    }

    /// Why the driver is not given the Secret, if it is not.
    pub fn denied_secret(&self) -> Option<&DeniedSecret> {
        self.denied_secret.as_ref()
    }

    /// The VolumeAttachment of the failure that is being written, and what it is to show, while one is.
    pub fn failing(&self) -> Option<(&Attachment, &str)> {
        match &self.phase {
            Phase::Failure(failure) => Some((&failure.about.attachment, failure.shown())),
            _ => None,
        }
    }

    /// What the last decision was made from; none before the first one.
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.inputs.as_ref().map(|inputs| &inputs.snapshot)
    }

    /// What ControllerPublishVolume is called with, while that is the step.
    pub fn publish_request<'a>(&'a self, view: &'a dyn View) -> Option<PublishRequest<'a>> {
        match self.inputs.as_ref()?.action(view) {
            Action::Publish(request) => Some(request),
            _ => None,
        }
    }

    /// The same as the rules see it.
    pub fn observed<'a>(&'a self, view: &'a dyn View) -> Option<Observed<'a>> {
        Some(self.inputs.as_ref()?.observed(view))
    }

    /// Observes what is known, decides, and begins what was decided.
    fn observe(&mut self, view: &dyn View) -> Step {
        self.places.clear();
        self.observations += 1;
        // Without the Lease no step is begun, be it a call or a write. The fence asks again at each call.
        if !view.may_start() {
            return self.lease_lost(LeaseLost::NotStarted);
        }
        let Some(snapshot) = view.attachment(&self.name) else {
            return self.end(Verdict::Done);
        };
        // What is claimed for an AttacherConfig that goes would stay behind, so this cannot wait for the next attempt.
        if self.policy.leaving != view.is_leaving() {
            Arc::make_mut(&mut self.policy).leaving = view.is_leaving();
        }
        let request = snapshot.attachment.release.as_ref().map(|note| &note.request);
        let mut inputs = DecisionInputs {
            policy: self.policy.clone(),
            detach_wait: view.detach_wait(),
            forced: view.is_forced(&snapshot),
            credentials: SecretState::NotLoaded,
            release_answered: request.is_some() && request == self.answered_request.as_ref(),
            snapshot,
        };
        if self.has_secret {
            // A volume that was made again under its name may need another one.
            let needed = decide::publish_secret(&inputs.observed(view)).ok().flatten();
            self.has_secret = needed.is_some() && needed == self.needed_secret.as_ref();
        }
        if self.has_secret {
            inputs.credentials = SecretState::Loaded;
        }
        let inputs = Arc::new(inputs);
        self.inputs = Some(inputs.clone());
        self.begin(view, &inputs, inputs.action(view))
    }

    /// Observes after something that may have lasted long: a call is made for what is so now. What no watch keeps is read again.
    fn observe_afresh(&mut self, view: &dyn View) -> Step {
        (self.has_read_volume, self.has_read_node) = (false, false);
        self.observe(view)
    }

    /// The span is open, and nothing was written for it: what was observed still stands.
    fn opened(&mut self, view: &dyn View) -> Step {
        match self.inputs.clone() {
            Some(inputs) => self.begin(view, &inputs, inputs.action(view)),
            None => self.observe(view),
        }
    }

    fn begin(&mut self, view: &dyn View, inputs: &DecisionInputs, action: Action<'_>) -> Step {
        let attachment = &inputs.snapshot.attachment;
        let attaches = attachment.deleting.is_none() && !matches!(action, Action::ProtectVolume(_));
        if attaches && !view.is_of_one_state() {
            // One object may be of another state of the API server than the rest, such as a protected volume. To protect one more
            // volume is right in each of them.
            return self.end(Verdict::AwaitLists);
        }
        if let Action::AwaitDetach(other) = action {
            return self.end(Verdict::AwaitDetach(other));
        }
        if let Action::Ignore(reason) = action {
            self.note(Note::NothingToDo(reason));
            return self.end(Verdict::Done);
        }
        if !view.is_of_this_run(attachment, inputs.forced) {
            // It was deleted since it was handed out, or attached, and must not take the place of an attach: others have runs of their
            // own.
            return self.end(Verdict::OfAnotherRun);
        }
        if !std::mem::replace(&mut self.is_open, true) {
            self.phase = Phase::Open;
            return Step::Open;
        }
        if self.observations > MAX_OBSERVATIONS {
            let failure = Failure::plain("the objects kept changing during the attempt");
            return self.fail_before_call(view, inputs.snapshot.clone(), failure, FailureCause::Conflict);
        }
        if let Some(step) = self.read_copies(view, inputs, &action) {
            return step;
        }
        match action {
            Action::Ignore(_) | Action::AwaitDetach(_) => self.end(Verdict::Done),
            Action::Refuse(refusal) => self.refuse(view, &refusal),
            Action::LoadCredentials(reference) => {
                self.needed_secret = Some(reference.clone());
                self.phase = Phase::Secret(reference.clone());
                Step::Secret(reference.clone())
            }
            Action::ProtectVolume(write) => self.send_prepared(write, inputs.snapshot.clone(), Purpose::Protect),
            Action::Claim(write) => self.claim(view, inputs, write),
            Action::JudgeRelease(plan) => {
                if !view.is_of_one_state() {
                    return self.end(Verdict::AwaitLists);
                }
                if let Err(refusal) = plan.request.check_age(view.now()) {
                    return self.refuse_release(view, inputs, refusal);
                }
                self.take(&plan.places)
            }
            Action::RefuseRelease(refusal) => self.refuse_release(view, inputs, refusal),
            Action::Publish(request) => self.publish_volume(view, inputs, &request),
            Action::Unpublish(request) => self.take(&request.places),
            Action::MarkAttached(_) => self.record(view, Recorded::Marked),
            // It is wanted, and only a finalizer that comes from no publish is taken off.
            Action::Release(write) if attachment.deleting.is_none() => {
                self.send_prepared(write, inputs.snapshot.clone(), Purpose::Unmark)
            }
            Action::Release(_) => self.record(view, Recorded::Released),
        }
    }

    /// Takes the places of a call, all or none.
    fn take(&mut self, places: &[VolumeOnNode<'_>]) -> Step {
        self.places = places.iter().map(|place| (*place).into()).collect();
        self.phase = Phase::Take;
        Step::Take(Take {
            places: self.places.clone(),
            publish: None,
        })
    }

    /// Calls the driver.
    fn call(&mut self, call: Call) -> Step {
        self.has_called = true;
        Step::Call(call)
    }

    /// The verdict on a failure: tried again after the backoff, or when what the decision was made from changes. One for which the driver
    /// was not called, as something is missing or the API server refuses a write, has cost nothing that those have to share whose driver
    /// failed.
    fn failed(&self, view: &dyn View) -> Verdict {
        let Some(inputs) = &self.inputs else {
            return Verdict::Failed;
        };
        let fingerprint = decide::attachment_fingerprint(&inputs.observed(view));
        if self.has_called {
            Verdict::FailedWith(fingerprint)
        } else {
            Verdict::Waits(fingerprint)
        }
    }

    /// Ends the attempt for which the Lease was lost, or the connection before a call was sent. Nothing failed and nothing
    /// is written: others may work for the driver by now. The next holder of the Lease observes everything again, this process too.
    fn lease_lost(&mut self, lost: LeaseLost) -> Step {
        self.note(Note::LeaseLost(lost));
        self.end(Verdict::LeaseLost)
    }

    fn end(&mut self, verdict: Verdict) -> Step {
        self.phase = Phase::Over;
        self.places.clear();
        Step::End(verdict)
    }

    fn go_on(&mut self, view: &dyn View, end: End) -> Step {
        match end {
            End::Observe => self.observe(view),
            End::Over(verdict) => self.end(verdict),
        }
    }

    fn note(&mut self, note: Note) {
        self.notes.push((self.inputs.clone(), note));
    }

    /// What is known of the VolumeAttachment by now, as long as it is the same object.
    fn newest(&self, view: &dyn View) -> Option<Snapshot> {
        let uid = &self.snapshot()?.attachment.uid;
        view.attachment(&self.name)
            .filter(|newest| newest.attachment.uid == *uid)
    }
}

impl DecisionInputs {
    fn observed<'a>(&'a self, view: &'a dyn View) -> Observed<'a> {
        Observed {
            detach_wait: self.detach_wait,
            forced: self.forced,
            release_answered: self.release_answered,
            ..observe(&self.snapshot, view.driver(), &self.policy, self.credentials)
        }
    }

    /// What is decided. Asked again during the steps of an action, it answers the same.
    fn action<'a>(&'a self, view: &'a dyn View) -> Action<'a> {
        (view.rules().attachment)(&self.observed(view))
    }
}
