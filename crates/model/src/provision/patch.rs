//! Patches of PersistentVolumeClaims and PersistentVolumes as values.
//!
//! All are JSON patches (RFC 6902) that test the UID and what they take away or add to, so that a write from a stale copy is refused (422).
//! kube-controller-manager writes claims with PUT from its cache: a patch of ours between its read and its write costs it one conflict,
//! and no field.

use serde_json::Value;
use std::sync::Arc;

use crate::api::names::{
    PROVISIONER_FINALIZER, PROVISIONING_MARKER, RELEASE_ANNOTATION, RELEASE_REFUSED_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
};
use crate::decide::json_patch::{
    add_annotation, add_finalizer, annotate, patch_of, remove_annotation, test, test_annotation, test_finalizer,
    test_no_annotation, test_version, without_finalizer,
};
use crate::decide::patch::{Write, on_volume};
use crate::objects::{Claim, ReclaimPolicy, ResourceVersion, Volume};

/// A JSON patch of a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimWrite {
    /// Namespace of the claim.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The patch.
    pub body: Value,
}

/// Puts the marker on a claim, before the first call. The patch is at the same time the live look at the claim: it is refused where the
/// claim is gone, was made again, is bound or is being deleted.
///
/// A marker that is there is written anew, on condition that nobody changed it: then a claim in deletion is fine.
pub fn mark(claim: &Claim, marker: &str) -> ClaimWrite {
    let mut operations = Vec::new();
    if let Some(places) = &claim.marker_at {
        operations.extend(places.iter().map(|at| test_finalizer(*at, PROVISIONING_MARKER)));
        operations.push(test_marker(claim));
    } else {
        // Unbound, or named by a person for the volume that an uncertain call may have created.
        operations.push(test("/spec/volumeName", claim.volume_name.as_deref()));
        operations.push(test("/metadata/deletionTimestamp", Value::Null));
        operations.extend(add_finalizer(&claim.finalizers, PROVISIONING_MARKER));
    }
    operations.extend(annotate(claim.has_annotations, &[(PROVISIONING_MARKER, marker)]));
    on_claim(claim, operations)
}

/// Takes the marker off a claim; none when it is not there. On condition that it is the one that was read.
pub fn unmark(claim: &Claim) -> Option<ClaimWrite> {
    Some(on_claim(claim, remove_marker(claim)?))
}

/// Takes off what is left of a marker whose finalizer is gone.
pub fn forget_marker(claim: &Claim) -> ClaimWrite {
    on_claim(claim, vec![test_marker(claim), remove_annotation(PROVISIONING_MARKER)])
}

/// Takes the selected node off a claim, and the marker if there is one: kube-scheduler selects again. None when no node is selected.
///
/// On condition that the marker is as it was read, also where there was none: a write that arrives late must not take the node off while
/// a later call is open (found by the model checker).
pub fn reschedule(claim: &Claim) -> Option<ClaimWrite> {
    let node = claim.selected_node.as_deref()?;
    let mut operations = remove_marker(claim).unwrap_or_else(|| vec![test_marker(claim)]);
    operations.push(test_annotation(SELECTED_NODE_ANNOTATION, node));
    operations.push(remove_annotation(SELECTED_NODE_ANNOTATION));
    Some(on_claim(claim, operations))
}

/// Takes the marker off because a person asked for it: on condition that the request still stands.
pub fn let_go(claim: &Claim) -> Option<ClaimWrite> {
    let mut operations = vec![requested(claim)?];
    operations.extend(remove_marker(claim)?);
    Some(on_claim(claim, operations))
}

/// Answers a request to let a claim go; none when there is no request.
pub fn refuse_release(claim: &Claim, answer: &str) -> Option<ClaimWrite> {
    let add = add_annotation(RELEASE_REFUSED_ANNOTATION, answer);
    Some(on_claim(claim, vec![requested(claim)?, add]))
}

/// Takes the finalizer of the provisioner off a PersistentVolume whose policy keeps the volume, on condition that it still does; none when
/// the policy is another one or the finalizer is not there.
pub fn keep_volume(volume: &Volume) -> Option<Write> {
    let policy = volume.lifecycle.reclaim_policy?;
    if !matches!(policy, ReclaimPolicy::Retain | ReclaimPolicy::Recycle) {
        return None;
    }
    let mut write = release_volume(volume)?;
    if let Value::Array(operations) = &mut write.body {
        operations.insert(0, test("/spec/persistentVolumeReclaimPolicy", policy.as_str()));
    }
    Some(write)
}

/// Takes the finalizer of the provisioner off a PersistentVolume; none when it is not there.
pub fn release_volume(volume: &Volume) -> Option<Write> {
    let places = volume.lifecycle.finalizer_at.as_deref()?.iter().copied();
    let operations = without_finalizer(places, PROVISIONER_FINALIZER)?;
    Some(on_volume(volume, operations))
}

/// The operations, on condition that the claim is still the one with this UID; and unchanged, where its list of finalizers is not known
/// as a whole.
fn on_claim(claim: &Claim, operations: Vec<Value>) -> ClaimWrite {
    let unchanged = (claim.finalizers.left_out() > 0).then(|| test_unchanged(claim));
    ClaimWrite {
        namespace: claim.namespace.clone(),
        name: claim.name.clone(),
        body: patch_of(&claim.uid, unchanged.into_iter().chain(operations)),
    }
}

/// That nobody has written the claim since it was read. A version that is no number was read as 0, and nothing can be said of it.
fn test_unchanged(claim: &Claim) -> Value {
    match claim.resource_version {
        ResourceVersion(0) => test("/metadata/uid", &*claim.uid),
        version => test_version(version),
    }
}

/// What takes the marker off, on condition that it is the one that was read; none when it is not there.
fn remove_marker(claim: &Claim) -> Option<Vec<Value>> {
    let places = claim.marker_at.as_deref()?.iter().copied();
    let mut operations = without_finalizer(places, PROVISIONING_MARKER)?;
    operations.push(test_marker(claim));
    if claim.marker.is_some() {
        operations.push(remove_annotation(PROVISIONING_MARKER));
    }
    Some(operations)
}

/// That the marker is the one that was read; of one that was left out, that nobody has written the claim.
fn test_marker(claim: &Claim) -> Value {
    match claim.marker.as_deref() {
        None if claim.marker_left_out => test_unchanged(claim),
        None => test_no_annotation(claim.has_annotations, PROVISIONING_MARKER),
        Some(marker) => test_annotation(PROVISIONING_MARKER, marker),
    }
}

/// That the request on the claim is the one that was read.
fn requested(claim: &Claim) -> Option<Value> {
    Some(test_annotation(RELEASE_ANNOTATION, claim.release.as_deref()?))
}
