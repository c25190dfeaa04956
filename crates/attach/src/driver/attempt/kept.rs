//! Whether the answer to a write shows what was written (invariant 20 of ARCHITECTURE): the API server answers with the object as it is
//! stored, and with OK also when a mutating admission webhook, or a policy, took something away on the way.

use serde_json::{Map, Value};
use std::fmt;

use crate::api::names::{NODE_ID_ANNOTATION, RELEASE_REFUSED_ANNOTATION, VOLUME_ANNOTATION};
use crate::apiserver::Returned;
use crate::decide::Write;
use crate::objects::{Attachment, Finalizers, VolumeAnnotation};

/// What an object does not show although it was written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotKept(Vec<Difference>);

/// One part of a write that the answer does not show.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    what: String,
    /// What a webhook may do for this.
    does: &'static str,
}

/// Compares the answer to a write with what was written. Only what a later step rests on counts: not what others add, and not
/// the trace context. Any write gives a webhook the occasion to take off our finalizer: `held` is that finalizer, where the object had
/// it before.
pub(super) fn check(write: &Write, held: Option<&str>, answer: &Returned) -> Result<(), NotKept> {
    let (mut found, mut held) = (Vec::new(), held);
    let finalizers = match answer {
        Returned::Attachment(record) => &record.finalizers,
        Returned::Volume(record) => &record.finalizers,
    };
    match &write.body {
        Value::Array(operations) => {
            let (mut tested, mut of_status) = (None, Map::new());
            for operation in operations {
                let path = operation["path"].as_str().unwrap_or_default();
                let value = &operation["value"];
                match operation["op"].as_str().unwrap_or_default() {
                    "test" => tested = Some(value),
                    "add" if path.starts_with(STATUS) => {
                        of_status.insert(path.trim_start_matches(STATUS).to_owned(), value.clone());
                    }
                    "add" => added(path, value, finalizers, answer, &mut found),
                    // What is removed is tested before.
                    "remove" if path.starts_with(FINALIZERS) => {
                        let removed = tested.and_then(Value::as_str);
                        held = held.filter(|held| Some(*held) != removed);
                        let is_back = removed.filter(|name| finalizers.contains(name));
                        found.extend(is_back.map(|name| Difference {
                            what: format!("the removal of finalizer {name}"),
                            does: "put",
                        }));
                    }
                    _ => {}
                }
            }
            status(&of_status.into(), answer, &mut found);
            if let Some(lost) = held.filter(|held| !finalizers.contains(held)) {
                found.insert(0, missing_finalizer(lost));
            }
        }
        body => status(&body["status"], answer, &mut found),
    }
    if found.is_empty() { Ok(()) } else { Err(NotKept(found)) }
}

const STATUS: &str = "/status/";
const FINALIZERS: &str = "/metadata/finalizers";
const ANNOTATIONS: &str = "/metadata/annotations";

fn gone(what: String) -> Difference {
    Difference { what, does: "remove" }
}

fn missing_finalizer(finalizer: &str) -> Difference {
    gone(format!("finalizer {finalizer}"))
}

/// What an `add` of a JSON patch puts there.
fn added(path: &str, value: &Value, present: &Finalizers, answer: &Returned, found: &mut Vec<Difference>) {
    if path.starts_with(FINALIZERS) {
        let names = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let missing = names
            .iter()
            .filter_map(Value::as_str)
            .filter(|name| !present.contains(name));
        found.extend(missing.map(missing_finalizer));
        return;
    }
    let (Some(key), Returned::Attachment(record)) = (path.strip_prefix(ANNOTATIONS), answer) else {
        return;
    };
    match value {
        Value::Object(all) => {
            for key in KEYS {
                if let Some(value) = all.get(*key).and_then(Value::as_str) {
                    found.extend(annotation(key, value, record));
                }
            }
        }
        value => {
            let key = key.trim_start_matches('/').replace("~1", "/").replace("~0", "~");
            found.extend(annotation(&key, value.as_str().unwrap_or_default(), record));
        }
    }
}

/// The annotations that a later step rests on, for the log.
const KEYS: &[&str] = &[NODE_ID_ANNOTATION, VOLUME_ANNOTATION, RELEASE_REFUSED_ANNOTATION];

fn annotation(key: &str, written: &str, record: &Attachment) -> Option<Difference> {
    let (is_there, is_kept) = match key {
        NODE_ID_ANNOTATION => {
            let shown = record.node_id.as_deref();
            (shown.is_some(), shown == Some(written))
        }
        VOLUME_ANNOTATION => {
            let written: Option<VolumeAnnotation> = serde_json::from_str(written).ok();
            let shown = record.volume_note.as_deref();
            let is_there = shown.is_some() || record.note_fault.is_some();
            (is_there, shown == written.as_ref())
        }
        RELEASE_REFUSED_ANNOTATION => {
            let shown = record.release.as_ref().and_then(|note| note.answer.as_deref());
            // The request itself may be withdrawn meanwhile, and its answer is not read then.
            (shown.is_some(), record.release.is_none() || shown == Some(written))
        }
        _ => return None,
    };
    let name = format!("annotation {key}");
    match (is_there, is_kept) {
        (_, true) => None,
        (true, false) => Some(Difference {
            what: format!("the value of {name}"),
            does: "change",
        }),
        (false, false) => Some(gone(name)),
    }
}

/// What a patch puts into the status.
fn status(written: &Value, answer: &Returned, found: &mut Vec<Difference>) {
    let Returned::Attachment(record) = answer else {
        return;
    };
    let mut missing = |field: &str| found.push(gone(format!("status.{field}")));
    if written["attached"]
        .as_bool()
        .is_some_and(|attached| attached != record.attached)
    {
        missing("attached");
    }
    let has_context = written["attachmentMetadata"]
        .as_object()
        .is_some_and(|context| context.values().any(Value::is_string));
    if has_context && !record.has_publish_context {
        missing("attachmentMetadata");
    }
    if written["attachError"].is_object() && record.attach_error.is_none() {
        missing("attachError");
    }
    if written["detachError"].is_object() && record.detach_error.is_none() {
        missing("detachError");
    }
}

impl fmt::Display for NotKept {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<&str> = self.0.iter().map(|difference| &*difference.what).collect();
        let does = self.0.first().map_or("remove", |first| first.does);
        let them = if parts.len() > 1 { "them" } else { "it" };
        let back = if does == "put" { " back" } else { "" };
        write!(
            formatter,
            "the API server accepted the write but did not keep {}; an admission webhook may {does} {them}{back}",
            parts.join(" and ")
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::decide::patch::{PatchType, WriteTarget};
    use crate::objects::VolumeAttachmentWire;

    /// The context of a volume that is published again takes the place of the former one, and the kubelet mounts by it.
    #[test]
    fn a_publish_context_that_is_not_kept_is_told() {
        let answer = |shown: Value| {
            let write = Write {
                target: WriteTarget::AttachmentStatus("va0".into()),
                form: PatchType::Json,
                body: json!([
                    {"op": "test", "path": "/metadata/uid", "value": "va0-uid"},
                    {"op": "add", "path": "/status/attached", "value": true},
                    {"op": "add", "path": "/status/attachmentMetadata", "value": {"device": "sdb"}},
                ]),
            };
            let object = json!({
                "metadata": {"name": "va0", "uid": "va0-uid", "resourceVersion": "2"},
                "spec": {"attacher": "a.test", "nodeName": "n0", "source": {"persistentVolumeName": "pv1"}},
                "status": shown,
            });
            let record = serde_json::from_value::<VolumeAttachmentWire>(object).unwrap();
            let answer = Returned::Attachment(Box::new(record.into()));
            check(&write, None, &answer).map_err(|found| found.to_string())
        };
        assert_eq!(
            answer(json!({"attached": true, "attachmentMetadata": {"device": "sdb"}})),
            Ok(())
        );
        let told = answer(json!({"attached": true})).unwrap_err();
        assert!(told.contains("status.attachmentMetadata"), "{told}");
    }

    /// Whatever is written: without the finalizer the object goes as soon as it is deleted.
    #[test]
    fn a_finalizer_that_goes_with_a_write_is_told() {
        const OURS: &str = "external-attacher/a-test";
        let answer = |operations: Value, held: Option<&str>, finalizers: &[&str]| {
            let write = Write {
                target: WriteTarget::Attachment("va0".into()),
                form: PatchType::Json,
                body: operations,
            };
            let object = json!({
                "metadata": {"name": "va0", "uid": "va0-uid", "resourceVersion": "2", "finalizers": finalizers},
                "spec": {"attacher": "a.test", "nodeName": "n0", "source": {"persistentVolumeName": "pv1"}},
            });
            let record = serde_json::from_value::<VolumeAttachmentWire>(object).unwrap();
            let answer = Returned::Attachment(Box::new(record.into()));
            check(&write, held, &answer).map_err(|found| found.to_string())
        };
        let path = "/metadata/annotations/attacher.csi.dev~1traceparent";
        let trace = || json!([{"op": "add", "path": path, "value": "00"}]);
        let release = json!([
            {"op": "test", "path": "/metadata/finalizers/0", "value": OURS},
            {"op": "remove", "path": "/metadata/finalizers/0"},
        ]);
        let lost = "the API server accepted the write but did not keep finalizer external-attacher/a-test; an admission \
                    webhook may remove it";
        assert_eq!(answer(trace(), Some(OURS), &["a/b"]), Err(lost.to_owned()));
        assert_eq!(answer(trace(), Some(OURS), &["a/b", OURS]), Ok(()));
        assert_eq!(answer(trace(), None, &["a/b"]), Ok(()), "it was not there before");
        assert_eq!(answer(release, Some(OURS), &["a/b"]), Ok(()), "we took it off");
    }
}
