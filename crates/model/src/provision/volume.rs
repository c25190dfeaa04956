//! What to do next about a PersistentVolume: the first rule that fits. DeleteVolume is the one call that destroys data: whatever is not
//! known makes it wait.

use super::action::{ProvisionedVolumeAction as Action, VolumeDecision, VolumeReason};
use super::creation::Deletion;
use super::observed::{ObservedVolume, OwningClaim, ProvisionerSecretState, RolePhase};
use super::ownership::is_own_volume;
use super::parameters::ClassParameters;
use super::patch;
use super::plan::DeletePlan;
use super::refusal::ProvisionRefusal;
use super::secrets::{SecretFamily, TemplateContext};
use super::seen::Seen;
use crate::api::names::PROVISIONER_FINALIZER;
use crate::decide::patch::protect_volume;
use crate::objects::{CsiSource, DeletionSecret, ReclaimPolicy, SecretReference, VolumePhase, is_blank};

fn decided(reason: VolumeReason, action: Action) -> VolumeDecision {
    VolumeDecision { reason, action }
}

/// Decides about a PersistentVolume.
pub(super) fn decide(observed: &ObservedVolume<'_>) -> VolumeDecision {
    let volume = observed.volume;
    let lifecycle = &*volume.lifecycle;
    if !is_own_volume(volume, observed.driver) {
        return decided(VolumeReason::NotOwn, Action::Ignore);
    }
    if observed.deletion == Deletion::Deleted {
        return deleted(observed);
    }
    if observed.role != RolePhase::Serving {
        return decided(VolumeReason::Draining, Action::Ignore);
    }
    let is_delete = lifecycle.reclaim_policy == Some(ReclaimPolicy::Delete);
    if matches!(
        lifecycle.reclaim_policy,
        Some(ReclaimPolicy::Retain | ReclaimPolicy::Recycle)
    ) && let Some(write) = patch::release_volume(volume, None)
    {
        return decided(VolumeReason::Retained, Action::Release(write));
    }
    let has_finalizer = lifecycle.finalizer_at.is_some();
    if is_delete && lifecycle.phase == VolumePhase::Bound && !volume.deleting && !has_finalizer {
        let write = protect_volume(volume, PROVISIONER_FINALIZER);
        return decided(VolumeReason::Protect, Action::Protect(write));
    }
    let never_bound = lifecycle.phase == VolumePhase::Available || volume.claim.is_none();
    let is_decided = lifecycle.reclaim_requested;
    if is_delete && volume.deleting && never_bound && has_finalizer && !is_decided {
        return decided(VolumeReason::NeedsDecision, Action::Wait(None));
    }
    let is_released = matches!(lifecycle.phase, VolumePhase::Released | VolumePhase::Failed)
        || (never_bound && volume.deleting && is_decided);
    if !is_released || !is_delete || (volume.deleting && !has_finalizer) {
        return decided(VolumeReason::NotReleased, Action::Ignore);
    }
    if observed.is_held {
        return decided(VolumeReason::Held, Action::Wait(None));
    }
    unused(observed).unwrap_or_else(|| delete(observed))
}

/// Rows 12 and 13: the volume is gone, whatever the object says by now.
fn deleted(observed: &ObservedVolume<'_>) -> VolumeDecision {
    let volume = observed.volume;
    if !volume.deleting {
        let uid = volume.uid.clone();
        return decided(VolumeReason::RemoveVolume, Action::Remove { uid });
    }
    let write = patch::release_volume(volume, observed.attach_finalizer);
    decided(VolumeReason::Release, write.map_or(Action::Ignore, Action::Release))
}

/// Rows 7 to 10: why the volume may still be used; none when nothing says so.
fn unused(observed: &ObservedVolume<'_>) -> Option<VolumeDecision> {
    let wait = |reason| Some(decided(reason, Action::Wait(None)));
    match observed.sharer {
        Seen::Unknown => return wait(VolumeReason::Syncing),
        Seen::Here(owner) => {
            let handle = observed.volume.spec.csi().map_or("", |source| &source.handle);
            let cause = ProvisionRefusal::HandleShared {
                handle: crate::decide::cut(handle, 256).into(),
                owner: owner.into(),
            };
            return Some(decided(VolumeReason::HandleShared, Action::Wait(Some(Box::new(cause)))));
        }
        Seen::Gone => {}
    }
    match observed.attached_to {
        Seen::Unknown => return wait(VolumeReason::Syncing),
        Seen::Here(_) => return wait(VolumeReason::StillAttached),
        Seen::Gone => {}
    }
    if let Some(decision) = claim_of(observed) {
        return Some(decision);
    }
    (!observed.is_live).then(|| decided(VolumeReason::Confirm, Action::ReadVolume))
}

/// Row 9: the claim. A PersistentVolume that failed is deleted only where a live 404 names the claim.
fn claim_of(observed: &ObservedVolume<'_>) -> Option<VolumeDecision> {
    let reference = observed.volume.claim.as_deref()?;
    let must_look = observed.volume.lifecycle.phase == VolumePhase::Failed;
    match observed.claim {
        OwningClaim::LiveGone => None,
        OwningClaim::NotCached if !must_look => None,
        OwningClaim::NotCached | OwningClaim::Cached => {
            let read = Action::ReadClaim(reference.clone());
            Some(decided(VolumeReason::ReleasedWhileBound, read))
        }
        OwningClaim::Live => Some(decided(VolumeReason::ReleasedWhileBound, Action::Wait(None))),
        OwningClaim::Unknown => Some(decided(VolumeReason::Syncing, Action::Wait(None))),
    }
}

/// Row 11.
fn delete(observed: &ObservedVolume<'_>) -> VolumeDecision {
    let source = observed
        .volume
        .spec
        .csi()
        .filter(|source| is_deletable(observed, source));
    let Some(source) = source else {
        return decided(VolumeReason::NotCsi, Action::Wait(None));
    };
    let secret = match secret(observed) {
        Ok(secret) => secret,
        Err(decision) => return decision,
    };
    let mut plan = DeletePlan {
        handle: source.handle.clone(),
        secret: None,
    };
    if let Some(secret) = secret {
        let state = if observed.secret_of == Some(&secret) {
            observed.secret
        } else {
            ProvisionerSecretState::NotLoaded
        };
        match state {
            ProvisionerSecretState::NotLoaded => {
                return decided(VolumeReason::LoadSecret, Action::LoadCredentials(secret));
            }
            ProvisionerSecretState::Unreadable => {
                let cause = ProvisionRefusal::SecretUnreadable { secret };
                return decided(VolumeReason::SecretForbidden, Action::Wait(Some(Box::new(cause))));
            }
            ProvisionerSecretState::Loaded => plan.secret = Some(secret),
            // The driver may do without; it is told.
            ProvisionerSecretState::Missing => {}
        }
    }
    decided(VolumeReason::Delete, Action::Delete(plan))
}

fn is_deletable(observed: &ObservedVolume<'_>, source: &CsiSource) -> bool {
    source.driver == observed.driver.name && !is_blank(&source.handle)
}

/// The Secret of DeleteVolume: that of the annotations; where they are missing, that of the class, as far as it can be known without the
/// claim.
fn secret(observed: &ObservedVolume<'_>) -> Result<Option<SecretReference>, VolumeDecision> {
    let namespace = observed.volume.claim.as_ref().map_or("", |claim| &claim.namespace);
    let refused = |cause: ProvisionRefusal| decided(VolumeReason::SecretForbidden, Action::Wait(Some(Box::new(cause))));
    let secret = match &observed.volume.lifecycle.deletion_secret {
        DeletionSecret::None => None,
        DeletionSecret::Named(secret) => Some(secret.clone()),
        DeletionSecret::Unrecorded => match observed.class {
            Seen::Unknown => return Err(decided(VolumeReason::Syncing, Action::Wait(None))),
            Seen::Gone => None,
            Seen::Here(class) => {
                let context = TemplateContext {
                    volume: &observed.volume.name,
                    namespace,
                    name: observed.volume.claim.as_ref().map_or("", |claim| &claim.name),
                    claim: None,
                };
                let parameters = ClassParameters::of(class).map_err(refused)?;
                parameters
                    .secrets
                    .resolve(SecretFamily::Provisioner, &context)
                    .map_err(refused)?
            }
        },
    };
    let Some(secret) = secret else { return Ok(None) };
    let checked = observed.policy.check_secret(&secret, namespace, &observed.driver.name);
    checked.map_err(refused)?;
    Ok(Some(secret))
}
