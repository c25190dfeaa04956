//! The operations of JSON patches (RFC 6902) of which the writes of both roles are made.

use serde_json::{Map, Value, json};

use crate::objects::{Finalizers, ResourceVersion};

const ANNOTATIONS: &str = "/metadata/annotations";
const FINALIZERS: &str = "/metadata/finalizers";

/// The operations, on condition that the object is still the one with this UID.
pub(crate) fn patch_of(uid: &str, operations: impl IntoIterator<Item = Value>) -> Value {
    std::iter::once(test("/metadata/uid", uid)).chain(operations).collect()
}

/// That there is this value at a path; with null, that there is nothing.
pub(crate) fn test(path: &str, value: impl Into<Value>) -> Value {
    json!({"op": "test", "path": path, "value": value.into()})
}

/// That the object has this version still.
pub(crate) fn test_version(ResourceVersion(version): ResourceVersion) -> Value {
    test("/metadata/resourceVersion", version.to_string())
}

/// Puts a finalizer after those of others. Where the list is not known as a whole the caller tests the version.
pub(crate) fn add_finalizer(present: &Finalizers, finalizer: &str) -> Vec<Value> {
    if present.is_empty() {
        return vec![
            test(FINALIZERS, Value::Null),
            json!({"op": "add", "path": FINALIZERS, "value": [finalizer]}),
        ];
    }
    let add = json!({"op": "add", "path": format!("{FINALIZERS}/-"), "value": finalizer});
    if present.left_out() > 0 {
        return vec![add];
    }
    let all: Vec<&str> = present.iter().collect();
    vec![test(FINALIZERS, all), add]
}

/// That a finalizer is at this place.
pub(crate) fn test_finalizer(at: usize, finalizer: &str) -> Value {
    test(&format!("{FINALIZERS}/{at}"), finalizer)
}

/// What takes a finalizer out of a list, from each of its places in it; none when it is not there. The last one goes first, so that the
/// places of the others stay the same.
pub(crate) fn without_finalizer(places: impl DoubleEndedIterator<Item = usize>, finalizer: &str) -> Option<Vec<Value>> {
    let remove = |at: usize| json!({"op": "remove", "path": format!("{FINALIZERS}/{at}")});
    let operations: Vec<Value> = places
        .rev()
        .flat_map(|at| [test_finalizer(at, finalizer), remove(at)])
        .collect();
    (!operations.is_empty()).then_some(operations)
}

/// Sets annotations; where there is no map of annotations yet, it is made.
pub(crate) fn annotate(has_annotations: bool, entries: &[(&str, &str)]) -> Vec<Value> {
    if has_annotations {
        return entries.iter().map(|(key, value)| add_annotation(key, value)).collect();
    }
    let all: Map<String, Value> = entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).into()))
        .collect();
    vec![
        test(ANNOTATIONS, Value::Null),
        json!({"op": "add", "path": ANNOTATIONS, "value": all}),
    ]
}

/// Sets an annotation, beside others.
pub(crate) fn add_annotation(key: &str, value: &str) -> Value {
    json!({"op": "add", "path": annotation_path(key), "value": value})
}

/// That an annotation has this value.
pub(crate) fn test_annotation(key: &str, value: &str) -> Value {
    test(&annotation_path(key), value)
}

/// That an annotation is not there. Where there is no map of annotations, the API server refuses any test of what would be in it.
pub(crate) fn test_no_annotation(has_annotations: bool, key: &str) -> Value {
    if has_annotations {
        test(&annotation_path(key), Value::Null)
    } else {
        test(ANNOTATIONS, Value::Null)
    }
}

/// Takes an annotation away.
pub(crate) fn remove_annotation(key: &str) -> Value {
    json!({"op": "remove", "path": annotation_path(key)})
}

/// Whether this operation makes the map of annotations.
pub(crate) fn makes_annotations(operation: &Value) -> bool {
    operation["op"] == "add" && operation["path"] == ANNOTATIONS
}

fn annotation_path(key: &str) -> String {
    format!("{ANNOTATIONS}/{}", key.replace('~', "~0").replace('/', "~1"))
}
