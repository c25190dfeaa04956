//! A detach from a place for which another attachment of the volume is claimed.

use super::*;

const DELETED: &str = "2026-01-01T00:00:00Z";

/// va1 is claimed for the node ID of va0 and cannot be attached: its node has no CSINode. va0 is attached, and deleted by the end.
async fn stage() -> AttemptFixture {
    let stage = AttemptFixture::retrying_fast().await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va1", "n1", &claimed("id0", &json!({"handle": "h"})));
    stage.driver.drift_attach("h", "id0");
    stage
}

fn claimed(id: &str, note: &Value) -> Value {
    let annotations = json!({
        "csi.alpha.kubernetes.io/node-id": id,
        "attacher.csi.dev/volume": note.to_string(),
    });
    json!({"finalizers": [FINALIZER], "annotations": annotations})
}

fn deleted(mut metadata: Value) -> Value {
    metadata["deletionTimestamp"] = DELETED.into();
    metadata
}

fn claim_of_other(stage: &AttemptFixture) -> Value {
    let other = stage.api.get(&format!("{ATTACHMENTS}va1")).unwrap();
    let note = other["metadata"]["annotations"]["attacher.csi.dev/volume"].as_str();
    serde_json::from_str(note.unwrap()).unwrap()
}

#[tokio::test]
async fn the_claim_is_renewed_before_the_driver_is_asked() {
    let stage = stage().await;
    stage.attachment("va0", "n0", &deleted(claimed("id0", &json!({"handle": "h"}))));
    stage.detached().await;
    assert_eq!(claim_of_other(&stage), json!({"handle": "h", "renewed": 1}));
    assert_eq!(stage.calls(Call::ControllerUnpublishVolume), 1);
    let patches = stage.patches();
    let stored = |name: &str| patches.iter().position(|patch| *patch == (name.to_owned(), 200));
    assert!(stored("va1") < stored("va0"), "{patches:?}");
}

#[tokio::test]
async fn nothing_is_detached_before_the_claim_is_renewed() {
    let stage = stage().await;
    stage.api.answer_untruly(Method::PATCH, "/va1", 3, 503, "{}");
    stage.attachment("va0", "n0", &deleted(claimed("id0", &json!({"handle": "h"}))));
    stage
        .api
        .until(|api| api.untrue.lock().iter().all(|untrue| untrue.times < 2))
        .await;
    assert_eq!(stage.calls(Call::ControllerUnpublishVolume), 0);
    stage.detached().await;
    assert_eq!(stage.calls(Call::ControllerUnpublishVolume), 1);
    assert_eq!(claim_of_other(&stage)["renewed"], 1);
}

#[tokio::test]
async fn that_the_claim_may_not_be_renewed_is_shown_on_what_is_detached() {
    let stage = stage().await;
    let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no"});
    stage
        .api
        .answer_untruly(Method::PATCH, "/va1", usize::MAX, 403, &refusal.to_string());
    stage.attachment("va0", "n0", &deleted(claimed("id0", &json!({"handle": "h"}))));
    let error = |api: &Api| {
        let object = api.get(&format!("{ATTACHMENTS}va0")).unwrap_or_default();
        object["status"]["detachError"]["message"].as_str().map(str::to_owned)
    };
    stage.api.until(|api| error(api).is_some()).await;
    let error = error(&stage.api).unwrap();
    assert!(
        error.contains("could not renew the claim of VolumeAttachment va1"),
        "{error}"
    );
    assert_eq!(stage.calls(Call::ControllerUnpublishVolume), 0);
}

/// The driver gave a former ID of the node to another node, where the volume is attached by now.
#[tokio::test]
async fn a_former_place_is_left_to_who_is_attached_there() {
    let stage = stage().await;
    stage.driver.drift_attach("h", "id9");
    stage.attachment("va1", "n1", &claimed("id9", &json!({"handle": "h"})));
    let mut attached = stage.api.get(&format!("{ATTACHMENTS}va1")).unwrap();
    attached["status"] = json!({"attached": true});
    let attached = stage.api.put(format!("{ATTACHMENTS}va1"), attached);
    stage
        .store
        .apply::<Attachment>(serde_json::from_value::<VolumeAttachmentWire>(attached).unwrap().into());
    let note = json!({"handle": "h", "former": [{"handle": "h", "nodeID": "id9"}]});
    stage.attachment("va0", "n0", &deleted(claimed("id0", &note)));
    stage.detached().await;
    assert_eq!(stage.calls(Call::ControllerUnpublishVolume), 1);
    assert_eq!(stage.driver.published().len(), 1, "the other one keeps the volume");
}
