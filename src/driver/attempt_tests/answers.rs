//! Answers of the driver that the API server does not let be recorded: the write is repeated, and not the call.

use super::*;
use crate::mock::Rule;

/// A refusal of an admission policy, or of RBAC.
fn forbidden() -> String {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403}).to_string()
}

/// Waits until so many patches of this path were refused.
async fn refused(stage: &AttemptFixture, path: &str, times: usize) {
    let path = path.to_owned();
    stage
        .api
        .until(|api| {
            let left = api
                .untrue
                .lock()
                .iter()
                .filter(|untrue| untrue.path == path)
                .map(|untrue| untrue.times)
                .sum::<usize>();
            left < usize::MAX - times
        })
        .await;
}

fn held(deleted: bool) -> Value {
    let annotations = json!({"csi.alpha.kubernetes.io/node-id": "id0"});
    let mut held = json!({"finalizers": [FINALIZER], "annotations": annotations});
    if deleted {
        held["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    held
}

#[tokio::test]
async fn what_was_attached_is_not_attached_again_until_it_is_recorded() {
    let stage = AttemptFixture::retrying_fast().await;
    stage
        .api
        .answer_untruly(Method::PATCH, "/va0/status", 4, 403, &forbidden());
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &json!({}));
    stage.api.until(|api| AttemptFixture::is_attached(api, "va0")).await;
    assert_eq!(stage.calls(Call::ControllerPublishVolume), 1);
}

#[tokio::test]
async fn what_was_detached_is_not_detached_again_until_it_is_recorded() {
    let stage = AttemptFixture::retrying_fast().await;
    stage.api.answer_untruly(Method::PATCH, "/va0", 4, 403, &forbidden());
    stage.driver.drift_attach("h", "id0");
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &held(true));
    stage
        .api
        .until(|api| api.get(&format!("{ATTACHMENTS}va0")).is_none())
        .await;
    assert_eq!(stage.calls(Call::ControllerUnpublishVolume), 1);
}

/// It is deleted before the record is taken: the volume is detached, and attached again for the next one of that name.
#[tokio::test]
async fn an_answer_is_void_when_the_volume_was_detached_since() {
    let stage = AttemptFixture::retrying_fast().await;
    stage
        .api
        .answer_untruly(Method::PATCH, "/va0/status", usize::MAX, 403, &forbidden());
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &json!({}));
    refused(&stage, "/va0/status", 2).await;
    let published = stage.driver.wait_for_published(|published| published.len() == 1);
    tokio::time::timeout(LIMIT, published).await.expect("in time");
    stage.attachment("va0", "n0", &held(true));
    stage
        .api
        .until(|api| api.get(&format!("{ATTACHMENTS}va0")).is_none())
        .await;
    assert!(stage.driver.published().is_empty());
    stage.api.untrue.lock().clear();
    let before = stage.calls(Call::ControllerPublishVolume);
    assert_eq!(before, 1);
    stage.attachment("va1", "n0", &json!({}));
    stage.api.until(|api| AttemptFixture::is_attached(api, "va1")).await;
    assert_eq!(stage.calls(Call::ControllerPublishVolume), 2);
}

/// Another process may answer over another connection.
#[tokio::test]
async fn an_answer_is_void_when_the_driver_was_connected_to_again() {
    let stage = AttemptFixture::retrying_fast().await;
    stage
        .api
        .answer_untruly(Method::PATCH, "/va0/status", usize::MAX, 403, &forbidden());
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va0", "n0", &json!({}));
    refused(&stage, "/va0/status", 2).await;
    stage.driver.script(Rule::on(Call::ControllerPublishVolume).times(1));
    stage.engine.resume(stage.engine.work().client(), true);
    stage.script_ends().await;
    assert!(stage.calls(Call::ControllerPublishVolume) >= 2);
}
