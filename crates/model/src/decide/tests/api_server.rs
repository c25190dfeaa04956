//! What the API server makes of a patch.

use serde_json::{Value, json};

use crate::decide::Write;
use crate::decide::patch::{PatchType, WriteTarget};

/// Whether a deleted object is held by nobody any more.
pub fn is_gone(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let held = metadata["finalizers"].as_array().is_some_and(|list| !list.is_empty());
    !metadata["deletionTimestamp"].is_null() && !held
}

/// Applies a patch by the rules of the API server: a `test` for null holds where there is nothing, a UID and
/// a resource version are preconditions, each endpoint changes its own part only, and a deleted object takes no new finalizers.
pub fn apply(object: &Value, write: &Write) -> Result<Value, String> {
    let mut patched = object.clone();
    match write.form {
        PatchType::Json => patch_json(&mut patched, &write.body)?,
        PatchType::Merge => json_patch::merge(&mut patched, &write.body),
    }
    if patched["metadata"]["uid"] != object["metadata"]["uid"] {
        return Err("Precondition failed: UID in precondition".to_owned());
    }
    if patched["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
        return Err("the object has been modified; please apply your changes to the latest version".to_owned());
    }
    let (kept, changed) = match write.target {
        WriteTarget::AttachmentStatus(_) => (["metadata", "spec"].as_slice(), "status"),
        WriteTarget::Attachment(_) | WriteTarget::Volume(_) => (["spec", "status"].as_slice(), "metadata"),
    };
    for part in kept {
        if let Some(before) = object.get(*part) {
            patched[*part] = before.clone();
        }
    }
    let list = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let added = list(&patched).iter().any(|entry| !list(object).contains(entry));
    if added && !object["metadata"]["deletionTimestamp"].is_null() {
        return Err("no new finalizers can be added if the object is being deleted".to_owned());
    }
    if patched["metadata"]["finalizers"] == json!([]) {
        patched["metadata"].as_object_mut().unwrap().remove("finalizers");
    }
    assert!(patched.get(changed).is_some());
    Ok(patched)
}

fn patch_json(object: &mut Value, body: &Value) -> Result<(), String> {
    for operation in body.as_array().unwrap() {
        let path = operation["path"].as_str().unwrap();
        // What is missing is null for a test, in a map that is there only.
        let there = |path: &str| object.pointer(path).is_some_and(|found| !found.is_null());
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        if operation["op"] == "test" && operation["value"].is_null() && !there(path) && there(parent) {
            continue;
        }
        let single: json_patch::Patch = serde_json::from_value(json!([operation])).unwrap();
        json_patch::patch(object, &single).map_err(|error| format!("the server rejected our request: {error}"))?;
    }
    Ok(())
}
