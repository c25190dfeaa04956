//! Requests to release an attachment without the driver's confirmation, against a real connection and a modelled API server.

use super::*;
use crate::api::ReconcileSyncMode;
use crate::api::names::{RELEASE_ANNOTATION, RELEASE_REFUSED_ANNOTATION, finalizer_name};
use csi_mock_driver::Rule;

/// A driver that refuses every detach, and its node and volume.
async fn stage() -> AttemptFixture {
    stage_of(DRIVER, ReconcileSyncMode::Auto).await
}

/// The same, with a driver that can list. What it lists is compared once, at the beginning.
async fn listing_stage() -> AttemptFixture {
    let stage = stage_of(LISTING, ReconcileSyncMode::Auto).await;
    eventually(|| stage.calls(Call::ListVolumes) > 0).await;
    stage
}

async fn stage_of(driver: &'static str, mode: ReconcileSyncMode) -> AttemptFixture {
    let stage = AttemptFixture::with(Api::default(), driver, |spec| {
        retry(spec, "50ms", "100ms");
        spec.reconcile_sync.mode = mode;
        spec.reconcile_sync.interval = "24h".parse().unwrap();
    })
    .await;
    let refuse = Rule::on(UNPUBLISH).fail(tonic::Code::Internal, "never");
    stage.driver.script(refuse);
    stage.store.apply(CsiNode::new("n0", &[(driver, "id0")]));
    let metadata = json!({"finalizers": [finalizer_name(driver)]});
    let spec = json!({"accessModes": ["ReadWriteOnce"]});
    stage.volume_with("pv1", &json!({"metadata": metadata, "spec": spec}));
    stage
}

/// The time of the first request, the same for the whole run.
fn at() -> &'static str {
    static AT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    AT.get_or_init(|| jiff::Timestamp::now().to_string())
}

fn request(edit: &Value) -> String {
    let mut request = json!({"uid": "va0-uid", "deleted": DELETED, "at": at(), "by": "jane", "reason": "scrapped"});
    json_patch::merge(&mut request, edit);
    request.to_string()
}

/// Puts the attachment there, with the request on it.
fn ask(stage: &AttemptFixture, request: &str) {
    put(stage, request, &json!({"attached": true}));
}

/// The same, after a detach that failed.
fn ask_again(stage: &AttemptFixture, request: &str) {
    let failed = json!({"message": "never", "time": DELETED});
    put(stage, request, &json!({"attached": true, "detachError": failed}));
}

fn put(stage: &AttemptFixture, request: &str, status: &Value) {
    put_numbered(stage, 0, request, status);
}

/// The same for the attachment, node and node ID of this number.
fn put_numbered(stage: &AttemptFixture, number: usize, request: &str, status: &Value) {
    let mut metadata = claimed_with(&json!({"handle": "h"}), &format!("id{number}"), true);
    metadata["finalizers"] = json!([finalizer_name(stage.name)]);
    metadata["annotations"][RELEASE_ANNOTATION] = request.into();
    let object = json!({"metadata": metadata, "status": status});
    stage.attachment_with(&format!("va{number}"), &format!("n{number}"), &object);
}

fn answer(api: &Api) -> Option<Value> {
    let object = api.get(&format!("{ATTACHMENTS}va0"))?;
    let text = object["metadata"]["annotations"][RELEASE_REFUSED_ANNOTATION].as_str()?;
    serde_json::from_str(text).ok()
}

/// Waits for the answer to the request, and checks that nothing was released, then and after one more attempt.
async fn refused(stage: &AttemptFixture, reason: &str) {
    stage.api.until(|api| answer(api).is_some()).await;
    let said = answer(&stage.api).unwrap();
    assert_eq!([&said["request"], &said["reason"]], [at(), reason], "{said}");
    let calls = stage.calls(UNPUBLISH);
    eventually(|| stage.calls(UNPUBLISH) > calls).await;
    let object = stage.api.get(&format!("{ATTACHMENTS}va0")).unwrap();
    assert_eq!(object["metadata"]["finalizers"], json!([finalizer_name(stage.name)]));
    let patches = stage.api.patches.lock();
    let is_answer = |body: &Value| body.to_string().contains("~1release-refused");
    let answers = patches.iter().filter(|(_, body, _)| is_answer(body));
    assert_eq!(answers.count(), 1, "answered once");
}

/// Checks that the answer contains these words.
fn told(stage: &AttemptFixture, words: &str) {
    let said = answer(&stage.api).unwrap();
    assert!(said["message"].as_str().unwrap().contains(words), "{said}");
}

async fn released(stage: &AttemptFixture) {
    stage.gone("va0").await;
    assert!(stage.calls(UNPUBLISH) >= 1, "the driver is asked first");
    let patches = stage.api.patches.lock();
    let (_, body, code) = patches.iter().rfind(|(path, ..)| path.ends_with("va0")).unwrap();
    assert_eq!(*code, 200);
    for tested in ["/metadata/resourceVersion", "/metadata/uid"] {
        let mut steps = body.as_array().unwrap().iter();
        assert!(steps.any(|step| step["path"] == tested), "{tested}: {body}");
    }
}

#[tokio::test]
async fn without_proof_nothing_is_released() {
    let stage = stage().await;
    ask(&stage, &request(&json!({})));
    refused(&stage, "NoProof").await;
}

#[tokio::test]
async fn a_request_for_another_object_or_deletion_is_refused() {
    let another_deletion = json!({"deleted": "2025-12-31T00:00:00Z", "proof": "OutOfServiceTaint"});
    for (edit, reason) in [
        (json!({"uid": "va0-old", "proof": "Confirmed"}), "OtherObject"),
        (another_deletion, "OtherDeletion"),
    ] {
        let stage = stage().await;
        ask(&stage, &request(&edit));
        refused(&stage, reason).await;
    }
}

#[tokio::test]
async fn a_taint_and_a_confirmation_are_enough() {
    for proof in ["OutOfServiceTaint", "Confirmed"] {
        let stage = stage().await;
        ask(&stage, &request(&json!({"proof": proof})));
        released(&stage).await;
    }
}

/// Another attachment of the volume makes a confirmation wrong, wherever it is.
#[tokio::test]
async fn other_attachments_of_the_volume_are_a_refusal() {
    for (node, proof, reason) in [
        ("n1", "Confirmed", "AttachedElsewhere"),
        ("n0", "OutOfServiceTaint", "InUseOnNode"),
    ] {
        let stage = stage().await;
        let claim = claimed_with(&json!({"handle": "h"}), "id1", false);
        let other = json!({"metadata": claim, "status": {"attached": true}});
        stage.attachment_with("va1", node, &other);
        ask(&stage, &request(&json!({"proof": proof})));
        stage.api.until(|api| answer(api).is_some()).await;
        assert_eq!(answer(&stage.api).unwrap()["reason"], reason);
    }
}

/// The driver is asked before anything is judged, however long its answer takes.
#[tokio::test]
async fn the_driver_is_asked_first() {
    let stage = stage().await;
    stage.driver.clear_rules();
    let slow = Rule::on(UNPUBLISH).delay(Duration::from_millis(400));
    stage.driver.script(slow.fail(tonic::Code::Internal, "late"));
    ask(&stage, &request(&json!({"proof": "Confirmed"})));
    released(&stage).await;
    assert_eq!(stage.driver.in_flight().now, 0, "the call ended before");
}

/// A call for the same volume and node ID, by another attachment, is waited for.
#[tokio::test]
async fn a_call_in_flight_is_waited_for() {
    let stage = stage().await;
    let slow = Rule::on(PUBLISH).delay(Duration::from_millis(600));
    stage.driver.script(slow);
    stage.store.apply(CsiNode::new("n1", &[(DRIVER, "id0")]));
    stage.attachment("va1", "n1", &json!({}));
    let called = stage.driver.wait_for_call(|call| call.method == PUBLISH);
    eventually(|| stage.driver.in_flight_of(PUBLISH).now > 0).await;
    ask_again(&stage, &request(&json!({"proof": "OutOfServiceTaint"})));
    stage.api.until(|api| answer(api).is_some()).await;
    let record = tokio::time::timeout(LIMIT, called).await.unwrap();
    assert_eq!(record.code, Some(tonic::Code::Ok), "the call ended before the answer");
    assert_eq!(answer(&stage.api).unwrap()["reason"], "InUseOnNode");
}

/// What the driver lists decides, also against what a person says.
#[tokio::test]
async fn what_the_driver_lists_decides() {
    let stage = listing_stage().await;
    stage.driver.create_volume("h");
    stage.driver.drift_attach("h", "id0");
    ask(&stage, &request(&json!({"proof": "Confirmed"})));
    refused(&stage, "ListedAtNode").await;
    // Somebody detached it by the storage's own tools, and asks again.
    assert!(stage.driver.drift_detach("h", "id0"));
    ask(&stage, &request(&json!({"at": jiff::Timestamp::now().to_string()})));
    released(&stage).await;
}

/// A driver that lists without its node what it attached is not believed, though no comparison has found that yet.
#[tokio::test]
async fn a_listing_that_contradicts_another_attachment_is_in_doubt() {
    let stage = listing_stage().await;
    for handle in ["h", "other"] {
        stage.driver.create_volume(handle);
    }
    other_volume_is_attached(&stage);
    ask(&stage, &request(&json!({})));
    refused(&stage, "NoProof").await;
    told(&stage, "VolumeAttachment va1");
    assert_eq!(stage.calls(PUBLISH), 0, "nothing is repaired by that");
    // It lists the node, and somebody asks again.
    stage.driver.drift_attach("other", "id9");
    ask(&stage, &request(&json!({"at": jiff::Timestamp::now().to_string()})));
    released(&stage).await;
}

/// The volume "other" of pv2 is attached to n9, as va1 says.
fn other_volume_is_attached(stage: &AttemptFixture) {
    stage.store.apply(CsiNode::new("n9", &[(LISTING, "id9")]));
    let finalizers = json!([finalizer_name(LISTING)]);
    let spec = json!({"accessModes": ["ReadWriteOnce"], "csi": {"volumeHandle": "other"}});
    let volume = json!({"metadata": {"finalizers": finalizers}, "spec": spec});
    stage.volume_with("pv2", &volume);
    let mut metadata = claimed_with(&json!({"handle": "other"}), "id9", false);
    metadata["finalizers"] = finalizers;
    let source = json!({"persistentVolumeName": "pv2"});
    let attachment = json!({"metadata": metadata, "spec": {"source": source}, "status": {"attached": true}});
    stage.attachment_with("va1", "n9", &attachment);
}

/// A volume that the driver does not list may be anywhere.
#[tokio::test]
async fn a_volume_that_is_not_listed_is_in_doubt() {
    let stage = listing_stage().await;
    ask(&stage, &request(&json!({})));
    refused(&stage, "NoProof").await;
}

/// What the driver lists is not believed where a person switched the comparison off: they may have, because it lists wrongly.
#[tokio::test]
async fn a_listing_that_is_not_compared_proves_nothing() {
    let stage = stage_of(LISTING, ReconcileSyncMode::Disabled).await;
    stage.driver.create_volume("h");
    ask(&stage, &request(&json!({})));
    refused(&stage, "NoProof").await;
    told(&stage, "Disabled");
}

/// So may one whose driver does not answer.
#[tokio::test]
async fn a_listing_that_fails_is_in_doubt() {
    let stage = listing_stage().await;
    stage.driver.create_volume("h");
    let fails = Rule::on(Call::ListVolumes).fail(tonic::Code::Unavailable, "no");
    stage.driver.script(fails);
    ask(&stage, &request(&json!({})));
    refused(&stage, "NoProof").await;
    told(&stage, "did not list its volumes");
}

/// A listing costs the driver as much as it has volumes, and a request that has expired can bring nothing.
#[tokio::test]
async fn an_expired_request_is_refused_before_the_driver_lists() {
    let stage = listing_stage().await;
    stage.driver.create_volume("h");
    ask_again(&stage, &request(&json!({"at": DELETED, "proof": "Confirmed"})));
    stage.api.until(|api| answer(api).is_some()).await;
    assert_eq!(answer(&stage.api).unwrap()["reason"], "Expired");
    assert_eq!(stage.calls(Call::ListVolumes), 1, "by the comparison");
}

#[tokio::test]
async fn requests_that_are_judged_together_share_listings() {
    const COUNT: usize = 20;
    let stage = listing_stage().await;
    stage.driver.create_volume("h");
    let slow = Rule::on(Call::ListVolumes).delay(Duration::from_secs(1));
    stage.driver.script(slow);
    let failed = json!({"message": "never", "time": DELETED});
    for number in 0..COUNT {
        let (node, node_id) = (format!("n{number}"), format!("id{number}"));
        stage.store.apply(CsiNode::new(&node, &[(LISTING, &node_id)]));
        let request = request(&json!({"uid": format!("va{number}-uid")}));
        let status = json!({"attached": true, "detachError": failed});
        put_numbered(&stage, number, &request, &status);
    }
    for number in 0..COUNT {
        stage.gone(&format!("va{number}")).await;
    }
    assert_eq!(stage.driver.in_flight_of(Call::ListVolumes).peak, 1);
    let listings = stage.calls(Call::ListVolumes);
    assert!(listings < COUNT / 2, "{listings} listings for {COUNT} requests");
}

/// The driver is asked to detach after a request that is refused, though the API server does not take the answer: it drops it, denies it,
/// or is out of order for it.
#[tokio::test]
async fn the_detach_goes_on_where_the_answer_cannot_be_written() {
    let drops = |stage: &AttemptFixture| {
        stage.api.admit(|_, object| {
            let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.remove(RELEASE_REFUSED_ANNOTATION);
        });
    };
    let denies = |stage: &AttemptFixture| stage.api.refuse("va0", usize::MAX, 403, "no");
    let is_out_of_order =
        |stage: &AttemptFixture| stage.api.answer_untruly(Method::PATCH, "va0", usize::MAX, 500, "{}");
    let failed = json!({"message": "never", "time": DELETED});
    // One that is refused at sight, and one that is judged first.
    for (request, status) in [
        ("true".to_owned(), json!({"attached": true})),
        (request(&json!({})), json!({"attached": true, "detachError": failed})),
    ] {
        for hinder in [&drops as &dyn Fn(&AttemptFixture), &denies, &is_out_of_order] {
            let stage = stage().await;
            hinder(&stage);
            put(&stage, &request, &status);
            // In each attempt again.
            let calls = stage.driver.wait_for_calls(2, |call| call.method == UNPUBLISH);
            tokio::time::timeout(LIMIT, calls).await.expect("the driver is asked");
            let object = stage.api.get(&format!("{ATTACHMENTS}va0")).unwrap();
            assert_eq!(object["metadata"]["finalizers"], json!([finalizer_name(stage.name)]));
            assert!(answer(&stage.api).is_none(), "{object}");
        }
    }
}
