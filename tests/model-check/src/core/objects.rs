//! The Kubernetes objects of a world, as the API server holds them and as the operator reads them.

use std::sync::Arc;

use csi_attacher_model::api::names::finalizer_name;
use csi_attacher_model::objects::{
    Attachment, AttachmentSource, CsiNode, CsiNodeWire, PersistentVolumeWire, Volume, VolumeAttachmentWire,
};
use serde_json::{Value, json};

/// The driver of all worlds.
pub const DRIVER: &str = "a.test";
/// Somebody else's finalizer.
pub const FOREIGN: &str = "somebody.test/holds";
const DELETED_AT: &str = "2026-01-02T03:04:05Z";

/// What kind an object is of; its number is that of its watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// VolumeAttachment.
    Attachment,
    /// PersistentVolume.
    Volume,
    /// CSINode.
    Node,
}

/// The record of an object.
#[derive(Clone, Debug)]
pub enum Record {
    /// Of a VolumeAttachment.
    Attachment(Arc<Attachment>),
    /// Of a PersistentVolume.
    Volume(Arc<Volume>),
    /// Of a CSINode.
    Node(Arc<CsiNode>),
}

/// One version of an object.
#[derive(Clone, Debug)]
pub struct Object {
    /// As the API server holds it.
    pub value: Value,
    /// As the operator reads it.
    pub record: Record,
    /// What the properties look at.
    pub facts: Facts,
}

/// What the properties look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// It is being deleted.
    pub deleting: bool,
    /// It carries our finalizer.
    pub ours: bool,
    /// It carries the finalizer of somebody else.
    pub foreign: bool,
    /// `status.attached`.
    pub attached: bool,
    /// It shows an attachError.
    pub attach_error: bool,
    /// Handle and node ID that it is claimed for.
    pub claim: Option<(String, String)>,
    /// The former places that it notes.
    pub former: Vec<(String, String)>,
    /// Keys of the publish context.
    pub context: Vec<String>,
    /// The PersistentVolume that it names.
    pub volume: Option<String>,
    /// The node that it names, or that it is.
    pub node: Option<String>,
    /// Handle of a PersistentVolume.
    pub handle: Option<String>,
}

impl Facts {
    /// Whether our finalizer stands for a volume at this place.
    pub fn holds(&self, place: &(String, String)) -> bool {
        self.ours && (self.claim.as_ref() == Some(place) || self.former.contains(place))
    }
}

/// The finalizer of the driver.
pub fn finalizer() -> String {
    finalizer_name(DRIVER)
}

/// A PersistentVolume before it is stored.
pub fn volume(name: &str, handle: &str, driver: &str, mode: &str, secret: bool) -> Value {
    let mut csi = json!({"driver": driver, "volumeHandle": handle, "readOnly": true});
    if secret {
        csi["controllerPublishSecretRef"] = json!({"namespace": "ns", "name": "secret"});
    }
    json!({
        "metadata": {"name": name},
        "spec": {"csi": csi, "accessModes": [mode], "volumeMode": "Filesystem"},
    })
}

/// A VolumeAttachment before it is stored.
pub fn attachment(name: &str, volume: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}},
        "status": {"attached": false},
    })
}

/// A CSINode before it is stored; with the driver under this ID, if there is one.
pub fn node(name: &str, id: Option<&str>) -> Value {
    let drivers: Vec<Value> = id.into_iter().map(|id| json!({"name": DRIVER, "nodeID": id})).collect();
    json!({"metadata": {"name": name}, "spec": {"drivers": drivers}})
}

/// The same object, asked to be deleted.
pub fn deleted(value: &Value) -> Value {
    let mut value = value.clone();
    value["metadata"]["deletionTimestamp"] = DELETED_AT.into();
    value
}

/// The same object with somebody else's finalizer.
pub fn held(value: &Value) -> Value {
    let mut value = value.clone();
    let mut list = value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    list.insert(0, FOREIGN.into());
    value["metadata"]["finalizers"] = list.into();
    value
}

/// The same object without our finalizer.
pub fn unprotected(value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(list) = value["metadata"]["finalizers"].as_array_mut() {
        list.retain(|entry| *entry != finalizer());
    }
    value
}

/// The same object, stored with this UID and version.
pub fn stored(mut value: Value, uid: &str, version: u16) -> Value {
    value["metadata"]["uid"] = uid.into();
    if value["metadata"]["finalizers"] == json!([])
        && let Some(metadata) = value["metadata"].as_object_mut()
    {
        // The API server stores no empty list.
        metadata.remove("finalizers");
    }
    value["metadata"]["resourceVersion"] = version.to_string().into();
    value
}

impl Object {
    /// Reads an object as the operator does.
    pub fn read(kind: Kind, value: Value) -> Self {
        let read = "an object of the model can be read";
        let record = match kind {
            Kind::Attachment => {
                let wire: VolumeAttachmentWire = serde_json::from_value(value.clone()).expect(read);
                Record::Attachment(Arc::new(wire.into()))
            }
            Kind::Volume => {
                let wire: PersistentVolumeWire = serde_json::from_value(value.clone()).expect(read);
                Record::Volume(Arc::new(wire.into()))
            }
            Kind::Node => {
                let wire: CsiNodeWire = serde_json::from_value(value.clone()).expect(read);
                Record::Node(Arc::new(wire.into()))
            }
        };
        let facts = facts(&record, &value);
        Self { value, record, facts }
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        self.value["metadata"]["uid"].as_str().unwrap_or_default()
    }
}

fn facts(record: &Record, value: &Value) -> Facts {
    let ours = finalizer();
    let foreign = |value: &Value| {
        let list = value["metadata"]["finalizers"].as_array();
        list.is_some_and(|list| list.iter().any(|entry| entry == FOREIGN))
    };
    let context_keys = |value: &Value| -> Vec<String> {
        let context = value["status"]["attachmentMetadata"].as_object();
        context.into_iter().flatten().map(|(key, _)| key.clone()).collect()
    };
    match record {
        Record::Attachment(record) => {
            let note = record.volume_note.as_deref();
            let claim = note.zip(record.node_id.as_deref());
            let former = note.iter().flat_map(|note| &note.former);
            Facts {
                deleting: record.deleting.is_some(),
                ours: record.finalizers.contains(&ours),
                foreign: foreign(value),
                attached: record.attached,
                attach_error: record.attach_error.is_some(),
                claim: claim.map(|(note, id)| (note.handle.to_string(), id.to_owned())),
                former: former
                    .map(|at| (at.handle.to_string(), at.node_id.to_string()))
                    .collect(),
                context: context_keys(value),
                volume: match &record.source {
                    AttachmentSource::PersistentVolume(name) => Some(name.to_string()),
                    _ => None,
                },
                node: Some(record.node.to_string()),
                handle: None,
            }
        }
        Record::Volume(record) => Facts {
            deleting: record.deleting,
            ours: record.finalizers.contains(&ours),
            foreign: foreign(value),
            handle: record.spec.csi().map(|source| source.handle.to_string()),
            ..Facts::default()
        },
        Record::Node(record) => Facts {
            node: Some(record.name.to_string()),
            ..Facts::default()
        },
    }
}
