//! Whose status is the newest.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, advance};

use crate::api::provisioning_status::ProvisioningStatus;
use crate::api::status::FormerLease;
use crate::api::{AttacherConfigObject, AttacherConfigStatus};
use crate::apiserver::{ApiError, ApiErrorKind, RequestDeadlines, Requests};
use crate::supervisor::deletion::MetadataChange::{LetGo, Protect, Unprotect, WithdrawConfirmation};
use crate::supervisor::writer::{StatusPart, StatusWriter, TrackedConfig, explained, is_gone_or_changed};
use crate::supervisor::writes::StatusChange;

fn value(uid: &str, version: u64, status: &Value) -> Value {
    json!({
        "metadata": {"name": "a", "uid": uid, "resourceVersion": version.to_string()},
        "spec": {"endpoint": "unix:///a.sock"},
        "status": status,
    })
}

fn object(uid: &str, version: u64, holder: &str) -> AttacherConfigObject {
    serde_json::from_value(value(uid, version, &json!({"holder": holder}))).unwrap()
}

fn holder(entry: &TrackedConfig) -> &str {
    entry.written.holder.as_deref().unwrap_or_default()
}

fn wanted(holder: &str) -> AttacherConfigStatus {
    AttacherConfigStatus {
        holder: Some(holder.to_owned()),
        ..AttacherConfigStatus::default()
    }
}

fn condition(kind: &str, status: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

/// A writer to an API server that answers so.
fn writer<A>(mut answer: impl FnMut(http::Request<Body>) -> A + Send + 'static) -> StatusWriter
where
    A: Future<Output = (u16, Value)> + Send + 'static,
{
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let answer = answer(request);
        async move {
            let (code, answer) = answer.await;
            let response = http::Response::builder().status(code);
            let response = response.header(http::header::CONTENT_TYPE, "application/json");
            let body = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    let client = Client::new(service, "default");
    StatusWriter::new(&Requests::immediate(client, RequestDeadlines::default()))
}

/// A change to this status.
fn change(wanted: AttacherConfigStatus, part: StatusPart) -> StatusChange {
    StatusChange {
        before: AttacherConfigStatus::default(),
        wanted,
        part,
        sent: part,
    }
}

/// This replica wrote all of the status, which is this version.
fn writes(entry: &mut TrackedConfig, version: u64, holder: &str) {
    let change = change(wanted(holder), StatusPart::All);
    entry.wrote(&change, &object("1", version, holder));
}

fn told(holder: &str, ready: &str, provisions: &str) -> AttacherConfigStatus {
    let conditions = [condition("Ready", ready), condition("ProvisioningReady", provisions)];
    serde_json::from_value(json!({"holder": holder, "conditions": conditions})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn old_echoes_change_nothing_and_newer_writes_of_others_do() {
    let entry = TrackedConfig::new(object("1", 10, "none"), None);
    let mut entry = TrackedConfig::new(object("1", 11, "other"), Some(&entry));
    // One that does not write follows what others write.
    assert_eq!(holder(&entry), "other");
    assert!(entry.is_due(&wanted("me"), true), "never written by us");
    writes(&mut entry, 14, "me");
    // What was under way when we wrote, and our own.
    for echo in [object("1", 12, "other"), object("1", 14, "me")] {
        entry = TrackedConfig::new(echo, Some(&entry));
        assert_eq!(holder(&entry), "me");
        assert!(entry.is_due(&wanted("new"), true), "people wait for it");
    }
    // A change of the spec, with our status in it.
    entry = TrackedConfig::new(object("1", 15, "me"), Some(&entry));
    assert!(entry.is_due(&wanted("new"), true));
    // Somebody else after us: put right, but not in haste.
    entry = TrackedConfig::new(object("1", 16, "other"), Some(&entry));
    assert_eq!(holder(&entry), "other");
    assert!(!entry.is_due(&wanted("me"), true));
    advance(Duration::from_secs(2)).await;
    assert!(entry.is_due(&wanted("me"), true));
    writes(&mut entry, 17, "me");
    assert!(entry.is_due(&wanted("new"), true));
    // Another object of the same name.
    entry = TrackedConfig::new(object("2", 5, "none"), Some(&entry));
    assert_eq!(holder(&entry), "none");
}

/// As those of two installations that see different things of a driver that nobody leads.
#[tokio::test(start_paused = true)]
async fn who_is_contradicted_writes_less_and_less_often_unless_it_leads() {
    let mut entry = TrackedConfig::new(object("1", 10, "none"), None);
    let mut pauses = Vec::new();
    for round in 0..12 {
        let began = Instant::now();
        while !entry.is_due(&wanted("me"), false) {
            advance(Duration::from_secs(1)).await;
        }
        pauses.push(began.elapsed().as_secs());
        writes(&mut entry, 11 + 2 * round, "me");
        entry = TrackedConfig::new(object("1", 12 + 2 * round, "other"), Some(&entry));
    }
    assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
    advance(Duration::from_secs(2)).await;
    assert!(!entry.is_due(&wanted("me"), false) && entry.is_due(&wanted("me"), true));
    // Nobody contradicts any more.
    writes(&mut entry, 40, "me");
    writes(&mut entry, 41, "new");
    entry = TrackedConfig::new(object("1", 42, "other"), Some(&entry));
    advance(Duration::from_secs(2)).await;
    assert!(entry.is_due(&wanted("new"), false));
}

/// As during a rollout while the plug-ins of old and new pods answer different names: each replica leads the Lease of its own.
#[tokio::test(start_paused = true)]
async fn who_leads_another_driver_than_the_status_names_writes_less_and_less_often_as_well() {
    let of = |driver: &str| -> AttacherConfigStatus {
        serde_json::from_value(json!({"holder": driver, "driver": {"name": driver}})).unwrap()
    };
    let (own, other) = (of("new.test"), of("old.test"));
    let mut entry = TrackedConfig::new(answered(10, &other), None);
    let mut pauses = Vec::new();
    for round in 0..8 {
        let began = Instant::now();
        while !entry.is_due(&own, true) {
            advance(Duration::from_secs(1)).await;
        }
        pauses.push(began.elapsed().as_secs());
        entry.wrote(&change(own.clone(), StatusPart::All), &answered(11 + 2 * round, &own));
        entry = TrackedConfig::new(answered(12 + 2 * round, &other), Some(&entry));
    }
    assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 60, 60]);
    // Whoever names no other driver does not lead one.
    entry = TrackedConfig::new(answered(40, &wanted("ghost")), Some(&entry));
    advance(Duration::from_secs(2)).await;
    assert!(entry.is_due(&own, true));
}

/// After a restore of the API server the object is what it was before our write, in a lower version.
#[test]
fn what_a_list_shows_after_our_write_is_no_echo() {
    let mut entry = TrackedConfig::new(object("1", 10, "none"), None);
    writes(&mut entry, 14, "me");
    entry.is_listed_again();
    let entry = TrackedConfig::new(object("1", 10, "none"), Some(&entry));
    assert_ne!(entry.written, wanted("me"));
    assert!(!entry.is_due(&wanted("me"), true), "but nothing that is urgent");
}

/// A CRD that is too old refuses each status: it is not tried each second for ever, and soon enough after the CRD was upgraded. People are
/// told once, and not at all of an object that another client deleted or created again.
#[tokio::test(start_paused = true)]
async fn writes_that_fail_rest_longer_and_longer() {
    let mut entry = TrackedConfig::new(object("1", 10, "none"), None);
    let news = |number: u64| refused(&format!("error {number}"), 500);
    let rest = |number| entry.failed(&news(number)).expect("each is news").as_secs();
    let rests: Vec<u64> = (0..6).map(rest).collect();
    assert_eq!(rests, [1, 2, 4, 8, 15, 15]);
    let mut entry = TrackedConfig::new(object("1", 10, "none"), None);
    let old = refused("field not declared in schema", 500);
    let rows = [
        (&old, Some(1)),
        (&old, None),
        (&of_a_proxy(), Some(4)),
        (&of_a_proxy(), None),
        (&old, None),
        (&of_a_proxy(), None),
        (&changed(), None),
        (&gone(), None),
    ];
    for (error, told) in rows {
        assert_eq!(entry.failed(error).map(|pause| pause.as_secs()), told, "{error}");
    }
    advance(Duration::from_millis(14_900)).await;
    entry = TrackedConfig::new(object("1", 11, "other"), Some(&entry));
    assert!(!entry.is_due(&wanted("me"), true));
    advance(Duration::from_millis(100)).await;
    assert!(entry.is_due(&wanted("me"), true));
    writes(&mut entry, 14, "me");
    assert_eq!(entry.failed(&old), Some(Duration::from_secs(1)), "it is another time");
}

#[tokio::test(start_paused = true)]
async fn a_status_that_shows_everything_is_not_computed_anew_before_something_changed() {
    let mut entry = TrackedConfig::new(object("1", 10, "me"), None);
    assert!(!entry.is_at_rest(7));
    entry.rest(7);
    assert!(entry.is_at_rest(7));
    assert!(!entry.is_at_rest(8), "an object has changed");
    advance(Duration::from_millis(4_999)).await;
    assert!(entry.is_at_rest(7));
    advance(Duration::from_millis(1)).await;
    assert!(!entry.is_at_rest(7), "queues and findings tell of no change");
    entry.rest(7);
    entry.wake();
    assert!(!entry.is_at_rest(7), "the driver or the plan has changed");
    entry.rest(7);
    let entry = TrackedConfig::new(object("1", 11, "other"), Some(&entry));
    assert!(!entry.is_at_rest(7), "somebody wrote the object");
}

pub(super) fn refused(message: &str, code: u16) -> ApiError {
    let error = ApiError {
        kind: ApiErrorKind::of_status(code),
        message: message.to_owned(),
        status: Some(code),
        retry_after: None,
    };
    explained(error, "attacherconfigs")
}

fn changed() -> ApiError {
    refused("the object has been modified", 409)
}

fn gone() -> ApiError {
    refused("attacherconfigs.attacher.csi.dev \"a\" not found", 404)
}

/// The one of a proxy, or of an API server without the CRD, as `apiserver::answer` judges it: it is tried again with pauses, and people are told.
fn of_a_proxy() -> ApiError {
    ApiError {
        kind: ApiErrorKind::Unknown,
        ..refused("404 page not found", 404)
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_that_cannot_be_written_is_tried_with_pauses_and_told_once() {
    let mut entry = TrackedConfig::new(object("1", 10, "none"), None);
    let error = || refused("forbidden: User \"u\" cannot patch resource \"attacherconfigs\"", 403);
    for error in [changed(), gone()] {
        assert_eq!(entry.metadata_failed(&error), None, "it is no failure");
    }
    assert!(entry.may_write_metadata(Protect));
    assert!(entry.metadata_failed(&error()).is_some(), "the first one is told");
    assert_eq!(entry.metadata_error(), None, "once is no news");
    for _ in 0..20 {
        assert!(!entry.may_write_metadata(Protect));
        advance(Duration::from_secs(16)).await;
        assert!(entry.may_write_metadata(Protect));
        assert_eq!(entry.metadata_failed(&error()), None);
    }
    // A copy from the watch changes nothing about it.
    let mut entry = TrackedConfig::new(object("1", 11, "none"), Some(&entry));
    let told = entry.metadata_error().unwrap();
    assert!(told.ends_with("resources [attacherconfigs], verbs [patch]"), "{told}");
    assert!(entry.metadata_written());
    assert_eq!(entry.metadata_error(), None);
    assert!(!entry.metadata_written());
}

/// As by a controller that removes finalizers which it does not know, or puts back what is in Git.
#[tokio::test(start_paused = true)]
async fn metadata_that_somebody_else_undoes_are_written_less_and_less_often() {
    for change in [Protect, Unprotect, WithdrawConfirmation] {
        let mut entry = TrackedConfig::new(object("1", 10, "none"), None);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let began = Instant::now();
            while !entry.may_write_metadata(change) {
                advance(Duration::from_secs(1)).await;
            }
            pauses.push(began.elapsed().as_secs());
            entry.wrote_metadata(change);
            // It is as it should be, and will hardly stay so.
            assert_eq!(entry.is_contested(change), pauses.len() > 2, "{change:?}: {pauses:?}");
        }
        assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600], "{change:?}");
        // A copy from the watch changes nothing about it, and nothing waits that nobody undid.
        let mut entry = TrackedConfig::new(object("1", 11, "none"), Some(&entry));
        assert!(!entry.may_write_metadata(change) && entry.may_write_metadata(LetGo));
        assert!(entry.is_contested(change), "{change:?}");
        // It stood for long.
        advance(Duration::from_mins(10)).await;
        entry.wrote_metadata(change);
        advance(Duration::from_mins(10)).await;
        assert!(entry.may_write_metadata(change));
        entry.wrote_metadata(change);
        assert!(!entry.may_write_metadata(change));
        advance(Duration::from_secs(2)).await;
        assert!(entry.may_write_metadata(change));
    }
    let mut entry = TrackedConfig::new(object("1", 10, "none"), None);
    for change in [Protect, Unprotect, Protect, Unprotect] {
        assert!(entry.may_write_metadata(change), "the policy goes to and fro");
        entry.wrote_metadata(change);
    }
}

#[test]
fn what_a_webhook_denies_lacks_no_rule() {
    let error = refused("admission webhook \"a.test\" denied the request: no", 403);
    assert_eq!(error.to_string(), "admission webhook \"a.test\" denied the request: no");
    assert!(is_gone_or_changed(&changed()) && is_gone_or_changed(&gone()));
    assert!(!is_gone_or_changed(&of_a_proxy()));
}

/// The supervisor goes on while a write is under way, so that the watch may be faster than its answer.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_watch_takes_back_nothing() {
    let entry = TrackedConfig::new(object("1", 10, "none"), None);
    // Our own write.
    let mut entry = TrackedConfig::new(object("1", 14, "me"), Some(&entry));
    writes(&mut entry, 14, "me");
    assert_eq!(holder(&entry), "me");
    assert!(entry.is_due(&wanted("new"), true), "nobody else wrote");
    // That of another one after it.
    let mut entry = TrackedConfig::new(object("1", 20, "other"), Some(&entry));
    writes(&mut entry, 19, "me");
    assert_eq!(holder(&entry), "other");
    assert!(!entry.is_due(&wanted("me"), true));
    advance(Duration::from_secs(2)).await;
    assert!(entry.is_due(&wanted("me"), true));
    // The same for its metadata.
    entry.take_in(&object("1", 19, "me"));
    assert_eq!(entry.object.metadata.resource_version.as_deref(), Some("20"));
    entry.take_in(&object("1", 21, "me"));
    assert_eq!(entry.object.metadata.resource_version.as_deref(), Some("21"));
}

/// Else a write that was made from an older copy would put them back.
#[test]
fn conditions_of_other_writers_are_not_written() {
    let conditions = ["Ready", "example.com/Checked", "ProvisioningReady"].map(|kind| condition(kind, "True"));
    let status: AttacherConfigStatus = serde_json::from_value(json!({ "conditions": conditions })).unwrap();
    for (part, written) in [
        (StatusPart::All, vec!["Ready", "ProvisioningReady"]),
        (StatusPart::AllButProvisioning, vec!["Ready"]),
        (StatusPart::Provisioning, vec!["ProvisioningReady"]),
    ] {
        let status = part.of(&status);
        let kinds: Vec<&str> = status.conditions.iter().map(|condition| &*condition.type_).collect();
        assert_eq!(kinds, written, "{part:?}");
    }
}

/// An object of a version whose status is this.
fn answered(version: u64, status: &AttacherConfigStatus) -> AttacherConfigObject {
    let mut answered = object("1", version, "");
    answered.status = status.clone();
    answered
}

/// Each part is a request of its own.
#[test]
fn a_part_that_shows_what_is_wanted_is_not_sent() {
    use StatusPart::{All, AllButProvisioning, Provisioning};
    let status = |holder: &str, provisions: &str| told(holder, "True", provisions);
    let (first, next) = (status("me", "False"), status("new", "False"));
    let mut entry = TrackedConfig::new(answered(10, &first), None);
    assert_eq!(entry.differing_part(&next, All), All, "another replica wrote it");
    entry.wrote(&change(first.clone(), All), &answered(11, &first));
    for (wanted, sent) in [
        (&next, AllButProvisioning),
        (&status("me", "True"), Provisioning),
        (&status("new", "True"), All),
        // Of other writers something may have to be taken away.
        (&first, All),
        // The role is switched off.
        (&wanted("new"), All),
    ] {
        assert_eq!(entry.differing_part(wanted, All), sent, "{wanted:?}");
    }
    assert_eq!(entry.differing_part(&next, AllButProvisioning), AllButProvisioning);
    // Somebody else wrote after us: what is right may not be ours.
    let other = TrackedConfig::new(answered(12, &status("other", "False")), Some(&entry));
    assert_eq!(other.differing_part(&first, All), All);
    // The same while a part was on its way: it is seen from the answer, as the watch shows no copy after that.
    let there = status("new", "True");
    let sent = StatusChange {
        sent: AllButProvisioning,
        ..change(next.clone(), All)
    };
    entry.wrote(&sent, &answered(13, &there));
    assert_eq!(entry.written, there);
    assert_eq!(entry.differing_part(&next, All), All);
    // Nobody did.
    entry.wrote(&change(first.clone(), All), &answered(14, &first));
    entry.wrote(&sent, &answered(15, &next));
    assert!(entry.shows(&next, All));
    assert_eq!(entry.differing_part(&status("new", "True"), All), Provisioning);
}

/// Two replicas write one status, each its part: what the other one says is as the API server answered, and is no contest.
#[tokio::test(start_paused = true)]
async fn what_another_replica_says_of_provisioning_is_taken_from_the_answer() {
    let first = told("me", "False", "False");
    let mut entry = TrackedConfig::new(answered(10, &first), None);
    // The other one wrote while our write was under way.
    let there = told("me", "True", "True");
    let own = change(told("me", "True", "False"), StatusPart::AllButProvisioning);
    entry.wrote(&own, &answered(12, &there));
    assert_eq!(entry.written, there);
    assert!(entry.shows(&there, StatusPart::AllButProvisioning) && !entry.shows(&there, StatusPart::All));
    // It writes again, and again: we are not late for that.
    for version in 13..20 {
        let other = told("me", "True", if version % 2 == 0 { "True" } else { "False" });
        entry = TrackedConfig::new(answered(version, &other), Some(&entry));
        assert_eq!(entry.written, other);
    }
    advance(Duration::from_secs(3)).await;
    assert!(entry.is_due(&told("me", "False", "False"), false));
}

/// A CRD that knows nothing of provisioning refuses that part alone: the rest is written, and the error is told.
#[tokio::test]
async fn a_part_that_the_crd_does_not_have_keeps_nobody_from_the_rest() {
    let managers = Arc::new(Mutex::new(Vec::new()));
    let seen = managers.clone();
    let writer = writer(move |request| {
        let query = request.uri().query().unwrap_or_default();
        let is_refused = query.contains("fieldManager=csi-attacher-operator-provisioning");
        seen.lock().push(is_refused);
        let message = ".status.provisioning: field not declared in schema";
        let failure = json!({"kind": "Status", "status": "Failure", "message": message, "code": 500});
        let written = value("1", 12, &json!({}));
        std::future::ready(if is_refused { (500, failure) } else { (200, written) })
    });
    let status = AttacherConfigStatus {
        provisioning: Some(ProvisioningStatus::default()),
        ..wanted("me")
    };
    let written = writer.write("a", Some("1"), &change(status, StatusPart::All)).await;
    let error = written.map(drop).unwrap_err().to_string();
    assert!(error.contains("older than this operator"), "{error}");
    assert_eq!(*managers.lock(), [true, false]);
}

#[tokio::test]
async fn a_status_that_may_not_be_written_names_the_missing_rule() {
    let writer = writer(|_| {
        let message = "it is forbidden: User \"u\" cannot patch resource \"attacherconfigs/status\"";
        let failure = json!({"kind": "Status", "status": "Failure", "message": message, "code": 403});
        std::future::ready((403, failure))
    });
    let change = change(wanted("me"), StatusPart::All);
    let written = writer.write("a", Some("1"), &change).await;
    let error = written.map(drop).unwrap_err().to_string();
    assert!(error.contains("resources [attacherconfigs/status]"), "{error}");
}

/// The API server stores nothing of what is given up before: a finalizer would never be there, nor a status.
#[tokio::test(start_paused = true)]
async fn a_write_is_waited_for_while_webhooks_are_asked_about_it() {
    let writer = writer(|_| async {
        tokio::time::sleep(Duration::from_secs(34)).await;
        (200, value("1", 12, &json!({})))
    });
    writer.write_metadata("a", &json!({})).await.unwrap();
    let change = change(wanted("me"), StatusPart::All);
    writer.write("a", Some("1"), &change).await.unwrap();
}

/// Server-side apply takes away only what its manager wrote.
#[tokio::test]
async fn what_another_client_wrote_into_the_status_is_taken_away() {
    let conditions = ["Ready", "example.com/Checked", "ProvisioningReady"].map(|kind| condition(kind, "True"));
    let there = json!({
        "holder": "ghost", "driver": {"name": "a.test", "vendorVersion": "9"}, "conditions": conditions,
    });
    let patches = Arc::new(Mutex::new(Vec::<Value>::new()));
    let seen = patches.clone();
    let writer = writer(move |request| {
        let (seen, there) = (seen.clone(), there.clone());
        async move {
            let is_merge = request.headers()[http::header::CONTENT_TYPE] == "application/merge-patch+json";
            let body = request.into_body().collect().await.unwrap().to_bytes();
            if is_merge {
                seen.lock().push(serde_json::from_slice(&body).unwrap());
            }
            (200, value("1", if is_merge { 13 } else { 12 }, &there))
        }
    });
    let wanted = json!({"driver": {"name": "a.test"}, "conditions": [condition("Ready", "True")]});
    let wanted: AttacherConfigStatus = serde_json::from_value(wanted).unwrap();
    for (part, kept) in [
        (StatusPart::All, Some(json!(["Ready", "example.com/Checked"]))),
        // What another replica says of provisioning is none of its business.
        (StatusPart::AllButProvisioning, None),
    ] {
        let answer = writer.write("a", Some("1"), &change(wanted.clone(), part)).await;
        assert_eq!(answer.unwrap().metadata.resource_version.as_deref(), Some("13"));
        let mut patch = patches.lock().pop().expect("a patch");
        assert_eq!(patch["metadata"], json!({"uid": "1", "resourceVersion": "12"}));
        let conditions = patch["status"].as_object_mut().unwrap().remove("conditions");
        let kinds = conditions.map(|all| {
            let kinds = all.as_array().unwrap().iter().map(|one| one["type"].clone());
            kinds.collect::<Value>()
        });
        assert_eq!(kinds, kept);
        let removed = json!({"holder": null, "driver": {"vendorVersion": null}});
        assert_eq!(patch["status"], removed);
    }
}

/// The record says which Lease is to be held as well: one that was not known when the status was made stays.
#[test]
fn the_lease_of_a_former_release_goes_only_where_it_was_known() {
    let with = |namespace: Option<&str>| AttacherConfigStatus {
        leader_election: namespace.map(|namespace| FormerLease {
            namespace: Some(namespace.to_owned()),
        }),
        ..AttacherConfigStatus::default()
    };
    let (none, recorded) = (with(None), with(Some("elsewhere")));
    let taken = Some(json!({"leaderElection": null}));
    assert_eq!(StatusPart::All.left_over(&recorded, &none, &recorded), taken);
    assert_eq!(StatusPart::All.left_over(&none, &none, &recorded), None);
    assert_eq!(StatusPart::All.left_over(&recorded, &recorded, &recorded), None);
    let of_provisioning = StatusPart::Provisioning.left_over(&recorded, &recorded, &recorded);
    assert_eq!(of_provisioning, None);
}
