//! From objects to steps.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::condition::ConditionReason;
use crate::api::{AttacherConfigObject, DriverConfig, FormerLease};
use crate::supervisor::plan::{DesiredDriver, Step, desired_drivers, steps};

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

/// Who may run, and why who may not: one line for each object.
fn verdicts(objects: &[AttacherConfigObject]) -> Vec<(String, Option<ConditionReason>)> {
    let wishes = desired_drivers(objects);
    let verdict = |wish: &DesiredDriver| match wish {
        DesiredDriver::Run(_) => None,
        DesiredDriver::Refused(problem) => Some(problem.reason),
    };
    wishes
        .iter()
        .map(|(name, wish)| (name.clone(), verdict(wish)))
        .collect()
}

#[test]
fn the_older_of_two_that_claim_the_same_wins() {
    let (a, b) = (
        json!({"endpoint": "unix:///a.sock"}),
        json!({"endpoint": "unix:///b.sock"}),
    );
    let spelled = json!({"endpoint": "unix:////./a.sock"});
    let named = |endpoint: &str| json!({"endpoint": endpoint, "driverName": "x.test"});
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
    ];
    let wishes = desired_drivers(&objects);
    let message = |name: &str| match &wishes[name] {
        DesiredDriver::Refused(problem) => problem.message.clone(),
        DesiredDriver::Run(_) => String::new(),
    };
    assert!(message("two").contains("endpoint unix:///a.sock already belongs to the older AttacherConfig one"));
    let both = message("three");
    assert!(
        both.contains("spec.endpoint") && both.contains("spec.timeouts.publish"),
        "{both}"
    );
}

#[test]
fn only_what_differs_is_touched() {
    let before = json!({"endpoint": "unix:///a.sock", "driverName": "a.test"});
    let with = |key: &str, value: Value| {
        let mut spec = before.clone();
        spec[key] = value;
        spec
    };
    let unchanged = "";
    let rows = [
        (before.clone(), unchanged),
        // Hot: the driver goes on.
        (with("suspend", json!(true)), "reload"),
        (with("timeouts", json!({"publish": "7s"})), "reload"),
        (with("backoff", json!({"initial": "7s"})), "reload"),
        (with("concurrency", json!({"attach": 3})), "reload"),
        (with("defaultFsType", json!("xfs")), "reload"),
        // Cold: another connection.
        (with("endpoint", json!("unix:///b.sock")), "restart"),
        (with("driverName", json!("b.test")), "restart"),
        (json!({"endpoint": "unix:///a.sock"}), "restart"),
        // Invalid: what runs goes on with its last good settings.
        (with("driverName", json!("!")), unchanged),
    ];
    for (after, wanted) in rows {
        let running = BTreeMap::from([("one".to_owned(), config(&before))]);
        let objects = [object("one", "10", &after)];
        let found = steps(&running, &desired_drivers(&objects));
        let name = |step: &Step| match step {
            Step::Start(_) => "start",
            Step::Reload(_) => "reload",
            Step::Restart(_) => "restart",
            Step::Stop => "stop",
        };
        let found: Vec<_> = found.iter().map(|(_, step)| name(step)).collect();
        assert_eq!(found.join(" "), wanted, "{after}");
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
        object
    };
    let rows = [
        (None, Some("x"), true),
        (Some("x"), Some("y"), true),
        (Some("x"), None, false),
    ];
    for (before, recorded, restarts) in rows {
        let known = Arc::new(after(before).config().expect("valid"));
        let running = BTreeMap::from([("one".to_owned(), known)]);
        let found = steps(&running, &desired_drivers(&[after(recorded)]));
        let [(_, step)] = &*found else { panic!("{found:?}") };
        assert_eq!(matches!(step, Step::Restart(_)), restarts, "{before:?} {recorded:?}");
    }
}

#[test]
fn what_is_new_starts_and_what_is_gone_stops() {
    let (a, b) = (
        json!({"endpoint": "unix:///a.sock"}),
        json!({"endpoint": "unix:///b.sock"}),
    );
    let running = BTreeMap::from([("gone".to_owned(), config(&a)), ("stays".to_owned(), config(&b))]);
    let objects = [
        object("stays", "10", &b),
        object("new", "20", &json!({"endpoint": "unix:///c.sock"})),
        object("invalid", "30", &json!({})),
    ];
    let found = steps(&running, &desired_drivers(&objects));
    let new = config(&json!({"endpoint": "unix:///c.sock"}));
    assert_eq!(
        found,
        [("gone".to_owned(), Step::Stop), ("new".to_owned(), Step::Start(new))]
    );
    assert!(steps(&BTreeMap::new(), &BTreeMap::new()).is_empty());
}
