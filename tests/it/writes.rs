//! Proves what the operator writes and calls, in which order, and nothing else: from the audit log of the API server and
//! from the call log of the driver.

mod attach;
mod detach;
mod failures;
mod release;
mod resync;
mod secret;

use serde_json::{Value, json};

use crate::rig::{Driver, VERSION, VOLUME_UID};

/// The JSON patch that puts a finalizer on a volume which has none.
fn first_finalizer(finalizer: &str) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": VOLUME_UID},
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": [finalizer]},
    ])
}

/// The JSON patch that puts a finalizer on an object behind those of others.
fn one_more_finalizer(uid: &str, present: &[&str], finalizer: &str) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/finalizers", "value": present},
        {"op": "add", "path": "/metadata/finalizers/-", "value": finalizer},
    ])
}

/// The test that a claim is for the attachment as it was read.
fn same_version() -> Value {
    json!({"op": "test", "path": "/metadata/resourceVersion", "value": VERSION})
}

/// The JSON patch that claims an attachment which has neither finalizers nor annotations.
fn first_claim(driver: &Driver<'_>, uid: &str, handle: &str) -> Value {
    let note = json!({ "handle": handle }).to_string();
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        same_version(),
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": [driver.finalizer()]},
        {"op": "test", "path": "/metadata/annotations", "value": null},
        {"op": "add", "path": "/metadata/annotations", "value": {
            "csi.alpha.kubernetes.io/node-id": driver.node_id(), "attacher.csi.dev/volume": note,
        }},
    ])
}

/// The JSON patch that takes the finalizer of the driver from an attachment.
fn release(driver: &Driver<'_>, uid: &str, index: usize) -> Value {
    let path = format!("/metadata/finalizers/{index}");
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": path, "value": driver.finalizer()},
        {"op": "remove", "path": path},
    ])
}

/// The merge patch of the status of an attachment. What an attach came to is for the object as it was read.
fn status(uid: &str, status: &Value) -> Value {
    let of_attach = status["attached"] == true || status.get("attachError").is_some();
    let metadata = if of_attach {
        json!({ "uid": uid, "resourceVersion": VERSION })
    } else {
        json!({ "uid": uid })
    };
    json!({ "metadata": metadata, "status": status })
}

/// The status after a successful attach: with the publish context of the mock driver, whose n-th volume on a node gets
/// the n-th device.
fn attached(uid: &str, device: char) -> Value {
    let context = json!({ "devicePath": format!("/dev/xvdb{device}"), "readonly": "false" });
    status(
        uid,
        &json!({ "attached": true, "attachError": null, "attachmentMetadata": context }),
    )
}

/// The uid of an object that was stored.
fn uid<K: kube::Resource>(object: &K) -> String {
    object.meta().uid.clone().unwrap_or_default()
}
