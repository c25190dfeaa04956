//! Which copies of an AttacherConfig are planned: each status that is written comes back as one. The clock is paused.

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use super::writes::{follow, supervisor};
use crate::api::names::{CONFIRM_CAPABILITY_LOST_ANNOTATION, WAIT_FOR_DETACH_FINALIZER};
use crate::api::{AttacherConfigObject, DriverConfig};
use crate::supervisor::Supervisor;
use csi_attacher_testbed::Logged;

const MOMENT: Duration = Duration::from_millis(100);

/// An object with these fields, each in a part of it.
fn with(fields: &[(&str, &str, Value)]) -> AttacherConfigObject {
    let mut object = json!({
        "metadata": {
            "name": "one", "uid": "one", "resourceVersion": "7", "generation": 1, "creationTimestamp": "2026-01-02T00:00:00Z",
            "finalizers": [WAIT_FOR_DETACH_FINALIZER],
        },
        "spec": {"endpoint": "unix:///does-not-exist/one", "driverName": "a.test", "deletionPolicy": "WaitForDetach"},
        "status": {"holder": "me"},
    });
    for (part, field, value) in fields {
        object[*part][*field] = value.clone();
    }
    serde_json::from_value(object).expect("readable")
}

async fn listed(object: AttacherConfigObject) -> Supervisor {
    let mut supervisor = supervisor();
    let events = vec![Event::Init, Event::InitApply(object), Event::InitDone];
    follow(&mut supervisor, events, &CancellationToken::new(), MOMENT).await;
    supervisor
}

async fn show(supervisor: &mut Supervisor, object: AttacherConfigObject) {
    let events = vec![Event::Apply(object)];
    follow(supervisor, events, &CancellationToken::new(), MOMENT).await;
}

fn settings(supervisor: &Supervisor) -> Option<Arc<DriverConfig>> {
    supervisor.drivers.tasks.wanted().get("one").cloned()
}

/// What changed, and whether the plan reads it. Each field of the spec is in `the_plan_sees_a_change_of_each_field`.
#[tokio::test(start_paused = true)]
async fn only_what_the_plan_reads_is_planned() {
    let confirmed = json!({CONFIRM_CAPABILITY_LOST_ANNOTATION: "a.test"});
    let finalizers = json!([WAIT_FOR_DETACH_FINALIZER, "a/b"]);
    let rows = [
        ("status", "holder", json!("other"), false),
        ("status", "driver", json!({"name": "a.test", "mode": "Attach"}), false),
        ("status", "attachments", json!({"attached": 7}), false),
        ("metadata", "resourceVersion", json!("8"), false),
        ("metadata", "generation", json!(2), false),
        ("metadata", "labels", json!({"a": "b"}), false),
        ("metadata", "annotations", json!({"a": "b"}), false),
        ("metadata", "finalizers", finalizers, false),
        ("metadata", "uid", json!("another"), true),
        ("metadata", "creationTimestamp", json!("2026-01-01T00:00:00Z"), true),
        ("metadata", "deletionTimestamp", json!("2026-01-03T00:00:00Z"), true),
        ("metadata", "annotations", confirmed, true),
        ("status", "leaderElection", json!({"namespace": "former"}), true),
        ("spec", "suspend", json!(true), true),
        ("spec", "endpoint", json!("nonsense"), true),
    ];
    for (part, field, value, is_planned) in rows {
        let mut supervisor = listed(with(&[])).await;
        let before = settings(&supervisor).expect("it is served");
        show(&mut supervisor, with(&[(part, field, value.clone())])).await;
        let after = settings(&supervisor).expect("it is served");
        // Each plan makes settings of its own.
        assert_eq!(!Arc::ptr_eq(&before, &after), is_planned, "{part}.{field}: {value}");
        let has_problem = supervisor.objects["one"].problem.is_some();
        assert_eq!(has_problem, value == "nonsense", "{part}.{field}: {value}");
        if field == "driver" {
            let task = supervisor.drivers.tasks.get("one").expect("it runs");
            let known = task.known_as.borrow().clone();
            assert_eq!(known.as_deref(), Some("a.test"), "the task knows it at once");
        }
    }
}

/// The watch shows nothing then that is not known from the answer.
#[tokio::test(start_paused = true)]
async fn what_a_write_of_the_metadata_changed_is_planned() {
    let newer = ("metadata", "resourceVersion", json!("8"));
    let confirmed = json!({CONFIRM_CAPABILITY_LOST_ANNOTATION: "a.test"});
    let deleted = ("metadata", "deletionTimestamp", json!("2026-01-03T00:00:00Z"));
    let finalizers = |names: &[&str]| ("metadata", "finalizers", json!(names));
    let rows = [
        // A confirmation is withdrawn.
        (
            with(&[("metadata", "annotations", confirmed)]),
            with(std::slice::from_ref(&newer)),
            true,
        ),
        // The object is let go of, and others keep it.
        (
            with(&[deleted.clone(), finalizers(&[WAIT_FOR_DETACH_FINALIZER, "a/b"])]),
            with(&[deleted, finalizers(&["a/b"]), newer]),
            false,
        ),
    ];
    for (before, after, is_served) in rows {
        let mut supervisor = listed(before.clone()).await;
        assert_eq!(settings(&supervisor).as_deref(), before.config().ok().as_ref());
        let entry = supervisor.objects.get_mut("one").expect("listed");
        entry.take_in(&after);
        show(&mut supervisor, after.clone()).await;
        let wanted = after.config().ok().filter(|_| is_served);
        assert_eq!(settings(&supervisor).as_deref(), wanted.as_ref());
    }
}

/// The reason for which it is refused stays the same meanwhile. What is taken back is taken back, and what cannot be read says nothing.
#[tokio::test(start_paused = true)]
async fn what_a_spec_holds_back_counts_though_it_is_refused() {
    let spec = |fields: &[(&'static str, Value)]| {
        let fields = fields.iter().map(|(field, value)| ("spec", *field, value.clone()));
        with(&fields.collect::<Vec<_>>())
    };
    let of = |section: Value| ("provisioning", section);
    let (bad, suspend) = (("endpoint", json!("https://[1:2]:9000")), ("suspend", json!(true)));
    let mut supervisor = listed(spec(&[of(json!({}))])).await;
    // Whether nothing is done, whether provisioning begins something, and whether no volume is deleted.
    let rows = [
        (vec![bad.clone(), of(json!({}))], (false, true, false)),
        (vec![bad.clone(), of(json!({})), suspend.clone()], (true, true, false)),
        (vec![bad.clone(), of(json!({"deletion": "Hold"}))], (false, true, true)),
        (
            vec![bad.clone(), of(json!({"mode": "Disabled", "deletion": "Hold"}))],
            (false, false, true),
        ),
        (vec![("endpoint", json!(7))], (false, false, true)),
        (vec![bad.clone(), of(json!({}))], (false, true, false)),
        (vec![bad, suspend], (true, true, false)),
        (vec![of(json!({}))], (false, true, false)),
    ];
    for (fields, wanted) in rows {
        show(&mut supervisor, spec(&fields)).await;
        let settings = settings(&supervisor).expect("it is served");
        assert_eq!(settings.endpoint.to_string(), "unix:///does-not-exist/one");
        let section = settings.provisioning.as_ref().expect("the section");
        let found = (settings.suspend, section.enabled, section.policy.hold_deletions);
        assert_eq!(found, wanted, "{fields:?}");
    }
}

/// As where it was deleted and made again while the watch was down.
#[tokio::test(start_paused = true)]
async fn the_last_valid_settings_are_of_the_object_and_not_of_its_name() {
    for (uid, is_served) in [("one", true), ("another", false)] {
        let mut supervisor = listed(with(&[])).await;
        let refused = with(&[("metadata", "uid", json!(uid)), ("spec", "endpoint", json!("nonsense"))]);
        let events = vec![Event::Init, Event::InitApply(refused), Event::InitDone];
        follow(&mut supervisor, events, &CancellationToken::new(), MOMENT).await;
        assert_eq!(settings(&supervisor).is_some(), is_served, "{uid}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_says_when_a_spec_cannot_be_used_why_and_until_when() {
    let logged = Logged::start();
    let mut supervisor = listed(with(&[])).await;
    let endpoint = |endpoint: &str| ("spec", "endpoint", json!(endpoint));
    let valid = endpoint("unix:///does-not-exist/one");
    // How often each is said by then.
    let rows = [
        (vec![valid.clone()], 0, 0),
        (vec![endpoint("nonsense")], 1, 0),
        // For the same reason.
        (vec![endpoint("nonsense"), ("spec", "suspend", json!(true))], 1, 0),
        (vec![endpoint("https://[1:2]:9000")], 2, 0),
        (vec![valid], 2, 1),
    ];
    for (fields, refused, used) in rows {
        show(&mut supervisor, with(&fields)).await;
        let told = [
            logged.count(Level::WARN, "cannot use the spec of the AttacherConfig"),
            logged.count(Level::INFO, "the latest spec of the AttacherConfig is in use"),
        ];
        assert_eq!(told, [refused, used], "{fields:?}");
    }
}
