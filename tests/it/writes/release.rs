//! PersistentVolumes that are being deleted.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use serde_json::json;

use super::{first_finalizer, uid};
use crate::rig::{NOW, Step, VERSION, VOLUME_UID, World, assert_steps};
use crate::support::Result;

#[tokio::test]
async fn a_volume_is_kept_until_no_attachment_of_any_driver_names_it() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("release", json!({})).await?;
    let fixtures = &world.fixtures;
    driver.attach("release-pv").await?;
    // Nobody serves that driver; only what its attachment names counts.
    fixtures
        .volume_attachment("release-other", "nobody.csi.test", "release-pv", "release-node")
        .await?;
    fixtures.delete::<PersistentVolume>("release-pv").await?;
    fixtures.delete::<VolumeAttachment>("release-pv").await?;
    fixtures.wait_for_attachment_gone("release-pv").await?;
    driver.attach_one_more("release-more").await?;
    let volumes = fixtures.cluster::<PersistentVolume>();
    let kept = volumes.get("release-pv").await.expect("the volume is kept");
    assert_eq!(kept.finalizers(), [driver.finalizer()]);

    fixtures.delete::<VolumeAttachment>("release-other").await?;
    fixtures.wait_for_volume_gone("release-pv").await?;
    driver.attach_one_more("release-last").await?;
    let steps = world.requests(&["release-pv", "release-other"])?;
    let about_volume: Vec<_> = steps
        .into_iter()
        .filter(|step| step.what.contains("persistentvolumes") || step.what.contains("release-other"))
        .collect();
    let expected = [
        (
            "patch persistentvolumes release-pv",
            first_finalizer(&driver.finalizer()),
        ),
        (
            "patch persistentvolumes release-pv",
            json!([
                {"op": "test", "path": "/metadata/uid", "value": VOLUME_UID},
                {"op": "test", "path": "/metadata/finalizers/0", "value": driver.finalizer()},
                {"op": "remove", "path": "/metadata/finalizers/0"},
            ]),
        ),
    ];
    assert_steps(&about_volume, &expected);
    assert_eq!(driver.calls_for("release-pv").len(), 2, "one Publish and one Unpublish");
    Ok(())
}

#[tokio::test]
async fn a_volume_that_is_being_deleted_is_not_attached() -> Result<()> {
    let world = World::shared().await?;
    let driver = world
        .driver("dying", json!({ "backoff": { "initial": "1h", "max": "1h" } }))
        .await?;
    let fixtures = &world.fixtures;
    driver.attach("dying-pv").await?;
    fixtures.delete::<PersistentVolume>("dying-pv").await?;
    let made = fixtures
        .volume_attachment("dying-va", &driver.name, "dying-pv", "dying-elsewhere")
        .await?;
    // Until the watch of volumes has brought the deletion, it is the node that is missing.
    let text = "PersistentVolume \"dying-pv\" is marked for deletion";
    let error = fixtures.wait_for_attach_error_saying("dying-va", text).await?;
    assert_eq!(error.error_code, None);
    driver.attach_one_more("dying-more").await?;

    let body = json!({
        "metadata": { "uid": uid(&made), "resourceVersion": VERSION },
        "status": { "attachError": { "message": text, "time": NOW, "errorCode": null } },
    });
    let expected = [("patch volumeattachments/status dying-va", body)];
    let steps = world.requests(&["dying-va"])?;
    let is_status = |step: &Step| step.what == "patch volumeattachments/status dying-va";
    assert!(steps.iter().all(is_status), "it was not claimed: {steps:#?}");
    assert_steps(&steps[steps.len() - 1..], &expected);
    assert_eq!(
        driver.calls_for("dying-pv").len(),
        1,
        "only the Publish from before the deletion"
    );

    // As it was never claimed, it goes at once, and then the volume can go too.
    fixtures.delete::<VolumeAttachment>("dying-va").await?;
    fixtures.wait_for_attachment_gone("dying-va").await?;
    fixtures.delete::<VolumeAttachment>("dying-pv").await?;
    fixtures.wait_for_volume_gone("dying-pv").await
}
