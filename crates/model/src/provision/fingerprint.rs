//! A hash of what a decision reads: it differs after a change that may help, and not after an echo of our own writes.
//!
//! Our marker, our finalizers and our answers to requests are therefore not part of it, nor is the version of an object. A person who asks
//! for a retry is heard otherwise ([`RetryRequests`](super::attempt::RetryRequests)): not more often than now and then.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::marker::MarkerState;
use super::observed::{ObservedClaim, ObservedVolume};
use super::secrets::SecretTemplates;
use super::seen::Seen;
use crate::objects::{Claim, StorageClass};

/// Fingerprint of everything that decides about a claim.
pub fn claim_fingerprint(observed: &ObservedClaim<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let claim = observed.claim;
    (&claim.uid, claim.deleting.is_some(), observed.gone).hash(&mut hasher);
    (&claim.volume_name, &claim.phase, claim.bind_completed).hash(&mut hasher);
    (&claim.provisioner, &claim.migrated_to).hash(&mut hasher);
    (&claim.class, &claim.selected_node).hash(&mut hasher);
    // Of what is wanted it lets nothing go, and users of a namespace can write it.
    let may_release = claim.deleting.is_some() || observed.gone;
    claim.release.as_ref().filter(|_| may_release).hash(&mut hasher);
    let marker = MarkerState::of(claim, &observed.driver.name);
    matches!(marker, MarkerState::OfAnotherDriver(_)).hash(&mut hasher);
    hash_annotations(claim, observed.class, &mut hasher);
    hash_class(observed.class, &mut hasher);
    std::mem::discriminant(&observed.saved).hash(&mut hasher);
    if let Seen::Here(volume) = observed.saved {
        (&volume.uid, volume.deleting).hash(&mut hasher);
    }
    hash_seen(observed.handle_owner, &mut hasher);
    if observed.driver.capabilities.accessibility_constraints {
        hash_seen(observed.node.labels.as_ref(), &mut hasher);
        hash_seen(observed.node.keys.as_deref(), &mut hasher);
        if !is_placed(claim, observed.class) {
            observed.topology.digest().hash(&mut hasher);
        }
    }
    observed.driver.capabilities.create_delete_volume.hash(&mut hasher);
    hasher.finish()
}

/// Whether no other node than the selected one counts. Where none is selected, or that does not count, any node may bring what is missing.
pub(super) fn is_placed(claim: &Claim, class: Seen<&StorageClass>) -> bool {
    claim.selected_node.is_some() && class.here().is_none_or(|class| class.delayed)
}

/// Fingerprint of everything that decides about a PersistentVolume.
pub fn volume_fingerprint(observed: &ObservedVolume<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let volume = observed.volume;
    let lifecycle = &*volume.lifecycle;
    let claim = volume.claim.as_ref().map(|claim| &claim.uid);
    (&volume.uid, volume.deleting, claim).hash(&mut hasher);
    (&lifecycle.phase, &lifecycle.reclaim_policy, lifecycle.reclaim_requested).hash(&mut hasher);
    lifecycle.deletion_secret.hash(&mut hasher);
    hash_class(observed.class, &mut hasher);
    hash_seen(observed.sharer, &mut hasher);
    (observed.heir, observed.heir_is_deleting).hash(&mut hasher);
    // An in-tree source is translated with labels.
    volume.spec.csi().is_some().hash(&mut hasher);
    hash_seen(observed.attached_to, &mut hasher);
    std::mem::discriminant(&observed.bound).hash(&mut hasher);
    observed.policy.hold_deletions.hash(&mut hasher);
    hasher.finish()
}

fn hash_seen<T: Hash>(seen: Seen<T>, hasher: &mut DefaultHasher) {
    std::mem::discriminant(&seen).hash(hasher);
    if let Seen::Here(object) = seen {
        object.hash(hasher);
    }
}

/// Only the annotations count that templates of the class read: many controllers write others, and each would end a hold.
fn hash_annotations(claim: &Claim, class: Seen<&StorageClass>, hasher: &mut DefaultHasher) {
    let Some(Ok(templates)) = class.here().map(SecretTemplates::of) else {
        return;
    };
    for key in templates.annotations() {
        (claim.annotations.get(key), claim.annotations_left_out).hash(hasher);
    }
}

fn hash_class(class: Seen<&StorageClass>, hasher: &mut DefaultHasher) {
    std::mem::discriminant(&class).hash(hasher);
    if let Seen::Here(class) = class {
        (&class.uid, &class.told_hash, &class.allowed_hash).hash(hasher);
    }
}
