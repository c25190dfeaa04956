//! What an event says, and on which objects it is shown.

use jiff::Timestamp;
use serde::Serialize;
use std::sync::Arc;

use crate::api::EventType;
use crate::decide::Snapshot;
use crate::objects::{Attachment, Volume};

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InvolvedObject {
    /// As in a manifest, such as `storage.k8s.io/v1`.
    pub api_version: &'static str,
    /// As in a manifest, such as `VolumeAttachment`.
    pub kind: &'static str,
    /// Namespace; empty for a cluster-scoped object, whose events are in the namespace "default".
    #[serde(skip_serializing_if = "str::is_empty")]
    pub namespace: Box<str>,
    /// `metadata.name`, without the namespace.
    pub name: Box<str>,
    /// `metadata.uid`: an object that is made again under its name has events of its own.
    pub uid: Box<str>,
}

/// An occurrence: a new event on each of its objects, or a count on the one that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Name of the driver whose budget it takes from.
    pub driver: Arc<str>,
    /// Part of the interface: people filter by it.
    pub reason: &'static str,
    /// The reason's level, unless this is an exception.
    pub level: EventType,
    /// What makes another event of the reason on the same object, at once: the cause, as `error.type` or a condition names it, or which
    /// of several attachments or volumes it is about. It is not shown. Empty where there is one only.
    pub cause: Box<str>,
    /// What happened, for people. Cut to what the API server takes.
    pub note: String,
    /// W3C `traceparent` of the attempt, when it is traced.
    pub traceparent: Option<String>,
    /// When it happened; the event has whole seconds.
    pub at: Timestamp,
    /// The objects on which it is shown.
    pub subjects: Vec<InvolvedObject>,
}

impl InvolvedObject {
    fn cluster_scoped(api_version: &'static str, kind: &'static str, name: &str, uid: &str) -> Self {
        Self {
            api_version,
            kind,
            namespace: Box::default(),
            name: name.into(),
            uid: uid.into(),
        }
    }
}

/// What an event about an attachment is shown on. A PersistentVolume that was made again under the name, with another handle, is another
/// volume, which what happens to this one is not to be told of.
pub fn objects_of_attachment(snapshot: &Snapshot) -> Vec<InvolvedObject> {
    objects_with(snapshot, snapshot.own_volume().map(|volume| &**volume))
}

/// The same with the PersistentVolume that has the name now, whichever volume it is of: what the finding about it is shown on.
pub fn involved_objects(snapshot: &Snapshot) -> Vec<InvolvedObject> {
    objects_with(snapshot, snapshot.volume.as_deref())
}

fn objects_with(snapshot: &Snapshot, volume: Option<&Volume>) -> Vec<InvolvedObject> {
    let Attachment { name, uid, .. } = &*snapshot.attachment;
    let attachment = InvolvedObject::cluster_scoped("storage.k8s.io/v1", "VolumeAttachment", name, uid);
    let volume = volume.into_iter().flat_map(of_volume);
    std::iter::once(attachment).chain(volume).collect()
}

/// A claim.
pub fn of_claim_named(namespace: &str, name: &str, uid: &str) -> InvolvedObject {
    InvolvedObject {
        namespace: namespace.into(),
        ..InvolvedObject::cluster_scoped("v1", "PersistentVolumeClaim", name, uid)
    }
}

/// A class.
pub fn of_class(name: &str, uid: &str) -> InvolvedObject {
    InvolvedObject::cluster_scoped("storage.k8s.io/v1", "StorageClass", name, uid)
}

/// A volume.
pub fn of_volume_named(name: &str, uid: &str) -> InvolvedObject {
    InvolvedObject::cluster_scoped("v1", "PersistentVolume", name, uid)
}

/// A volume, and the claim that is bound to it.
pub fn of_volume(volume: &Volume) -> Vec<InvolvedObject> {
    let claim = volume.claim.as_ref();
    let claim = claim.map(|claim| of_claim_named(&claim.namespace, &claim.name, &claim.uid));
    let volume = of_volume_named(&volume.name, &volume.uid);
    std::iter::once(volume).chain(claim).collect()
}

/// An event about an AttacherConfig is shown on it.
pub fn of_config(name: &str, uid: &str) -> InvolvedObject {
    InvolvedObject::cluster_scoped("attacher.csi.dev/v1alpha1", "AttacherConfig", name, uid)
}
