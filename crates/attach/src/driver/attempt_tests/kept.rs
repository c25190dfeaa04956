//! A mutating admission webhook changes what was written: the API server answers OK, and the object does not show it.

use super::*;
use crate::driver::capability::may_need_attach;

/// Attempts of [`AttemptFixture::retrying_fast`] that are waited for, and writes that none of them needs more of: two of
/// the preparation and one of the failure.
const ATTEMPTS: usize = 3;
const WRITES: usize = 3;

/// Takes annotations away whose key begins so. The API server stores no empty map.
fn strip_annotations(prefix: &'static str) -> impl Fn(&str, &mut Value) + Send + 'static {
    move |path, object| {
        let metadata = object["metadata"].as_object_mut().unwrap();
        let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else {
            return;
        };
        annotations.retain(|key, _| !path.starts_with(ATTACHMENTS) || !key.starts_with(prefix));
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
}

/// Takes all finalizers away from objects below this path.
fn strip_finalizers(below: &'static str) -> impl Fn(&str, &mut Value) + Send + 'static {
    move |path, object| {
        if path.starts_with(below) {
            object["metadata"].as_object_mut().unwrap().remove("finalizers");
        }
    }
}

/// A metric that counts a failed attempt.
fn counted_failure(stage: &AttemptFixture) -> Option<String> {
    let text = stage.metrics.encode_prometheus();
    let is_failure = |line: &&str| line.contains("_failures_total{") && !line.ends_with(" 0");
    text.lines().find(is_failure).map(str::to_owned)
}

/// Waits until so many failures are noted; the last one.
async fn noted(stage: &AttemptFixture, error: &str, count: usize) -> String {
    let notes = |api: &Api| {
        let patches = api.patches.lock();
        let noted = patches.iter().filter(|(_, body, _)| body["status"][error].is_object());
        noted.count() >= count
    };
    stage.api.until(notes).await;
    error_of(&stage.api, error).expect("is shown")
}

/// An attach to which the webhook does this fails with such an error, with few writes, and goes on without the webhook.
async fn attach_fails(admission: impl Fn(&str, &mut Value) + Send + 'static, what: &str, reason: &str) {
    let stage = AttemptFixture::retrying_fast().await;
    stage.api.admit(admission);
    stage.volume(&json!({}));
    stage.attachment("va0", "n0", &json!({}));
    let expected = format!("could not {what}: the API server accepted the write but did not keep {reason}");
    assert_eq!(noted(&stage, "attachError", ATTEMPTS).await, expected);
    let patches = stage.api.patches.lock().len();
    // The volume is protected once, if that is not what fails.
    assert!(patches <= ATTEMPTS * WRITES + 1, "{:?}", stage.patches());
    assert_eq!(stage.calls(PUBLISH), 0);
    *stage.api.admission.lock() = None;
    stage.attached("va0").await;
    assert_eq!(stage.calls(PUBLISH), 1);
}

#[tokio::test]
async fn an_attach_whose_writes_are_not_kept_says_what_is_missing() {
    let saved = "save VolumeAttachment";
    let note = "annotation attacher.csi.dev/volume; an admission webhook may remove it";
    attach_fails(strip_annotations("attacher.csi.dev/"), saved, note).await;
    let node_id = "annotation csi.alpha.kubernetes.io/node-id; an admission webhook may remove it";
    attach_fails(strip_annotations(NODE_ID), saved, node_id).await;
    let both = "annotation csi.alpha.kubernetes.io/node-id and annotation attacher.csi.dev/volume; \
                an admission webhook may remove them";
    attach_fails(strip_annotations(""), saved, both).await;
    let finalizer = "finalizer external-attacher/a-test; an admission webhook may remove it";
    attach_fails(strip_finalizers(ATTACHMENTS), saved, finalizer).await;
    attach_fails(strip_finalizers(VOLUMES), "add PersistentVolume finalizer", finalizer).await;
}

#[tokio::test]
async fn an_attach_whose_claim_is_changed_says_what() {
    for (key, value) in [(NODE_ID, "another"), (NOTE, r#"{"handle": "another"}"#)] {
        let expected = format!("the value of annotation {key}; an admission webhook may change it");
        let change = move |path: &str, object: &mut Value| {
            if path.starts_with(ATTACHMENTS) && object["metadata"]["annotations"].is_object() {
                object["metadata"]["annotations"][key] = value.into();
            }
        };
        attach_fails(change, "save VolumeAttachment", &expected).await;
    }
}

/// It is not the API server that is out of order, and the pod's Events are to say who is.
#[tokio::test]
async fn a_webhook_that_cannot_be_called_or_refuses_with_any_status_is_told() {
    let uncalled = "Internal error occurred: failed calling webhook \"policy.example.com\": no endpoints available";
    let denied = "admission webhook \"policy.example.com\" denied the request: no";
    for (code, refusal) in [(500, uncalled), (500, denied), (429, denied), (404, denied)] {
        let stage = AttemptFixture::retrying_fast().await;
        stage.api.refuse("/va0", usize::MAX, code, refusal);
        stage.volume(&json!({}));
        stage.attachment("va0", "n0", &json!({}));
        let expected = format!("could not save VolumeAttachment: {refusal}");
        assert_eq!(noted(&stage, "attachError", 1).await, expected, "{code}");
        assert_eq!(stage.calls(PUBLISH), 0);
    }
}

/// What is added to an object besides, and what only a trace needs, is nobody's failure.
#[tokio::test]
async fn what_a_webhook_adds_or_takes_besides_is_no_failure() {
    let stage = AttemptFixture::with(Api::default(), DRIVER, |spec| spec.tracing.outgoing_annotation = true).await;
    stage.store.apply(CsiNode::new("n0", &[(DRIVER, "id0")]));
    stage.api.admit(|_, object| {
        object["metadata"]["annotations"]["example.com/seen"] = "true".into();
        object["metadata"]["labels"]["example.com/seen"] = "true".into();
        let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("attacher.csi.dev/traceparent");
        let finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let others = finalizers.into_iter().filter(|entry| *entry != "example.com/held");
        object["metadata"]["finalizers"] = [json!("example.com/held")].into_iter().chain(others).collect();
    });
    stage.volume(&json!({}));
    stage.attachment("va0", "n0", &json!({}));
    stage.attached("va0").await;
    assert_eq!(stage.order(), ["pv1", "va0", "va0/status"]);
}

/// The record of an attach that the status does not show: the call is made again, as after any record that was refused.
#[tokio::test]
async fn a_record_that_is_not_kept_is_written_once_more() {
    let stage = AttemptFixture::retrying_fast().await;
    let record = format!("{ATTACHMENTS}va0/status");
    stage.api.admit(move |path, object| {
        if path == record {
            object["status"]["attached"] = false.into();
        }
    });
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &json!({}));
    stage.called(PUBLISH).await;
    stage.api.until(|api| api.patches.lock().len() == 3).await;
    let status = || ("va0/status".to_owned(), 200);
    assert_eq!(stage.patches(), [("va0".to_owned(), 200), status(), status()]);
    assert_eq!(stage.calls(PUBLISH), 1);
    *stage.api.admission.lock() = None;
    stage.attached("va0").await;
    assert_eq!(error_of(&stage.api, "attachError"), None);
    assert_eq!(stage.calls(UNPUBLISH), 0);
}

/// A detach whose finalizer comes back is no end, and asks the driver only as often as the backoff allows.
#[tokio::test]
async fn a_detach_whose_finalizer_is_put_back_says_so() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.api.admit(|path, object| {
        if path.starts_with(ATTACHMENTS) {
            object["metadata"]["finalizers"] = json!([FINALIZER]);
        }
    });
    stage.driver.drift_attach("h", "id0");
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &claimed("id0", true));
    let shown = noted(&stage, "detachError", ATTEMPTS).await;
    let expected = "could not mark as detached: the API server accepted the write but did not keep the removal of finalizer \
                    external-attacher/a-test; an admission webhook may put it back";
    assert_eq!(shown, expected);
    assert!(stage.calls(UNPUBLISH) <= ATTEMPTS + 1);
    let patches = stage.patches();
    assert!(patches.len() <= (ATTEMPTS + 1) * WRITES, "{patches:?}");
    *stage.api.admission.lock() = None;
    stage.gone("va0").await;
}

/// Of a driver without calls: what somebody else takes off at that moment is no failure, as the write is made from what is there then.
#[tokio::test]
async fn a_finalizer_goes_beside_another_one_that_goes() {
    const OURS: &str = "external-attacher/trivial-test";
    let stage = AttemptFixture::named(Api::default(), TRIVIAL).await;
    let attachment = |finalizers: &[&str]| {
        json!({
            "metadata": {"name": "va0", "uid": "va0-uid", "finalizers": finalizers, "deletionTimestamp": DELETED},
            "spec": {"attacher": TRIVIAL, "nodeName": "n0", "source": {"persistentVolumeName": "pv1"}},
        })
    };
    let path = format!("{ATTACHMENTS}va0");
    let seen = stage.api.put(path.clone(), attachment(&["a/b", OURS]));
    stage.api.put(path.clone(), attachment(&[OURS]));
    stage.sees(seen);
    stage.api.until(|api| api.get(&path).is_none()).await;
    let tried = || ("va0".to_owned(), 422);
    assert_eq!(stage.patches(), [tried(), ("va0".to_owned(), 200)]);
}

/// What a CSIDriver says cannot be changed, but it can be created again with another answer.
#[tokio::test]
async fn an_engine_that_goes_by_a_csi_driver_notices_that_it_says_otherwise() {
    let stage = AttemptFixture::named(Api::default(), TRIVIAL).await;
    let path = format!("/apis/storage.k8s.io/v1/csidrivers/{TRIVIAL}");
    let says = |required: bool| {
        let object = json!({"metadata": {"name": TRIVIAL, "uid": "u"}, "spec": {"attachRequired": required}});
        stage.api.put(path.clone(), object)
    };
    let facts = DriverFacts::new(TRIVIAL, Capabilities::default()).releasing(ReleaseWithoutCall::AttachNotRequired);
    says(false);
    let mut doubts = std::pin::pin!(may_need_attach(&stage.context, &facts, Duration::from_millis(10)));
    let is_read_again = |api: &Api| api.reads.lock().iter().filter(|read| **read == path).count() > 2;
    tokio::select! {
        () = &mut doubts => panic!("it says the same"),
        () = stage.api.until(is_read_again) => {}
    }
    says(true);
    tokio::time::timeout(LIMIT, doubts).await.expect("in time");
}

/// Somebody else is first at each write of the preparation.
#[tokio::test]
async fn objects_that_keep_changing_end_the_attempt_with_an_error_on_the_attachment() {
    for (error, contended) in [("attachError", "va0"), ("detachError", "va1")] {
        let stage = AttemptFixture::retrying_fast().await;
        stage.api.contend(format!("{ATTACHMENTS}{contended}"), &stage.store);
        stage.volume(&json!({"finalizers": [FINALIZER]}));
        let mut metadata = json!({});
        if error == "detachError" {
            // A detach renews the claim of the other attachment first.
            let claim = |deleted| claimed_with(&json!({"handle": "h"}), "id0", deleted);
            stage.attachment("va1", "n1", &claim(false));
            metadata = claim(true);
        }
        stage.attachment("va0", "n0", &metadata);
        let expected = "the objects kept changing during the attempt";
        assert_eq!(noted(&stage, error, 1).await, expected);
        assert_eq!([PUBLISH, UNPUBLISH].map(|call| stage.calls(call)), [0, 0]);
    }
}

/// A volume whose finalizer comes back is not released.
#[tokio::test]
async fn a_volume_whose_finalizer_is_put_back_is_not_told_to_be_released() {
    let stage = AttemptFixture::retrying_fast().await;
    let puts_back = |_: &str, object: &mut Value| object["metadata"]["finalizers"] = json!([FINALIZER]);
    stage.api.admit(puts_back);
    stage.volume(&json!({"finalizers": [FINALIZER], "deletionTimestamp": DELETED}));
    stage.api.until(|api| api.patches.lock().len() == ATTEMPTS).await;
    assert!(stage.store.volume("pv1").is_some());
    *stage.api.admission.lock() = None;
    stage.api.until(|api| api.objects.lock().is_empty()).await;
}

impl AttemptFixture {
    /// Waits until the status of va0 says so.
    async fn is_detached(&self) {
        let status = |api: &Api| Some(api.get(&format!("{ATTACHMENTS}va0"))?["status"]["attached"].clone());
        self.api.until(|api| status(api) == Some(false.into())).await;
    }
}

/// As the sidecar leaves what it attached: without a note of the volume.
fn attached_by_sidecar() -> Value {
    json!({"metadata": claimed("id0", false), "status": {"attached": true}})
}

/// The finalizers of va0.
fn finalizers(api: &Api) -> Value {
    let object = api.get(&format!("{ATTACHMENTS}va0")).unwrap_or_default();
    object["metadata"]["finalizers"].clone()
}

/// The write of the note is what a webhook takes the finalizer off by. A deletion would end without a detach then.
#[tokio::test]
async fn what_is_attached_gets_the_finalizer_again_that_went_with_a_write() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.api.admit(strip_finalizers(ATTACHMENTS));
    stage.driver.drift_attach("h", "id0");
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment_with("va0", "n0", &attached_by_sidecar());
    // Each attempt ends after the second answer that does not show it, and the next one comes after the backoff.
    stage.api.until(|api| api.patches.lock().len() >= 2 * ATTEMPTS).await;
    assert_eq!(error_of(&stage.api, "attachError"), None, "it is attached");
    assert_eq!(counted_failure(&stage), None);
    *stage.api.admission.lock() = None;
    stage.api.until(|api| finalizers(api) == json!([FINALIZER])).await;
    assert_eq!(stage.calls(PUBLISH), 0);
    stage.va0_is_deleted();
    stage.gone("va0").await;
    assert!(stage.driver.published().is_empty());
}

/// A controller that goes by an old copy replaces the list.
#[tokio::test]
async fn what_is_attached_gets_the_finalizer_again_that_somebody_took_off() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    let mut object = attached_by_sidecar();
    object["metadata"]["finalizers"] = json!(["a/b"]);
    object["metadata"]["annotations"][NOTE] = r#"{"handle":"h"}"#.into();
    stage.attachment_with("va0", "n0", &object);
    let both = json!(["a/b", FINALIZER]);
    stage.api.until(|api| finalizers(api) == both).await;
    stage.attempts_end().await;
    assert_eq!(stage.patches(), [("va0".to_owned(), 200)]);
    assert_eq!([PUBLISH, UNPUBLISH].map(|call| stage.calls(call)), [0, 0]);
}

/// After a call that timed out. The node has another ID since.
#[tokio::test]
async fn what_was_called_for_is_taken_back_though_somebody_took_the_finalizer_off() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.driver.drift_attach("h", "id-former");
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    let annotations = json!({NODE_ID: "id-former", NOTE: r#"{"handle":"h"}"#});
    stage.attachment("va0", "n0", &json!({"annotations": annotations}));
    stage.attached("va0").await;
    assert_eq!(finalizers(&stage.api), json!([FINALIZER]));
    let published: Vec<_> = stage.driver.published().into_iter().collect();
    assert_eq!(published, [("h".to_owned(), "id0".to_owned())]);
    assert_eq!(stage.order(), ["va0", "va0", "va0/status"]);
}

/// Another finalizer keeps the object, and its owner wrote the list from an old copy before the detach.
#[tokio::test]
async fn what_lost_the_finalizer_in_its_deletion_is_detached() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.driver.drift_attach("h", "id0");
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    let mut metadata = claimed("id0", true);
    metadata["finalizers"] = json!(["a/b"]);
    let attached = json!({"metadata": metadata, "status": {"attached": true}});
    stage.attachment_with("va0", "n0", &attached);
    stage.is_detached().await;
    stage.attempts_end().await;
    assert_eq!(stage.driver.published().len(), 0);
    assert_eq!(stage.calls(UNPUBLISH), 1);
    assert_eq!(stage.patches(), [("va0/status".to_owned(), 200)]);
}

/// The cache has a node ID that somebody took away: the write that takes it along is refused, and made again. The call is not.
#[tokio::test]
async fn what_others_keep_shows_no_claim_once_it_is_let_go() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.driver.drift_attach("h", "id0");
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    let attachment = |annotations: Value| {
        json!({
            "metadata": {
                "name": "va0", "uid": "va0-uid", "finalizers": ["a/b", FINALIZER], "deletionTimestamp": DELETED,
                "annotations": annotations,
            },
            "spec": {"attacher": DRIVER, "nodeName": "n0", "source": {"persistentVolumeName": "pv1"}},
            "status": {"attached": true},
        })
    };
    let note = r#"{"handle":"h"}"#;
    let path = format!("{ATTACHMENTS}va0");
    let claimed = attachment(json!({NODE_ID: "id0", NOTE: note}));
    let seen = stage.api.put(path.clone(), claimed);
    stage.api.put(path.clone(), attachment(json!({NOTE: note})));
    stage.sees(seen);
    stage.is_detached().await;
    stage.attempts_end().await;
    let patched = [("va0", 422), ("va0", 200), ("va0/status", 200)];
    assert_eq!(stage.patches(), patched.map(|(path, code)| (path.to_owned(), code)));
    assert_eq!(finalizers(&stage.api), json!(["a/b"]));
    assert_eq!(stage.api.get(&path).unwrap()["metadata"]["annotations"], json!({}));
    assert_eq!(stage.calls(UNPUBLISH), 1);
}

/// Takes all finalizers off an object each time that ours was put back and the key is settled; how long so many rounds take.
async fn fought_over(stage: &AttemptFixture, path: &str, rounds: usize) -> Duration {
    let begin = std::time::Instant::now();
    for round in 1..=rounds {
        let mut object = stage.api.get(path).unwrap();
        object["metadata"].as_object_mut().unwrap().remove("finalizers");
        match path.strip_prefix(ATTACHMENTS) {
            Some(name) => stage.put_attachment(name, object),
            None => stage.put_volume(object),
        }
        stage.api.until(|api| api.patches.lock().len() >= round).await;
        eventually(|| stage.engine.queue().is_empty()).await;
    }
    begin.elapsed()
}

/// A controller that goes by a policy takes it off each time. A deletion does not wait for the pause.
#[tokio::test]
async fn a_finalizer_that_is_taken_off_again_and_again_is_put_back_with_pauses_that_grow() {
    for contended in [format!("{ATTACHMENTS}va0"), format!("{VOLUMES}pv1")] {
        let stage = AttemptFixture::with(Api::default(), DRIVER, |spec| retry(spec, "400ms", "800ms")).await;
        stage.nodes(1);
        stage.driver.drift_attach("h", "id0");
        stage.volume(&json!({"finalizers": [FINALIZER]}));
        let mut object = attached_by_sidecar();
        object["metadata"]["annotations"][NOTE] = r#"{"handle":"h"}"#.into();
        stage.attachment_with("va0", "n0", &object);
        // At once, and after 400, 800 and 800 ms.
        let lasted = fought_over(&stage, &contended, 4).await;
        assert!(lasted >= Duration::from_secs(2), "{contended}: {lasted:?}");
        assert_eq!(stage.patches().len(), 4, "{contended}: {:?}", stage.patches());
        assert_eq!(counted_failure(&stage), None);
        stage.va0_is_deleted();
        stage.gone("va0").await;
        assert_eq!(stage.calls(UNPUBLISH), 1);
    }
}

/// The sidecar attached it and left no note. That none can be written is no failed attach, and not told as one.
#[tokio::test]
async fn what_is_attached_has_not_failed_for_a_note_that_is_not_kept() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.api.admit(strip_annotations("attacher.csi.dev/"));
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment_with("va0", "n0", &attached_by_sidecar());
    stage.api.until(|api| api.patches.lock().len() >= 2 * ATTEMPTS).await;
    assert_eq!(error_of(&stage.api, "attachError"), None);
    assert_eq!(counted_failure(&stage), None);
    // It is tried again, as the webhook may go.
    *stage.api.admission.lock() = None;
    let is_noted = |api: &Api| {
        let object = api.get(&format!("{ATTACHMENTS}va0"));
        object.is_some_and(|object| object["metadata"]["annotations"][NOTE].is_string())
    };
    stage.api.until(is_noted).await;
    assert_eq!(stage.calls(PUBLISH), 0);
}

/// A policy refuses the claim of an object that nobody else changes.
#[tokio::test]
async fn a_claim_that_a_policy_refuses_is_no_conflict() {
    let stage = AttemptFixture::retrying_fast().await;
    let refusal = "ValidatingAdmissionPolicy 'p' denied request: no";
    stage.api.refuse("/va0", usize::MAX, 422, refusal);
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &json!({}));
    let shown = noted(&stage, "attachError", 1).await;
    assert!(shown.contains("denied request: no"), "{shown}");
    let text = stage.metrics.encode_prometheus();
    let is_conflict = |line: &&str| line.to_lowercase().contains("conflict") && !line.ends_with(" 0");
    assert_eq!(text.lines().find(is_conflict), None);
}

/// Another finalizer kept the object, until it went as well: another object has its name when the result is to be recorded.
#[tokio::test]
async fn a_detach_whose_object_was_made_again_is_over() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.driver.drift_attach("h", "id0");
    let conflict = "Precondition failed: UID in precondition: va0-uid, UID in object meta: another";
    stage.api.refuse("/va0/status", 2, 409, conflict);
    let again = json!({
        "kind": "VolumeAttachment", "apiVersion": "storage.k8s.io/v1",
        "metadata": {"name": "va0", "uid": "another", "resourceVersion": "9"},
        "spec": {"attacher": "another", "nodeName": "n0", "source": {"persistentVolumeName": "pv1"}},
    });
    let again = again.to_string();
    stage.api.answer_untruly(Method::GET, "/va0", 1, 200, &again);
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    let mut held = json!({"metadata": claimed("id0", true), "status": {"attached": true}});
    held["metadata"]["finalizers"] = json!([FINALIZER, "example.com/held"]);
    stage.attachment_with("va0", "n0", &held);
    let is_asked = |api: &Api| api.untrue.lock().iter().all(|untrue| untrue.times == 0);
    stage.api.until(is_asked).await;
    stage.attempts_end().await;
    assert_eq!(stage.calls(UNPUBLISH), 1);
    assert_eq!(counted_failure(&stage), None);
}
