//! From objects to steps.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::condition::ConditionReason;
use crate::api::{AttacherConfigObject, DriverConfig, FormerLease};
use crate::supervisor::plan::{DesiredDriver, PlanInput, desired_drivers, requires_restart};

fn object(name: &str, created: &str, spec: &Value) -> AttacherConfigObject {
    let value = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1", "kind": "AttacherConfig",
        "metadata": {"name": name, "uid": name, "creationTimestamp": format!("2026-01-01T00:00:{created}Z")},
        "spec": spec,
    });
    serde_json::from_value(value).unwrap()
}

fn config(spec: &Value) -> Arc<DriverConfig> {
    Arc::new(object("any", "00", spec).config().unwrap())
}

/// An AttacherConfig that the chart renames is a new one, and the former one is being deleted.
#[test]
fn what_is_being_deleted_does_not_keep_another_one_from_its_driver() {
    for spec in [
        json!({"endpoint": "unix:///a.sock", "deletionPolicy": "WaitForDetach"}),
        json!({"endpoint": "unix:///old.sock", "driverName": "x.test", "deletionPolicy": "WaitForDetach"}),
    ] {
        let mut leaving = object("leaving", "10", &spec);
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        leaving.metadata.finalizers = Some(vec!["attacher.csi.dev/wait-for-detach".to_owned()]);
        let mut next = spec.clone();
        next["deletionPolicy"] = "Orphan".into();
        let found = verdicts(&[leaving, object("next", "20", &next)]);
        assert_eq!(found, [("leaving".to_owned(), None), ("next".to_owned(), None)]);
    }
}

fn planned(objects: &[AttacherConfigObject]) -> BTreeMap<String, DesiredDriver> {
    let named = |object: &AttacherConfigObject| (object.metadata.name.clone().unwrap(), PlanInput::of(object));
    desired_drivers(&objects.iter().map(named).collect())
}

/// Who may run, and why who may not: one line for each object.
fn verdicts(objects: &[AttacherConfigObject]) -> Vec<(String, Option<ConditionReason>)> {
    let wishes = planned(objects);
    let verdict = |wish: &DesiredDriver| match wish {
        Ok(_) => None,
        Err(problem) => Some(problem.reason),
    };
    wishes
        .iter()
        .map(|(name, wish)| (name.clone(), verdict(wish)))
        .collect()
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn the_older_of_two_that_claim_the_same_wins() {
    let (a, b) = (
        json!({"endpoint": "unix:///a.sock"}),
        json!({"endpoint": "unix:///b.sock"}),
    );
    let spelled = json!({"endpoint": "unix:////./a.sock"});
    let named = |endpoint: &str| json!({"endpoint": endpoint, "driverName": "x.test"});
    let suspended = json!({"endpoint": "unix:///a.sock", "suspend": true});
    let conflict = Some(ConditionReason::EndpointConflict);
    // Specs of the objects `one` and `two`, their ages in seconds, and the verdicts on them.
    let rows = [
        (&a, "10", &b, "20", None, None),
        (&a, "10", &a, "20", None, conflict),
        (&a, "20", &a, "10", conflict, None),
        // Of the same second: by name.
        (&a, "10", &a, "10", None, conflict),
        (&a, "10", &spelled, "20", None, conflict),
        (
            &named("unix:///a.sock"),
            "10",
            &named("unix:///b.sock"),
            "20",
            None,
            conflict,
        ),
        (&named("unix:///a.sock"), "10", &b, "20", None, None),
        // Also where one of them names its driver: with a wrong name it would stop one that works.
        (&named("unix:///a.sock"), "10", &a, "20", None, conflict),
        (&a, "10", &named("unix:///a.sock"), "20", None, conflict),
        // What is suspended takes nothing, and needs nothing.
        (&suspended, "10", &a, "20", None, None),
        (&a, "10", &suspended, "20", None, None),
        (&suspended, "10", &suspended, "20", None, None),
        // What is invalid takes nothing.
        (
            &json!({"endpoint": "unix:///a.sock", "driverName": "-"}),
            "10",
            &a,
            "20",
            Some(ConditionReason::InvalidSpec),
            None,
        ),
        (
            &json!({"endpoint": "http://10.0.0.1:1"}),
            "10",
            &a,
            "20",
            Some(ConditionReason::InvalidSpec),
            None,
        ),
        (&json!(7), "10", &a, "20", Some(ConditionReason::InvalidSpec), None),
    ];
    for (one, one_age, two, two_age, first, second) in rows {
        for swapped in [false, true] {
            let mut objects = [object("one", one_age, one), object("two", two_age, two)];
            if swapped {
                objects.reverse();
            }
            let wanted = [("one".to_owned(), first), ("two".to_owned(), second)];
            assert_eq!(verdicts(&objects), wanted, "{one} {two}");
        }
    }
}

#[test]
fn a_refusal_says_what_to_mend() {
    let taken = json!({"endpoint": "unix:///a.sock"});
    let objects = [
        object("one", "10", &taken),
        object("two", "20", &taken),
        object(
            "three",
            "30",
            &json!({"endpoint": "ftp://x", "timeouts": {"publish": "0s"}}),
        ),
        object("four", "40", &json!({"endpoint": "unix:///b.sock"})),
        object(
            "five",
            "50",
            &json!({"endpoint": "unix:///b.sock", "driverName": "x.test"}),
        ),
    ];
    let wishes = planned(&objects);
    let message = |name: &str| match &wishes[name] {
        Err(problem) => problem.message.clone(),
        Ok(_) => String::new(),
    };
    assert!(message("two").contains("endpoint unix:///a.sock already belongs to the older AttacherConfig one"));
    assert!(message("five").contains("endpoint unix:///b.sock already belongs to the older AttacherConfig four"));
    let both = message("three");
    assert!(
        both.contains("spec.endpoint") && both.contains("spec.timeouts.publish"),
        "{both}"
    );
}

#[test]
fn what_needs_another_connection_or_another_election_restarts() {
    let before = json!({"endpoint": "unix:///a.sock", "driverName": "a.test"});
    let with = |key: &str, value: Value| {
        let mut spec = before.clone();
        spec[key] = value;
        spec
    };
    let rows = [
        (before.clone(), false),
        // Hot: the driver goes on.
        (with("suspend", json!(true)), false),
        (with("timeouts", json!({"publish": "7s"})), false),
        (with("backoff", json!({"initial": "7s"})), false),
        (with("concurrency", json!({"attach": 3})), false),
        (with("defaultFsType", json!("xfs")), false),
        // Cold: another connection.
        (with("endpoint", json!("unix:///b.sock")), true),
        (with("driverName", json!("b.test")), true),
        (json!({"endpoint": "unix:///a.sock"}), true),
    ];
    for (after, wanted) in rows {
        assert_eq!(requires_restart(&config(&before), &config(&after)), wanted, "{after}");
    }
}

#[test]
fn the_lease_of_a_former_release_is_taken_in_by_a_restart_and_forgotten_without_one() {
    let spec = json!({"endpoint": "unix:///a.sock", "driverName": "a.test"});
    let after = |namespace: Option<&str>| {
        let mut object = object("one", "10", &spec);
        object.status.leader_election = namespace.map(|namespace| FormerLease {
            namespace: Some(namespace.to_owned()),
        });
        object.config().expect("valid")
    };
    let rows = [
        (None, Some("x"), true),
        (Some("x"), Some("y"), true),
        (Some("x"), None, false),
    ];
    for (before, recorded, restarts) in rows {
        assert_eq!(
            requires_restart(&after(before), &after(recorded)),
            restarts,
            "{before:?} {recorded:?}"
        );
    }
}
