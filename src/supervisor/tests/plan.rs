//! From objects to steps.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::condition::ConditionReason;
use crate::api::{AttacherConfigObject, DriverConfig, FormerLease};
use crate::supervisor::plan::{DesiredDriver, PlanInput, SettingsInUse, desired_drivers, requires_restart};

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
    let wishes = planned(objects).into_iter();
    let verdicts = wishes.map(|(name, wish)| (name, wish.err().map(|problem| problem.reason)));
    verdicts.collect()
}

#[test]
fn the_older_of_two_that_claim_the_same_wins() {
    let of = |endpoint: &str| json!({"endpoint": endpoint});
    let with = |endpoint: &str, field: &str, value: Value| json!({"endpoint": endpoint, field: value});
    let (a, b, spelled) = (of("unix:///a.sock"), of("unix:///b.sock"), of("unix:////./a.sock"));
    let (insecure, unreadable) = (of("http://10.0.0.1:1"), json!(7));
    let named = with("unix:///a.sock", "driverName", json!("x.test"));
    let named_b = with("unix:///b.sock", "driverName", json!("x.test"));
    let misnamed = with("unix:///a.sock", "driverName", json!("-"));
    let suspended = with("unix:///a.sock", "suspend", json!(true));
    let conflict = Some(ConditionReason::EndpointConflict);
    let invalid = Some(ConditionReason::InvalidSpec);
    // Specs of the objects `one` and `two`, their ages in seconds, and the verdicts on them.
    let rows = [
        (&a, "10", &b, "20", None, None),
        (&a, "10", &a, "20", None, conflict),
        (&a, "20", &a, "10", conflict, None),
        // Of the same second: by name.
        (&a, "10", &a, "10", None, conflict),
        (&a, "10", &spelled, "20", None, conflict),
        (&named, "10", &named_b, "20", None, conflict),
        (&named, "10", &b, "20", None, None),
        // Also where one of them names its driver: with a wrong name it would stop one that works.
        (&named, "10", &a, "20", None, conflict),
        (&a, "10", &named, "20", None, conflict),
        // What is suspended takes nothing, and needs nothing.
        (&suspended, "10", &a, "20", None, None),
        (&a, "10", &suspended, "20", None, None),
        (&suspended, "10", &suspended, "20", None, None),
        // What is invalid takes nothing.
        (&misnamed, "10", &a, "20", invalid, None),
        (&insecure, "10", &a, "20", invalid, None),
        (&unreadable, "10", &a, "20", invalid, None),
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

/// Its endpoint was changed to that of an older one by mistake.
#[test]
fn one_that_is_in_the_way_of_another_holds_back_what_its_spec_does() {
    let older = object("older", "10", &json!({"endpoint": "unix:///a.sock"}));
    let mut in_use = SettingsInUse::default();
    let mut served = |endpoint: &str, deletion: &str| {
        let section = if deletion.is_empty() {
            json!(null)
        } else {
            json!({"deletion": deletion})
        };
        let spec = json!({"endpoint": endpoint, "driverName": "x.test", "provisioning": section});
        let newer = object("newer", "20", &spec);
        let wish = planned(&[older.clone(), newer.clone()]).remove("newer");
        let is_refused = wish.as_ref().is_some_and(Result::is_err);
        let settings = in_use.after(&PlanInput::of(&newer), wish).expect("settings");
        let section = settings.provisioning.as_ref().expect("the section");
        (is_refused, settings.endpoint.to_string(), section.policy.hold_deletions)
    };
    let known = || "unix:///b.sock".to_owned();
    assert_eq!(served("unix:///b.sock", "Enabled"), (false, known(), false));
    assert_eq!(served("unix:///a.sock", "Enabled"), (true, known(), false));
    assert_eq!(served("unix:///a.sock", "Hold"), (true, known(), true));
    assert_eq!(
        served("unix:///a.sock", ""),
        (true, known(), true),
        "who takes the section out wants no more"
    );
    assert_eq!(served("unix:///a.sock", "Enabled"), (true, known(), false));
    // Once it was not served any more, nothing is left of its settings.
    let taken = object("newer", "20", &json!({"endpoint": "unix:///a.sock"}));
    let refused = planned(&[older, taken.clone()]).remove("newer");
    for wish in [None, refused] {
        assert_eq!(in_use.after(&PlanInput::of(&taken), wish), None);
    }
}

#[test]
fn a_refusal_says_what_to_mend() {
    let (a, b) = ("unix:///a.sock", "unix:///b.sock");
    let taken = json!({"endpoint": a});
    let invalid = json!({"endpoint": "ftp://x", "timeouts": {"publish": "0s"}});
    let objects = [
        object("one", "10", &taken),
        object("two", "20", &taken),
        object("three", "30", &invalid),
        object("four", "40", &json!({"endpoint": b})),
        object("five", "50", &json!({"endpoint": b, "driverName": "x.test"})),
    ];
    let belongs = |endpoint: &str, to: &str| format!("endpoint {endpoint} already belongs to AttacherConfig {to};");
    let wishes = planned(&objects);
    for (name, words) in [
        ("two", belongs(a, "one")),
        ("five", belongs(b, "four")),
        ("three", "spec.endpoint".to_owned()),
        ("three", "spec.timeouts.publish".to_owned()),
    ] {
        let message = &wishes[name].as_ref().unwrap_err().message;
        assert!(message.contains(&words), "{name}: {message}");
    }
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
    for (before, recorded, restarts) in [
        (None, Some("x"), true),
        (Some("x"), Some("y"), true),
        (Some("x"), None, false),
    ] {
        let found = requires_restart(&after(before), &after(recorded));
        assert_eq!(found, restarts, "{before:?} {recorded:?}");
    }
}
