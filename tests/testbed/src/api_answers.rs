//! What the API server answers, for tests.

use serde_json::{Value, json};

#[path = "../../../crates/model/src/decide/tests/api_server.rs"]
mod patched;

pub use patched::{apply, is_gone};

/// What the API server refuses with these words.
pub fn refusal(code: u16, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "message": message,
    })
}

/// What the API server answers when there is no object at this path of a cluster-scoped or namespaced resource.
pub fn not_found(path: &str) -> Value {
    let parts: Vec<&str> = path.trim_end_matches("/status").split('/').collect();
    let [.., kind, name] = parts.as_slice() else {
        panic!("{path} is the path of no object")
    };
    let group = if parts[1] == "apis" { parts[2] } else { "" };
    let of_group = if group.is_empty() {
        (*kind).to_owned()
    } else {
        format!("{kind}.{group}")
    };
    let mut details = json!({"name": name, "kind": kind});
    if !group.is_empty() {
        details["group"] = group.into();
    }
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404, "reason": "NotFound",
        "message": format!("{of_group} \"{name}\" not found"), "details": details,
    })
}
