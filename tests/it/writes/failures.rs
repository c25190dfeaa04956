//! Calls that fail: what is written about them, and that nothing but the backoff decides about the next try.

use csi_mock_driver::{CallRecord, Method, Rule};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};
use tonic::Code;

use super::{attached, first_claim, first_finalizer, release, status, uid};
use crate::rig::{NOW, World, assert_steps};
use crate::support::Result;

/// Milliseconds between the end of each call and the beginning of the next.
fn pauses(calls: &[CallRecord]) -> Vec<i64> {
    calls
        .windows(2)
        .map(|pair| pair[1].started.as_millisecond() - pair[0].finished.unwrap_or_default().as_millisecond())
        .collect()
}

#[tokio::test]
async fn a_failing_attach_is_tried_again_after_the_backoff_only() -> Result<()> {
    let world = World::shared().await?;
    let settings = json!({ "backoff": { "initial": "300ms", "max": "10s", "factorPercent": 200, "jitterPercent": 0 } });
    let driver = world.driver("full", settings).await?;
    let rule = Rule::on(Method::ControllerPublishVolume).volume("full-va").times(2);
    driver.mock.script(rule.fail(Code::ResourceExhausted, "node is full"));
    let made = uid(&driver.attach("full-va").await?);
    driver.attach_one_more("full-more").await?;

    let text = "rpc error: code = ResourceExhausted desc = node is full";
    let error = json!({ "attachError": { "message": text, "time": NOW, "errorCode": 8 } });
    let expected = [
        ("patch persistentvolumes full-va", first_finalizer(&driver.finalizer())),
        (
            "patch volumeattachments full-va",
            first_claim(&driver, &made, "full-va"),
        ),
        (
            "ControllerPublishVolume full-va full-node-id",
            json!("ResourceExhausted"),
        ),
        ("patch volumeattachments/status full-va", status(&made, &error)),
        (
            "ControllerPublishVolume full-va full-node-id",
            json!("ResourceExhausted"),
        ),
        ("patch volumeattachments/status full-va", status(&made, &error)),
        ("ControllerPublishVolume full-va full-node-id", json!("Ok")),
        ("patch volumeattachments/status full-va", attached(&made, 'a')),
    ];
    assert_steps(&driver.steps(&["full-va"], "full-va")?, &expected);
    let calls = driver.calls_for("full-va");
    assert!(calls.iter().all(|call| !call.overlap), "{calls:?}");
    let pauses = pauses(&calls);
    assert!(pauses[0] >= 300 && pauses[1] >= 600, "{pauses:?}");
    let stored = world.fixtures.get_attachment("full-va").await?;
    assert_eq!(stored.status.and_then(|status| status.attach_error), None);
    Ok(())
}

#[tokio::test]
async fn a_failing_detach_is_tried_again_after_the_backoff_only() -> Result<()> {
    let world = World::shared().await?;
    let settings = json!({ "backoff": { "initial": "300ms", "max": "10s", "factorPercent": 200, "jitterPercent": 0 } });
    let driver = world.driver("stuck", settings).await?;
    let fixtures = &world.fixtures;
    let rule = Rule::on(Method::ControllerUnpublishVolume).volume("stuck-va").times(2);
    driver.mock.script(rule.fail(Code::Internal, "still mounted"));
    let made = uid(&driver.attach("stuck-va").await?);
    fixtures.delete::<VolumeAttachment>("stuck-va").await?;
    let shown = fixtures.wait_for_detach_error("stuck-va").await?;
    let text = "rpc error: code = Internal desc = still mounted";
    assert_eq!((shown.message.as_deref(), shown.error_code), (Some(text), None));
    fixtures.wait_for_attachment_gone("stuck-va").await?;
    driver.attach_one_more("stuck-more").await?;

    let error = json!({ "detachError": { "message": text, "time": NOW } });
    let expected = [
        ("ControllerUnpublishVolume stuck-va stuck-node-id", json!("Internal")),
        ("patch volumeattachments/status stuck-va", status(&made, &error)),
        ("ControllerUnpublishVolume stuck-va stuck-node-id", json!("Internal")),
        ("patch volumeattachments/status stuck-va", status(&made, &error)),
        ("ControllerUnpublishVolume stuck-va stuck-node-id", json!("Ok")),
        ("patch volumeattachments stuck-va", release(&driver, &made, 0)),
    ];
    assert_steps(&driver.steps(&["stuck-va"], "stuck-va")?[4..], &expected);
    let calls = driver.calls_for("stuck-va");
    assert!(calls.iter().all(|call| !call.overlap), "{calls:?}");
    let pauses = pauses(&calls[1..]);
    assert!(pauses[0] >= 300 && pauses[1] >= 600, "{pauses:?}");
    Ok(())
}

#[tokio::test]
async fn a_missing_node_is_told_and_taken_up_when_it_appears() -> Result<()> {
    let world = World::shared().await?;
    // The backoff is long: what helps is the node that appears, not the next try.
    let settings = json!({ "backoff": { "initial": "1h", "max": "1h" } });
    let driver = world.driver("nodeless", settings).await?;
    let fixtures = &world.fixtures;
    fixtures.persistent_volume(&driver.volume("nodeless-pv")).await?;
    let made = fixtures
        .volume_attachment("nodeless-va", &driver.name, "nodeless-pv", "nodeless-late")
        .await?;
    let error = fixtures.wait_for_attach_error("nodeless-va").await?;
    let text = "csinode.storage.k8s.io \"nodeless-late\" not found";
    assert_eq!((error.message.as_deref(), error.error_code), (Some(text), None));
    fixtures.csi_node("nodeless-late", &driver.name, "late-id").await?;
    fixtures.wait_for_attached("nodeless-va").await?;
    driver.attach_one_more("nodeless-more").await?;

    let uid = uid(&made);
    let error = json!({ "attachError": { "message": text, "time": NOW, "errorCode": null } });
    let mut claim = first_claim(&driver, &uid, "nodeless-pv");
    claim[5]["value"]["csi.alpha.kubernetes.io/node-id"] = Value::from("late-id");
    let expected = [
        (
            "patch persistentvolumes nodeless-pv",
            first_finalizer(&driver.finalizer()),
        ),
        ("patch volumeattachments/status nodeless-va", status(&uid, &error)),
        ("patch volumeattachments nodeless-va", claim),
        ("ControllerPublishVolume nodeless-pv late-id", json!("Ok")),
        ("patch volumeattachments/status nodeless-va", attached(&uid, 'a')),
    ];
    assert_steps(
        &driver.steps(&["nodeless-pv", "nodeless-va"], "nodeless-pv")?,
        &expected,
    );
    Ok(())
}

#[tokio::test]
async fn a_missing_volume_is_told_when_the_api_server_does_not_know_it_either() -> Result<()> {
    let world = World::shared().await?;
    // The backoff is long: what helps is the volume that appears, not the next try.
    let settings = json!({ "backoff": { "initial": "1h", "max": "1h" } });
    let driver = world.driver("absent", settings).await?;
    let fixtures = &world.fixtures;
    let made = uid(&driver.attachment("absent-va", "absent-pv").await?);
    let error = fixtures.wait_for_attach_error("absent-va").await?;
    let text = "persistentvolume \"absent-pv\" not found";
    assert_eq!((error.message.as_deref(), error.error_code), (Some(text), None));
    fixtures.persistent_volume(&driver.volume("absent-pv")).await?;
    fixtures.wait_for_attached("absent-va").await?;
    driver.attach_one_more("absent-more").await?;

    let mut steps = driver.steps(&["absent-pv", "absent-va"], "absent-pv")?;
    let asked = steps.remove(0);
    assert_eq!(
        (asked.what.as_str(), asked.status),
        ("get persistentvolumes absent-pv", 404)
    );
    let error = json!({ "attachError": { "message": text, "time": NOW, "errorCode": null } });
    let expected = [
        ("patch volumeattachments/status absent-va", status(&made, &error)),
        (
            "patch persistentvolumes absent-pv",
            first_finalizer(&driver.finalizer()),
        ),
        (
            "patch volumeattachments absent-va",
            first_claim(&driver, &made, "absent-pv"),
        ),
        ("ControllerPublishVolume absent-pv absent-node-id", json!("Ok")),
        ("patch volumeattachments/status absent-va", attached(&made, 'a')),
    ];
    assert_steps(&steps, &expected);
    Ok(())
}
