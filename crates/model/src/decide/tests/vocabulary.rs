//! Short names of patches, given only to what is to the letter what the name stands for.

use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::builders::{ATTACHMENT_UID, VOLUME_UID};
use super::world::{DecideModel, NOW};
use crate::api::names::{NODE_ID_ANNOTATION, VOLUME_ANNOTATION};
use crate::decide::Write;
use crate::decide::patch::{PatchType, WriteTarget};
use crate::objects::{AttachmentSource, FormerVolumeOnNode, VolumeAnnotation, VolumeSource};

impl DecideModel {
    /// The name of a patch, if it is to the letter what that name stands for; else the patch itself.
    pub fn label(&self, write: &Write) -> String {
        let finalizer = &*self.driver.finalizer;
        let raw = || format!("{:?} {:?} {}", write.target, write.form, write.body);
        match (&write.target, write.form) {
            (WriteTarget::Volume(_), PatchType::Json) if write.body == add_first(VOLUME_UID, finalizer) => {
                "PV+".to_owned()
            }
            (WriteTarget::Volume(_), PatchType::Json) if write.body == remove(VOLUME_UID, 0, finalizer) => {
                "PV-".to_owned()
            }
            (WriteTarget::Attachment(_), PatchType::Json) if write.body == self.claim(&write.body[1]) => {
                "FIN+".to_owned()
            }
            (WriteTarget::Attachment(_), PatchType::Json) if write.body == self.held_again(&write.body[1]) => {
                "FIN again".to_owned()
            }
            (WriteTarget::Attachment(_), PatchType::Json)
                if write.body == self.note(&write.body[1], &noted_in(&write.body)) =>
            {
                let places = noted_in(&write.body).0.into_iter();
                let places = places.map(|place| format!(" former {}@{}", place.handle, place.node_id));
                std::iter::once("NOTE".to_owned()).chain(places).collect()
            }
            (WriteTarget::Attachment(_), PatchType::Json) if write.body == self.let_go() => "FIN-".to_owned(),
            (WriteTarget::AttachmentStatus(_), PatchType::Json) => replaced_label(&write.body).unwrap_or_else(raw),
            (WriteTarget::AttachmentStatus(_), PatchType::Merge) => status_label(&write.body).unwrap_or_else(raw),
            _ => raw(),
        }
    }

    /// The annotations that a claim writes.
    fn annotations(&self, noted: &Noted) -> [(&'static str, String); 2] {
        let spec = match self.snapshot().map(|snapshot| snapshot.attachment.source.clone()) {
            Some(AttachmentSource::Inline(_)) => self
                .attachment
                .as_ref()
                .map(|va| &va["spec"]["source"]["inlineVolumeSpec"]),
            _ => self.volume.as_ref().map(|pv| &pv["spec"]),
        };
        let csi = spec.map(|spec| &spec["csi"]).cloned().unwrap_or_default();
        let mut note = json!({"handle": csi["volumeHandle"]});
        if let Some(VolumeSource::Csi(translated)) = self
            .volume_record()
            .filter(|volume| volume.in_tree.is_some())
            .map(|volume| volume.spec.source)
        {
            note = json!({"handle": translated.handle});
        }
        if let Some(secret) = csi.get("controllerPublishSecretRef") {
            note["secret"] = json!({"namespace": secret["namespace"], "name": secret["name"]});
        }
        let registered = self.node.as_ref().map(|csi| &csi["spec"]["drivers"][0]["nodeID"]);
        let node_id = registered.and_then(Value::as_str).unwrap_or_default();
        [
            (NODE_ID_ANNOTATION, node_id.to_owned()),
            (VOLUME_ANNOTATION, ordered(&note, noted)),
        ]
    }

    /// FIN again: the finalizer alone, on an attachment that has none.
    fn held_again(&self, second: &Value) -> Value {
        let mut operations = add_first(ATTACHMENT_UID, &self.driver.finalizer);
        if let Value::Array(list) = &mut operations {
            list.insert(1, same_version(second));
        }
        operations
    }

    /// FIN+: a claim of an attachment that has neither finalizers nor annotations.
    fn claim(&self, second: &Value) -> Value {
        let mut operations = self.held_again(second);
        let annotations: BTreeMap<_, _> = self.annotations(&Noted::default()).into();
        if let Value::Array(list) = &mut operations {
            list.push(json!({"op": "test", "path": "/metadata/annotations", "value": null}));
            list.push(json!({"op": "add", "path": "/metadata/annotations", "value": annotations}));
        }
        operations
    }

    /// FIN-: the finalizer and, where that of somebody else keeps the object, what was noted with it.
    fn let_go(&self) -> Value {
        let mut operations = remove(ATTACHMENT_UID, 0, &self.driver.finalizer);
        let known = self.snapshot().map(|snapshot| snapshot.attachment);
        let kept = known.filter(|attachment| attachment.finalizers.iter().count() > 1);
        if let (Value::Array(list), Some(kept)) = (&mut operations, kept) {
            if kept.node_id.is_some() || kept.node_id_is_blank {
                list.push(json!({"op": "remove", "path": path_of(NODE_ID_ANNOTATION)}));
            }
            if kept.volume_note.is_some() {
                list.push(json!({"op": "remove", "path": path_of(VOLUME_ANNOTATION)}));
            }
        }
        operations
    }

    /// NOTE: the annotations alone, on an attachment that has our finalizer and other annotations.
    fn note(&self, second: &Value, noted: &Noted) -> Value {
        let mut operations = vec![same(ATTACHMENT_UID), same_version(second)];
        for (key, value) in self.annotations(noted) {
            let path = path_of(key);
            operations.push(json!({"op": "add", "path": path, "value": value}));
        }
        operations.into()
    }
}

/// What a claim notes of earlier ones: the former places, and how many there were.
type Noted = (Vec<FormerVolumeOnNode>, u32);

fn ordered(note: &Value, (former, renewed): &Noted) -> String {
    serde_json::from_value(note.clone()).map_or_else(
        |_| String::new(),
        |note: VolumeAnnotation| {
            let (former, renewed) = (former.clone(), *renewed);
            serde_json::to_string(&VolumeAnnotation {
                former,
                renewed,
                ..note
            })
            .unwrap()
        },
    )
}

/// What a patch notes of earlier claims.
fn noted_in(body: &Value) -> Noted {
    let text = body.as_array().and_then(|list| list.last()).map(|last| &last["value"]);
    let note = text
        .and_then(Value::as_str)
        .and_then(|text| serde_json::from_str(text).ok());
    note.map(|note: VolumeAnnotation| (note.former, note.renewed))
        .unwrap_or_default()
}

fn path_of(key: &str) -> String {
    format!("/metadata/annotations/{}", key.replace('/', "~1"))
}

fn same(uid: &str) -> Value {
    json!({"op": "test", "path": "/metadata/uid", "value": uid})
}

/// The second operation, if it is a test of the version. Whether it is the version of the object, `api_server::apply` finds out.
fn same_version(second: &Value) -> Value {
    json!({"op": "test", "path": "/metadata/resourceVersion", "value": second["value"].as_str()})
}

fn add_first(uid: &str, finalizer: &str) -> Value {
    json!([
        same(uid),
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": [finalizer]},
    ])
}

fn remove(uid: &str, at: usize, finalizer: &str) -> Value {
    let path = format!("/metadata/finalizers/{at}");
    json!([same(uid), {"op": "test", "path": path, "value": finalizer}, {"op": "remove", "path": path}])
}

/// The publish context of an older attach is replaced as a whole.
fn replaced_label(body: &Value) -> Option<String> {
    let metadata = &body[4]["value"];
    let wanted = json!([
        same(ATTACHMENT_UID), same_version(&body[1]),
        {"op": "add", "path": "/status/attachError", "value": null},
        {"op": "add", "path": "/status/attached", "value": true},
        {"op": "add", "path": "/status/attachmentMetadata", "value": metadata},
    ]);
    (*body == wanted).then(|| format!("ATT(={metadata})"))
}

fn status_label(body: &Value) -> Option<String> {
    let status = body.get("status")?;
    // The result of an attach is for the object as it was read; that of a detach stands whatever else was changed.
    let of_attach = status["attached"] == true || status.get("attachError").is_some();
    let metadata = if of_attach {
        // Whether it is the version of the object, `api_server::apply` finds out.
        json!({"uid": ATTACHMENT_UID, "resourceVersion": body["metadata"]["resourceVersion"].as_str()?})
    } else {
        json!({"uid": ATTACHMENT_UID})
    };
    if *body != json!({"metadata": metadata, "status": status}) {
        return None;
    }
    if *status == json!({"attached": true, "attachError": null}) {
        return Some("ATT".to_owned());
    }
    if *status == json!({"attached": true, "attachError": null, "attachmentMetadata": null}) {
        return Some("ATT(=null)".to_owned());
    }
    if *status == json!({"attached": false, "attachmentMetadata": null, "detachError": null}) {
        return Some("DET".to_owned());
    }
    if let Some(metadata) = status.get("attachmentMetadata") {
        let wanted = json!({"attached": true, "attachError": null, "attachmentMetadata": metadata});
        return (*status == wanted).then(|| format!("ATT({metadata})"));
    }
    if let Some(error) = status.get("attachError") {
        let (message, code) = (error["message"].as_str()?, error.get("errorCode")?);
        let wanted = json!({"attachError": {"message": message, "time": NOW, "errorCode": code}});
        let code = code.as_i64().map(|code| format!(", {code}")).unwrap_or_default();
        return (*status == wanted).then(|| format!("AERR({message}{code})"));
    }
    let message = status.get("detachError")?["message"].as_str()?;
    let wanted = json!({"detachError": {"message": message, "time": NOW}});
    (*status == wanted).then(|| format!("DERR({message})"))
}
