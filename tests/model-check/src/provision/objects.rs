//! The objects of a world of the provisioner, as the API server holds them and as the operator reads them.

use std::sync::Arc;

use csi_attacher_model::api::names::{
    BIND_COMPLETED_ANNOTATION, PROVISIONER_FINALIZER, PROVISIONING_MARKER, SELECTED_NODE_ANNOTATION,
};
use csi_attacher_model::objects::{
    Claim, ClaimPhase, PersistentVolumeClaimWire, PersistentVolumeWire, ReclaimPolicy, StorageClass, StorageClassWire,
    Volume, VolumePhase,
};
use serde_json::{Value, json};

use super::state::{ATTACHMENT, CLAIM, CLASS, CSI_NODE, NODE, OTHER, OWN, SECOND, SLOTS};
use super::zones::{ZONE, zone_name};

/// The driver of all worlds.
pub const DRIVER: &str = "a.test";
/// Another driver.
pub const ANOTHER: &str = "b.test";
const DELETED_AT: &str = "2026-01-02T03:04:05Z";
const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// The finalizer of somebody else, who takes it off when the claim is being deleted.
const HOLDS: &str = "somebody.test/holds";
/// The finalizer by which kube-controller-manager holds a PersistentVolume in use.
pub const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// The finalizer of the attach role.
pub const ATTACH_FINALIZER: &str = "external-attacher/a-test";

/// One version of an object.
#[derive(Clone, Debug)]
pub struct Object {
    /// As the API server holds it.
    pub value: Value,
    /// As the operator reads it.
    pub record: Record,
    /// The number of its UID.
    pub uid: u8,
}

/// The record of an object.
#[derive(Clone, Debug)]
pub enum Record {
    Claim(Arc<Claim>),
    Volume(Arc<Volume>),
    Class(Arc<StorageClass>),
    Attachment,
    /// A Node, by the number of its zone; or a CSINode.
    Node(u8),
}

/// The name of the object of a slot.
pub const fn name_of(slot: usize) -> &'static str {
    ["data", "pvc-u1", "pvc-u2", "other", "fast", "attachment", "n1", "n1"][slot]
}

/// The slot of a PersistentVolume.
pub fn slot_of(name: &str) -> Option<usize> {
    [OWN, SECOND, OTHER].into_iter().find(|slot| name_of(*slot) == name)
}

/// The UID of this number.
pub fn uid_text(number: u8) -> String {
    format!("u{number}")
}

/// The number in a UID or a handle.
pub fn number_in(text: &str) -> u8 {
    text.get(1..).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// A claim that waits.
pub fn claim(uid: u8) -> Value {
    json!({
        "metadata": {
            "name": name_of(CLAIM), "namespace": "web", "uid": uid_text(uid),
            "annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER},
            "finalizers": [CLAIM_PROTECTION],
        },
        "spec": {
            "storageClassName": name_of(CLASS), "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Pending"},
    })
}

/// A claim of another driver, which has marked it.
pub fn marked_by_another(uid: u8) -> Value {
    let mut claim = claim(uid);
    let marker = json!({
        "driver": ANOTHER, "uid": uid_text(uid), "prefix": "pvc", "classUID": "u1", "since": "2026-01-01T00:00:00Z", "writer": "somebody",
    });
    claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = ANOTHER.into();
    claim["metadata"]["annotations"][PROVISIONING_MARKER] = marker.to_string().into();
    claim["metadata"]["finalizers"] = json!([CLAIM_PROTECTION, PROVISIONING_MARKER]);
    claim
}

/// A class.
pub fn class(uid: u8, provisioner: &str, binding: &str) -> Value {
    json!({
        "metadata": {"name": name_of(CLASS), "uid": uid_text(uid)},
        "provisioner": provisioner, "reclaimPolicy": "Delete", "volumeBindingMode": binding,
        "parameters": {"of": provisioner},
    })
}

/// A VolumeAttachment. Nothing is read of it but that it is there.
pub fn attachment() -> Value {
    json!({"metadata": {"name": name_of(ATTACHMENT), "uid": "u1"}})
}

/// A PersistentVolume: whose claim, which handle, which phase. `ours` are those which the provisioner made.
pub fn volume(slot: usize, uid: u8, claim: Option<u8>, handle: u8, phase: &str, policy: &str, ours: bool) -> Value {
    let mut volume = json!({
        "metadata": {
            "name": name_of(slot), "uid": uid_text(uid), "resourceVersion": "1",
            "finalizers": [VOLUME_PROTECTION],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": name_of(CLASS),
            "persistentVolumeReclaimPolicy": policy,
            "csi": {"driver": DRIVER, "volumeHandle": format!("h{handle}")},
        },
        "status": {"phase": phase},
    });
    if let Some(claim) = claim {
        volume["spec"]["claimRef"] = json!({"namespace": "web", "name": name_of(CLAIM), "uid": uid_text(claim)});
    }
    volume["metadata"]["annotations"] = json!({
        "volume.kubernetes.io/provisioner-deletion-secret-name": "",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
    });
    if ours {
        volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] = DRIVER.into();
        volume["metadata"]["finalizers"] = json!([VOLUME_PROTECTION, PROVISIONER_FINALIZER]);
    }
    volume
}

/// What of an object no write of the provisioner may change.
pub fn foreign_parts(value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(PROVISIONING_MARKER);
            // It may be taken off; when, is a property of its own.
            annotations.remove(SELECTED_NODE_ANNOTATION);
        }
        let list = finalizers_in(metadata.get("finalizers"));
        let kept: Vec<Value> = list
            .into_iter()
            .filter(|entry| entry != PROVISIONING_MARKER && entry != PROVISIONER_FINALIZER)
            .collect();
        metadata.insert("finalizers".to_owned(), kept.into());
    }
    value
}

fn finalizers_in(list: Option<&Value>) -> Vec<Value> {
    list.and_then(Value::as_array).cloned().unwrap_or_default()
}

/// What others do to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edit {
    /// `deletionTimestamp` is set.
    Delete,
    /// The object has this phase.
    Phase(Phase),
    /// The claim names the PersistentVolume of this slot, and is taken for bound: kube-controller-manager writes both at once, and the phase
    /// later.
    Bind(u8),
    /// The finalizers of others go.
    UnprotectClaim,
    /// `kubernetes.io/pv-protection` goes.
    UnprotectVolume,
    /// `persistentVolumeReclaimPolicy`.
    Retain,
    Reclaim,
    /// A controller writes an annotation, and a finalizer before all others.
    Annotate,
    /// kube-scheduler, or a person, selects this node for a claim.
    Select(u8),
    /// The Node is in this zone.
    Relabel(u8),
}

/// The phases that are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Bound,
    Released,
}

/// The object after an edit.
pub fn edited(value: &Value, edit: Edit) -> Value {
    let mut value = value.clone();
    let without = |value: &mut Value, name: &str| {
        let kept: Vec<Value> = finalizers_in(value["metadata"].get("finalizers"))
            .into_iter()
            .filter(|entry| entry != name)
            .collect();
        set_finalizers(value, kept);
    };
    match edit {
        Edit::Delete => value["metadata"]["deletionTimestamp"] = DELETED_AT.into(),
        Edit::Phase(phase) => value["status"]["phase"] = format!("{phase:?}").into(),
        Edit::Bind(slot) => {
            value["spec"]["volumeName"] = name_of(slot.into()).into();
            value["metadata"]["annotations"][BIND_COMPLETED_ANNOTATION] = "yes".into();
        }
        Edit::UnprotectClaim => {
            without(&mut value, CLAIM_PROTECTION);
            without(&mut value, HOLDS);
        }
        Edit::UnprotectVolume => without(&mut value, VOLUME_PROTECTION),
        Edit::Retain => value["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into(),
        Edit::Reclaim => value["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into(),
        Edit::Select(node) => {
            value["metadata"]["annotations"][SELECTED_NODE_ANNOTATION] = format!("n{node}").into();
        }
        Edit::Relabel(zone) => value["metadata"]["labels"][ZONE] = zone_name(zone).into(),
        Edit::Annotate => {
            value["metadata"]["annotations"]["somebody.test/note"] = "1".into();
            let mut list = finalizers_in(value["metadata"].get("finalizers"));
            if value["metadata"]["deletionTimestamp"].is_null() {
                list.insert(0, HOLDS.into());
            }
            set_finalizers(&mut value, list);
        }
    }
    value
}

fn set_finalizers(value: &mut Value, list: Vec<Value>) {
    if let Some(metadata) = value["metadata"].as_object_mut() {
        if list.is_empty() {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".to_owned(), list.into());
        }
    }
}

/// What the API server makes of a POST: a UID, a version, and the finalizer of an admission plug-in.
pub fn created(body: &Value, uid: u8) -> Value {
    let mut value = body.clone();
    let mut list = finalizers_in(value["metadata"].get("finalizers"));
    list.insert(0, VOLUME_PROTECTION.into());
    set_finalizers(&mut value, list);
    value["metadata"]["uid"] = uid_text(uid).into();
    value["metadata"]["resourceVersion"] = "1".into();
    value["status"] = json!({"phase": "Pending"});
    value
}

/// The next version of a PersistentVolume; of other objects no version is read.
pub fn next_version(before: &Value, mut after: Value) -> Value {
    let version = before["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse::<u64>().ok());
    if let Some(version) = version {
        after["metadata"]["resourceVersion"] = (version + 1).to_string().into();
    }
    after
}

impl Object {
    /// Reads an object as the operator does.
    pub fn read(slot: usize, value: Value) -> Self {
        let read = "an object of the model can be read";
        let record = match slot {
            CLAIM => {
                let wire: PersistentVolumeClaimWire = serde_json::from_value(value.clone()).expect(read);
                Record::Claim(Arc::new(wire.into()))
            }
            CLASS => {
                let wire: StorageClassWire = serde_json::from_value(value.clone()).expect(read);
                Record::Class(Arc::new(wire.into()))
            }
            ATTACHMENT => Record::Attachment,
            NODE | CSI_NODE => Record::Node(number_in(
                value["metadata"]["labels"][ZONE].as_str().unwrap_or_default(),
            )),
            _ => {
                let wire: PersistentVolumeWire = serde_json::from_value(value.clone()).expect(read);
                Record::Volume(Arc::new(wire.into()))
            }
        };
        let uid = number_in(value["metadata"]["uid"].as_str().unwrap_or_default());
        Self { value, record, uid }
    }

    /// The claim.
    pub fn claim(&self) -> Option<&Arc<Claim>> {
        match &self.record {
            Record::Claim(claim) => Some(claim),
            _ => None,
        }
    }

    /// The PersistentVolume.
    pub fn volume(&self) -> Option<&Arc<Volume>> {
        match &self.record {
            Record::Volume(volume) => Some(volume),
            _ => None,
        }
    }

    /// The class.
    pub fn class(&self) -> Option<&Arc<StorageClass>> {
        match &self.record {
            Record::Class(class) => Some(class),
            _ => None,
        }
    }

    /// What the rules of the world look at.
    pub fn facts(&self) -> Facts {
        match &self.record {
            Record::Claim(claim) => Facts {
                uid: self.uid,
                deleting: claim.deleting.is_some(),
                marked: claim.marker_at.is_some(),
                protected: claim.finalizers.contains(CLAIM_PROTECTION) || claim.finalizers.contains(HOLDS),
                names: claim.volume_name.as_deref().and_then(slot_of).map(|slot| slot as u8),
                is_bound: claim.phase == ClaimPhase::Bound,
                ours: claim.provisioner.as_deref() == Some(DRIVER),
                node: claim.selected_node.as_deref().map_or(0, number_in),
                ..Facts::default()
            },
            Record::Volume(volume) => Facts {
                uid: self.uid,
                deleting: volume.deleting,
                marked: volume.lifecycle.finalizer_at.is_some(),
                protected: volume.finalizers.contains(VOLUME_PROTECTION),
                attach: volume.finalizers.contains(ATTACH_FINALIZER),
                claim: volume.claim.as_ref().map_or(0, |claim| number_in(&claim.uid)),
                handle: volume.spec.csi().map_or(0, |source| number_in(&source.handle)),
                is_bound: volume.lifecycle.phase == VolumePhase::Bound,
                released: matches!(volume.lifecycle.phase, VolumePhase::Released | VolumePhase::Failed),
                reclaims: volume.lifecycle.reclaim_policy == Some(ReclaimPolicy::Delete),
                ours: volume.lifecycle.provisioned_by.is_some(),
                ..Facts::default()
            },
            Record::Class(class) => Facts {
                uid: self.uid,
                ours: *class.provisioner == *DRIVER,
                ..Facts::default()
            },
            Record::Attachment => Facts::default(),
            Record::Node(zone) => Facts {
                uid: self.uid,
                zone: *zone,
                ..Facts::default()
            },
        }
    }
}

/// What the rules of the world look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The number of the UID.
    pub uid: u8,
    /// It is being deleted.
    pub deleting: bool,
    /// It carries the marker, or the finalizer of the provisioner.
    pub marked: bool,
    /// It carries the finalizer of kube-controller-manager.
    pub protected: bool,
    /// It carries the finalizer of the attach role.
    pub attach: bool,
    /// The slot of the PersistentVolume that a claim names.
    pub names: Option<u8>,
    /// The UID of the claim that a PersistentVolume was made for.
    pub claim: u8,
    /// The handle of a PersistentVolume.
    pub handle: u8,
    /// Its phase is Bound.
    pub is_bound: bool,
    /// Its phase is Released or Failed.
    pub released: bool,
    /// Its policy is Delete.
    pub reclaims: bool,
    /// It is to be provisioned by our driver, or was.
    pub ours: bool,
    /// The number of the node that is selected for a claim; 0 for none.
    pub node: u8,
    /// The zone of a Node.
    pub zone: u8,
}

impl Facts {
    /// Whether a PersistentVolume is to be deleted with its volume, and held until then.
    pub fn goes(&self) -> bool {
        self.released && self.reclaims && self.marked
    }
}

/// That every slot has a name.
const _: () = assert!(SLOTS == 8);
