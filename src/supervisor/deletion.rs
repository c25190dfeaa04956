//! What becomes of an AttacherConfig that is deleted while volumes of its driver are attached. Pure.
//!
//! With `deletionPolicy: WaitForDetach` the object carries a finalizer of ours, and the driver is served until nothing is
//! left to detach. The finalizers of VolumeAttachments and PersistentVolumes are never touched on that account.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::api::names::WAIT_FOR_DETACH_FINALIZER;
use crate::api::{AttacherConfigObject, DeletionPolicy};

/// Whether an object is served: one that is being deleted only while it waits for its volumes.
pub(super) fn is_served(object: &AttacherConfigObject) -> bool {
    object.metadata.deletion_timestamp.is_none()
        || (is_kept(&object.metadata) && policy(object) != Some(DeletionPolicy::Orphan))
}

/// Whether an object waits to be deleted until its volumes are detached.
pub(super) fn is_waiting(object: &AttacherConfigObject) -> bool {
    object.metadata.deletion_timestamp.is_some() && is_served(object)
}

/// The merge patch that puts our finalizer on an object or takes it off, if there is anything to change. `claimed` is the
/// number of VolumeAttachments that carry the operator's finalizer, if that is known.
pub(super) fn patch(object: &AttacherConfigObject, claimed: Option<usize>) -> Option<Value> {
    let meta = &object.metadata;
    let deleting = meta.deletion_timestamp.is_some();
    // What cannot be read does not say otherwise than before.
    let waits = policy(object).map_or(is_kept(meta), |policy| policy == DeletionPolicy::WaitForDetach);
    let keep = waits && !(deleting && claimed == Some(0));
    let others = meta.finalizers.iter().flatten();
    let others = others.filter(|entry| *entry != WAIT_FOR_DETACH_FINALIZER).cloned();
    let mut finalizers: Vec<String> = others.collect();
    match (is_kept(meta), keep) {
        (false, true) if !deleting => finalizers.push(WAIT_FOR_DETACH_FINALIZER.to_owned()),
        (true, false) => {}
        _ => return None,
    }
    // The version makes sure that the finalizers of others are those that were read.
    Some(json!({"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers,
    }}))
}

fn is_kept(meta: &ObjectMeta) -> bool {
    let mut finalizers = meta.finalizers.iter().flatten();
    finalizers.any(|entry| entry == WAIT_FOR_DETACH_FINALIZER)
}

fn policy(object: &AttacherConfigObject) -> Option<DeletionPolicy> {
    object.spec.as_ref().ok().map(|spec| spec.deletion_policy)
}
