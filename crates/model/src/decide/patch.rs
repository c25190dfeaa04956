//! Patches as values: what is written, where and in which form.
//!
//! Finalizers are written by JSON patch (RFC 6902) with `test` operations, so that a write from a stale copy is refused
//! (422) where a merge patch of the list would silently drop or bring back the finalizers of others. The UID is tested
//! too: the name of a VolumeAttachment is a hash of volume, driver and node, and comes back; a PersistentVolume may be
//! restored under its old name, with its old finalizers.
//! Status is written by JSON merge patch (RFC 7386) with the UID as precondition (409 when it differs); where a map has to be replaced
//! as a whole, by JSON patch. What an attach
//! came to has the resource version as precondition too: a write that an operator sent just before its end may reach the
//! API server after another one has begun anew, and would then record a call that does not count any more.

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::sync::Arc;

use super::driver_facts::DriverFacts;
use super::json_patch::{
    add_annotation, add_finalizer, annotate, makes_annotations, patch_of, remove_annotation, test_annotation,
    test_version, without_finalizer,
};
use super::outcome::Failure;
use super::publication::claim_annotations;
use crate::api::condition::whole_seconds;
use crate::api::names::{
    NODE_ID_ANNOTATION, RELEASE_ANNOTATION, RELEASE_REFUSED_ANNOTATION, TRACEPARENT_ANNOTATION, VOLUME_ANNOTATION,
};
use crate::objects::{
    Attachment, CsiSource, FormerVolumeOnNode, OversizedField, ResourceVersion, StringMap, Volume, VolumeAnnotation,
};

/// The object that a write goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteTarget {
    /// A PersistentVolume.
    Volume(Arc<str>),
    /// A VolumeAttachment: metadata only, the API server ignores its status here.
    Attachment(Arc<str>),
    /// The `status` subresource of a VolumeAttachment.
    AttachmentStatus(Arc<str>),
}

/// The form of a patch body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
}

/// One write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The object, or its status.
    pub target: WriteTarget,
    /// How `body` is to be read.
    pub form: PatchType,
    /// The patch.
    pub body: Value,
}

/// Puts our finalizer on a PersistentVolume, after those of others.
pub fn protect_volume(volume: &Volume, finalizer: &str) -> Write {
    let write = on_volume(volume, add_finalizer(&volume.finalizers, finalizer));
    if volume.finalizers.left_out() > 0 {
        if_known(volume.resource_version, write)
    } else {
        write
    }
}

/// Takes our finalizer from a PersistentVolume; none when it is not there. From one that is not being deleted on condition that nobody
/// changed it since it was read: it may be given back to the driver and attached again before a write arrives that was late.
pub fn release_volume(volume: &Volume, finalizer: &str) -> Option<Write> {
    let operations = without_finalizer(volume.finalizers.positions(finalizer), finalizer)?;
    let write = on_volume(volume, operations);
    Some(if volume.deleting {
        write
    } else {
        if_known(volume.resource_version, write)
    })
}

/// A JSON patch, on condition that the object has this version still.
pub fn at_version(mut write: Write, version: ResourceVersion) -> Write {
    if let Value::Array(operations) = &mut write.body {
        operations.insert(1, test_version(version));
    }
    write
}

/// As [`at_version`]. What is no number was read as 0, and nothing can be said of it; Kubernetes has only numbers.
pub fn if_known(version: ResourceVersion, write: Write) -> Write {
    match version {
        ResourceVersion(0) => write,
        version => at_version(write, version),
    }
}

/// Puts our finalizer, the node ID and a note of the volume on an attachment, in one write. On condition that nobody changed it since
/// it was read: the late write of an operator that has died may have recorded it as attached, at the node ID that this claim takes
/// away. What nobody could read back whole is not written: how large the note would be.
pub fn claim(
    attachment: &Attachment,
    driver: &DriverFacts,
    node_id: &str,
    source: &CsiSource,
) -> Result<Write, OversizedField> {
    let finalizer = &*driver.finalizer;
    let mut operations = Vec::new();
    if !attachment.finalizers.contains(finalizer) {
        operations.extend(add_finalizer(&attachment.finalizers, finalizer));
    }
    let note = claim_note(attachment, node_id, source);
    if let Some(too_large) = note.oversized() {
        return Err(too_large);
    }
    let note = serde_json::to_string(&note).unwrap_or_default();
    operations.extend(annotate(
        attachment.has_annotations,
        &[(NODE_ID_ANNOTATION, node_id), (VOLUME_ANNOTATION, &note)],
    ));
    Ok(if_unchanged(attachment, operations))
}

/// Puts our finalizer on an attachment again, and nothing else: what it stands for is noted, or was known when it was claimed. On
/// condition that nobody changed it since it was read.
pub fn hold_again(attachment: &Attachment, finalizer: &str) -> Write {
    if_unchanged(attachment, add_finalizer(&attachment.finalizers, finalizer))
}

/// What a claim notes of the volume.
fn claim_note(attachment: &Attachment, node_id: &str, source: &CsiSource) -> VolumeAnnotation {
    let noted = attachment.volume_note.as_ref();
    VolumeAnnotation {
        handle: source.handle.clone(),
        secret: source.publish_secret.clone(),
        former: former(attachment, node_id, source),
        renewed: noted.map_or(0, |note| note.renewed.wrapping_add(1)),
    }
}

/// Claims an attachment again for the same place; none when no claim of ours is noted, or not as a whole. What an operator that has died may have sent
/// about the claim before is void then. On condition that nobody changed the attachment since it was read: it may be attached by now.
pub fn renew(attachment: &Attachment) -> Option<Write> {
    let note = attachment.volume_note.as_deref()?;
    if attachment.note_fault.is_some() {
        // What was left out would be lost.
        return None;
    }
    let note = VolumeAnnotation {
        renewed: note.renewed.wrapping_add(1),
        ..note.clone()
    };
    let note = serde_json::to_string(&note).unwrap_or_default();
    Some(if_unchanged(attachment, vec![add_annotation(VOLUME_ANNOTATION, &note)]))
}

/// A claim that also notes the trace context of the attach; what it does besides stays the same.
#[must_use]
pub fn with_trace(mut claim: Write, traceparent: &str) -> Write {
    let Value::Array(operations) = &mut claim.body else {
        return claim;
    };
    let made = operations
        .iter_mut()
        .find(|operation| makes_annotations(operation))
        .and_then(|operation| operation["value"].as_object_mut());
    match made {
        Some(annotations) => {
            annotations.insert(TRACEPARENT_ANNOTATION.to_owned(), traceparent.into());
        }
        None => operations.push(add_annotation(TRACEPARENT_ANNOTATION, traceparent)),
    }
    claim
}

/// Notes the trace context under which an attachment is worked on from now on.
pub fn note_trace(attachment: &Attachment, traceparent: &str) -> Write {
    on_attachment(
        attachment,
        annotate(attachment.has_annotations, &[(TRACEPARENT_ANNOTATION, traceparent)]),
    )
}

/// Where the volume may be from earlier tries, other than where it is going now: the node came back with another ID, or the
/// PersistentVolume with another handle, after a call that may have been made. What is noted tells it, whatever became of the finalizer.
fn former(attachment: &Attachment, node_id: &str, source: &CsiSource) -> Vec<FormerVolumeOnNode> {
    let noted = attachment.volume_note.as_deref();
    let mut places = noted.map(|note| note.former.clone()).unwrap_or_default();
    // A refusal of the last call says nothing of the calls before it, of which an operator that ended may have made one.
    if let Some(old) = &attachment.node_id {
        places.push(FormerVolumeOnNode {
            handle: noted.map_or_else(|| source.handle.clone(), |note| note.handle.clone()),
            node_id: old.clone(),
        });
    }
    places.retain(|place| (&*place.handle, &*place.node_id) != (&*source.handle, node_id));
    places.sort_unstable();
    places.dedup();
    places
}

/// Lets an attachment go: takes our finalizer from it; none when it is not there.
///
/// Where the finalizer of another keeps the object, what was noted for the call goes in the same write: what is left shows nothing that
/// is still to be detached, whatever becomes of a write after this one, and nobody takes it for one that has lost our finalizer.
pub fn release(attachment: &Attachment, finalizer: &str) -> Option<Write> {
    let is_held = attachment.finalizers.contains(finalizer);
    is_held.then(|| let_go(attachment, finalizer))
}

fn let_go(attachment: &Attachment, finalizer: &str) -> Write {
    let finalizers = &attachment.finalizers;
    let removed = without_finalizer(finalizers.positions(finalizer), finalizer);
    let mut operations = removed.unwrap_or_default();
    if finalizers.left_out() > 0 || finalizers.iter().any(|other| other != finalizer) {
        operations.extend(claim_annotations(attachment).map(remove_annotation));
    }
    on_attachment(attachment, operations)
}

/// As [`release`], because a person asked for it, and also where somebody took our finalizer off before; none when there is no request.
/// On condition that nobody changed the object since the request was judged, and that the request still stands.
pub fn release_on_request(attachment: &Attachment, finalizer: &str) -> Option<Write> {
    let requested = requested(attachment)?;
    let mut write = if_known(attachment.resource_version, let_go(attachment, finalizer));
    if let Value::Array(operations) = &mut write.body {
        operations.insert(1, requested);
    }
    Some(write)
}

/// Answers a request to release an attachment; none when there is no request.
pub fn refuse_release(attachment: &Attachment, answer: &str) -> Option<Write> {
    let operations = vec![
        requested(attachment)?,
        add_annotation(RELEASE_REFUSED_ANNOTATION, answer),
    ];
    Some(on_attachment(attachment, operations))
}

/// That the request on the object is the one that was read.
fn requested(attachment: &Attachment) -> Option<Value> {
    let note = attachment.release.as_ref()?;
    Some(test_annotation(RELEASE_ANNOTATION, &note.request))
}

/// Status: attached, with the publish context that the kubelet will read.
///
/// `attachError` is cleared by an explicit null even when the cached copy has none: the copy may be stale, and an error
/// left on an attached volume misleads its readers. An older publish context goes as a whole: by null where there is no new
/// one, else by a JSON patch, as a merge patch would keep its keys, which nobody here knows.
pub fn attached(attachment: &Attachment, context: Option<&StringMap>) -> Write {
    let context = context.filter(|context| !context.is_empty()).map(|context| {
        let entries = context.iter().map(|(key, value)| (key.to_owned(), value.into()));
        Value::Object(entries.collect())
    });
    let mut status = Map::from_iter([
        ("attached".to_owned(), true.into()),
        ("attachError".to_owned(), Value::Null),
    ]);
    let replaces = context.is_some() && attachment.has_publish_context;
    if context.is_some() || attachment.has_publish_context {
        status.insert("attachmentMetadata".to_owned(), context.into());
    }
    if replaces {
        return replace_status(attachment, status);
    }
    unless_changed(attachment, write_status(attachment, status))
}

/// Status: detached. Needed only where another finalizer keeps the object after ours is gone.
pub fn detached(attachment: &Attachment) -> Write {
    let status = json!({"attached": false, "attachmentMetadata": null, "detachError": null});
    write_status(attachment, status)
}

/// Status: the attach failed. By the code the kubelet knows a full node (KEP-4876); an older code is cleared by
/// an explicit null.
pub fn attach_error(attachment: &Attachment, failure: &Failure, now: Timestamp) -> Write {
    let mut error = error_body(failure, now);
    error["errorCode"] = failure.code.into();
    unless_changed(attachment, write_status(attachment, json!({"attachError": error})))
}

/// Status: the detach failed. It carries no code, as the Go sidecar's never does.
pub fn detach_error(attachment: &Attachment, failure: &Failure, now: Timestamp) -> Write {
    write_status(attachment, json!({"detachError": error_body(failure, now)}))
}

fn error_body(failure: &Failure, now: Timestamp) -> Value {
    json!({"message": failure.message, "time": whole_seconds(now).to_string()})
}

fn write_status(attachment: &Attachment, status: impl Into<Value>) -> Write {
    Write {
        target: WriteTarget::AttachmentStatus(attachment.name.clone()),
        form: PatchType::Merge,
        body: json!({"metadata": {"uid": &*attachment.uid}, "status": status.into()}),
    }
}

/// Sets parts of a status as a whole, on condition that nobody changed the object since it was read.
fn replace_status(attachment: &Attachment, status: Map<String, Value>) -> Write {
    let parts = status.into_iter();
    let parts = parts.map(|(part, value)| json!({"op": "add", "path": format!("/status/{part}"), "value": value}));
    let target = WriteTarget::AttachmentStatus(attachment.name.clone());
    if_known(attachment.resource_version, json_patch(target, &attachment.uid, parts))
}

/// The same as [`write_status`], on condition that nobody changed the object since it was read.
fn unless_changed(attachment: &Attachment, mut write: Write) -> Write {
    let ResourceVersion(version) = attachment.resource_version;
    // What is no number was read as 0, and nothing can be said of it.
    if version > 0 {
        write.body["metadata"]["resourceVersion"] = version.to_string().into();
    }
    write
}

/// A JSON patch of a PersistentVolume.
pub(crate) fn on_volume(volume: &Volume, operations: Vec<Value>) -> Write {
    json_patch(WriteTarget::Volume(volume.name.clone()), &volume.uid, operations)
}

/// The same as [`on_attachment`], on condition that nobody changed the attachment since it was read.
fn if_unchanged(attachment: &Attachment, operations: Vec<Value>) -> Write {
    if_known(attachment.resource_version, on_attachment(attachment, operations))
}

/// A JSON patch of the metadata of an attachment.
fn on_attachment(attachment: &Attachment, operations: Vec<Value>) -> Write {
    json_patch(
        WriteTarget::Attachment(attachment.name.clone()),
        &attachment.uid,
        operations,
    )
}

fn json_patch(target: WriteTarget, uid: &str, operations: impl IntoIterator<Item = Value>) -> Write {
    Write {
        target,
        form: PatchType::Json,
        body: patch_of(uid, operations),
    }
}
