//! Detaching: the finalizer goes first, and the status only where the object stays.

use std::time::Duration;

use csi_mock_driver::{CallResult, Method, Rule};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{first_claim, first_finalizer, release, status, uid};
use crate::rig::{NOW, World, assert_steps, within};
use crate::support::Result;

#[tokio::test]
async fn the_object_goes_with_the_finalizer_in_one_write() -> Result<()> {
    let world = World::shared().await?;
    let driver = world
        .driver("gone", json!({ "timeouts": { "unpublish": "9s" } }))
        .await?;
    let fixtures = &world.fixtures;
    let made = uid(&driver.attach("gone-va").await?);
    fixtures.delete::<VolumeAttachment>("gone-va").await?;
    fixtures.wait_for_attachment_gone("gone-va").await?;
    driver.attach_one_more("gone-more").await?;

    // The first four steps are those of the attach.
    let expected = [
        ("ControllerUnpublishVolume gone-va gone-node-id", json!("Ok")),
        ("patch volumeattachments gone-va", release(&driver, &made, 0)),
    ];
    assert_steps(&driver.steps(&["gone-va"], "gone-va")?[4..], &expected);
    assert_eq!(driver.calls_for("gone-va")[1].deadline_ms, Some(9000));
    assert_eq!(driver.mock.published().len(), 1, "only the one more is attached");
    Ok(())
}

#[tokio::test]
async fn an_object_that_another_finalizer_keeps_gets_a_second_write() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("kept", json!({})).await?;
    let fixtures = &world.fixtures;
    let made = uid(&driver.attach("kept-va").await?);
    let attachments = fixtures.cluster::<VolumeAttachment>();
    let keep = json!({ "metadata": { "finalizers": ["example.com/keep", driver.finalizer()] } });
    let params = PatchParams::default();
    attachments
        .patch("kept-va", &params, &Patch::Merge(&keep))
        .await
        .expect("an administrator may do this");
    fixtures.delete::<VolumeAttachment>("kept-va").await?;
    let detached = fixtures
        .wait_for_attachment("kept-va", "detached", |attachment| {
            attachment.status.as_ref().is_some_and(|status| !status.attached)
        })
        .await?;
    driver.attach_one_more("kept-more").await?;

    let body = status(
        &made,
        &json!({ "attached": false, "attachmentMetadata": null, "detachError": null }),
    );
    let expected = [
        ("ControllerUnpublishVolume kept-va kept-node-id", json!("Ok")),
        ("patch volumeattachments kept-va", release(&driver, &made, 1)),
        ("patch volumeattachments/status kept-va", body),
    ];
    assert_steps(&driver.steps(&["kept-va"], "kept-va")?[4..], &expected);
    assert_eq!(detached.finalizers(), ["example.com/keep"]);
    assert_eq!(
        detached.status.and_then(|status| status.attachment_metadata),
        None,
        "the publish context of a detached volume is gone"
    );

    let release = json!({ "metadata": { "finalizers": null } });
    attachments
        .patch("kept-va", &params, &Patch::Merge(&release))
        .await
        .expect("an administrator may do this");
    fixtures.wait_for_attachment_gone("kept-va").await?;
    driver.attach_one_more("kept-last").await?;
    assert_eq!(driver.steps(&["kept-va"], "kept-va")?.len(), 4 + expected.len());
    Ok(())
}

#[tokio::test]
async fn deleted_while_publish_runs() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("midway", json!({})).await?;
    let fixtures = &world.fixtures;
    let slow = Rule::on(Method::ControllerPublishVolume).volume("midway-va");
    // So long that the operator sees the deletion meanwhile, also on a busy machine.
    driver.mock.script(slow.delay(Duration::from_secs(6)));
    let made = uid(&driver.claim("midway-va").await?);
    driver
        .call(Method::ControllerPublishVolume, "midway-va", |_| true)
        .await?;
    fixtures.delete::<VolumeAttachment>("midway-va").await?;
    fixtures.wait_for_attachment_gone("midway-va").await?;
    driver.attach_one_more("midway-more").await?;

    let calls = driver.calls_for("midway-va");
    assert!(
        calls[1].started >= calls[0].finished.unwrap_or_default() && calls[0].finished.is_some(),
        "{calls:?}"
    );
    assert!(calls.iter().all(|call| !call.overlap), "{calls:?}");
    // That it is attached is not written any more: nobody would read it.
    let expected: [(&str, Value); 5] = [
        (
            "patch persistentvolumes midway-va",
            first_finalizer(&driver.finalizer()),
        ),
        (
            "patch volumeattachments midway-va",
            first_claim(&driver, &made, "midway-va"),
        ),
        ("ControllerPublishVolume midway-va midway-node-id", json!("Ok")),
        ("ControllerUnpublishVolume midway-va midway-node-id", json!("Ok")),
        ("patch volumeattachments midway-va", release(&driver, &made, 0)),
    ];
    assert_steps(&driver.steps(&["midway-va"], "midway-va")?, &expected);
    Ok(())
}

#[tokio::test]
async fn deleted_while_publish_hangs() -> Result<()> {
    let world = World::shared().await?;
    // The backoff is long: the detach must not wait for the next try of the attach. The deadline is longer than a busy machine
    // needs to bring the call to the driver, which is late with its record then.
    let settings = json!({ "timeouts": { "publish": "5s" }, "backoff": { "initial": "1h", "max": "1h" } });
    let driver = world.driver("hanging", settings).await?;
    let fixtures = &world.fixtures;
    driver
        .mock
        .script(Rule::on(Method::ControllerPublishVolume).volume("hanging-va").hang());
    let made = uid(&driver.claim("hanging-va").await?);
    driver
        .call(Method::ControllerPublishVolume, "hanging-va", |_| true)
        .await?;
    fixtures.delete::<VolumeAttachment>("hanging-va").await?;
    within("detach", fixtures.wait_for_attachment_gone("hanging-va")).await??;
    driver.attach_one_more("hanging-more").await?;

    let calls = driver.calls_for("hanging-va");
    assert_eq!(calls[0].outcome, CallResult::Cancelled, "{calls:?}");
    assert!(
        calls[1].started.as_millisecond() - calls[0].started.as_millisecond() >= 1000,
        "{calls:?}"
    );
    let text =
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded: no answer from the driver within 5 s";
    let error = json!({ "attachError": { "message": text, "time": NOW, "errorCode": 4 } });
    let expected = [
        ("ControllerPublishVolume hanging-va hanging-node-id", Value::Null),
        ("patch volumeattachments/status hanging-va", status(&made, &error)),
        ("ControllerUnpublishVolume hanging-va hanging-node-id", json!("Ok")),
        ("patch volumeattachments hanging-va", release(&driver, &made, 0)),
    ];
    let mut steps = driver.steps(&["hanging-va"], "hanging-va")?;
    // Where the watch is late with the deletion, the first write is refused and made anew: from what the watch has brought
    // meanwhile, or else from what is read.
    if let Some(refused) = steps.iter().position(|step| step.status == 409) {
        drop(steps.remove(refused));
        if steps[refused].what == "get volumeattachments hanging-va" {
            drop(steps.remove(refused));
        }
    }
    assert_steps(&steps[2..], &expected);
    Ok(())
}
