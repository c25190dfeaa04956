//! AttacherConfigs that are deleted.

use serde_json::{Value, json};

use crate::api::AttacherConfigObject;
use crate::supervisor::deletion::{is_served, is_waiting, patch};

const OURS: &str = "attacher.csi.dev/wait-for-detach";

fn object(policy: &Value, deleting: bool, finalizers: &[&str]) -> AttacherConfigObject {
    let mut object = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1", "kind": "AttacherConfig",
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "finalizers": finalizers},
        "spec": {"endpoint": "unix:///a", "deletionPolicy": policy},
    });
    if deleting {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    serde_json::from_value(object).expect("readable")
}

/// Policy, being deleted, finalizers, claimed attachments | finalizers written, served, waiting.
type Row<'a> = (
    &'a Value,
    bool,
    &'a [&'a str],
    Option<usize>,
    Option<&'a [&'a str]>,
    bool,
    bool,
);

#[test]
fn the_finalizer_is_there_while_it_is_needed() {
    let (orphan, wait, unreadable) = (json!("Orphan"), json!("WaitForDetach"), json!(["?"]));
    let rows: &[Row<'_>] = &[
        (&orphan, false, &[], Some(3), None, true, false),
        (
            &orphan,
            false,
            &["a/b", OURS, "c/d"],
            Some(3),
            Some(&["a/b", "c/d"]),
            true,
            false,
        ),
        (&orphan, true, &["a/b"], Some(3), None, false, false),
        (&orphan, true, &[OURS], Some(3), Some(&[]), false, false),
        (&wait, false, &[], Some(0), Some(&[OURS]), true, false),
        (&wait, false, &["a/b"], None, Some(&["a/b", OURS]), true, false),
        (&wait, false, &[OURS], Some(0), None, true, false),
        (&wait, true, &[OURS], Some(1), None, true, true),
        (&wait, true, &[OURS], None, None, true, true),
        (&wait, true, &[OURS, "a/b"], Some(0), Some(&["a/b"]), true, true),
        // Too late for a finalizer: the API server takes no new ones.
        (&wait, true, &["a/b"], Some(1), None, false, false),
        (&unreadable, false, &[], Some(1), None, true, false),
        (&unreadable, false, &[OURS], Some(1), None, true, false),
        (&unreadable, true, &[OURS], Some(1), None, true, true),
        (&unreadable, true, &[OURS], Some(0), Some(&[]), true, true),
    ];
    for (policy, deleting, finalizers, claimed, written, served, waiting) in rows {
        let object = object(policy, *deleting, finalizers);
        let expected =
            written.map(|list| json!({"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": list}}));
        let row = format!("{policy} {deleting} {finalizers:?} {claimed:?}");
        assert_eq!(patch(&object, *claimed), expected, "{row}");
        assert_eq!((is_served(&object), is_waiting(&object)), (*served, *waiting), "{row}");
    }
}
