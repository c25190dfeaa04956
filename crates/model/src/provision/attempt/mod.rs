//! One attempt for a PersistentVolumeClaim as a value: which step comes after which answer.
//!
//! An attempt observes, decides ([`claim`](super::claim)) and asks for one step; the shell performs it, puts the object that the API
//! server returned into the cache, and hands in what came of it, until there is nothing to do. Only the answer of a call, or a person's
//! release, changes what is known of the volume ([`Creation`]). While a call is made, that is [`Creation::Uncertain`]: an attempt that is
//! dropped then has forgotten nothing.

mod answers;
mod memory;
mod step;
mod surroundings;

use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

pub use memory::{ClaimMemory, RetryRequests};
pub use step::{
    ClaimEvent, ClaimNote, ClaimStep, ClaimView, ListMoment, RescheduleCause, RoleView, UndoFailure, Verdict,
};
pub use surroundings::{fingerprint, may_call};

use super::action::{ClaimAction, ClaimDecision, ClaimReason};
use super::claim::{decide, is_wanted, open_mark, volume_name};
use super::creation::{Creation, UncertainCall};
use super::marker::MarkerState;
use super::observed::{CallSecret, ObservedClaim, ProvisionerSecretState, RolePhase, Waited};
use super::ownership::is_own_class;
use super::patch::{ClaimWrite, refuse_release};
use super::persistent_volume::is_saved;
use super::plan::{CreatePlan, DeletePlan};
use super::refusal::ProvisionRefusal;
use super::release_request::{ClaimRelease, judge};
use super::seen::Seen;
use super::trouble::Trouble;
use crate::answer::ApiError;
use crate::api::names::TRACEPARENT_ANNOTATION;
use crate::decide::ReleaseRefusal;
use crate::findings::age;
use crate::list_rests::MAX_REST;
use crate::objects::{Claim, SecretReference, StorageClass, Volume};
use step::{Due, Pending};
use surroundings::{Surroundings, neutral};

/// How long a class may be missing, or that of another provisioner, before it is told: kube-controller-manager may be about to correct it.
pub const CLASS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a selected node may be missing before the claim gets another one: the watch of Nodes or CSINodes may be a moment behind that of
/// claims. No longer, as a pod waits for it, and external-provisioner waits for nothing. A new node needs no more time: kubelet makes its CSINode
/// before the Node is Ready.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a PersistentVolume may be saved and not bound before the marker goes all the same.
pub const BINDING_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a claim rests at least whose time is about to be over.
const MIN_REST: Duration = Duration::from_millis(1);
/// How long what only a change can wake rests.
pub(super) const LONG_REST: Duration = Duration::from_mins(10);
/// How long a call that cannot succeed with its arguments is not made again, unless an input changes; as external-provisioner.
const INFEASIBLE_REST: Duration = Duration::from_mins(5);
/// So many steps of one attempt are enough; more are a circle, which is left with a backoff.
pub(super) const MAX_STEPS: u32 = 32;
/// So many writes of one attempt from a stale copy are followed by a live read, and made again from what it shows. What it shows unchanged is
/// not written again.
pub(super) const MAX_STALE: u32 = 3;

/// What a claim waits for at the end of an attempt, as far as the shell does something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Nothing else is missing than the driver, which is away: the operation has begun.
    Driver,
    /// No node is selected that the volume is wanted on: the operation has not begun, or not again.
    Consumer,
    /// A volume populator provisions the claim: no operation begins here, and none goes on.
    Populator,
    /// Topology that any node may bring: no node is selected for the claim, or that does not count. Else a change of that node is a change of
    /// the claim's inputs. With [`TopologyFacts::digest`](super::topology::TopologyFacts::digest) of the nodes that it was refused with: as
    /// long as the driver has these, it would be refused again.
    AnyTopology(u64),
}

/// One attempt for one claim.
#[derive(Clone, Debug, Default)]
pub struct ClaimAttempt {
    memory: ClaimMemory,
    pending: Option<Pending>,
    due: Option<Due>,
    /// Of the settings and the connection that it began with.
    epoch: u64,
    claim_is_live: bool,
    saved_is_live: bool,
    secret: ProvisionerSecretState,
    /// The Secret that this is about.
    secret_of: Option<CallSecret>,
    /// The Secret that is missing or cannot be read.
    needed: Option<SecretReference>,
    saved: Option<(Box<str>, Box<str>)>,
    /// The request to let the claim go that was refused. The answer to it may be denied, or dropped.
    answered_request: Option<Box<str>>,
    steps: u32,
    stale: u32,
    notes: Vec<ClaimNote>,
    /// Whether the end of what was done for the claim is told.
    end_is_told: bool,
    /// The inputs that the call was made with: they may change while it runs.
    called_with: Option<u64>,
    /// Digest of the nodes that the last decision was made with.
    nodes: u64,
    /// How the attempt ends after the write that is under way: the marker of what it has left open.
    ended: Option<Verdict>,
    waits_for: Option<WaitsFor>,
}

impl ClaimAttempt {
    /// An attempt with what is remembered of the claim from the one before.
    pub fn new(memory: ClaimMemory) -> Self {
        Self {
            memory,
            ..Self::default()
        }
    }

    /// What the next attempt has to know should this one end here.
    pub fn memory(&self) -> &ClaimMemory {
        &self.memory
    }

    /// What happened since this was asked last.
    pub fn take_notes(&mut self) -> Vec<ClaimNote> {
        std::mem::take(&mut self.notes)
    }

    /// The claim as it was seen last; none when it was not seen at all.
    pub fn claim(&self) -> Option<&Arc<Claim>> {
        self.memory.last.as_ref()
    }

    /// What is known of the volume; none before the first look.
    pub fn creation(&self) -> Option<&Creation> {
        self.memory.creation.as_ref()
    }

    /// Name and handle of the PersistentVolume that was saved in this attempt.
    pub fn saved(&self) -> Option<(&str, &str)> {
        self.saved.as_ref().map(|(name, handle)| (&**name, &**handle))
    }

    /// The Secret that the claim waits for: it is missing or cannot be read, or the driver refused the last call that it was for.
    pub fn needed_secret(&self) -> Option<&SecretReference> {
        self.needed.as_ref().or(self.memory.refused_with.as_ref())
    }

    /// What the claim waits for, if it is one of these.
    pub const fn waits_for(&self) -> Option<WaitsFor> {
        self.waits_for
    }

    /// Whether somebody wants the volume, by the claim as it is now: who deletes it, gives it to another driver or binds it to another
    /// PersistentVolume during a call does not.
    pub fn is_wanted(&self, view: &impl ClaimView) -> bool {
        let Some(claim) = view.claim().here() else { return false };
        let marker = MarkerState::of(&claim, &view.driver().name);
        let creation = self.memory.creation.as_ref().unwrap_or(&Creation::Never);
        let name = volume_name(&claim, creation, &marker, view.policy()).unwrap_or_default();
        is_wanted(&claim, view.driver(), false, &name)
    }

    /// While a call is under way: the answer to a request to let the claim go, if there is one that was not answered, and why it is refused.
    pub fn refused_release(&self, view: &impl ClaimView) -> Option<(ClaimWrite, ReleaseRefusal)> {
        let claim = view.claim().here().filter(|claim| claim.deleting.is_some())?;
        if !view.may_start() {
            return None;
        }
        match judge(&claim, Some(ReleaseRefusal::CallUnderWay), view.now()) {
            ClaimRelease::Refused(refusal, answer) => Some((refuse_release(&claim, &answer)?, refusal)),
            ClaimRelease::Granted(_) | ClaimRelease::None => None,
        }
    }

    /// While a call is under way of a role that is off or ends: the marker of a claim that has none. The process may end before the call
    /// does, and another replica may decide whether the call is waited for.
    pub fn last_marker(&self, view: &impl ClaimView) -> Option<ClaimWrite> {
        if view.role() == RolePhase::Serving {
            return None;
        }
        self.open_mark(view)
    }

    /// The marker of a claim that has none, where only this process knows that there is or may be a volume.
    fn open_mark(&self, view: &impl ClaimView) -> Option<ClaimWrite> {
        let creation = self.memory.creation.as_ref()?;
        let claim = view.claim().here().filter(|_| view.may_start())?;
        open_mark(&ObservedClaim {
            save_failed: self.memory.save_failures > 0,
            ..neutral(view, &claim, &Surroundings::none(), creation)
        })
    }

    /// The next step, after what came of the last one; the first one after [`ClaimEvent::Begin`].
    pub fn next(&mut self, view: &impl ClaimView, event: ClaimEvent) -> ClaimStep {
        let step = self.next_step(view, event);
        let memory = &mut self.memory;
        Trouble::after_claim_notes(&mut memory.trouble, &self.notes);
        if self.waits_for == Some(WaitsFor::Populator) {
            Trouble::is_left_to_others(&mut memory.trouble);
        }
        // Where the driver is away, nothing else is missing.
        if matches!(step, ClaimStep::Create(_)) || self.waits_for == Some(WaitsFor::Driver) {
            Trouble::is_called(&mut memory.trouble);
        }
        let is_uncertain = memory.is_uncertain();
        memory.uncertain_since = is_uncertain.then(|| {
            let since = memory.uncertain_since.or_else(|| memory.open_since(view));
            let now = view.now();
            // As for all waits: a clock that was set back makes none longer.
            since.map_or(now, |since| since.min(now))
        });
        step
    }

    fn next_step(&mut self, view: &impl ClaimView, event: ClaimEvent) -> ClaimStep {
        let is_read = !matches!(event, ClaimEvent::Read(Err(_)));
        let marks = is_read && self.pending.as_ref().is_some_and(Pending::marks);
        if let Some(verdict) = self.take(view, event) {
            // The next attempt may be far away.
            if let Some(write) = self.open_mark(view).filter(|_| !marks) {
                self.ended = Some(verdict);
                self.pending = Some(Pending::Mark);
                return ClaimStep::Patch(write);
            }
            return ClaimStep::End(self.ended.unwrap_or(verdict));
        }
        if let Some(verdict) = self.ended {
            return ClaimStep::End(verdict);
        }
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return ClaimStep::End(self.request_failed(view, not_kept("PersistentVolumeClaim")));
        }
        let (pending, step) = match self.due.take() {
            None => return self.decide(view),
            Some(Due::Reschedule(_)) if !view.may_start() => return ClaimStep::End(Verdict::LeaseLost),
            Some(Due::Reschedule(write)) => (self.reschedules(RescheduleCause::Exhausted), ClaimStep::Patch(write)),
            Some(Due::ReadClaim(patch)) => (Pending::ReadClaim(Some(patch)), ClaimStep::ReadClaim),
            Some(Due::ReadVolume(name, error)) => (Pending::ReadVolume(Some(error)), ClaimStep::ReadVolume(name)),
        };
        self.pending = Some(pending);
        step
    }

    /// How long a call that cannot succeed with its arguments is not made again, unless an input changes.
    pub fn infeasible_rest(view: &impl ClaimView) -> Duration {
        INFEASIBLE_REST.max(view.longest_backoff())
    }

    /// Failed, with the inputs that it failed with: an echo of our own writes does not shorten the backoff.
    fn failed(&self, view: &impl ClaimView) -> Verdict {
        Verdict::Failed(self.fingerprint(view))
    }

    /// As [`Self::failed`], where nothing has failed.
    fn waits(&self, view: &impl ClaimView) -> Verdict {
        Verdict::Waits(self.fingerprint(view))
    }

    fn fingerprint(&self, view: &impl ClaimView) -> u64 {
        let now = || self.memory.last.as_ref().map_or(0, |claim| fingerprint(view, claim));
        self.called_with.unwrap_or_else(now)
    }

    /// The claim as it is, and whether it is gone; the end where nothing can be said of it.
    fn look(&mut self, view: &impl ClaimView) -> Result<(Arc<Claim>, bool), Verdict> {
        match view.claim() {
            Seen::Here(claim) => {
                self.memory.last = Some(claim.clone());
                Ok((claim, false))
            }
            Seen::Unknown => Err(Verdict::Rest(self.memory.rests.next_rest())),
            Seen::Gone => self.memory.last.clone().map(|last| (last, true)).ok_or(Verdict::Done),
        }
    }

    fn decide(&mut self, view: &impl ClaimView) -> ClaimStep {
        let (claim, gone) = match self.look(view) {
            Ok((claim, gone)) => (self.without_answered_request(claim), gone),
            Err(verdict) => return ClaimStep::End(verdict),
        };
        let (driver, policy) = (view.driver(), view.policy());
        let marker = MarkerState::of(&claim, &driver.name);
        let at_start = || Creation::of_marker(marker.may_be_open() && !gone);
        let creation = self.memory.creation.take().unwrap_or_else(at_start);
        // Where there is no name, nothing is called, and why is decided below.
        let name = volume_name(&claim, &creation, &marker, policy).unwrap_or_default();
        let saved = view.volume(&name);
        let is_wanted = is_wanted(&claim, driver, gone, &name);
        self.tell_found(view, &creation, saved.as_deref().here(), &claim);
        let owner = self.handle_owner(view, &creation, is_wanted);
        let mut creation = creation.revised(&claim, gone, driver, saved.as_deref().here(), owner.as_deref().here());
        creation = self.memory.planned_again(creation, &marker, is_wanted);
        let class = view.class(&claim.class);
        let known = self.knows_lists(view, &creation);
        let surroundings = Surroundings::of(view, &claim);
        self.nodes = surroundings.digest();
        let found = (class.as_deref(), known, &surroundings);
        let waited = self.waited(view, &claim, &marker, found, saved.as_deref(), &creation);
        let written = marker.recorded().is_some_and(|known| *known.writer == *policy.identity);
        let by_other = marker.may_be_open() && !written && (marker.is_recorded() || !self.memory.mark_is_stripped);
        if by_other && !gone && matches!(creation, Creation::Never | Creation::Refused) {
            // Somebody else has marked it since, and may have called: what is known here says nothing of that.
            creation = Creation::Uncertain(UncertainCall::default());
        }
        let attached_to = attached_to(view, &creation, is_wanted);
        let observed = ObservedClaim {
            gone,
            claim_is_live: self.claim_is_live,
            // One that was perhaps taken off is written anew: the write that takes it off may arrive late.
            marker_is_own: written && !self.memory.unmark_lost,
            class: class.as_deref(),
            classes_are_known: known.0,
            nodes_are_known: known.1,
            saved: saved.as_deref(),
            saved_is_live: self.saved_is_live,
            handle_owner: owner.as_deref(),
            attached_to: attached_to.as_deref(),
            secret: self.secret,
            secret_of: self.secret_of.as_ref(),
            creation: &creation,
            infeasible: self.memory.infeasible.is_some(),
            save_failed: self.memory.save_failures > 0,
            others_may_have_called: self.memory.others_may_have_called,
            waited,
            ..neutral(view, &claim, &surroundings, &creation)
        };
        let decision = decide(&observed);
        let is_ignored = marker.is_ignored(&observed, &name);
        if gone {
            self.tell_gone(&creation, &name);
        }
        if is_ignored {
            self.tell_once(|memory| &mut memory.ignored_is_told, ClaimNote::MarkerIgnored);
        }
        if decision.reason == ClaimReason::TwoVolumes {
            self.tell_two_volumes(&creation, saved.as_deref().here());
        }
        self.memory.creation = Some(creation);
        self.step(view, decision, &name)
    }

    /// The claim as it is decided on: what was asked for in vain does not count any more.
    fn without_answered_request(&self, mut claim: Arc<Claim>) -> Arc<Claim> {
        if claim.release.is_some() && claim.release == self.answered_request {
            Arc::make_mut(&mut claim).release = None;
        }
        claim
    }

    /// A PersistentVolume with the handle of a volume that was created, which is not known to be that of the claim; the one of the name may
    /// have been given to somebody else. To look for it costs time for every claim that is worked on, and only a deletion asks for it: a
    /// volume that is about to be saved is not looked for, as long as that succeeds. [`Self::tell_saved`] looks once it is.
    fn handle_owner(&self, view: &impl ClaimView, creation: &Creation, is_wanted: bool) -> Seen<Arc<str>> {
        match creation {
            Creation::Created(volume) if is_wanted && volume.is_usable() && self.memory.save_failures == 0 => {
                Seen::Unknown
            }
            Creation::Created(volume) => view.handle_owner_or_creator(&volume.handle),
            _ => Seen::Gone,
        }
    }

    /// Whether what a first call is made from is known as it is: the classes, and the nodes. A call that is open is repeated as it was made.
    fn knows_lists(&mut self, view: &impl ClaimView, creation: &Creation) -> (bool, bool) {
        if !matches!(creation, Creation::Never | Creation::Refused) {
            return (true, true);
        }
        let since = self.memory.lists_since;
        let has_topology = view.driver().capabilities.accessibility_constraints;
        let known = (view.knows_classes(since), !has_topology || view.knows_nodes(since));
        if known != (true, true) {
            self.memory.lists_since.get_or_insert_with(|| view.moment());
        }
        known
    }

    /// Which waits are over.
    fn waited(
        &mut self,
        view: &impl ClaimView,
        claim: &Claim,
        marker: &MarkerState,
        (class, known, surroundings): (Seen<&StorageClass>, (bool, bool), &Surroundings),
        saved: Seen<&Volume>,
        creation: &Creation,
    ) -> Waited {
        let (now, driver) = (view.now(), view.driver());
        let is_missing = match class {
            _ if known != (true, true) => true,
            Seen::Here(class) => !is_own_class(&class.provisioner, driver),
            Seen::Gone => true,
            Seen::Unknown => false,
        };
        // One of another driver by that name says nothing of a call.
        let is_saved = saved
            .here()
            .is_some_and(|volume| creation.is_saved_in(volume, claim, driver));
        // Once it is gone the claim is provisioned again, and that is told again.
        self.memory.is_told &= is_saved || self.memory.saved_since.is_none();
        let since = |since: &mut Option<Timestamp>, holds: bool| {
            // A clock that was set back makes no wait longer.
            *since = holds.then(|| since.map_or(now, |since| since.min(now)));
            since.map_or(Duration::ZERO, |since| age(since, now))
        };
        let for_class = since(&mut self.memory.class_missing_since, is_missing) >= CLASS_TIMEOUT;
        let misses_node = surroundings.misses_node(claim);
        let for_node = since(&mut self.memory.node_missing_since, misses_node) >= NODE_TIMEOUT;
        let for_binding = since(&mut self.memory.saved_since, is_saved) >= BINDING_TIMEOUT;
        // What is known here comes first: a marker may be from before a call that was refused, or of a time to come, as the clock was ahead
        // or somebody has edited it. One that cannot be read does not say since when.
        let known_since = self.memory.uncertain_since;
        let marked_at = match marker.recorded() {
            Some(recorded) => known_since.or(Some(recorded.since)),
            None => claim.deleting.map(|at| known_since.map_or(at, |since| since.max(at))),
        };
        Waited {
            for_class,
            for_node,
            for_binding,
            stuck: marked_at.is_some_and(|since| age(since, now) >= view.stuck_after()),
        }
    }

    /// Tells what was not told yet, as it is remembered.
    fn tell_once(&mut self, is_told: impl FnOnce(&mut ClaimMemory) -> &mut bool, note: ClaimNote) {
        if !std::mem::replace(is_told(&mut self.memory), true) {
            self.notes.push(note);
        }
    }

    /// The claim is gone. The answer to taking the marker off may be lost as well; a volume that is known to be there is saved or undone.
    fn tell_gone(&mut self, creation: &Creation, name: &str) {
        if self.memory.unmark_lost || creation.uncertain_plan().is_none() {
            return;
        }
        let cause = "its PersistentVolumeClaim is gone while a call was open, so that only this process knows of it";
        let note = ClaimNote::PossiblyLeaked(name.into(), cause);
        self.tell_once(|memory| &mut memory.leak_is_told, note);
    }

    /// A PersistentVolume that is saved though the answer to the request was lost.
    fn tell_found(&mut self, view: &impl ClaimView, creation: &Creation, there: Option<&Volume>, claim: &Claim) {
        if let (Creation::Created(new), Some(there)) = (creation, there)
            && is_saved(there, claim, &view.driver().name, &new.handle)
        {
            self.tell_saved(view, &there.name, &new.handle);
        }
    }

    /// From a decision to the step that performs it.
    fn step(&mut self, view: &impl ClaimView, decision: ClaimDecision, name: &str) -> ClaimStep {
        let ClaimDecision { reason, action } = decision;
        let is_on_the_way = action.is_look() || matches!(reason, ClaimReason::Syncing | ClaimReason::Unconfirmed);
        if !is_on_the_way {
            self.memory.rests.end();
        }
        if !is_on_the_way && reason != ClaimReason::Mark {
            // Lists count for one call: the next one needs newer ones.
            self.memory.lists_since = None;
            self.memory.is_told_of_lists = false;
        }
        let end = match reason {
            ClaimReason::HandleShared => self.kept(),
            ClaimReason::Cancelled => Some(ClaimNote::Cancelled),
            ClaimReason::NotOwn if self.memory.creation != Some(Creation::Never) => Some(ClaimNote::Cancelled),
            _ => None,
        };
        let (pending, step) = match action {
            ClaimAction::Ignore => {
                self.tell_end(end);
                return ClaimStep::End(Verdict::Done);
            }
            ClaimAction::Wait(cause) => return ClaimStep::End(self.wait(view, reason, cause)),
            ClaimAction::Refuse(cause) => {
                self.notes.push(ClaimNote::Waits(reason, cause));
                return ClaimStep::End(self.waits(view));
            }
            ClaimAction::ReadClaim => (Pending::ReadClaim(None), ClaimStep::ReadClaim),
            ClaimAction::ReadVolume(name) => (Pending::ReadVolume(None), ClaimStep::ReadVolume(name)),
            ClaimAction::LoadCredentials(secret) => (Pending::Secret(secret.clone()), ClaimStep::Secret(secret)),
            // Whoever holds the Lease next looks at it again, and may have marked it by now: who lost it writes nothing.
            _ if !view.may_start() => return ClaimStep::End(Verdict::LeaseLost),
            ClaimAction::Mark(write) => (Pending::Mark, ClaimStep::Patch(write)),
            ClaimAction::Unmark(write) => (Pending::Unmark(end.map(Box::new)), ClaimStep::Patch(write)),
            ClaimAction::Reschedule(write) => (self.reschedules(RescheduleCause::NodeGone), ClaimStep::Patch(write)),
            ClaimAction::LetGo(write, words) => (Pending::LetGo(words, name.into()), ClaimStep::Patch(write)),
            ClaimAction::RefuseRelease(write, refusal) => (Pending::RefuseRelease(refusal), ClaimStep::Patch(write)),
            ClaimAction::Create(plan) => {
                self.called_with = Some(self.fingerprint(view));
                return self.create(&plan, reason);
            }
            ClaimAction::Save(mut body) => {
                // Who ends has no other time.
                let rest = self.memory.save_rest(view.now());
                if let Some(rest) = rest.filter(|_| view.role() != RolePhase::Stopping) {
                    return ClaimStep::End(Verdict::Rest(rest));
                }
                if let Some(context) = view.traceparent() {
                    body["metadata"]["annotations"][TRACEPARENT_ANNOTATION] = context.into();
                }
                self.memory.saved_by = Some(reason);
                (Pending::Save(name.into()), ClaimStep::Save(body))
            }
            ClaimAction::Undo(plan) => return self.undo(view, plan),
        };
        self.pending = Some(pending);
        step
    }

    /// The selected node is being taken off.
    fn reschedules(&self, cause: RescheduleCause) -> Pending {
        let node = self.memory.last.as_ref().and_then(|claim| claim.selected_node.clone());
        Pending::Reschedule(node.unwrap_or_default(), cause)
    }

    /// Asks for the call. From here on nobody knows whether there is a volume, until it is answered.
    fn create(&mut self, plan: &Arc<CreatePlan>, reason: ClaimReason) -> ClaimStep {
        let before = self.memory.creation.take().unwrap_or(Creation::Never);
        let doubtful = matches!(&before, Creation::Uncertain(call) if call.doubtful);
        self.memory.is_called(&before, reason);
        self.memory.creation = Some(Creation::uncertain(plan.clone(), doubtful));
        self.saved_is_live = false;
        self.memory.refused_with = None;
        self.notes.push(ClaimNote::Calls(reason, plan.clone()));
        self.pending = Some(Pending::Create(plan.clone(), Box::new(before)));
        ClaimStep::Create(plan.clone())
    }

    /// Asks for the call: from here on nobody may get the volume. It is told where that is made without the Secret that it should have.
    fn undo(&mut self, view: &impl ClaimView, plan: DeletePlan) -> ClaimStep {
        let Some(Creation::Created(volume)) = &mut self.memory.creation else {
            return ClaimStep::End(self.failed(view));
        };
        self.pending = Some(Pending::Delete(volume.clone()));
        volume.undo_failed = true;
        if let Some(missing) = self.secret_of.as_ref().filter(|_| plan.secret.is_none()) {
            self.notes.push(ClaimNote::WithoutSecret(missing.reference.clone()));
        }
        ClaimStep::Delete(plan)
    }

    /// The driver answered a volume that cannot be used and is another PersistentVolume's: the call is made again after its backoff, and
    /// that volume is never deleted here.
    fn forget_shared(&mut self) {
        if let Some(Creation::Created(volume)) = &self.memory.creation
            && let Some(owner) = &volume.owner
        {
            self.memory.shared = Some((volume.handle.clone(), owner.clone()));
            self.memory.creation = Some(Creation::uncertain(volume.plan.clone(), false));
        }
    }

    /// That nothing is done for the claim any more: told once, when the marker is off.
    fn tell_end(&mut self, end: Option<ClaimNote>) {
        if let Some(end) = end.filter(|_| !self.end_is_told) {
            self.end_is_told = true;
            self.notes.push(end);
        }
    }

    /// Nobody wants the volume, and it is another PersistentVolume's: it is left alone.
    fn kept(&self) -> Option<ClaimNote> {
        let Some(Creation::Created(volume)) = &self.memory.creation else {
            return None;
        };
        let cause = ProvisionRefusal::handle_shared(&volume.handle, volume.owner.as_deref()?);
        Some(ClaimNote::LeftAlone(Box::new(cause)))
    }

    /// Something is not known. Where a volume is there meanwhile, and that lasts for many seconds, as when a watch is refused, it is told.
    fn wait_for_lists(&mut self, view: &impl ClaimView) -> Verdict {
        let rest = self.memory.rests.next_rest();
        if rest >= MAX_REST
            && let Some(what) = self.unknown_kinds(view)
        {
            let cause = Box::new(ProvisionRefusal::Unconfirmed { what });
            let note = ClaimNote::Waits(ClaimReason::Unconfirmed, cause);
            self.tell_once(|memory| &mut memory.is_told_of_lists, note);
        }
        Verdict::Rest(rest)
    }

    /// The kinds of which too little is known to save or to delete a volume that was created.
    fn unknown_kinds(&self, view: &impl ClaimView) -> Option<&'static str> {
        let Some(Creation::Created(volume)) = &self.memory.creation else {
            return None;
        };
        let (name, handle) = (&volume.plan.name, &volume.handle);
        let is_known = !matches!(view.volume(name), Seen::Unknown);
        if !is_known || matches!(view.handle_owner_or_creator(handle), Seen::Unknown) {
            return Some("PersistentVolumes");
        }
        matches!(view.attached_to(name, handle), Seen::Unknown).then_some("VolumeAttachments")
    }

    /// Nothing can be done now: until when, and what is told.
    fn wait(&mut self, view: &impl ClaimView, reason: ClaimReason, cause: Option<Box<ProvisionRefusal>>) -> Verdict {
        if let Some(cause) = cause {
            if let ProvisionRefusal::SecretMissing { secret } | ProvisionRefusal::SecretUnreadable { secret } = &*cause
            {
                self.needed = Some(secret.clone());
            }
            if let ProvisionRefusal::NoTopology(_) | ProvisionRefusal::TopologyLabelsMissing { .. } = &*cause {
                self.waits_for = Some(WaitsFor::AnyTopology(self.nodes));
            }
            if reason == ClaimReason::Unconfirmed {
                // A list that comes in wakes nobody.
                if !std::mem::replace(&mut self.memory.is_told_of_lists, true) {
                    self.notes.push(ClaimNote::Waits(reason, cause));
                    self.memory.rests.end();
                }
                return Verdict::Rest(self.memory.rests.next_rest());
            }
            self.notes.push(ClaimNote::Waits(reason, cause));
            if reason == ClaimReason::HandleShared {
                // What the driver has answered is of no use, and it is asked again.
                self.forget_shared();
                return self.failed(view);
            }
            return self.waits(view);
        }
        self.waits_for = match reason {
            ClaimReason::DriverAway => Some(WaitsFor::Driver),
            ClaimReason::WaitForConsumer => Some(WaitsFor::Consumer),
            ClaimReason::Populator => Some(WaitsFor::Populator),
            _ => None,
        };
        let now = view.now();
        let rest = |since: Option<Timestamp>, patience: Duration| {
            let waited = since.map_or(Duration::ZERO, |since| age(since, now));
            Verdict::Rest(patience.saturating_sub(waited).max(MIN_REST))
        };
        match reason {
            ClaimReason::Syncing => self.wait_for_lists(view),
            ClaimReason::NodeGone => rest(self.memory.node_missing_since, NODE_TIMEOUT),
            ClaimReason::WaitForBinding => rest(self.memory.saved_since, BINDING_TIMEOUT),
            ClaimReason::ClassMissing | ClaimReason::ClassMismatch => {
                rest(self.memory.class_missing_since, CLASS_TIMEOUT)
            }
            ClaimReason::WaitForConsumer => self.memory.rest_for_consumer(),
            ClaimReason::Populator => {
                self.tell_once(|memory| &mut memory.is_populated, ClaimNote::Populator);
                Verdict::Rest(LONG_REST)
            }
            ClaimReason::VolumeGoing => Verdict::Rest(BINDING_TIMEOUT),
            ClaimReason::Infeasible => {
                let until = self.memory.infeasible.map_or(now, |held| held.until);
                Verdict::Rest(age(now, until).clamp(MIN_REST, Self::infeasible_rest(view)))
            }
            _ => Verdict::Rest(LONG_REST),
        }
    }
}

/// What a volume that was created may be attached by. Only a deletion asks for it, as for [`ClaimAttempt::handle_owner`].
fn attached_to(view: &impl ClaimView, creation: &Creation, is_wanted: bool) -> Seen<Arc<str>> {
    match creation {
        Creation::Created(volume) if !is_wanted || !volume.is_usable() => {
            view.attached_to(&volume.plan.name, &volume.handle)
        }
        _ => Seen::Unknown,
    }
}

/// A write was answered with OK, and the object does not show it.
pub(super) fn not_kept(kind: &str) -> ApiError {
    ApiError::not_kept(format!(
        "the API server accepts writes to the {kind} and does not keep them; check mutating webhooks"
    ))
}

/// The end of a wait of at most this time: a clock that was set back makes none longer.
fn within(until: Timestamp, most: Duration, now: Timestamp) -> Timestamp {
    now.saturating_add(most).map_or(until, |latest| until.min(latest))
}
