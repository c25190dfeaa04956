//! The PersistentVolume that is written for a new volume, field by field as external-provisioner writes it.

use serde_json::{Map, Value, json};

use super::driver::ProvisionerFacts;
use super::quantity::format_bytes;
use super::response::NewVolume;
use super::secrets::SecretFamily;
use super::topology::Segment;
use crate::api::names::{
    DELETION_SECRET_NAME_ANNOTATION, DELETION_SECRET_NAMESPACE_ANNOTATION, MODIFY_SECRET_NAME_ANNOTATION,
    MODIFY_SECRET_NAMESPACE_ANNOTATION, PROVISIONED_BY_ANNOTATION, PROVISIONER_FINALIZER,
    PROVISIONER_IDENTITY_ATTRIBUTE,
};
use crate::objects::{Claim, ReclaimPolicy, ResourceVersion, SecretReference, Volume, VolumeMode};

/// The PersistentVolume of a new volume, for a POST. `identity` says which process created it.
pub fn persistent_volume(claim: &Claim, volume: &NewVolume, driver: &ProvisionerFacts, identity: &str) -> Value {
    let template = &volume.plan.volume;
    let mut metadata = json!({"name": &*volume.plan.name, "annotations": annotations(volume)});
    if template.reclaim_policy == Some(ReclaimPolicy::Delete) {
        // The sidecar sets it always, and takes it off again for another policy: one write more.
        metadata["finalizers"] = json!([PROVISIONER_FINALIZER]);
    }
    let modes: Vec<&str> = template.access_modes.iter().map(|mode| mode.as_str()).collect();
    let mut spec = json!({
        "capacity": {"storage": format_bytes(volume.capacity_bytes)},
        "accessModes": modes,
        "storageClassName": &*template.class,
        "claimRef": claim_reference(claim),
        "csi": csi_source(volume, driver, identity),
    });
    if !template.mount_options.is_empty() {
        spec["mountOptions"] = template.mount_options.iter().map(|option| &**option).collect();
    }
    if let Some(mode) = template.volume_mode {
        let is_block = mode == VolumeMode::Block;
        spec["volumeMode"] = if is_block { "Block" } else { "Filesystem" }.into();
    }
    if let Some(policy) = template.reclaim_policy.filter(|policy| !policy.as_str().is_empty()) {
        spec["persistentVolumeReclaimPolicy"] = policy.as_str().into();
    }
    if let Some(affinity) = node_affinity(&volume.topology) {
        spec["nodeAffinity"] = affinity;
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec})
}

fn annotations(volume: &NewVolume) -> Value {
    let plan = &volume.plan;
    // Both are empty where there is none: DeleteVolume then needs no class to know.
    let secret = plan.secret.as_ref();
    let mut annotations = json!({
        PROVISIONED_BY_ANNOTATION: &*plan.volume.provisioner,
        DELETION_SECRET_NAME_ANNOTATION: secret.map_or("", |secret| &*secret.name),
        DELETION_SECRET_NAMESPACE_ANNOTATION: secret.map_or("", |secret| &*secret.namespace),
    });
    if let Some(secret) = plan.volume.secrets.get(&SecretFamily::ControllerModify) {
        annotations[MODIFY_SECRET_NAME_ANNOTATION] = (*secret.name).into();
        annotations[MODIFY_SECRET_NAMESPACE_ANNOTATION] = (*secret.namespace).into();
    }
    annotations
}

fn claim_reference(claim: &Claim) -> Value {
    let mut reference = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": &*claim.namespace,
        "name": &*claim.name,
        "uid": &*claim.uid,
    });
    let ResourceVersion(version) = claim.resource_version;
    if version > 0 {
        reference["resourceVersion"] = version.to_string().into();
    }
    reference
}

fn csi_source(volume: &NewVolume, driver: &ProvisionerFacts, identity: &str) -> Value {
    let template = &volume.plan.volume;
    let mut attributes = Map::from_iter([(PROVISIONER_IDENTITY_ATTRIBUTE.to_owned(), identity.into())]);
    // What the driver says wins.
    attributes.extend(volume.context.iter().map(|(key, value)| (key.to_owned(), value.into())));
    let mut source = json!({
        "driver": &*driver.name,
        "volumeHandle": &*volume.handle,
        "volumeAttributes": attributes,
    });
    if !template.fs_type.is_empty() {
        source["fsType"] = (*template.fs_type).into();
    }
    if template.read_only {
        source["readOnly"] = true.into();
    }
    let references = [
        ("controllerPublishSecretRef", SecretFamily::ControllerPublish),
        ("nodeStageSecretRef", SecretFamily::NodeStage),
        ("nodePublishSecretRef", SecretFamily::NodePublish),
        ("controllerExpandSecretRef", SecretFamily::ControllerExpand),
        ("nodeExpandSecretRef", SecretFamily::NodeExpand),
    ];
    for (field, family) in references {
        if let Some(SecretReference { namespace, name }) = template.secrets.get(&family) {
            source[field] = json!({"name": &**name, "namespace": &**namespace});
        }
    }
    source
}

/// One term for each topology, one expression for each entry of it, sorted by key; none when the volume is reachable from everywhere.
pub fn node_affinity(topology: &[Segment]) -> Option<Value> {
    let expression = |(key, value): (&str, &str)| json!({"key": key, "operator": "In", "values": [value]});
    let term = |segment: &Segment| json!({"matchExpressions": segment.iter().map(expression).collect::<Vec<_>>()});
    let named = topology.iter().filter(|segment| !segment.is_empty());
    let terms: Vec<Value> = named.map(term).collect();
    (!terms.is_empty()).then(|| json!({"required": {"nodeSelectorTerms": terms}}))
}

/// Whether a PersistentVolume that has the name already, after a POST was answered with 409, is the one that was to be written.
pub fn is_saved(there: &Volume, claim: &Claim, driver: &str, handle: &str) -> bool {
    let csi = there.spec.csi();
    csi.is_some_and(|csi| (&*csi.driver, &*csi.handle) == (driver, handle))
        && is_of_claim(there, claim)
        && !there.deleting
}

/// Whether a PersistentVolume of a driver was made for a claim.
pub(super) fn is_of_claim_and_driver(volume: &Volume, claim: &Claim, driver: &ProvisionerFacts) -> bool {
    let csi = volume.spec.csi();
    csi.is_some_and(|csi| csi.driver == driver.name) && is_of_claim(volume, claim)
}

/// Whether a PersistentVolume was made for a claim.
pub(super) fn is_of_claim(volume: &Volume, claim: &Claim) -> bool {
    let named = volume.claim.as_ref();
    named.is_some_and(|named| named.uid == claim.uid)
}

/// The handle of its volume; empty without a CSI source.
pub(super) fn handle_of(volume: &Volume) -> &str {
    volume.spec.csi().map_or("", |source| &source.handle)
}
