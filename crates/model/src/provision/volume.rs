//! What to do next about a PersistentVolume: the first rule that fits. DeleteVolume is the one call that destroys data: whatever is not
//! known makes it wait.

use std::cmp::Ordering;
use std::sync::Arc;

use super::action::{ProvisionedVolumeAction as Action, VolumeDecision, VolumeReason, decided};
use super::creation::Deletion;
use super::driver::ProvisionerFacts;
use super::observed::{ObservedVolume, OwningClaim, ProvisionerSecretState, RolePhase};
use super::ownership::{is_own_class, is_own_volume, is_released, is_to_go, named_claim};
use super::parameters::ClassParameters;
use super::patch;
use super::persistent_volume::handle_of;
use super::plan::DeletePlan;
use super::refusal::ProvisionRefusal;
use super::secrets::{SecretFamily, TemplateContext};
use super::seen::Seen;
use crate::api::names::PROVISIONER_FINALIZER;
use crate::decide::patch::protect_volume;
use crate::objects::{
    CsiSource, DeletionSecret, ReclaimPolicy, SecretReference, StorageClass, Volume, VolumePhase, VolumeSource,
    is_blank,
};

fn wait(reason: VolumeReason) -> VolumeDecision {
    decided(reason, Action::Wait(None))
}

fn wait_for(reason: VolumeReason, cause: ProvisionRefusal) -> VolumeDecision {
    decided(reason, Action::Wait(Some(Box::new(cause))))
}

pub(super) fn decide(observed: &ObservedVolume<'_>) -> VolumeDecision {
    let volume = observed.volume;
    let lifecycle = &*volume.lifecycle;
    if !is_own_volume(volume, observed.driver) {
        return decided(VolumeReason::NotOwn, Action::Ignore);
    }
    if observed.deletion == Deletion::Deleted {
        return deleted(observed);
    }
    let is_delete = lifecycle.reclaim_policy == Some(ReclaimPolicy::Delete);
    // Nothing is called for that, so that a role that begins nothing does it as well.
    if observed.role != RolePhase::Stopping
        && let Some(write) = patch::keep_volume(volume)
    {
        return decided(VolumeReason::Retained, Action::Release(write));
    }
    let has_finalizer = lifecycle.finalizer_at.is_some();
    // A role that is switched off, or whose AttacherConfig is deleted, begins nothing; what is open, or waits for nobody else, is finished.
    // So is what one in deletion waits for: it would wait for ever.
    let is_waited_for = || observed.heir_is_deleting && is_released(volume, observed.driver);
    let is_in_deletion = volume.deleting && has_finalizer;
    let is_open = observed.deletion == Deletion::Uncertain || is_in_deletion || is_waited_for();
    match observed.role {
        RolePhase::Serving => {}
        RolePhase::Disabled if is_open => {}
        RolePhase::Disabled | RolePhase::Stopping => return decided(VolumeReason::Draining, Action::Ignore),
    }
    // A finalizer of ours would stay for ever where the driver deletes no volumes.
    let is_of_driver = volume.spec.csi().is_some_and(|source| is_deletable(observed, source));
    let may_protect = is_of_driver && observed.driver.capabilities.create_delete_volume;
    if is_delete && may_protect && lifecycle.phase == VolumePhase::Bound && !volume.deleting && !has_finalizer {
        let write = protect_volume(volume, PROVISIONER_FINALIZER);
        return decided(VolumeReason::Protect, Action::Protect(write));
    }
    match is_to_go(volume) {
        Some(true) => {}
        Some(false) => return decided(VolumeReason::NotReleased, Action::Ignore),
        None => return wait(VolumeReason::NeedsDecision),
    }
    if observed.policy.hold_deletions {
        return wait(VolumeReason::Held);
    }
    unused(observed).unwrap_or_else(|| delete(observed))
}

/// Rows 12 and 13: the volume is gone, whatever the object says by now.
fn deleted(observed: &ObservedVolume<'_>) -> VolumeDecision {
    let volume = observed.volume;
    if !volume.deleting {
        return decided(VolumeReason::RemoveVolume, Action::Remove(volume.uid.clone()));
    }
    let write = patch::release_volume(volume);
    decided(VolumeReason::Release, write.map_or(Action::Ignore, Action::Release))
}

/// Rows 7 to 9: why the volume may still be used; none when nothing says so.
fn unused(observed: &ObservedVolume<'_>) -> Option<VolumeDecision> {
    let not_known = || {
        Some(if observed.lacks_read {
            decided(VolumeReason::Confirm, Action::ReadVolume)
        } else {
            wait(VolumeReason::Syncing)
        })
    };
    match observed.sharer {
        Seen::Unknown => return not_known(),
        Seen::Here(owner) if observed.heir.is_none() => {
            let cause = ProvisionRefusal::handle_shared(handle_of(observed.volume), owner);
            return Some(wait_for(VolumeReason::HandleShared, cause));
        }
        Seen::Here(_) | Seen::Gone => {}
    }
    match observed.attached_to {
        Seen::Unknown => return not_known(),
        Seen::Here(_) => return Some(wait(VolumeReason::StillAttached)),
        Seen::Gone => {}
    }
    claim_of(observed)
}

/// Row 9: a claim that may use the volume, also where a person has decided.
///
/// A PersistentVolume whose `spec.claimRef` names a claim that is not there is Released, whatever claim is bound to it: so the claims that are
/// bound to it are looked for as well. No phase says that kube-controller-manager saw one of these go.
fn claim_of(observed: &ObservedVolume<'_>) -> Option<VolumeDecision> {
    named_claim_of(observed).or_else(|| match observed.bound {
        Seen::Gone => None,
        Seen::Unknown => Some(wait(VolumeReason::Syncing)),
        Seen::Here(_) if observed.bound_is_live => Some(wait(VolumeReason::ReleasedWhileBound)),
        Seen::Here(reference) => {
            let read = Action::ReadClaim(reference.clone());
            Some(decided(VolumeReason::ReleasedWhileBound, read))
        }
    })
}

/// The claim of `claimRef.uid`: one that is there may use the volume by the time of the call. Only Released says that
/// kube-controller-manager saw it go; any other phase asks for a live answer.
fn named_claim_of(observed: &ObservedVolume<'_>) -> Option<VolumeDecision> {
    let reference = named_claim(observed.volume)?;
    let must_look = observed.volume.lifecycle.phase != VolumePhase::Released;
    match observed.claim {
        OwningClaim::LiveGone => None,
        OwningClaim::NotCached if !must_look => None,
        OwningClaim::NotCached | OwningClaim::Cached => {
            let read = Action::ReadClaim(reference.clone());
            Some(decided(VolumeReason::ReleasedWhileBound, read))
        }
        OwningClaim::Live => Some(wait(VolumeReason::ReleasedWhileBound)),
        OwningClaim::Unknown => Some(wait(VolumeReason::Syncing)),
    }
}

/// The PersistentVolume that the volume of `volume` is left to; `sharers` are the others that have its handle. None where it is `volume`
/// itself that goes last, or one of them is not to be deleted. Each would wait for the others for ever.
pub fn heir<'s>(volume: &Volume, sharers: &'s [Arc<Volume>], driver: &ProvisionerFacts) -> Option<&'s Arc<Volume>> {
    last_to_go(sharers, driver).filter(|last| heir_order(last, volume).is_lt())
}

/// Of PersistentVolumes that have one handle, and are all to be deleted, the one with which the volume is deleted; none where one of them is
/// not to be deleted.
///
/// It is the first by name of those that our finalizer holds: any other one may go at any moment, and with it what is known of the volume.
pub fn last_to_go<'s>(volumes: &'s [Arc<Volume>], driver: &ProvisionerFacts) -> Option<&'s Arc<Volume>> {
    let all_go = volumes.iter().all(|volume| is_released(volume, driver));
    if !all_go {
        return None;
    }
    volumes.iter().min_by(|one, other| heir_order(one, other))
}

fn heir_order(one: &Volume, other: &Volume) -> Ordering {
    let is_held = |volume: &Volume| volume.lifecycle.finalizer_at.is_some();
    (!is_held(one), &one.name).cmp(&(!is_held(other), &other.name))
}

/// Nothing uses it, and its volume is deleted with another one: it goes as if the volume were gone. That the other one is there is the only
/// record of the volume then: so both are read live.
fn left(observed: &ObservedVolume<'_>, heir: &Arc<str>) -> VolumeDecision {
    if !observed.is_live {
        return decided(VolumeReason::Confirm, Action::ReadVolume);
    }
    if !observed.heir_is_live {
        return decided(VolumeReason::Confirm, Action::ReadHeir(heir.clone()));
    }
    decided(VolumeReason::LeftToAnother, deleted(observed).action)
}

/// Rows 10 and 11. The live read comes last: a request for a Secret may wait for long.
fn delete(observed: &ObservedVolume<'_>) -> VolumeDecision {
    let source = observed
        .volume
        .spec
        .csi()
        .filter(|source| is_deletable(observed, source));
    let Some(source) = source else {
        return decided(VolumeReason::NotCsi, Action::Wait(untranslated(observed)));
    };
    if let Some(heir) = observed.heir {
        return left(observed, heir);
    }
    if observed.is_away {
        return wait(VolumeReason::DriverAway);
    }
    if !observed.driver.capabilities.create_delete_volume {
        let cause = ProvisionRefusal::DeletionNotSupported(observed.driver.name.clone());
        return wait_for(VolumeReason::NotSupported, cause);
    }
    let secret = match secret(observed) {
        Ok(secret) => secret,
        Err(decision) => return decision,
    };
    let mut plan = DeletePlan {
        handle: source.handle.clone(),
        secret: None,
        migrated: observed.volume.in_tree.is_some(),
    };
    if let Some(secret) = secret {
        match observed.secret.of_wanted(observed.secret_of, &secret) {
            ProvisionerSecretState::NotLoaded => {
                return decided(VolumeReason::LoadSecret, Action::LoadCredentials(secret));
            }
            ProvisionerSecretState::Unreadable => {
                let cause = ProvisionRefusal::SecretUnreadable { secret };
                return wait_for(VolumeReason::SecretForbidden, cause);
            }
            ProvisionerSecretState::Loaded => plan.secret = Some(secret),
            // The driver may do without; it is told.
            ProvisionerSecretState::Missing => {}
        }
    }
    if observed.is_live {
        decided(VolumeReason::Delete, Action::Delete(plan))
    } else {
        decided(VolumeReason::Confirm, Action::ReadVolume)
    }
}

/// Why an in-tree volume has no handle: its volume is there all the same.
fn untranslated(observed: &ObservedVolume<'_>) -> Option<Box<ProvisionRefusal>> {
    let VolumeSource::Untranslated(error) = &observed.volume.spec.source else {
        return None;
    };
    Some(Box::new(ProvisionRefusal::Untranslated {
        volume: observed.volume.name.clone(),
        driver: observed.driver.name.clone(),
        error: error.clone(),
    }))
}

fn is_deletable(observed: &ObservedVolume<'_>, source: &CsiSource) -> bool {
    source.driver == observed.driver.name && !is_blank(&source.handle)
}

/// Whether the volume may have been made by this class: one of the driver, or of whoever made the volume, as an in-tree plug-in. A person may
/// name the class of another driver in a PersistentVolume: its Secret is not for this one.
fn may_have_made(class: &StorageClass, observed: &ObservedVolume<'_>) -> bool {
    let made_by = observed.volume.lifecycle.provisioned_by.as_deref();
    is_own_class(&class.provisioner, observed.driver) || made_by == Some(&*class.provisioner)
}

/// The Secret of DeleteVolume: that of the annotations; where they are missing, that of the class, as far as it can be known without the
/// claim.
fn secret(observed: &ObservedVolume<'_>) -> Result<Option<SecretReference>, VolumeDecision> {
    let namespace = observed.volume.claim.as_ref().map_or("", |claim| &claim.namespace);
    let refused = |cause: ProvisionRefusal| wait_for(VolumeReason::SecretForbidden, cause);
    let secret = match &observed.volume.lifecycle.deletion_secret {
        DeletionSecret::None => None,
        DeletionSecret::Named(secret) => Some(secret.clone()),
        DeletionSecret::Unrecorded => match observed.class {
            Seen::Unknown => return Err(wait(VolumeReason::Syncing)),
            Seen::Here(class) if may_have_made(class, observed) => {
                let context = TemplateContext {
                    volume: &observed.volume.name,
                    namespace,
                    name: observed.volume.claim.as_ref().map_or("", |claim| &claim.name),
                    claim: None,
                };
                let templates = ClassParameters::deletion_secrets(class).map_err(refused)?;
                templates
                    .resolve(SecretFamily::Provisioner, &context)
                    .map_err(refused)?
            }
            Seen::Here(_) | Seen::Gone => None,
        },
    };
    let Some(secret) = secret else { return Ok(None) };
    let checked = observed.policy.check_secret(&secret, namespace, &observed.driver.name);
    checked.map_err(refused)?;
    Ok(Some(secret))
}
