//! What to do next about a PersistentVolumeClaim: the first rule that fits.

use std::sync::Arc;

use super::action::{ClaimAction, ClaimDecision, ClaimReason};
use super::creation::Creation;
use super::marker::{self, Marker, MarkerState, RecordedArguments};
use super::observed::{LeakProtection, ObservedClaim, ProvisionerSecretState, RolePhase, Seen};
use super::ownership::{is_own_claim, is_own_class};
use super::patch;
use super::persistent_volume::{is_of_claim, persistent_volume};
use super::refusal::ProvisionRefusal;
use super::release_request::{ClaimRelease, judge};
use super::request::{self, CreatePlan, DeletePlan};
use super::response::{NewVolume, UndoState};
use crate::objects::{ClaimPhase, ReclaimPolicy, StorageClass, Volume};

/// A claim with what several rules ask of it.
struct Subject<'a, 's> {
    observed: &'s ObservedClaim<'a>,
    marker: &'s MarkerState,
    /// The name of its volume.
    name: &'s str,
    /// Whether somebody wants a volume.
    wanted: bool,
}

fn decided(reason: ClaimReason, action: ClaimAction) -> ClaimDecision {
    ClaimDecision { reason, action }
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
    let was_called = is_created(observed) || observed.creation.uncertain_plan().is_some();
    // A marker that does not say whose it is, is that of the driver whose the claim is.
    if !is_own && !marker.is_recorded() && !was_called {
        return decided(ClaimReason::NotOwn, ClaimAction::Ignore);
    }
    if let MarkerState::OfAnotherDriver(other) = &marker {
        return wait_for(
            ClaimReason::MarkerOfAnotherDriver,
            ProvisionRefusal::MarkerOfAnotherDriver(crate::decide::cut(other, 128).into()),
        );
    }
    let name = match made_name(observed, &marker) {
        Ok(name) => name,
        Err(refusal) => return decided(ClaimReason::Invalid, ClaimAction::Refuse(Box::new(refusal))),
    };
    let names_other = claim.volume_name.as_deref().is_some_and(|volume| *volume != *name);
    let subject = Subject {
        observed,
        marker: &marker,
        name: &name,
        wanted: is_own && !observed.gone && claim.deleting.is_none() && !names_other,
    };
    subject.decide()
}

fn is_created(observed: &ObservedClaim<'_>) -> bool {
    matches!(observed.creation, Creation::Created(_))
}

/// The name of the volume: that of the plan that was used, else made from the UID.
fn made_name(observed: &ObservedClaim<'_>, marker: &MarkerState) -> Result<Box<str>, ProvisionRefusal> {
    match observed.creation {
        Creation::Created(volume) => return Ok(volume.plan.name.clone()),
        creation => {
            if let Some(plan) = creation.uncertain_plan() {
                return Ok(plan.name.clone());
            }
        }
    }
    let prefix = marker::prefix(marker, observed.policy);
    observed.policy.volume_name(prefix, &observed.claim.uid)
}

impl Subject<'_, '_> {
    fn decide(&self) -> ClaimDecision {
        let saved = match self.observed.saved {
            Seen::Unknown => return wait(ClaimReason::Syncing),
            Seen::Here(volume) => Some(volume),
            Seen::Gone => None,
        };
        if let Some(decision) = self.saved(saved) {
            return decision;
        }
        if let Creation::Created(volume) = self.observed.creation {
            return self.created(volume, saved.is_some());
        }
        if !self.wanted {
            return self.unwanted();
        }
        self.ending().unwrap_or_else(|| self.provision())
    }

    /// Rows 2 to 5: there is a PersistentVolume of the name.
    fn saved(&self, saved: Option<&Volume>) -> Option<ClaimDecision> {
        let claim = self.observed.claim;
        let Some(volume) = saved else {
            // A claim that was bound to the PersistentVolume had it, whatever became of it since.
            let was_bound = claim.phase != ClaimPhase::Pending && claim.volume_name.as_deref() == Some(self.name);
            return (was_bound && !is_created(self.observed)).then(|| self.without_marker(ClaimReason::Saved));
        };
        let is_driver = volume
            .spec
            .csi()
            .is_some_and(|source| source.driver == self.observed.driver.name);
        if !is_of_claim(volume, claim) || !is_driver {
            return self.wanted.then(|| {
                let volume = self.name.into();
                wait_for(ClaimReason::NameTaken, ProvisionRefusal::NameTaken { volume })
            });
        }
        if let Creation::Created(new) = self.observed.creation
            && volume.spec.csi().is_some_and(|source| source.handle != new.handle)
        {
            // Which of the two is in use is not known here: nothing is deleted.
            return Some(self.without_marker(ClaimReason::TwoVolumes));
        }
        if volume.deleting && self.wanted && claim.phase == ClaimPhase::Pending {
            // It does not bind any more. Its deletion knows the volume; after that the claim is provisioned anew.
            return Some(wait(ClaimReason::VolumeGoing));
        }
        // One in deletion is a record of its volume as well, and is held until the claim is gone: a marker would hold both for ever.
        let is_done = !self.wanted || claim.phase != ClaimPhase::Pending || self.observed.waited.for_binding;
        Some(if is_done {
            self.without_marker(ClaimReason::Saved)
        } else {
            wait(ClaimReason::WaitForBinding)
        })
    }

    /// Takes the marker off, where there is one.
    fn without_marker(&self, reason: ClaimReason) -> ClaimDecision {
        let write = patch::unmark(self.observed.claim).filter(|_| !self.observed.gone);
        decided(reason, write.map_or(ClaimAction::Ignore, ClaimAction::Unmark))
    }

    /// Rows 6 to 8: the volume is there, and no PersistentVolume of this claim is known.
    fn created(&self, volume: &NewVolume, name_taken: bool) -> ClaimDecision {
        let save = |reason| {
            let observed = self.observed;
            let body = persistent_volume(observed.claim, volume, observed.driver, &observed.policy.identity, None);
            decided(reason, ClaimAction::Save(body))
        };
        let is_faulty = volume.fault.is_some();
        if self.wanted && !is_faulty {
            return save(ClaimReason::SaveVolume);
        }
        if !self.wanted && volume.plan.volume.reclaim_policy != Some(ReclaimPolicy::Delete) {
            // A person decides what becomes of it.
            return if name_taken {
                self.name_taken()
            } else {
                save(ClaimReason::KeepVolume)
            };
        }
        if let Some(owner) = &volume.owner {
            return self.shared(volume, owner);
        }
        match self.observed.handle_owner {
            Seen::Unknown => return wait(ClaimReason::Syncing),
            Seen::Here(owner) => return self.shared(volume, owner),
            Seen::Gone => {}
        }
        if !self.observed.saved_is_live {
            // A PersistentVolume whose answer was lost may be there, and in use.
            return decided(ClaimReason::UndoVolume, ClaimAction::ReadVolume(self.name.into()));
        }
        if !self.wanted && volume.undo == UndoState::Failed && !name_taken {
            // So that the deletion of PersistentVolumes has a record of it.
            return save(ClaimReason::UndoVolume);
        }
        self.undo(volume)
    }

    fn undo(&self, volume: &NewVolume) -> ClaimDecision {
        if self.observed.role == RolePhase::Stopping {
            return wait(ClaimReason::Draining);
        }
        if let Some(decision) = self.secret(&volume.plan) {
            return decision;
        }
        let plan = DeletePlan {
            handle: volume.handle.clone(),
            secret: volume.plan.secret.clone(),
        };
        decided(ClaimReason::UndoVolume, ClaimAction::Undo(plan))
    }

    fn name_taken(&self) -> ClaimDecision {
        let volume = self.name.into();
        wait_for(ClaimReason::NameTaken, ProvisionRefusal::NameTaken { volume })
    }

    /// Row 8a: it is somebody's volume. Nothing is deleted.
    fn shared(&self, volume: &NewVolume, owner: &str) -> ClaimDecision {
        if !self.wanted {
            return self.without_marker(ClaimReason::HandleShared);
        }
        let cause = ProvisionRefusal::HandleShared {
            handle: crate::decide::cut(&volume.handle, 256).into(),
            owner: owner.into(),
        };
        wait_for(ClaimReason::HandleShared, cause)
    }

    /// Rows 9 to 10: nobody wants a volume.
    fn unwanted(&self) -> ClaimDecision {
        let observed = self.observed;
        if !observed.creation.is_uncertain() {
            return self.without_marker(ClaimReason::Cancelled);
        }
        match judge(observed.claim, observed.waited.stuck, observed.now) {
            ClaimRelease::Granted(words) => {
                if let Some(write) = patch::let_go(observed.claim) {
                    return decided(ClaimReason::LetGo, ClaimAction::LetGo(write, words));
                }
            }
            ClaimRelease::Refused(refusal, answer) => {
                if let Some(write) = patch::refuse_release(observed.claim, &answer).filter(|_| !observed.gone) {
                    return decided(ClaimReason::LetGo, ClaimAction::RefuseRelease(write, refusal));
                }
            }
            ClaimRelease::None => {}
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
        if claim.volume_name.is_some() && !is_uncertain {
            return self.without_marker(ClaimReason::NotNeeded);
        }
        if let Some(plan) = creation.uncertain_plan() {
            return self.call(plan.clone(), ClaimReason::Create);
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
    fn class(&self) -> Result<&StorageClass, ClaimDecision> {
        let (claim, driver) = (self.observed.claim, self.observed.driver);
        let told = |reason, cause| {
            if self.observed.waited.for_class {
                wait_for(reason, cause)
            } else {
                wait(reason)
            }
        };
        let class = match self.observed.class {
            Seen::Here(class) => class,
            Seen::Unknown => return Err(wait(ClaimReason::Syncing)),
            Seen::Gone => {
                let class = claim.class.clone();
                return Err(told(
                    ClaimReason::ClassMissing,
                    ProvisionRefusal::ClassMissing { class },
                ));
            }
        };
        if !is_own_class(&class.provisioner, driver) {
            let cause = ProvisionRefusal::ClassMismatch {
                class: class.name.clone(),
                named: class.provisioner.clone(),
                driver: driver.name.clone(),
            };
            return Err(told(ClaimReason::ClassMismatch, cause));
        }
        let is_other = |marker: &Marker| !marker.is_of_class(class);
        if !self.wanted && self.marker.recorded().is_some_and(is_other) {
            // With other parameters another volume may be found, and the one that was created is lost.
            let cause = ProvisionRefusal::ClassReplaced {
                class: class.name.clone(),
                volume: self.name.into(),
            };
            return Err(told(ClaimReason::ClassReplaced, cause));
        }
        Ok(class)
    }

    /// Rows 14, 16 and 17: what the volume is created with.
    fn planned(&self, class: &StorageClass, reason: ClaimReason) -> ClaimDecision {
        let observed = self.observed;
        let is_uncertain = observed.creation.is_uncertain();
        let has_topology = observed.driver.capabilities.accessibility_constraints;
        if has_topology && !observed.topology.complete {
            return wait(ClaimReason::Syncing);
        }
        if has_topology && class.delayed && !is_uncertain && observed.claim.selected_node.is_some() {
            if observed.node.is_unknown() {
                return wait(ClaimReason::Syncing);
            }
            if observed.node.is_gone()
                && let Some(write) = patch::reschedule(observed.claim)
            {
                return decided(ClaimReason::NodeGone, ClaimAction::Reschedule(write));
            }
        }
        let recorded = match self.marker.recorded() {
            Some(marker) if is_uncertain => marker.arguments(class, observed.topology),
            _ => RecordedArguments::default(),
        };
        match request::plan(observed, class, self.name, recorded) {
            Ok(plan) => self.call(Arc::new(plan), reason),
            Err(refusal) if refusal.is_missing_topology() => wait_for(ClaimReason::TopologyMissing, refusal),
            Err(refusal) => decided(ClaimReason::Invalid, ClaimAction::Refuse(Box::new(refusal))),
        }
    }

    /// Rows 15 and 18 to 20: the Secret, the marker, the call.
    fn call(&self, plan: Arc<CreatePlan>, reason: ClaimReason) -> ClaimDecision {
        if self.observed.role == RolePhase::Stopping {
            return wait(ClaimReason::Draining);
        }
        if let Some(decision) = self.secret(&plan).or_else(|| self.mark(&plan)) {
            return decision;
        }
        decided(reason, ClaimAction::Create(plan))
    }

    fn secret(&self, plan: &CreatePlan) -> Option<ClaimDecision> {
        let secret = plan.secret.clone()?;
        match self.observed.secret {
            ProvisionerSecretState::Loaded => None,
            ProvisionerSecretState::NotLoaded => {
                Some(decided(ClaimReason::LoadSecret, ClaimAction::LoadCredentials(secret)))
            }
            ProvisionerSecretState::Missing => Some(wait_for(
                ClaimReason::SecretMissing,
                ProvisionRefusal::SecretMissing { secret },
            )),
            ProvisionerSecretState::Unreadable => Some(wait_for(
                ClaimReason::SecretForbidden,
                ProvisionRefusal::SecretUnreadable { secret },
            )),
        }
    }

    /// The marker that must be on the claim before a call, or the look at the claim in its place.
    fn mark(&self, plan: &CreatePlan) -> Option<ClaimDecision> {
        let observed = self.observed;
        if observed.gone {
            return None;
        }
        let is_uncertain = observed.creation.is_uncertain();
        let is_marked = self.marker.is_own();
        let needs_marker = match observed.policy.leak_protection {
            _ if is_marked => !observed.marker_is_own,
            // A claim in deletion takes no finalizer any more.
            _ if !self.wanted => false,
            LeakProtection::Always => true,
            LeakProtection::WhenUncertain if is_uncertain => true,
            LeakProtection::WhenUncertain if !observed.claim_is_live => {
                return Some(decided(ClaimReason::Mark, ClaimAction::ReadClaim));
            }
            LeakProtection::WhenUncertain | LeakProtection::Never => false,
        };
        if !needs_marker {
            return None;
        }
        let prefix = self.marked_prefix();
        Some(match Marker::text(observed, prefix, plan) {
            Ok(text) => decided(ClaimReason::Mark, ClaimAction::Mark(patch::mark(observed.claim, &text))),
            Err(refusal) => decided(ClaimReason::Invalid, ClaimAction::Refuse(Box::new(refusal))),
        })
    }

    fn marked_prefix(&self) -> &str {
        let recorded = marker::prefix(self.marker, self.observed.policy);
        recorded.unwrap_or(&self.observed.policy.volume_name_prefix)
    }
}

/// The kinds of data sources that a provisioner serves itself; others are a volume populator's.
fn is_known_source(group: &str, kind: &str) -> bool {
    matches!(
        (group, kind),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    )
}
