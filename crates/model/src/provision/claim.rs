//! What to do next about a PersistentVolumeClaim: the first rule that fits.

mod call;
mod created;

use super::action::{ClaimAction, ClaimDecision, ClaimReason, decided};
use super::creation::Creation;
use super::driver::ProvisionerFacts;
use super::marker::{self, Marker, MarkerState};
use super::observed::{ObservedClaim, RolePhase};
use super::ownership::{is_own_claim, is_own_class, lacks_volume, may_be_asked_for};
use super::patch::{self, ClaimWrite};
use super::persistent_volume::is_of_claim_and_driver;
use super::policy::ProvisionPolicy;
use super::refusal::ProvisionRefusal;
use super::release_request::{ClaimRelease, judge};
use super::seen::Seen;
use crate::decide::ReleaseRefusal;
use crate::objects::{Claim, StorageClass, Volume};

/// What the provisioners of in-tree plug-ins begin with.
const IN_TREE_PREFIX: &str = "kubernetes.io/";
/// The provisioner of classes whose volumes are made by hand, which is no plug-in.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// A claim with what several rules ask of it.
struct Subject<'a, 's> {
    observed: &'s ObservedClaim<'a>,
    marker: &'s MarkerState,
    /// The name of its volume.
    name: &'s str,
    /// Whether somebody wants a volume.
    wanted: bool,
}

fn wait(reason: ClaimReason) -> ClaimDecision {
    decided(reason, ClaimAction::Wait(None))
}

fn wait_for(reason: ClaimReason, cause: ProvisionRefusal) -> ClaimDecision {
    decided(reason, ClaimAction::Wait(Some(Box::new(cause))))
}

/// Decides about a claim.
pub(super) fn decide(observed: &ObservedClaim<'_>) -> ClaimDecision {
    let (claim, driver) = (observed.claim, observed.driver);
    let marker = MarkerState::of(claim, &driver.name);
    let is_own = is_own_claim(claim, driver);
    // What this process called for is finished, whoever the claim is given to meanwhile.
    let was_called = observed.creation.plan().is_some();
    // A marker that does not say whose it is, is that of the driver whose the claim is.
    if !is_own && !marker.is_recorded() && !was_called {
        return decided(ClaimReason::NotOwn, ClaimAction::Ignore);
    }
    // Another driver does not mark a claim that carries the marker of this one: what is finished here was overwritten by somebody else.
    if let MarkerState::OfAnotherDriver(other) = &marker
        && !was_called
    {
        if claim.volume_name.is_some() {
            return decided(ClaimReason::NotNeeded, ClaimAction::Ignore);
        }
        return wait_for(
            ClaimReason::MarkerOfAnotherDriver,
            ProvisionRefusal::MarkerOfAnotherDriver(crate::decide::cut(other, 128).into()),
        );
    }
    let name = match volume_name(claim, observed.creation, &marker, observed.policy) {
        Ok(name) => name,
        Err(refusal) => return decided(ClaimReason::Invalid, ClaimAction::Refuse(Box::new(refusal))),
    };
    Subject::new(observed, &marker, &name).decide()
}

/// The marker of an open call for a claim that has none.
pub(super) fn open_mark(observed: &ObservedClaim<'_>) -> Option<ClaimWrite> {
    let marker = MarkerState::of(observed.claim, &observed.driver.name);
    let name = volume_name(observed.claim, observed.creation, &marker, observed.policy).ok()?;
    match Subject::new(observed, &marker, &name).unmarked()?.action {
        ClaimAction::Mark(write) => Some(write),
        _ => None,
    }
}

/// Whether somebody wants the volume of this name for a claim.
pub(super) fn is_wanted(claim: &Claim, driver: &ProvisionerFacts, gone: bool, name: &str) -> bool {
    is_own_claim(claim, driver) && would_be_bound(claim, gone, name)
}

/// Whether the claim is there and may be bound to a PersistentVolume of this name, wanted or not.
fn would_be_bound(claim: &Claim, gone: bool, name: &str) -> bool {
    let names_other = claim.volume_name.as_deref().is_some_and(|volume| *volume != *name);
    !gone && claim.deleting.is_none() && !names_other
}

/// The name of the volume of a claim: that of the plan that was used, else made from the UID.
pub(super) fn volume_name(
    claim: &Claim,
    creation: &Creation,
    marker: &MarkerState,
    policy: &ProvisionPolicy,
) -> Result<Box<str>, ProvisionRefusal> {
    match creation.plan() {
        Some(plan) => Ok(plan.name.clone()),
        None => marker::naming(marker, policy).volume_name(&claim.uid),
    }
}

impl<'a, 's> Subject<'a, 's> {
    fn new(observed: &'s ObservedClaim<'a>, marker: &'s MarkerState, name: &'s str) -> Self {
        Self {
            observed,
            marker,
            name,
            wanted: is_wanted(observed.claim, observed.driver, observed.gone, name),
        }
    }

    fn decide(&self) -> ClaimDecision {
        let saved = match self.observed.saved {
            Seen::Unknown => return wait(ClaimReason::Syncing),
            Seen::Here(volume) => Some(volume),
            Seen::Gone => None,
        };
        if let Some(decision) = self.saved(saved) {
            return decision;
        }
        // What is created is saved first, whatever becomes of the claim; the end of the attempt marks it where that fails.
        if let Some(decision) = self.unmarked().filter(|_| self.observed.creation.is_uncertain()) {
            return decision;
        }
        if let Creation::Created(volume) = self.observed.creation {
            return self.marked_first(self.created(volume, saved.is_some()));
        }
        if !self.wanted {
            return self.unwanted();
        }
        self.ending()
            .unwrap_or_else(|| self.without_idle_marker(self.provision()))
    }

    /// A volume that cannot be used is marked before its deletion waits for anything: the process may end meanwhile.
    fn marked_first(&self, decision: ClaimDecision) -> ClaimDecision {
        if !matches!(decision.action, ClaimAction::Wait(_)) {
            return decision;
        }
        let marked = self.unmarked();
        let marked = marked.filter(|marked| matches!(marked.action, ClaimAction::Mark(_)));
        marked.unwrap_or(decision)
    }

    /// A marker stays only while a call may have made a volume, or is about to be made: where no call is open and the claim has to wait, it
    /// goes. For the next process it would be that of a call whose outcome nobody knows; and should what that has to be repeated with be
    /// gone by then, the claim could not be deleted. Rows 12 to 17 of the specification leave the marker alone: that is for open calls.
    fn without_idle_marker(&self, decision: ClaimDecision) -> ClaimDecision {
        let is_idle = matches!(decision.action, ClaimAction::Wait(_) | ClaimAction::Refuse(_))
            && decision.reason != ClaimReason::Syncing
            && !self.observed.creation.is_uncertain();
        if is_idle && self.marker.is_own() {
            return self.without_marker(decision.reason);
        }
        decision
    }

    /// Rows 2 to 5: there is a PersistentVolume of the name.
    fn saved(&self, saved: Option<&Volume>) -> Option<ClaimDecision> {
        let claim = self.observed.claim;
        // A claim that was bound to the PersistentVolume had it, whatever became of it since: it is gone, or a volume populator gave it to
        // another claim.
        let was_bound = claim.is_bound() && claim.volume_name.as_deref() == Some(self.name);
        let is_had = was_bound && !matches!(self.observed.creation, Creation::Created(_));
        // A volume that the PersistentVolume of its name has is saved, whichever claim that is for by now: kube-controller-manager takes the
        // UID of a claim that is bound elsewhere out of `spec.claimRef`.
        let driver = self.observed.driver;
        let is_recorded = saved.is_some_and(|volume| self.observed.creation.is_recorded_by(volume, driver));
        let had = || (is_had || is_recorded).then(|| self.without_marker(ClaimReason::Saved));
        let Some(volume) = saved else { return had() };
        if !is_of_claim_and_driver(volume, claim, driver) {
            return had().or_else(|| self.wanted.then(|| self.name_taken()));
        }
        if let Creation::Created(new) = self.observed.creation
            && volume.spec.csi().is_some_and(|source| source.handle != new.handle)
        {
            // Which of the two is in use is not known here: nothing is deleted.
            return Some(self.without_marker(ClaimReason::TwoVolumes));
        }
        if volume.deleting && self.wanted && !claim.is_bound() {
            // It does not bind any more. Its deletion knows the volume; after that the claim is provisioned anew.
            let volume = self.name.into();
            let cause = if self.observed.policy.hold_deletions {
                ProvisionRefusal::VolumeGoing { volume }
            } else {
                ProvisionRefusal::VolumeUndecided { volume }
            };
            return Some(wait_for(ClaimReason::VolumeGoing, cause));
        }
        // One in deletion is a record of its volume as well, and is held until the claim is gone: a marker would hold both for ever.
        // Where the role ends nobody may take the marker off later.
        let ends = self.observed.role == RolePhase::Stopping;
        let is_done = !self.wanted || ends || claim.is_bound() || self.observed.waited.for_binding;
        Some(if is_done {
            self.without_marker(ClaimReason::Saved)
        } else {
            wait(ClaimReason::WaitForBinding)
        })
    }

    /// Takes the marker off, where there is one. One of another driver stays.
    fn without_marker(&self, reason: ClaimReason) -> ClaimDecision {
        let observed = self.observed;
        let is_to_go = !matches!(self.marker, MarkerState::OfAnotherDriver(_));
        let driver = &observed.driver.name;
        let left_over =
            || MarkerState::is_left_over(observed.claim, driver).then(|| patch::forget_marker(observed.claim));
        let write = patch::unmark(observed.claim).or_else(left_over);
        let write = write.filter(|_| is_to_go && !observed.gone);
        decided(reason, write.map_or(ClaimAction::Ignore, ClaimAction::Unmark))
    }

    /// Rows 9 to 10: nobody wants a volume.
    fn unwanted(&self) -> ClaimDecision {
        let observed = self.observed;
        if !observed.creation.is_uncertain() {
            return self.without_marker(ClaimReason::Cancelled);
        }
        if let Some(decision) = self.released() {
            return decision;
        }
        if observed.role == RolePhase::Stopping {
            return wait(ClaimReason::Draining);
        }
        if let Some(plan) = observed.creation.uncertain_plan() {
            return self.call(plan.clone(), ClaimReason::FindOut);
        }
        match self.class() {
            Ok(class) => self.planned(class, ClaimReason::FindOut),
            Err(decision) => decision,
        }
    }

    /// Row 10a: a person lets the claim go, or asked for that in vain.
    fn released(&self) -> Option<ClaimDecision> {
        let observed = self.observed;
        // The marker of another driver is not ours to take off: that one answers.
        if observed.gone || matches!(self.marker, MarkerState::OfAnotherDriver(_)) {
            return None;
        }
        let obstacle = (!observed.waited.stuck).then_some(ReleaseRefusal::TooEarly);
        let action = match judge(observed.claim, obstacle, observed.now) {
            ClaimRelease::Granted(words) => ClaimAction::LetGo(patch::let_go(observed.claim)?, words),
            ClaimRelease::Refused(refusal, answer) => {
                ClaimAction::RefuseRelease(patch::refuse_release(observed.claim, &answer)?, refusal)
            }
            ClaimRelease::None => return None,
        };
        Some(decided(ClaimReason::LetGo, action))
    }

    /// Row 11: the role is switched off or ends.
    fn ending(&self) -> Option<ClaimDecision> {
        let is_uncertain = self.observed.creation.is_uncertain();
        match self.observed.role {
            RolePhase::Serving => None,
            // What is uncertain is finished first.
            RolePhase::Disabled if is_uncertain => None,
            RolePhase::Stopping if is_uncertain => Some(wait(ClaimReason::Draining)),
            RolePhase::Disabled | RolePhase::Stopping => Some(self.without_marker(ClaimReason::Draining)),
        }
    }

    /// Rows 12 to 20: somebody wants a volume.
    fn provision(&self) -> ClaimDecision {
        let (claim, creation) = (self.observed.claim, self.observed.creation);
        let is_uncertain = creation.is_uncertain();
        if !may_be_asked_for(claim) && !is_uncertain {
            if lacks_volume(claim) {
                let cause = ProvisionRefusal::BindCompleted;
                return decided(ClaimReason::Invalid, ClaimAction::Refuse(Box::new(cause)));
            }
            return self.without_marker(ClaimReason::NotNeeded);
        }
        if let Some(plan) = creation.uncertain_plan() {
            return self
                .mismatch()
                .unwrap_or_else(|| self.call(plan.clone(), ClaimReason::Create));
        }
        if self.observed.infeasible && !is_uncertain {
            return wait(ClaimReason::Infeasible);
        }
        let class = match self.class() {
            Ok(class) => class,
            Err(decision) => return decision,
        };
        if class.delayed && claim.selected_node.is_none() && !is_uncertain {
            return wait(ClaimReason::WaitForConsumer);
        }
        if claim
            .data_source
            .as_ref()
            .is_some_and(|source| !is_known_source(&source.group, &source.kind))
        {
            return wait(ClaimReason::Populator);
        }
        self.planned(class, ClaimReason::Create)
    }

    /// Row 12: the class, if it is this driver's and may be used.
    ///
    /// While nobody knows what a call did whose arguments this process does not have, only the class that it was made with may be used,
    /// whether the volume is wanted or not: with other parameters the driver may make a second volume, and a refusal of theirs says
    /// nothing of the first one. The specification lets a wanted claim go on; a volume that nothing names would be lost by that.
    fn class(&self) -> Result<&StorageClass, ClaimDecision> {
        let (claim, driver) = (self.observed.claim, self.observed.driver);
        let is_uncertain = self.observed.creation.is_uncertain();
        let class = match self.observed.class {
            Seen::Here(class) => class,
            Seen::Unknown => return Err(wait(ClaimReason::Syncing)),
            Seen::Gone => {
                let class = claim.class.clone();
                let cause = if is_uncertain {
                    let volume = self.name.into();
                    ProvisionRefusal::ClassNeeded { class, volume }
                } else {
                    ProvisionRefusal::ClassMissing { class }
                };
                return Err(self.told(ClaimReason::ClassMissing, cause));
            }
        };
        if !is_uncertain && !self.observed.classes_are_known {
            return Err(self.unconfirmed("StorageClasses"));
        }
        let is_own = is_own_class(&class.provisioner, driver);
        let has_topology = driver.capabilities.accessibility_constraints;
        // A volume that nobody wants is found where it was made, and deleted.
        let is_allowed = |marker: &Marker| !self.wanted || marker.is_allowed_by(class, has_topology);
        let is_other = |marker: &Marker| !marker.is_of_class(class) || !is_allowed(marker);
        if is_uncertain && (!is_own || self.marker.recorded().is_some_and(is_other)) {
            // Nobody corrects that by himself: it is told at once.
            let cause = ProvisionRefusal::ClassReplaced {
                class: class.name.clone(),
                volume: self.name.into(),
            };
            return Err(wait_for(ClaimReason::ClassReplaced, cause));
        }
        self.mismatch().map_or(Ok(class), Err)
    }

    /// What a first call is made from may have changed since its watch broke: a class may be deleted and made again with other parameters.
    fn unconfirmed(&self, what: &'static str) -> ClaimDecision {
        if self.observed.waited.for_class {
            wait_for(ClaimReason::Unconfirmed, ProvisionRefusal::Unconfirmed { what })
        } else {
            wait(ClaimReason::Syncing)
        }
    }

    /// The class names another provisioner than the claim. kube-controller-manager is about to correct that, and until it has, nobody knows
    /// whether the volume is wanted.
    fn mismatch(&self) -> Option<ClaimDecision> {
        let class = self.observed.class.here()?;
        if is_own_class(&class.provisioner, self.observed.driver) {
            return None;
        }
        let (class, named) = (class.name.clone(), class.provisioner.clone());
        let driver = self.observed.driver.name.clone();
        // For a migrated plug-in it writes the name of the driver, and nothing is corrected.
        if named.starts_with(IN_TREE_PREFIX) && *named != *NO_PROVISIONER {
            let cause = ProvisionRefusal::ClassInTree { class, named, driver };
            return Some(wait_for(ClaimReason::ClassMismatch, cause));
        }
        let cause = ProvisionRefusal::ClassMismatch { class, named, driver };
        Some(self.told(ClaimReason::ClassMismatch, cause))
    }

    /// A wait for the class, which is told when it lasts.
    fn told(&self, reason: ClaimReason, cause: ProvisionRefusal) -> ClaimDecision {
        if self.observed.waited.for_class {
            wait_for(reason, cause)
        } else {
            wait(reason)
        }
    }
}

/// The kinds of data sources that a provisioner serves itself; others are a volume populator's.
fn is_known_source(group: &str, kind: &str) -> bool {
    matches!(
        (group, kind),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    )
}
