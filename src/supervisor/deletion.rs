//! What becomes of an AttacherConfig that is deleted while volumes of its driver are attached. Pure.
//!
//! With `deletionPolicy: WaitForDetach` the object carries a finalizer of ours, and the driver is served until nothing is
//! left to detach or release, other than what another AttacherConfig works for, or will as its spec names the driver, and goes on
//! with. Meanwhile nothing new is claimed, by no replica: the settings of a driver whose AttacherConfig is being deleted say so. Only
//! when no claim is being written, and lists that began afterwards show nothing that is claimed, is the finalizer taken off.
//! The finalizers of VolumeAttachments and PersistentVolumes are never touched on that account.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use std::sync::Arc;

use crate::api::names::{CONFIRM_CAPABILITY_LOST_ANNOTATION, WAIT_FOR_DETACH_FINALIZER};
use crate::api::{AttacherConfigObject, DeletionPolicy};

/// Whether an object is served: one that is being deleted only while it waits for its volumes.
pub(super) fn is_served(object: &AttacherConfigObject) -> bool {
    object.metadata.deletion_timestamp.is_none()
        || (is_kept(&object.metadata) && policy(object) != Some(DeletionPolicy::Orphan))
}

/// Whether an object that is not being deleted is to have our finalizer.
pub(super) fn is_to_be_protected(object: &AttacherConfigObject) -> bool {
    object.metadata.deletion_timestamp.is_none() && policy(object) == Some(DeletionPolicy::WaitForDetach)
}

/// Whether an object waits to be deleted until its volumes are detached.
pub(super) fn is_waiting(object: &AttacherConfigObject) -> bool {
    object.metadata.deletion_timestamp.is_some() && is_served(object)
}

/// The finalizers of others that keep an object which is being deleted and not served any more, in words; none where there are none.
pub(super) fn kept_by(object: &AttacherConfigObject) -> Option<String> {
    let others: Vec<&str> = others(&object.metadata).collect();
    (!is_served(object) && !others.is_empty()).then(|| others.join(", "))
}

/// What is to be said of the deletion of an AttacherConfig.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeletionState {
    /// The finalizers that keep it though it is not served any more; see [`kept_by`].
    pub kept_by: Option<String>,
    /// Whether the name of its driver is not known, so that it waits for what may be of its driver.
    pub is_unnamed: bool,
    /// Whether its spec cannot be read, so that its policy is that of before.
    pub is_unreadable: bool,
    /// What it waits for; none when it does not wait, or when that is not known yet.
    pub remaining: Option<Remaining>,
    /// Why `spec.deletionPolicy` is not in effect.
    pub problem: Option<String>,
}

/// What an AttacherConfig waits for to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    /// How many VolumeAttachments of the driver carry the operator's finalizer, or get it again.
    pub attachments: usize,
    /// The PersistentVolumes that are being deleted and carry it.
    pub volumes: Vec<Arc<str>>,
    /// How many PersistentVolumeClaims carry a marker of the driver, which nobody else would take off; none when that is not known,
    /// and then the volumes of provisioning are not either.
    pub claims: Option<usize>,
}

impl Remaining {
    pub const fn nothing() -> Self {
        Self {
            attachments: 0,
            volumes: Vec::new(),
            claims: Some(0),
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::nothing()
    }

    /// What is waited for, in words.
    pub fn words(&self) -> String {
        let mut parts = Vec::new();
        match self.attachments {
            0 => {}
            1 => parts.push("1 VolumeAttachment is detached".to_owned()),
            count => parts.push(format!("{count} VolumeAttachments are detached")),
        }
        match &*self.volumes {
            [] => {}
            [name] => parts.push(format!("1 PersistentVolume that is being deleted ({name}) is released")),
            [name, ..] => parts.push(format!(
                "{} PersistentVolumes that are being deleted ({name} for one) are released",
                self.volumes.len()
            )),
        }
        match self.claims {
            None => parts.push("the PersistentVolumeClaims can be read".to_owned()),
            Some(0) => {}
            Some(1) => parts.push("the volume of 1 PersistentVolumeClaim is created or not".to_owned()),
            Some(count) => parts.push(format!(
                "the volumes of {count} PersistentVolumeClaims are created or not"
            )),
        }
        if parts.is_empty() {
            "the operator has verified that nothing is left to detach".to_owned()
        } else {
            parts.join(" and ")
        }
    }
}

/// The merge patch that puts our finalizer on an object or takes it off, and which of these, if there is anything to change. `done` says
/// that the object waits for nothing any more.
pub(super) fn patch(object: &AttacherConfigObject, done: bool) -> Option<(MetadataChange, Value)> {
    let meta = &object.metadata;
    let deleting = meta.deletion_timestamp.is_some();
    // What cannot be read does not say otherwise than before.
    let waits = policy(object).map_or(is_kept(meta), |policy| policy == DeletionPolicy::WaitForDetach);
    let keep = waits && !(deleting && done);
    let mut finalizers: Vec<String> = others(meta).map(ToOwned::to_owned).collect();
    let change = match (is_kept(meta), keep) {
        (false, true) if !deleting => {
            finalizers.push(WAIT_FOR_DETACH_FINALIZER.to_owned());
            MetadataChange::Protect
        }
        (true, false) if deleting => MetadataChange::LetGo,
        (true, false) => MetadataChange::Unprotect,
        _ => return None,
    };
    // The version makes sure that the finalizers of others are those that were read.
    let metadata = json!({"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers});
    Some((change, json!({ "metadata": metadata })))
}

/// The merge patch that takes away a confirmation that a driver does not attach any more, when there is one and the driver
/// publishes: left there, it would count when the capability is lost the next time.
pub(super) fn withdraw_confirmation(object: &AttacherConfigObject, publishes: bool) -> Option<(MetadataChange, Value)> {
    object.capability_lost_confirmed_for().filter(|_| publishes)?;
    let meta = &object.metadata;
    let patch = json!({"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version,
        "annotations": {CONFIRM_CAPABILITY_LOST_ANNOTATION: null},
    }});
    Some((MetadataChange::WithdrawConfirmation, patch))
}

/// What a patch does, which is known again when somebody else undoes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MetadataChange {
    /// Puts our finalizer on an object.
    Protect,
    /// Takes it off, as the policy asks for it no more.
    Unprotect,
    /// Takes it off an object that is being deleted. The API server takes no new ones there, so that nobody undoes it.
    LetGo,
    /// Takes away a confirmation that is used up.
    WithdrawConfirmation,
}

/// The finalizers that are not ours.
fn others(meta: &ObjectMeta) -> impl Iterator<Item = &str> {
    let finalizers = meta.finalizers.iter().flatten().map(String::as_str);
    finalizers.filter(|entry| *entry != WAIT_FOR_DETACH_FINALIZER)
}

fn is_kept(meta: &ObjectMeta) -> bool {
    let mut finalizers = meta.finalizers.iter().flatten();
    finalizers.any(|entry| entry == WAIT_FOR_DETACH_FINALIZER)
}

fn policy(object: &AttacherConfigObject) -> Option<DeletionPolicy> {
    object.spec.as_ref().ok().map(|spec| spec.deletion_policy)
}
