//! One attempt for a PersistentVolume as a value: which step comes after which answer until its volume is deleted and it is gone.
//!
//! As [`attempt`](super::attempt) for claims: it observes, decides ([`volume`](super::volume)) and asks for one step; the shell performs
//! it and hands in what came of it. DeleteVolume is asked for only from a copy of the PersistentVolume that was read live in this very
//! attempt, and that nothing has changed since. What is known of the deletion is forgotten without harm: DeleteVolume of a volume that is
//! not there is answered with OK (CSI spec, "DeleteVolume").

use std::sync::Arc;
use std::time::Duration;

use super::action::{ProvisionedVolumeAction as Action, VolumeDecision, VolumeReason};
use super::attempt::{LONG_REST, MAX_STALE, MAX_STEPS, RoleView, Verdict, not_kept};
use super::classify::delete_answer;
use super::creation::Deletion;
use super::fingerprint::volume_fingerprint;
use super::observed::{ObservedVolume, OwningClaim, ProvisionerSecretState};
use super::ownership::{is_of_volume, is_released};
use super::persistent_volume::handle_of;
use super::plan::DeletePlan;
use super::refusal::ProvisionRefusal;
use super::seen::Seen;
use super::trouble::Trouble;
use super::volume::heir;
use crate::answer::{ApiError, ApiErrorKind};
use crate::attempt::{CallEnd, LeaseLost};
use crate::decide::{Failure, Write, grpc_code};
use crate::list_rests::{ListRests, MAX_REST};
use crate::objects::{Claim, ClaimReference, ResourceVersion, SecretReference, Volume};

/// How long one rests whose claim is there: it is read again after that.
const CLAIM_REST: Duration = Duration::from_mins(1);

/// What an attempt for a PersistentVolume sees.
pub trait VolumeView: RoleView {
    /// The PersistentVolume that the attempt is for, by its UID.
    fn volume(&self) -> Seen<Arc<Volume>>;
    /// Its claim, as far as the cache knows it.
    fn claim(&self, claim: &ClaimReference, volume: &Volume) -> OwningClaim;
    /// Whether a call for the claim may make a volume at this moment, or may have made one whose marker is still on.
    fn may_make_volume(&self, claim: &ClaimReference) -> bool;
    /// The claims of other names than the one which it names that are bound to it.
    fn bound_claims(&self, volume: &Volume) -> Seen<Vec<ClaimReference>>;
    /// All PersistentVolumes of the driver but `except` that have this handle. Asked for only where there is one.
    fn sharers(&self, handle: &str, except: &str) -> Vec<Arc<Volume>>;
    /// The name of the volume of a claim for which the driver answered this ID, and that no PersistentVolume is known to name.
    fn created_for_a_claim(&self, handle: &str) -> Option<Arc<str>>;
    /// Whether nothing will be known of others that use its volume before the PersistentVolume is read live.
    fn lacks_read(&self, volume: &Volume) -> bool;
}

/// What the shell does next. Each but the last is answered by a [`VolumeEvent`].
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeStep {
    /// Patch the PersistentVolume, and take the answer into the cache; by [`VolumeEvent::Written`].
    Patch(Write),
    /// Read the PersistentVolume live into the cache; by [`VolumeEvent::VolumeRead`].
    ReadVolume,
    /// Read another PersistentVolume live into the cache; by [`VolumeEvent::VolumeRead`].
    ReadHeir(Arc<str>),
    /// Read the claim live; by [`VolumeEvent::ClaimRead`].
    ReadClaim(ClaimReference),
    /// Read a Secret and keep its contents for the calls of this attempt; by [`VolumeEvent::SecretRead`].
    Secret(SecretReference),
    /// Call DeleteVolume; by [`VolumeEvent::Deleted`].
    Delete(DeletePlan),
    /// DELETE the PersistentVolume on condition that it has this UID, and take the answer into the cache; by [`VolumeEvent::Written`].
    Remove(Box<str>),
    /// The attempt is over.
    End(Verdict),
}

/// What came of a step.
#[derive(Clone, Debug)]
pub enum VolumeEvent {
    /// Nothing was asked for yet.
    Begin,
    /// A patch or a DELETE of the PersistentVolume: whether the answer shows our finalizer; none where the object went with it. The cache may
    /// have a newer copy.
    Written(Result<Option<bool>, ApiError>),
    /// A read of the PersistentVolume: the version that it has. One that is older than what is known is a failure.
    VolumeRead(Result<ResourceVersion, ApiError>),
    /// A read of a Secret.
    SecretRead(Result<(), ApiError>),
    /// A read of the claim: as it is.
    ClaimRead(Result<Arc<Claim>, ApiError>),
    /// A DeleteVolume.
    Deleted(Result<(), CallEnd>),
}

/// What happened, for Events, logs, metrics and spans.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeNote {
    /// DeleteVolume is called.
    Calls(DeletePlan),
    /// The Secret that the PersistentVolume names is not there: the call is made without it.
    WithoutSecret(SecretReference),
    /// DeleteVolume was not answered with OK.
    CallFailed(Failure),
    /// The volume with this handle is deleted. The failure is one that the settings take for that.
    Deleted(Box<str>, Option<Failure>),
    /// The volume is not to be deleted any more, and a call may have deleted it.
    PerhapsDeleted(Box<str>),
    /// The finalizer could not be put on or taken off where nothing is deleted.
    NotWritten(ApiError),
    /// It goes without a call: its volume is deleted with the PersistentVolume of this name.
    LeftTo(Arc<str>),
    /// Nothing of ours holds the PersistentVolume any more.
    Released,
    /// The deletion waits, for this reason: told once. The words say of what.
    Waits(VolumeReason, String),
    /// It cannot be done, for this cause.
    Refused(VolumeReason, Box<ProvisionRefusal>),
    /// The API server did not do what was asked.
    RequestFailed(ApiError),
    /// A call was not made, or was cut off.
    LeaseLost(LeaseLost),
}

/// What is remembered of a PersistentVolume while it is worked on. It is safe to forget.
#[derive(Clone, Debug, Default)]
pub struct VolumeMemory {
    deletion: Deletion,
    waits: Option<VolumeReason>,
    trouble: Option<Trouble>,
    /// The last copy: the PersistentVolume may be gone when that it was released is told.
    last: Option<Arc<Volume>>,
    /// The Secret of a call that the driver refused: a change of it may be the cure.
    refused_with: Option<SecretReference>,
    rests: ListRests,
    left_is_told: bool,
}

impl VolumeMemory {
    /// What the PersistentVolume waits for; none when it does not wait.
    pub fn waits(&self) -> Option<VolumeReason> {
        self.waits
    }

    /// What is known of the deletion.
    pub fn deletion(&self) -> Deletion {
        self.deletion
    }

    /// Why nothing goes on, as it was told last.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }
}

/// What was asked for.
#[derive(Clone, Debug)]
enum Pending {
    /// With whether our finalizer is to be there after it, where the write says.
    Write(VolumeReason, Option<bool>),
    ReadVolume,
    ReadHeir(Arc<str>),
    ReadClaim(ClaimReference),
    Secret(SecretReference),
    /// With what was known before.
    Delete(DeletePlan, Deletion),
}

/// One attempt for one PersistentVolume.
#[derive(Clone, Debug, Default)]
pub struct VolumeAttempt {
    memory: VolumeMemory,
    pending: Option<Pending>,
    /// Version of the copy that was read in this attempt.
    live: Option<ResourceVersion>,
    /// Name and version of the one that the volume is left to, as it was read after that.
    live_heir: Option<(Arc<str>, ResourceVersion)>,
    /// What live reads in this attempt say of the claims of these references: a person may change it meanwhile.
    claims: Vec<(ClaimReference, OwningClaim)>,
    secret: ProvisionerSecretState,
    /// The Secret that this is about.
    secret_of: Option<SecretReference>,
    needed: Option<SecretReference>,
    /// Why the last write was made that was refused as made from a stale copy, and the refusal: the PersistentVolume is read before the next
    /// decision, which shows whether it was.
    stale_write: Option<(VolumeReason, ApiError)>,
    steps: u32,
    stale: u32,
    notes: Vec<VolumeNote>,
    /// The inputs that the call was made with: they may change while it runs.
    called_with: Option<u64>,
}

impl VolumeAttempt {
    /// An attempt with what is remembered of the PersistentVolume from the one before.
    pub fn new(memory: VolumeMemory) -> Self {
        Self {
            memory,
            ..Self::default()
        }
    }

    /// What the next attempt has to know should this one end here.
    pub fn memory(&self) -> &VolumeMemory {
        &self.memory
    }

    /// What happened since this was asked last.
    pub fn take_notes(&mut self) -> Vec<VolumeNote> {
        std::mem::take(&mut self.notes)
    }

    /// The PersistentVolume as it was seen last; none when it was not seen at all.
    pub fn volume(&self) -> Option<&Arc<Volume>> {
        self.memory.last.as_ref()
    }

    /// What is known of the deletion.
    pub fn deletion(&self) -> Deletion {
        self.memory.deletion
    }

    /// Whether it goes without a call, as its volume is deleted with another PersistentVolume.
    pub fn is_left(&self) -> bool {
        self.memory.left_is_told
    }

    /// The Secret that the deletion waits for: it cannot be read, or the driver refused the last call that it was for, or that was made
    /// without it.
    pub fn needed_secret(&self) -> Option<&SecretReference> {
        self.needed.as_ref().or(self.memory.refused_with.as_ref())
    }

    /// The next step, after what came of the last one; the first one after [`VolumeEvent::Begin`].
    pub fn next(&mut self, view: &impl VolumeView, event: VolumeEvent) -> VolumeStep {
        let step = self.next_step(view, event);
        let memory = &mut self.memory;
        if let Some(volume) = &memory.last {
            Trouble::after_volume_notes(&mut memory.trouble, &self.notes, volume);
        }
        step
    }

    fn next_step(&mut self, view: &impl VolumeView, event: VolumeEvent) -> VolumeStep {
        if let Some(verdict) = self.take(view, event) {
            return VolumeStep::End(verdict);
        }
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return VolumeStep::End(self.request_failed(view, not_kept("PersistentVolume")));
        }
        let volume = match view.volume() {
            Seen::Here(volume) => volume,
            // It is asked for again, and less and less often.
            Seen::Unknown => return VolumeStep::End(Verdict::Rest(self.memory.rests.next_rest())),
            Seen::Gone => return VolumeStep::End(self.gone()),
        };
        if self.stale_write.is_some() {
            self.pending = Some(Pending::ReadVolume);
            return VolumeStep::ReadVolume;
        }
        self.memory.last = Some(volume.clone());
        let decision = self.observe(view, &volume, super::volume::decide);
        self.step(view, decision, &volume)
    }

    /// What nobody holds any more is released, whoever took the last finalizer off.
    fn gone(&mut self) -> Verdict {
        if std::mem::take(&mut self.memory.deletion) == Deletion::Deleted {
            self.notes.push(VolumeNote::Released);
        }
        Verdict::Done
    }

    fn fingerprint(&self, view: &impl VolumeView) -> u64 {
        match &self.memory.last {
            Some(volume) => self.observe(view, volume, volume_fingerprint),
            None => 0,
        }
    }

    fn observe<T>(
        &self,
        view: &impl VolumeView,
        volume: &Arc<Volume>,
        look: impl FnOnce(&ObservedVolume<'_>) -> T,
    ) -> T {
        let handle = handle_of(volume);
        let attached_to = view.attached_to(&volume.name, handle);
        let class = volume.storage_class.as_ref();
        let class = class.map_or(Seen::Gone, |name| view.class(name));
        let claim = volume.claim.as_deref();
        let is_live = self.live.is_some_and(|live| live.is_same(volume.resource_version));
        let sharer = match view.handle_owner(handle, &volume.name) {
            // Asked for only just before the call: it is that which must not be made.
            Seen::Gone if is_live => view.created_for_a_claim(handle).map_or(Seen::Gone, Seen::Here),
            known => known,
        };
        let heir = heir_of(view, volume, &sharer);
        let is_read = |heir: &Arc<Volume>| {
            let read = self.live_heir.as_ref();
            read.is_some_and(|(name, version)| *name == heir.name && *version == heir.resource_version)
        };
        // Those that the cache shows, and a live read in this attempt does not.
        let is_over = |claim: &ClaimReference| self.read(claim) == Some(OwningClaim::LiveGone);
        let bound = if is_released(volume, view.driver()) {
            view.bound_claims(volume)
        } else {
            // Nobody asks for those of a PersistentVolume whose volume is not to be deleted.
            Seen::Unknown
        };
        let bound = match bound {
            Seen::Here(claims) => claims
                .into_iter()
                .find(|claim| !is_over(claim))
                .map_or(Seen::Gone, Seen::Here),
            Seen::Gone => Seen::Gone,
            Seen::Unknown => Seen::Unknown,
        };
        let bound_is_live = matches!(&bound, Seen::Here(claim) if self.read(claim) == Some(OwningClaim::Live));
        look(&ObservedVolume {
            volume,
            sharer: sharer.as_deref(),
            heir: heir.as_ref().map(|heir| &heir.name),
            heir_is_live: heir.as_ref().is_some_and(is_read),
            heir_is_deleting: heir.as_ref().is_some_and(|heir| heir.deleting),
            attached_to: attached_to.as_deref(),
            claim: claim.map_or(OwningClaim::NotCached, |claim| self.owning(view, claim, volume)),
            bound: bound.as_ref(),
            bound_is_live,
            lacks_read: view.lacks_read(volume),
            is_live,
            deletion: self.memory.deletion,
            class: class.as_deref(),
            secret: self.secret,
            secret_of: self.secret_of.as_ref(),
            driver: view.driver(),
            policy: view.policy(),
            role: view.role(),
            is_away: view.is_away(),
        })
    }

    /// What is known of the claim that a PersistentVolume names. That it is there is told, whatever is done for it.
    fn owning(&self, view: &impl VolumeView, claim: &ClaimReference, volume: &Volume) -> OwningClaim {
        match (self.read(claim), view.claim(claim, volume)) {
            (Some(OwningClaim::Live), _) => OwningClaim::Live,
            (None, OwningClaim::Cached) => OwningClaim::Cached,
            // What is made at this moment must not be what is deleted.
            _ if view.may_make_volume(claim) => OwningClaim::Unknown,
            (Some(read), _) => read,
            (None, known) => known,
        }
    }

    /// What a live read in this attempt says of a claim.
    fn read(&self, claim: &ClaimReference) -> Option<OwningClaim> {
        let mut reads = self.claims.iter().rev();
        reads.find(|(read, _)| read == claim).map(|(_, found)| *found)
    }

    /// The claim that uses the volume: the last one that a live read showed, or else the one that the PersistentVolume names.
    pub fn user<'a>(&'a self, volume: &'a Volume) -> Option<&'a ClaimReference> {
        let mut live = self.claims.iter().filter(|(_, found)| *found == OwningClaim::Live);
        live.next_back().map(|(claim, _)| claim).or(volume.claim.as_deref())
    }

    /// From a decision to the step that performs it.
    fn step(&mut self, view: &impl VolumeView, decision: VolumeDecision, volume: &Volume) -> VolumeStep {
        let VolumeDecision { reason, action } = decision;
        let is_kept = matches!(reason, VolumeReason::Retained | VolumeReason::NotReleased);
        if is_kept && self.memory.deletion == Deletion::Uncertain {
            self.memory.deletion = Deletion::NotDeleted;
            self.notes.push(VolumeNote::PerhapsDeleted(handle_of(volume).into()));
        }
        self.memory.left_is_told &= !is_kept;
        let is_left = reason == VolumeReason::LeftToAnother;
        if is_left && !std::mem::replace(&mut self.memory.left_is_told, true) {
            let heir = self.live_heir.as_ref();
            self.notes
                .extend(heir.map(|(name, _)| VolumeNote::LeftTo(name.clone())));
        }
        // Steps on the way to what is found say nothing of it.
        let is_on_the_way = matches!(
            reason,
            VolumeReason::LoadSecret | VolumeReason::Confirm | VolumeReason::Syncing | VolumeReason::DriverAway
        );
        if !is_on_the_way && self.memory.waits != Some(reason) && self.memory.waits.take().is_some() {
            // What it waited for is over.
            self.memory.trouble = None;
        }
        if reason != VolumeReason::Syncing && !action.is_look() {
            self.memory.rests.end();
        }
        let (pending, step) = match action {
            Action::Ignore => {
                self.memory.trouble = None;
                if reason == VolumeReason::Release {
                    self.notes.push(VolumeNote::Released);
                }
                return VolumeStep::End(Verdict::Done);
            }
            Action::Wait(None) => return VolumeStep::End(self.wait(view, reason, volume)),
            Action::Wait(Some(cause)) => return VolumeStep::End(self.refused(view, reason, cause)),
            Action::ReadVolume => (Pending::ReadVolume, VolumeStep::ReadVolume),
            Action::ReadHeir(name) => (Pending::ReadHeir(name.clone()), VolumeStep::ReadHeir(name)),
            Action::ReadClaim(claim) => (Pending::ReadClaim(claim.clone()), VolumeStep::ReadClaim(claim)),
            Action::LoadCredentials(secret) => (Pending::Secret(secret.clone()), VolumeStep::Secret(secret)),
            // Whoever holds the Lease next looks at it again.
            _ if !view.may_start() => return VolumeStep::End(Verdict::LeaseLost),
            Action::Protect(write) => (Pending::Write(reason, Some(true)), VolumeStep::Patch(write)),
            Action::Release(write) => (Pending::Write(reason, Some(false)), VolumeStep::Patch(write)),
            Action::Remove(uid) => (Pending::Write(reason, None), VolumeStep::Remove(uid)),
            Action::Delete(plan) => {
                if let Some(missing) = self.secret_of.clone().filter(|_| plan.secret.is_none()) {
                    self.notes.push(VolumeNote::WithoutSecret(missing));
                }
                self.called_with = Some(self.fingerprint(view));
                self.memory.refused_with = None;
                // From here on nobody knows whether it is deleted, until the call is answered.
                let before = std::mem::replace(&mut self.memory.deletion, Deletion::Uncertain);
                self.notes.push(VolumeNote::Calls(plan.clone()));
                (Pending::Delete(plan.clone(), before), VolumeStep::Delete(plan))
            }
        };
        self.pending = Some(pending);
        step
    }

    /// Nothing can be done now: until when, and what is told.
    fn wait(&mut self, view: &impl VolumeView, reason: VolumeReason, volume: &Volume) -> Verdict {
        if reason == VolumeReason::Syncing {
            let rest = self.memory.rests.next_rest();
            // It has not been known for many seconds, as when a watch breaks each time.
            let unknown = (rest >= MAX_REST).then(|| unknown_kinds(view, volume));
            if let Some(unknown) = unknown.flatten() {
                self.tell_wait(reason, unknown.to_owned());
            }
            return Verdict::Rest(rest);
        }
        if reason == VolumeReason::DriverAway {
            return Verdict::Rest(LONG_REST);
        }
        let of = match (reason, view.attached_to(&volume.name, handle_of(volume))) {
            (VolumeReason::StillAttached, Seen::Here(nodes)) => nodes.to_string(),
            (VolumeReason::ReleasedWhileBound, _) => {
                let claim = self.user(volume);
                claim.map_or_else(String::new, |claim| format!("{}/{}", claim.namespace, claim.name))
            }
            _ => String::new(),
        };
        self.tell_wait(reason, of);
        Verdict::Rest(match reason {
            VolumeReason::ReleasedWhileBound => CLAIM_REST,
            _ => LONG_REST,
        })
    }

    fn tell_wait(&mut self, reason: VolumeReason, of: String) {
        if self.memory.waits.replace(reason) != Some(reason) {
            self.notes.push(VolumeNote::Waits(reason, of));
        }
    }

    fn refused(&mut self, view: &impl VolumeView, reason: VolumeReason, cause: Box<ProvisionRefusal>) -> Verdict {
        // Only a change of objects helps.
        if matches!(reason, VolumeReason::HandleShared | VolumeReason::NotCsi) {
            self.tell_wait(reason, cause.to_string());
            return Verdict::Rest(LONG_REST);
        }
        self.memory.waits = Some(reason);
        if let ProvisionRefusal::SecretUnreadable { secret } = &*cause {
            self.needed = Some(secret.clone());
        }
        self.notes.push(VolumeNote::Refused(reason, cause));
        Verdict::Waits(self.fingerprint(view))
    }

    /// Failed, with the inputs as they are now: an echo of our own writes does not shorten the backoff.
    fn failed(&self, view: &impl VolumeView) -> Verdict {
        Verdict::Failed(self.called_with.unwrap_or_else(|| self.fingerprint(view)))
    }

    fn request_failed(&mut self, view: &impl VolumeView, error: ApiError) -> Verdict {
        if !error.is_transient() {
            // What it waits for is told again, as this is what is told now.
            self.memory.waits = None;
        }
        self.notes.push(VolumeNote::RequestFailed(error));
        self.failed(view)
    }

    /// Takes in an answer; the end of the attempt, if it ends by it.
    fn take(&mut self, view: &impl VolumeView, event: VolumeEvent) -> Option<Verdict> {
        match (self.pending.take(), event) {
            (_, VolumeEvent::Begin) => None,
            (Some(Pending::Write(reason, wanted)), VolumeEvent::Written(answer)) => {
                self.written(view, reason, wanted, answer)
            }
            (Some(of @ (Pending::ReadVolume | Pending::ReadHeir(_))), VolumeEvent::VolumeRead(read)) => {
                self.was_read(view, of, read)
            }
            (Some(Pending::ReadClaim(claim)), VolumeEvent::ClaimRead(read)) => {
                let volume = self.memory.last.as_ref();
                let found = match read {
                    Ok(read) if volume.is_some_and(|volume| is_of_volume(&read, volume)) => OwningClaim::Live,
                    Ok(_) => OwningClaim::LiveGone,
                    Err(error) if error.kind == ApiErrorKind::NotFound => OwningClaim::LiveGone,
                    Err(error) => return Some(self.request_failed(view, error)),
                };
                self.claims.push((claim, found));
                None
            }
            (Some(Pending::Secret(secret)), VolumeEvent::SecretRead(read)) => {
                self.secret = match ProvisionerSecretState::of_read(read) {
                    Ok(state) => state,
                    Err(error) => return Some(self.request_failed(view, error)),
                };
                self.secret_of = Some(secret);
                None
            }
            (Some(Pending::Delete(plan, before)), VolumeEvent::Deleted(answer)) => {
                self.was_called(view, plan, before, answer)
            }
            // An answer to something that was not asked.
            _ => Some(self.failed(view)),
        }
    }

    fn was_read(
        &mut self,
        view: &impl VolumeView,
        of: Pending,
        read: Result<ResourceVersion, ApiError>,
    ) -> Option<Verdict> {
        let stale_write = self.stale_write.take();
        match read {
            Ok(version) => {
                self.live_heir = if let Pending::ReadHeir(name) = of {
                    Some((name, version))
                } else {
                    self.live = Some(version);
                    None
                };
                let (reason, error) = stale_write.filter(|_| self.is_unchanged(view))?;
                Some(self.write_refused(view, reason, error.meant()))
            }
            // It is gone; the cache says so from now on.
            Err(error) if error.kind == ApiErrorKind::NotFound => None,
            Err(error) => Some(self.request_failed(view, error)),
        }
    }

    /// Whether the PersistentVolume is still the copy that the last write was made from.
    fn is_unchanged(&self, view: &impl VolumeView) -> bool {
        let now = view.volume().here();
        let known = self.memory.last.as_ref().zip(now);
        known.is_some_and(|(known, now)| known.resource_version.is_same(now.resource_version))
    }

    /// The API server did not take a write, or it is not known whether it did.
    fn write_refused(&mut self, view: &impl VolumeView, reason: VolumeReason, error: ApiError) -> Verdict {
        if matches!(reason, VolumeReason::Protect | VolumeReason::Retained) {
            self.notes.push(VolumeNote::NotWritten(error));
            return self.failed(view);
        }
        self.request_failed(view, error)
    }

    fn written(
        &mut self,
        view: &impl VolumeView,
        reason: VolumeReason,
        wanted: Option<bool>,
        answer: Result<Option<bool>, ApiError>,
    ) -> Option<Verdict> {
        // By the cache, which may have what somebody wrote after the answer; none where it is gone.
        let now = view
            .volume()
            .here()
            .map(|volume| volume.lifecycle.finalizer_at.is_some());
        let answer = answer.and_then(|shown| {
            // The answer shows what was kept of the write, unless the object is gone by now.
            let left = shown.filter(|_| now.is_some());
            if wanted.is_some() && left.is_some() && wanted != left {
                return Err(not_kept("PersistentVolume"));
            }
            Ok(left)
        });
        match answer {
            // Somebody has put it back already: it goes again, by what is remembered of the deletion.
            Ok(Some(false)) if reason == VolumeReason::Release && now == Some(true) => None,
            // It is gone, or somebody else's finalizer is left.
            Ok(left @ (None | Some(false))) if wanted == Some(false) && reason != VolumeReason::Retained => {
                if left.is_none() {
                    self.memory.deletion = Deletion::default();
                }
                if reason == VolumeReason::Release {
                    self.notes.push(VolumeNote::Released);
                }
                Some(Verdict::Done)
            }
            Ok(_) => None,
            Err(error) if error.kind == ApiErrorKind::NotFound => None,
            // If it was made from a stale copy, it is decided again from what is there.
            Err(error) if error.kind == ApiErrorKind::Stale && self.stale < MAX_STALE => {
                self.stale += 1;
                self.stale_write = Some((reason, error));
                None
            }
            Err(error) => Some(self.write_refused(view, reason, error)),
        }
    }

    fn was_called(
        &mut self,
        view: &impl VolumeView,
        plan: DeletePlan,
        before: Deletion,
        answer: Result<(), CallEnd>,
    ) -> Option<Verdict> {
        let failure = match answer {
            Ok(()) => None,
            Err(CallEnd::Failed(failure)) => Some(failure),
            Err(CallEnd::LeaseLost(lost)) => {
                if lost == LeaseLost::NotStarted {
                    self.memory.deletion = before;
                }
                self.notes.push(VolumeNote::LeaseLost(lost));
                return Some(Verdict::LeaseLost);
            }
        };
        let code = failure.as_ref().map_or(Some(grpc_code::OK), |failure| failure.code);
        let answered = delete_answer(code, view.policy().orphans);
        if answered == Deletion::Deleted {
            self.memory.deletion = answered;
            self.notes.push(VolumeNote::Deleted(plan.handle, failure));
            return None;
        }
        if answered == Deletion::Uncertain {
            // The driver may still work on it: whatever changed meanwhile waits for the backoff.
            self.memory.last = view.volume().here().or(self.memory.last.take());
            self.called_with = None;
        }
        if answered == Deletion::NotDeleted {
            // One that is missing may be what the driver lacks.
            self.memory.refused_with = plan.secret.or_else(|| self.secret_of.clone());
        }
        // What a refusal says of this call, it does not say of an earlier one.
        if before != Deletion::Uncertain {
            self.memory.deletion = answered;
        }
        self.notes.extend(failure.map(VolumeNote::CallFailed));
        Some(self.failed(view))
    }
}

/// The PersistentVolume that the volume of this one is left to, if it is; `sharer` is one that has the same handle.
fn heir_of(view: &impl VolumeView, volume: &Volume, sharer: &Seen<Arc<str>>) -> Option<Arc<Volume>> {
    let (Seen::Here(_), Some(source)) = (sharer, volume.spec.csi()) else {
        return None;
    };
    heir(volume, &view.sharers(&source.handle, &volume.name), view.driver()).cloned()
}

/// The kinds of which too little is known to delete the volume of a PersistentVolume; none where that is not what it waits for.
fn unknown_kinds(view: &impl VolumeView, volume: &Volume) -> Option<&'static str> {
    let handle = handle_of(volume);
    if matches!(view.handle_owner(handle, &volume.name), Seen::Unknown) {
        return Some("PersistentVolumes");
    }
    if matches!(view.attached_to(&volume.name, handle), Seen::Unknown) {
        return Some("VolumeAttachments");
    }
    let claim = volume.claim.as_deref();
    // An open call is told on the claim.
    if claim.is_some_and(|claim| view.may_make_volume(claim)) {
        return None;
    }
    let lacks_claims = claim.is_some_and(|claim| view.claim(claim, volume) == OwningClaim::Unknown)
        || matches!(view.bound_claims(volume), Seen::Unknown);
    let class = volume.storage_class.as_deref();
    let lacks_class = class.is_some_and(|class| matches!(view.class(class), Seen::Unknown));
    (lacks_claims || lacks_class).then_some("PersistentVolumeClaims or StorageClasses")
}

/// Fingerprint of what decides about a PersistentVolume, as far as others change it: what the queue compares after a failure.
pub fn fingerprint(view: &impl VolumeView, volume: &Arc<Volume>) -> u64 {
    VolumeAttempt::new(VolumeMemory::default()).observe(view, volume, volume_fingerprint)
}
