//! A volume that is there, and that no PersistentVolume of the claim is known to name.

use super::{Subject, decided, wait, wait_for, would_be_bound};
use crate::objects::ReclaimPolicy;
use crate::provision::action::{ClaimAction, ClaimDecision, ClaimReason};
use crate::provision::observed::RolePhase;
use crate::provision::persistent_volume::persistent_volume;
use crate::provision::plan::DeletePlan;
use crate::provision::refusal::{ProvisionRefusal, cut_handle};
use crate::provision::response::NewVolume;
use crate::provision::seen::Seen;

impl Subject<'_, '_> {
    /// Rows 6 to 8: the volume is there, and no PersistentVolume of this claim is known.
    pub(super) fn created(&self, volume: &NewVolume, name_taken: bool) -> ClaimDecision {
        let decision = self.next_of_created(volume, name_taken);
        // Where nothing can be done here for a claim that nobody wants, a person may.
        let is_stuck = !self.wanted
            && match decision.action {
                ClaimAction::Wait(Some(_)) => true,
                ClaimAction::Save(_) => self.observed.save_failed,
                _ => false,
            };
        let released = if is_stuck { self.released() } else { None };
        released.unwrap_or(decision)
    }

    fn next_of_created(&self, volume: &NewVolume, name_taken: bool) -> ClaimDecision {
        let save = |reason| {
            let observed = self.observed;
            let body = persistent_volume(observed.claim, volume, observed.driver, &observed.policy.identity);
            decided(reason, ClaimAction::Save(body))
        };
        if self.wanted && volume.is_usable() {
            // Where the volume is known to nobody else it is saved all the same, and also where there is no other time.
            let may_wait = self.marker.may_be_open() && self.observed.role != RolePhase::Stopping;
            let mismatch = if may_wait { self.mismatch() } else { None };
            return mismatch.unwrap_or_else(|| save(ClaimReason::SaveVolume));
        }
        if let Some(owner) = &volume.owner {
            return self.shared(volume, owner);
        }
        match self.observed.handle_owner {
            Seen::Unknown => return wait(ClaimReason::Syncing),
            Seen::Here(owner) => return self.shared(volume, owner),
            Seen::Gone => {}
        }
        // kube-controller-manager would bind the claim to a PersistentVolume that names it: one that is about to be deleted, or of a driver
        // that the claim does not name any more.
        let would_be_bound = would_be_bound(self.observed.claim, self.observed.gone, self.name);
        if !self.wanted && volume.plan.volume.reclaim_policy != Some(ReclaimPolicy::Delete) {
            // A person decides what becomes of it.
            return match (name_taken, would_be_bound) {
                (true, _) => self.name_taken(),
                (false, true) => self.unrecorded(volume),
                (false, false) => save(ClaimReason::KeepVolume),
            };
        }
        if !self.observed.saved_is_live {
            // A PersistentVolume whose answer was lost may be there, and in use.
            return decided(ClaimReason::UndoVolume, ClaimAction::ReadVolume(self.name.into()));
        }
        let held = self.observed.policy.hold_deletions;
        // Where nothing can be called, and no marker says that there is a volume, this process alone knows of it. The last copy of a claim
        // that is gone says nothing.
        let is_marked = self.marker.may_be_open() && !self.observed.gone;
        let is_last = self.no_call(ProvisionRefusal::DeletionNotSupported).is_some() && !is_marked;
        let is_attached = matches!(self.observed.attached_to, Seen::Here(_));
        if !would_be_bound && (volume.undo_failed || held || is_last || is_attached) && !name_taken {
            // So that the deletion of PersistentVolumes has a record of it, and waits for what it has to wait for.
            return save(ClaimReason::UndoVolume);
        }
        if held {
            let handle = cut_handle(&volume.handle).into();
            return wait_for(ClaimReason::Held, ProvisionRefusal::DeletionHeld { handle });
        }
        match self.observed.attached_to {
            Seen::Unknown => wait(ClaimReason::Syncing),
            Seen::Here(nodes) => {
                let handle = cut_handle(&volume.handle).into();
                let nodes = nodes.into();
                wait_for(
                    ClaimReason::StillAttached,
                    ProvisionRefusal::StillAttached { handle, nodes },
                )
            }
            Seen::Gone => self.undo(volume),
        }
    }

    pub(super) fn undo(&self, volume: &NewVolume) -> ClaimDecision {
        if let Some(decision) = self.no_call(ProvisionRefusal::DeletionNotSupported) {
            return decision;
        }
        let secret = match self.secret(&volume.plan) {
            None => volume.plan.secret.clone(),
            // As in the deletion of PersistentVolumes: the driver may do without, and it is told. A volume that somebody wants is not given
            // up for that.
            Some(decision) if !self.wanted && decision.reason == ClaimReason::SecretMissing => None,
            Some(decision) => return decision,
        };
        let plan = DeletePlan {
            handle: volume.handle.clone(),
            secret,
            migrated: false,
        };
        decided(ClaimReason::UndoVolume, ClaimAction::Undo(plan))
    }

    /// Nobody may delete the volume, and no PersistentVolume may name it yet.
    fn unrecorded(&self, volume: &NewVolume) -> ClaimDecision {
        let cause = ProvisionRefusal::VolumeUnrecorded {
            handle: cut_handle(&volume.handle).into(),
            driver: self.observed.driver.name.clone(),
        };
        wait_for(ClaimReason::KeepVolume, cause)
    }

    pub(super) fn name_taken(&self) -> ClaimDecision {
        let volume = self.name.into();
        wait_for(ClaimReason::NameTaken, ProvisionRefusal::NameTaken { volume })
    }

    /// Row 8a: it is somebody's volume. Nothing is deleted.
    fn shared(&self, volume: &NewVolume, owner: &str) -> ClaimDecision {
        if !self.wanted {
            return self.without_marker(ClaimReason::HandleShared);
        }
        let cause = ProvisionRefusal::handle_shared(&volume.handle, owner);
        wait_for(ClaimReason::HandleShared, cause)
    }
}
