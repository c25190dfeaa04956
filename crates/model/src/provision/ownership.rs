//! Whose a PersistentVolumeClaim or a PersistentVolume is, and which of them need work at all.

use super::driver::ProvisionerFacts;
use super::marker::MarkerState;
use super::persistent_volume::is_of_claim;
use crate::objects::{Claim, ClaimReference, ReclaimPolicy, Volume, VolumePhase, is_blank};

/// Whether a claim is to be provisioned by a driver: its annotation names the driver, or the in-tree plug-in that the driver took over
/// together with the driver.
pub fn is_own_claim(claim: &Claim, driver: &ProvisionerFacts) -> bool {
    let name = &*driver.name;
    let provisioner = claim.provisioner.as_deref();
    let by_in_tree = driver.in_tree.is_some() && provisioner == driver.in_tree.as_deref();
    provisioner == Some(name) || (by_in_tree && claim.migrated_to.as_deref() == Some(name))
}

/// Whether kube-controller-manager may ask a provisioner for the volume of a claim. It binds one that names a PersistentVolume, or no class,
/// to what there is, and one that it takes for bound to nothing more: where that has the annotation of a provisioner, somebody else put it
/// there, as a restore does.
pub fn may_be_asked_for(claim: &Claim) -> bool {
    lacks_volume(claim) && !claim.is_bound()
}

/// The same, whether kube-controller-manager takes the claim for bound or not.
pub(super) fn lacks_volume(claim: &Claim) -> bool {
    claim.volume_name.is_none() && !claim.class.is_empty()
}

/// Whether a class is one of a driver.
pub fn is_own_class(provisioner: &str, driver: &ProvisionerFacts) -> bool {
    *provisioner == *driver.name || driver.in_tree.as_deref() == Some(provisioner)
}

/// Whether the volume of a PersistentVolume is deleted by a driver.
///
/// The annotation `pv.kubernetes.io/provisioned-by` says it. Without it a CSI volume is its driver's: one that a person made, and gave the
/// policy Delete.
pub fn is_own_volume(volume: &Volume, driver: &ProvisionerFacts) -> bool {
    let lifecycle = &*volume.lifecycle;
    let is_migrated = lifecycle.migrated_to.as_deref() == Some(&*driver.name);
    if let Some(provisioner) = lifecycle.provisioned_by.as_deref() {
        return is_migrated || is_own_class(provisioner, driver);
    }
    let is_of_driver = volume.spec.csi().is_some_and(|source| source.driver == driver.name);
    is_migrated || (is_of_driver && volume.in_tree.is_none())
}

/// Whether the claim that is there under the name of `spec.claimRef` may use the volume of a PersistentVolume.
///
/// One that is bound to it, as kube-controller-manager takes it, does, whatever UID `claimRef` has: somebody may have edited that, or
/// restored the claim from a dump. One that is bound elsewhere does not, as `spec.volumeName` never changes once it is set. One that is not
/// bound does when its UID is the one of `claimRef`.
pub fn is_of_volume(claim: &Claim, volume: &Volume) -> bool {
    match claim.volume_name.as_deref() {
        Some(name) if *name != *volume.name => false,
        Some(_) if claim.is_bound() => true,
        _ => is_of_claim(volume, claim),
    }
}

/// Whether a claim may need work, as it alone says. A start with 50,000 bound claims queues none of them.
pub fn needs_claim_work(claim: &Claim, driver: &ProvisionerFacts) -> bool {
    if claim.marker_at.is_some() {
        let marker = MarkerState::of(claim, &driver.name);
        // A claim that waits for the marker of another driver is told why.
        let may_wait = marker.is_own() || claim.volume_name.is_none();
        return marker.is_recorded() || (may_wait && is_own_claim(claim, driver));
    }
    // One that is taken for bound, and names no PersistentVolume, is told why it gets none.
    lacks_volume(claim) && claim.deleting.is_none() && is_own_claim(claim, driver)
}

/// Whether the volume of a PersistentVolume is to be deleted by a driver unless something keeps it, as the PersistentVolume alone says:
/// these are the volumes that `spec.provisioning.deletion: Hold` keeps.
pub fn is_released(volume: &Volume, driver: &ProvisionerFacts) -> bool {
    is_to_go(volume) == Some(true) && is_own_volume(volume, driver)
}

/// The same, whosever it is; none where a person has to decide.
pub(super) fn is_to_go(volume: &Volume) -> Option<bool> {
    let lifecycle = &*volume.lifecycle;
    let (has_finalizer, was_bound) = (lifecycle.finalizer_at.is_some(), was_bound(volume));
    let is_gone = if was_bound {
        matches!(lifecycle.phase, VolumePhase::Released | VolumePhase::Failed)
    } else {
        // Else nobody said that a claim is gone.
        volume.deleting
    };
    let is_held = !volume.deleting || has_finalizer;
    if lifecycle.reclaim_policy != Some(ReclaimPolicy::Delete) || !is_held || !is_gone {
        return Some(false);
    }
    // Where no provisioner made it, and none has protected it while it was bound, it is not known what it was left for.
    let is_known = was_bound && (lifecycle.provisioned_by.is_some() || has_finalizer);
    (is_known || lifecycle.reclaim_requested).then_some(true)
}

/// Whether a PersistentVolume may need work, as it alone says.
pub fn needs_volume_work(volume: &Volume, driver: &ProvisionerFacts) -> bool {
    let lifecycle = &*volume.lifecycle;
    let has_finalizer = lifecycle.finalizer_at.is_some();
    let may_need = match lifecycle.reclaim_policy {
        Some(ReclaimPolicy::Delete) => match lifecycle.phase {
            VolumePhase::Released | VolumePhase::Failed if was_bound(volume) => !volume.deleting || has_finalizer,
            VolumePhase::Bound => !volume.deleting && !has_finalizer,
            _ => volume.deleting && has_finalizer,
        },
        Some(ReclaimPolicy::Retain | ReclaimPolicy::Recycle) => has_finalizer,
        Some(ReclaimPolicy::Other) | None => false,
    };
    may_need && is_own_volume(volume, driver)
}

fn was_bound(volume: &Volume) -> bool {
    named_claim(volume).is_some() && !matches!(volume.lifecycle.phase, VolumePhase::Available | VolumePhase::Pending)
}

/// The claim that it names. One whose `spec.claimRef` has no UID is free for a claim, as kube-controller-manager sees it, whatever its phase
/// says: so a person takes a Released PersistentVolume back.
pub fn named_claim(volume: &Volume) -> Option<&ClaimReference> {
    let claim = volume.claim.as_deref()?;
    let parts = [&claim.uid, &claim.namespace, &claim.name];
    (!parts.iter().any(|part| is_blank(part))).then_some(claim)
}
