//! Wrong rules: each does one thing otherwise than the operator. The model checker (`tests/model-check`) plays them as well.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::names::{NODE_ID_ANNOTATION, VOLUME_ANNOTATION};
use crate::decide::patch::{self, PatchType, WriteTarget};
use crate::decide::{self, Action, DriverFacts, Failure, KeepReason, NodeEntry, Observed, Outcome, Write};
use crate::objects::{Attachment, Finalizers, Volume, VolumeAnnotation, VolumeSource, VolumeSpec};

pub fn release_early(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    match outcome {
        Outcome::DetachFailed(_) => decide::settle(observed, &Outcome::Unpublished, now),
        outcome => decide::settle(observed, outcome, now),
    }
}

pub fn trust_not_found(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    match outcome {
        Outcome::DetachFailed(Failure { code: Some(5), .. }) => decide::settle(observed, &Outcome::Unpublished, now),
        outcome => decide::settle(observed, outcome, now),
    }
}

pub fn status_first(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let mut writes = decide::settle(observed, outcome, now);
    writes.reverse();
    writes
}

pub fn forget_success(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    match outcome {
        Outcome::Published(_) => Vec::new(),
        outcome => decide::settle(observed, outcome, now),
    }
}

pub fn trust_status<'a>(observed: &Observed<'a>) -> Action<'a> {
    let attachment = observed.attachment;
    let release = patch::release(attachment, &observed.driver.finalizer);
    match release {
        Some(write) if attachment.deleting.is_some() && !attachment.attached => Action::Release(write),
        _ => decide::attachment(observed),
    }
}

/// A decision may point into what it was made from, which for a mutant is made up. The few bytes stay until the end.
fn with_attachment<'a>(observed: &Observed<'a>, change: impl FnOnce(&mut Attachment)) -> Observed<'a> {
    let mut attachment = observed.attachment.clone();
    change(&mut attachment);
    Observed {
        attachment: Box::leak(Box::new(attachment)),
        ..*observed
    }
}

fn with_volume<'a>(observed: &Observed<'a>, change: impl FnOnce(&mut Volume)) -> Observed<'a> {
    let volume = observed.volume.map(|volume| {
        let mut volume = volume.clone();
        change(&mut volume);
        &*Box::leak(Box::new(volume))
    });
    Observed { volume, ..*observed }
}

fn and_ours(finalizers: &Finalizers, driver: &DriverFacts) -> Finalizers {
    Finalizers::new(finalizers.iter().chain([&*driver.finalizer]))
}

pub fn skip_claim<'a>(observed: &Observed<'a>) -> Action<'a> {
    let action = decide::attachment(observed);
    let (Action::Claim(_), NodeEntry::Registered(id)) = (&action, observed.node) else {
        return action;
    };
    let source = match (&observed.attachment.source, observed.volume) {
        (crate::objects::AttachmentSource::Inline(spec), _) => spec.csi(),
        (_, volume) => volume.map(|volume| &volume.spec).and_then(VolumeSpec::csi),
    };
    let Some(source) = source else { return action };
    let claimed = with_attachment(observed, |attachment| {
        attachment.finalizers = and_ours(&attachment.finalizers, observed.driver);
        attachment.node_id = Some(id.into());
        attachment.volume_note = Some(Box::new(VolumeAnnotation {
            handle: source.handle.clone(),
            secret: None,
            former: Vec::new(),
            renewed: 0,
        }));
    });
    decide::attachment(&claimed)
}

pub fn skip_protection<'a>(observed: &Observed<'a>) -> Action<'a> {
    match decide::attachment(observed) {
        Action::ProtectVolume(_) => decide::attachment(&with_volume(observed, |volume| {
            volume.finalizers = and_ours(&volume.finalizers, observed.driver);
        })),
        action => action,
    }
}

/// The model check alone plays it. It takes an attach that goes by a PersistentVolume of before a restore, and the read of one that is not
/// watched finds that out.
#[allow(dead_code, reason = "this file is a part of the model check as well")]
pub fn protect_once<'a>(observed: &Observed<'a>) -> Action<'a> {
    match decide::attachment(observed) {
        Action::ProtectVolume(_) if observed.attachment.attached => {
            Action::Ignore(decide::IgnoreReason::AlreadyAttached)
        }
        action => action,
    }
}

/// A regression alone plays it.
#[allow(dead_code, reason = "this file is a part of the model check as well")]
pub fn go_by_the_note<'a>(observed: &Observed<'a>) -> Action<'a> {
    if observed.attachment.deleting.is_none() {
        return decide::attachment(observed);
    }
    decide::attachment(&with_volume(observed, |volume| {
        volume.finalizers = Finalizers::new(std::iter::empty::<&str>());
    }))
}

pub fn forget_volume_deletion<'a>(observed: &Observed<'a>) -> Action<'a> {
    decide::attachment(&with_volume(observed, |volume| volume.deleting = false))
}

pub fn forget_node_id<'a>(observed: &Observed<'a>) -> Action<'a> {
    let known = match observed.node {
        NodeEntry::Registered(id) if observed.attachment.volume_note.is_some() => Some(id),
        _ => observed.attachment.node_id.as_deref(),
    };
    let observed = with_attachment(observed, |attachment| attachment.node_id = known.map(Into::into));
    match decide::attachment(&observed) {
        Action::Claim(write) => Action::Claim(without_annotation(write, NODE_ID_ANNOTATION)),
        action => action,
    }
}

fn without_annotation(mut write: Write, key: &str) -> Write {
    let path = format!("/metadata/annotations/{}", key.replace('/', "~1"));
    if let Some(operations) = write.body.as_array_mut() {
        operations.retain(|operation| operation["path"] != path.as_str());
        for operation in operations {
            if let Some(both) = operation["value"].as_object_mut() {
                both.remove(key);
            }
        }
    }
    write
}

pub fn forget_former<'a>(observed: &Observed<'a>) -> Action<'a> {
    let Action::Claim(mut write) = decide::attachment(observed) else {
        return decide::attachment(observed);
    };
    let path = format!("/metadata/annotations/{}", VOLUME_ANNOTATION.replace('/', "~1"));
    let operations = write.body.as_array_mut().into_iter().flatten();
    for operation in operations.filter(|operation| operation["path"] == path.as_str()) {
        let note: Option<Value> = operation["value"]
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok());
        if let Some(mut note) = note {
            note.as_object_mut().map(|note| note.remove("former"));
            operation["value"] = note.to_string().into();
        }
    }
    Action::Claim(write)
}

pub fn release_named(volume: &Volume, _attachments: usize, driver: &DriverFacts) -> Result<Write, KeepReason> {
    decide::volume(volume, 0, driver)
}

pub fn nameless<'a>(observed: &Observed<'a>) -> Action<'a> {
    match decide::attachment(observed) {
        Action::Claim(write) => Action::Claim(without_uid(write)),
        Action::ProtectVolume(write) => Action::ProtectVolume(without_uid(write)),
        action => action,
    }
}

pub fn settle_nameless(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    decide::settle(observed, outcome, now)
        .into_iter()
        .map(without_uid)
        .collect()
}

fn without_uid(mut write: Write) -> Write {
    match &mut write.body {
        Value::Array(operations) => operations.retain(|operation| operation["path"] != "/metadata/uid"),
        body => body["metadata"] = json!({}),
    }
    write
}

pub fn take_all_finalizers(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let mut writes = decide::settle(observed, outcome, now);
    for write in &mut writes {
        if matches!(write.target, WriteTarget::Attachment(_)) {
            write.form = PatchType::Merge;
            write.body = json!({"metadata": {"uid": &*observed.attachment.uid, "finalizers": null}});
        }
    }
    writes
}

/// What the Go sidecar does with the finalizers that it adds: the whole list is written, from a copy that may be stale.
pub fn replace_when_adding<'a>(observed: &Observed<'a>) -> Action<'a> {
    let ours = &observed.driver.finalizer;
    let replaced = |mut write: Write, known: &Finalizers| {
        let all: Vec<String> = and_ours(known, observed.driver).iter().map(str::to_owned).collect();
        if let Some(operations) = write.body.as_array_mut()
            && !known.contains(ours)
        {
            let is_about = |operation: &Value| {
                let path = operation["path"].as_str();
                path.is_some_and(|path| path.starts_with("/metadata/finalizers"))
            };
            operations.retain(|operation| !is_about(operation));
            operations.push(json!({"op": "add", "path": "/metadata/finalizers", "value": all}));
        }
        write
    };
    match (decide::attachment(observed), observed.volume) {
        (Action::Claim(write), _) => Action::Claim(replaced(write, &observed.attachment.finalizers)),
        (Action::ProtectVolume(write), Some(volume)) => Action::ProtectVolume(replaced(write, &volume.finalizers)),
        (action, _) => action,
    }
}

/// What the Go sidecar does: the whole list, from a copy that may be stale.
pub fn replace_finalizers(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let attachment = observed.attachment;
    let left = attachment.finalizers.iter();
    let left: Vec<&str> = left.filter(|entry| **entry != *observed.driver.finalizer).collect();
    let mut writes = decide::settle(observed, outcome, now);
    for write in &mut writes {
        if matches!(write.target, WriteTarget::Attachment(_)) {
            write.form = PatchType::Merge;
            write.body = json!({"metadata": {"uid": &*attachment.uid, "finalizers": left}});
        }
    }
    writes
}

pub fn forget_twin<'a>(observed: &Observed<'a>) -> Action<'a> {
    let alone = decide::Neighbours {
        here: None,
        ..observed.neighbours.clone()
    };
    decide::attachment(&Observed {
        neighbours: Box::leak(Box::new(alone)),
        ..*observed
    })
}

pub fn forget_read_only<'a>(observed: &Observed<'a>) -> Action<'a> {
    match decide::attachment(observed) {
        Action::Publish(mut plan) => {
            plan.read_only = false;
            Action::Publish(plan)
        }
        action => action,
    }
}

pub fn believe_failure(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    match outcome {
        Outcome::AttachFailed(Failure { code: Some(_), .. }) => vec![patch::attached(observed.attachment, None)],
        outcome => decide::settle(observed, outcome, now),
    }
}

pub fn keep_error(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let mut writes = decide::settle(observed, outcome, now);
    if matches!(outcome, Outcome::Published(_)) {
        for write in &mut writes {
            let status = write.body.get_mut("status").and_then(Value::as_object_mut);
            status.map(|status| status.remove("attachError"));
        }
    }
    writes
}

pub fn lose_context(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    match outcome {
        Outcome::Published(_) => vec![patch::attached(observed.attachment, None)],
        outcome => decide::settle(observed, outcome, now),
    }
}

pub fn keep_context(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let fresh = with_attachment(observed, |attachment| attachment.has_publish_context = false);
    decide::settle(&fresh, outcome, now)
}

pub fn forget_version(observed: &Observed<'_>, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let mut writes = decide::settle(observed, outcome, now);
    for write in &mut writes {
        if let Some(metadata) = write.body.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        if let Some(operations) = write.body.as_array_mut() {
            operations.retain(|operation| operation["path"] != "/metadata/resourceVersion");
        }
    }
    writes
}

pub fn forget_driver<'a>(observed: &Observed<'a>) -> Action<'a> {
    let name = observed.driver.name.clone();
    decide::attachment(&with_volume(observed, |volume| {
        if let VolumeSource::Csi(source) = &mut volume.spec.source {
            source.driver = name;
        }
    }))
}
