//! `storage.k8s.io/v1` VolumeAttachment.

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use kube_derive::Resource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::csi_source::SecretReference;
use super::meta::{
    Finalizers, OversizedField, ResourceVersion, boxed, has_entries, is_blank, slim_with_writer, time_if_readable,
    trace_context,
};
use super::string_map::StringMap;
use super::volume::{VolumeSpec, VolumeSpecWire};
use crate::api::names::{
    NODE_ID_ANNOTATION, NOT_ATTACHED_AT_ANNOTATION, RELEASE_ANNOTATION, RELEASE_REFUSED_ANNOTATION,
    RETRY_NOW_ANNOTATION, VOLUME_ANNOTATION,
};

/// Longest value of an annotation that a person sets, in bytes. What is longer counts as absent.
const MAX_WORD: usize = 4 << 10;

/// A VolumeAttachment as it comes over the wire, reduced to what is read.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = VolumeAttachment, crates(kube_core = "::kube_core"))]
#[allow(missing_docs, reason = "the fields of the API; metadata is reduced")]
pub struct VolumeAttachmentWire {
    #[serde(deserialize_with = "slim_with_writer")]
    pub metadata: ObjectMeta,
    pub spec: VolumeAttachmentSpecWire,
    #[serde(default)]
    pub status: VolumeAttachmentStatusWire,
}

/// `VolumeAttachmentSpec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentSpecWire {
    attacher: String,
    node_name: String,
    #[serde(default)]
    source: SourceWire,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SourceWire {
    persistent_volume_name: Option<String>,
    inline_volume_spec: Option<VolumeSpecWire>,
}

/// `VolumeAttachmentStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentStatusWire {
    #[serde(default)]
    attached: bool,
    #[serde(default, deserialize_with = "has_entries")]
    attachment_metadata: bool,
    attach_error: Option<ErrorWire>,
    detach_error: Option<ErrorWire>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ErrorWire {
    /// Whoever may write the status writes what they like.
    #[serde(default, deserialize_with = "time_if_readable")]
    time: Option<Time>,
    message: Option<String>,
    error_code: Option<i32>,
}

/// Where the volume of an attachment is described (`VolumeAttachmentSource`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttachmentSource {
    /// By a PersistentVolume of this name.
    PersistentVolume(Arc<str>),
    /// Inside the attachment; the attach/detach controller does so for migrated in-line volumes only.
    Inline(Box<VolumeSpec>),
    /// Both, which the API forbids and no attacher can serve.
    Both(Arc<str>),
    /// Neither.
    Neither,
}

/// A `VolumeError` of the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeError {
    /// When it was written.
    pub time: Option<Timestamp>,
    /// What went wrong.
    pub message: Box<str>,
    /// gRPC status number, on attach errors only.
    pub code: Option<i32>,
}

/// What the annotation `attacher.csi.dev/volume` holds as JSON: enough of the volume to detach it when its
/// PersistentVolume was removed by force.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeAnnotation {
    /// The volume's ID for the driver.
    pub handle: Box<str>,
    /// Where the publish secret is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretReference>,
    /// Where it may be besides, from tries under another node ID or handle.
    #[serde(default, deserialize_with = "places_or_none", skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerVolumeOnNode>,
    /// How often it was claimed again. What came of a call that was made for an earlier claim is no result for this one.
    #[serde(default, deserialize_with = "number_or_zero", skip_serializing_if = "is_zero")]
    pub renewed: u32,
}

/// A list that is null is empty, as the API server reads it.
fn places_or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<FormerVolumeOnNode>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Whatever somebody wrote there: it must not cost the handle and the former places.
fn number_or_zero<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let found = serde_json::Value::deserialize(deserializer)?.as_u64();
    Ok(found.and_then(|number| number.try_into().ok()).unwrap_or_default())
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Why the note of a volume cannot be used as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoteFault {
    /// It is too large to be kept: `former` was left out, or all of it when even the rest is.
    TooLarge(OversizedField),
    /// It says something that is no note here: a person wrote it, or another version of the operator.
    Unreadable,
}

/// A volume at a node that is not the one of its attachment any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FormerVolumeOnNode {
    /// The volume's ID for the driver.
    pub handle: Box<str>,
    /// The node's ID for the driver.
    #[serde(rename = "nodeID")]
    pub node_id: Box<str>,
}

/// A client that wrote a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusWriter {
    /// Its name as a field manager: that of its program, such as `csi-attacher`, unless it chose another.
    pub manager: Box<str>,
    /// When it last wrote, by the clock of the API server, in whole seconds.
    pub time: Timestamp,
}

/// A request to let an attachment go without the driver's confirmation, as it stands on the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseNote {
    /// Annotation `attacher.csi.dev/release`.
    pub request: Box<str>,
    /// Annotation `attacher.csi.dev/release-refused`: the operator's answer to this request or to an older one.
    pub answer: Option<Box<str>>,
}

/// A cached VolumeAttachment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about the object"
)]
#[allow(
    missing_docs,
    reason = "a field without a comment is the field of the API with this name"
)]
pub struct Attachment {
    pub name: Arc<str>,
    /// `metadata.uid`: names are deterministic and come back, UIDs never do.
    pub uid: Box<str>,
    pub resource_version: ResourceVersion,
    /// `metadata.creationTimestamp`, whole seconds.
    pub created: Option<Timestamp>,
    /// `metadata.deletionTimestamp`: set means "detach".
    pub deleting: Option<Timestamp>,
    pub finalizers: Finalizers,
    /// Annotation `csi.alpha.kubernetes.io/node-id`: the node ID that was used to publish. Absent too when it is blank.
    pub node_id: Option<Box<str>>,
    /// Whether that annotation is there and blank: somebody took away where the volume was published.
    pub node_id_is_blank: bool,
    /// Annotation `attacher.csi.dev/volume`; absent too when it is blank or names nothing, as it is only a fall-back. What is blank among
    /// the former places is left out.
    pub volume_note: Option<Box<VolumeAnnotation>>,
    /// Why that note cannot be used. Where the volume may be is not known as a whole then: nothing is called, and the note is not written
    /// over.
    pub note_fault: Option<Box<NoteFault>>,
    /// Annotation `attacher.csi.dev/retry-now`: a person asks for a try at once when its value changes.
    pub retry_now: Option<Box<str>>,
    /// Annotation `attacher.csi.dev/not-attached-at`: former node IDs where the volume is not, as a person confirms.
    pub not_attached_at: Option<Box<str>>,
    /// Annotations `attacher.csi.dev/release` and `attacher.csi.dev/release-refused`; almost always absent.
    pub release: Option<Box<ReleaseNote>>,
    /// Annotations that may carry a trace context, ours among them.
    pub trace_context: StringMap,
    /// Whether the object has any annotation, kept here or not; decides the form of the annotation patch.
    pub has_annotations: bool,
    /// `spec.attacher`: the CSI driver's name.
    pub attacher: Arc<str>,
    pub node: Arc<str>,
    pub source: AttachmentSource,
    pub attached: bool,
    /// Whether `status.attachmentMetadata` has entries: the publish context handed to the kubelet. It may have up to 256 KiB, is the
    /// driver's, and nobody here reads it.
    pub has_publish_context: bool,
    /// `status.attachError`: the last failure of the attach.
    pub attach_error: Option<Box<VolumeError>>,
    /// `status.detachError`: the last failure of the detach.
    pub detach_error: Option<Box<VolumeError>>,
    /// Which client but this operator last wrote the status (`metadata.managedFields`).
    pub other_writer: Option<Box<StatusWriter>>,
}

impl Attachment {
    /// Name of the PersistentVolume that the source refers to, also when the source is malformed.
    pub fn volume_name(&self) -> Option<&Arc<str>> {
        match &self.source {
            AttachmentSource::PersistentVolume(name) | AttachmentSource::Both(name) => Some(name),
            AttachmentSource::Inline(_) | AttachmentSource::Neither => None,
        }
    }

    /// Since when it waits for its attach, or for its detach; whole seconds.
    pub fn pending_since(&self) -> Option<Timestamp> {
        self.deleting.or(self.created)
    }

    /// The last failure of what it asks for.
    pub fn pending_error(&self) -> Option<&VolumeError> {
        match self.deleting {
            Some(_) => self.detach_error.as_deref(),
            None => self.attach_error.as_deref(),
        }
    }

    /// Whether the API server has let the object go: it was deleted and nobody holds it any more.
    pub fn is_gone(&self) -> bool {
        self.deleting.is_some() && self.finalizers.is_empty()
    }
}

impl From<SourceWire> for AttachmentSource {
    fn from(wire: SourceWire) -> Self {
        match (wire.persistent_volume_name, wire.inline_volume_spec) {
            (Some(name), Some(_)) => Self::Both(name.into()),
            (Some(name), None) => Self::PersistentVolume(name.into()),
            (None, Some(spec)) => Self::Inline(Box::new(spec.into())),
            (None, None) => Self::Neither,
        }
    }
}

fn error_of(wire: Option<ErrorWire>) -> Option<Box<VolumeError>> {
    wire.map(|wire| {
        Box::new(VolumeError {
            time: wire.time.map(|time| time.0),
            message: boxed(wire.message),
            code: wire.error_code,
        })
    })
}

impl VolumeAnnotation {
    /// That the note is too large to be kept, if it is.
    pub fn oversized(&self) -> Option<OversizedField> {
        let secret = self.secret.iter();
        let secret = secret.map(|secret| secret.namespace.len() + secret.name.len());
        let former = self.former.iter();
        let former = former.map(|place| place.handle.len() + place.node_id.len());
        let lengths = std::iter::once(self.handle.len()).chain(secret).chain(former);
        OversizedField::of(VOLUME_ANNOTATION, lengths)
    }
}

/// Reads the note of a volume, and why it cannot be used. Which volume it is stays known as long as that is not too large itself.
fn volume_note(text: &str) -> (Option<Box<VolumeAnnotation>>, Option<Box<NoteFault>>) {
    if is_blank(text) {
        return (None, None);
    }
    let unreadable = || (None, Some(Box::new(NoteFault::Unreadable)));
    let Ok(mut note) = serde_json::from_str::<Box<VolumeAnnotation>>(text) else {
        return unreadable();
    };
    note.former
        .retain(|place| !is_blank(&place.handle) && !is_blank(&place.node_id));
    if is_blank(&note.handle) {
        return if note.former.is_empty() {
            (None, None)
        } else {
            unreadable()
        };
    }
    let Some(too_large) = note.oversized() else {
        return (Some(note), None);
    };
    note.former = Vec::new();
    let rest = note.oversized().is_none().then_some(note);
    (rest, Some(Box::new(NoteFault::TooLarge(too_large))))
}

/// What a person wrote in an annotation, which is not kept when it is longer than [`MAX_WORD`].
fn set_by_person(annotations: &mut BTreeMap<String, String>, key: &str) -> Option<Box<str>> {
    let value = annotations.remove(key).filter(|value| value.len() <= MAX_WORD);
    value.map(String::into_boxed_str)
}

fn other_writer(entries: Vec<ManagedFieldsEntry>) -> Option<Box<StatusWriter>> {
    let entry = entries.into_iter().next()?;
    Some(Box::new(StatusWriter {
        manager: boxed(entry.manager),
        time: entry.time?.0,
    }))
}

impl From<VolumeAttachmentWire> for Attachment {
    fn from(wire: VolumeAttachmentWire) -> Self {
        let resource_version = ResourceVersion::of(&wire.metadata);
        let has_annotations = wire.metadata.annotations.is_some();
        let trace_context = trace_context(wire.metadata.annotations.as_ref());
        let mut annotations = wire.metadata.annotations.unwrap_or_default();
        let noted_node = annotations.remove(NODE_ID_ANNOTATION);
        let note = annotations.get(VOLUME_ANNOTATION).map(|text| volume_note(text));
        let (volume_note, note_fault) = note.unwrap_or_default();
        let finalizers = Finalizers::of(wire.metadata.finalizers, Some(&wire.spec.attacher));
        Self {
            resource_version,
            has_annotations,
            trace_context,
            name: wire.metadata.name.unwrap_or_default().into(),
            uid: boxed(wire.metadata.uid),
            created: wire.metadata.creation_timestamp.map(|time| time.0),
            deleting: wire.metadata.deletion_timestamp.map(|time| time.0),
            finalizers,
            node_id_is_blank: noted_node.as_deref().is_some_and(is_blank),
            node_id: noted_node.filter(|id| !is_blank(id)).map(String::into_boxed_str),
            volume_note,
            note_fault,
            retry_now: set_by_person(&mut annotations, RETRY_NOW_ANNOTATION),
            not_attached_at: set_by_person(&mut annotations, NOT_ATTACHED_AT_ANNOTATION),
            release: set_by_person(&mut annotations, RELEASE_ANNOTATION).map(|request| {
                let answer = set_by_person(&mut annotations, RELEASE_REFUSED_ANNOTATION);
                Box::new(ReleaseNote { request, answer })
            }),
            attacher: wire.spec.attacher.into(),
            node: wire.spec.node_name.into(),
            source: wire.spec.source.into(),
            attached: wire.status.attached,
            has_publish_context: wire.status.attachment_metadata,
            attach_error: error_of(wire.status.attach_error),
            detach_error: error_of(wire.status.detach_error),
            other_writer: wire.metadata.managed_fields.and_then(other_writer),
        }
    }
}
