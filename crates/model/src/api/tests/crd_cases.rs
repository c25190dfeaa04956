//! The operator's own checks give the answers that the table expects of the API server.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::api::AttacherConfigObject;

#[path = "../../../../../tests/it/crd_cases.rs"]
mod cases;

use cases::{CASES, Expect};

#[test]
fn the_operator_agrees_with_the_api_server() {
    for case in CASES {
        let spec: Value = serde_json::from_str(case.spec).expect(case.name);
        let object: AttacherConfigObject =
            serde_json::from_value(json!({"metadata": {"name": case.name}, "spec": spec})).expect(case.name);
        match (&case.expect, object.config()) {
            (Expect::Accepted | Expect::RefusedByServer { .. }, Ok(_)) => {}
            (Expect::Refused { field, message }, Err(errors)) => {
                let found = errors.0.iter().any(|error| error.field == *field);
                assert!(found, "{}: {errors}", case.name);
                assert!(
                    !message.is_empty(),
                    "{}: an empty message matches any answer",
                    case.name
                );
            }
            (Expect::RefusedByServer { message }, Err(errors)) => panic!("{}: {message}, {errors}", case.name),
            (_, result) => panic!("{}: {result:?}", case.name),
        }
    }
}

#[test]
fn case_names_are_unique_object_names() {
    let names: HashSet<&str> = CASES.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), CASES.len());
    for name in names {
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'),
            "{name}"
        );
    }
}
