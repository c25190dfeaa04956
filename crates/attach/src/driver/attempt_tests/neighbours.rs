//! A detach from a place for which another attachment of the volume is claimed.

use super::*;
use csi_mock_driver::Rule;

/// va1 is claimed for the node ID of va0 and cannot be attached: its node has no CSINode. va0 is attached, and deleted by the end.
async fn stage() -> AttemptFixture {
    let stage = AttemptFixture::retrying_fast().await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.attachment("va1", "n1", &claimed_with(&json!({"handle": "h"}), "id0", false));
    stage.driver.drift_attach("h", "id0");
    stage
}

fn claim_of_other(stage: &AttemptFixture) -> Value {
    let other = stage.api.get(&format!("{ATTACHMENTS}va1")).unwrap();
    let note = other["metadata"]["annotations"][NOTE].as_str();
    serde_json::from_str(note.unwrap()).unwrap()
}

#[tokio::test]
async fn the_claim_is_renewed_before_the_driver_is_asked() {
    let stage = stage().await;
    stage.attachment("va0", "n0", &claimed_with(&json!({"handle": "h"}), "id0", true));
    stage.gone("va0").await;
    assert_eq!(claim_of_other(&stage), json!({"handle": "h", "renewed": 1}));
    assert_eq!(stage.calls(UNPUBLISH), 1);
    let patches = stage.patches();
    let stored = |name: &str| patches.iter().position(|patch| *patch == (name.to_owned(), 200));
    assert!(stored("va1") < stored("va0"), "{patches:?}");
}

#[tokio::test]
async fn nothing_is_detached_before_the_claim_is_renewed() {
    let stage = stage().await;
    stage.api.answer_untruly(Method::PATCH, "/va1", 3, 503, "{}");
    stage.attachment("va0", "n0", &claimed_with(&json!({"handle": "h"}), "id0", true));
    stage
        .api
        .until(|api| api.untrue.lock().iter().all(|untrue| untrue.times < 2))
        .await;
    assert_eq!(stage.calls(UNPUBLISH), 0);
    stage.gone("va0").await;
    assert_eq!(stage.calls(UNPUBLISH), 1);
    assert_eq!(claim_of_other(&stage)["renewed"], 1);
}

/// It may not be written, or a webhook resets the note.
#[tokio::test]
async fn a_claim_that_is_not_renewed_is_told_before_the_driver_is_asked() {
    let not_kept = "the API server accepted the write but did not keep the value of annotation attacher.csi.dev/volume; \
                    an admission webhook may change it";
    for (is_refused, reason) in [(true, "no"), (false, not_kept)] {
        let stage = stage().await;
        if is_refused {
            stage.api.refuse("/va1", usize::MAX, 403, reason);
        } else {
            stage.api.admit(|path, object| {
                if path.ends_with("/va1") {
                    object["metadata"]["annotations"][NOTE] = r#"{"handle":"h"}"#.into();
                }
            });
        }
        stage.attachment("va0", "n0", &claimed_with(&json!({"handle": "h"}), "id0", true));
        stage.api.until(|api| error_of(api, "detachError").is_some()).await;
        let expected = format!("could not renew the claim of VolumeAttachment va1: {reason}");
        assert_eq!(error_of(&stage.api, "detachError"), Some(expected));
        assert_eq!(stage.calls(UNPUBLISH), 0);
    }
}

/// The driver may refuse for ever what it is asked at the ID that the node has now, as the volume was never there.
#[tokio::test]
async fn a_refusal_at_one_place_keeps_the_volume_at_no_other() {
    for refused_at in ["id0", "id9"] {
        let stage = AttemptFixture::retrying_fast().await;
        stage.volume(&json!({"finalizers": [FINALIZER]}));
        stage.driver.drift_attach("h", "id0");
        stage.driver.drift_attach("h", "id9");
        let refuse = Rule::on(UNPUBLISH).node(refused_at);
        let refuse = refuse.fail(tonic::Code::Internal, "not attached there");
        stage.driver.script(refuse);
        let note = json!({"handle": "h", "former": [{"handle": "h", "nodeID": "id9"}]});
        stage.attachment("va0", "n0", &claimed_with(&note, "id0", true));
        stage.api.until(|api| error_of(api, "detachError").is_some()).await;
        let published: Vec<_> = stage.driver.published().into_iter().collect();
        assert_eq!(published, [("h".to_owned(), refused_at.to_owned())]);
        let error = error_of(&stage.api, "detachError").unwrap();
        assert!(error.contains("not attached there"), "{error}");
        let is_former = error.contains("is a former one of the node");
        assert_eq!(is_former, refused_at == "id9", "{error}");
        stage.driver.clear_rules();
        stage.gone("va0").await;
        assert_eq!(stage.driver.published().len(), 0);
    }
}

/// The driver gave a former ID of the node to another node, where the volume is attached by now.
#[tokio::test]
async fn a_former_place_is_left_to_who_is_attached_there() {
    let stage = stage().await;
    stage.driver.drift_attach("h", "id9");
    let claim = claimed_with(&json!({"handle": "h"}), "id9", false);
    let attached = json!({"metadata": claim, "status": {"attached": true}});
    stage.attachment_with("va1", "n1", &attached);
    let note = json!({"handle": "h", "former": [{"handle": "h", "nodeID": "id9"}]});
    stage.attachment("va0", "n0", &claimed_with(&note, "id0", true));
    stage.gone("va0").await;
    assert_eq!(stage.calls(UNPUBLISH), 1);
    assert_eq!(stage.driver.published().len(), 1, "the other one keeps the volume");
}
