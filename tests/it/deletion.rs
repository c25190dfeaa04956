//! AttacherConfigs that are deleted while volumes are attached.

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use serde_json::json;
use tonic::Code;

use crate::error_texts::attachments::LEAVING;
use crate::error_texts::index::assert_indexed;
use crate::events::event;
use crate::insight::told;
use crate::rig::{LIMIT, World, detach};
use crate::support::Result;
use crate::support::wait::wait_for;

const FINALIZER: &str = "attacher.csi.dev/wait-for-detach";

async fn wait_for_finalizer(world: &World, name: &str) -> Result<()> {
    let configs = world.fixtures.cluster::<AttacherConfig>();
    let there = |config: Option<&AttacherConfig>| config.is_some_and(|config| config.finalizers() == [FINALIZER]);
    wait_for(configs, name, "our finalizer", LIMIT, there).await.map(drop)
}

async fn wait_for_gone(world: &World, name: &str) -> Result<()> {
    let configs = world.fixtures.cluster::<AttacherConfig>();
    wait_for(configs, name, "gone", LIMIT, |config| config.is_none())
        .await
        .map(drop)
}

#[tokio::test]
async fn a_config_that_waits_is_served_until_the_last_volume_is_detached() -> Result<()> {
    let world = World::shared().await?;
    let settings = json!({
        "deletionPolicy": "WaitForDetach", "backoff": { "initial": "20ms", "max": "20ms", "jitterPercent": 0 },
    });
    let driver = world.driver("waiting", settings).await?;
    let fixtures = &world.fixtures;
    driver.attach("waiting-first").await?;
    driver.attach("waiting-second").await?;
    let configs = fixtures.cluster::<AttacherConfig>();
    wait_for_finalizer(&world, "waiting").await?;
    fixtures.delete::<AttacherConfig>("waiting").await?;
    driver.wait("Reconciling", "True", Some("WaitingForDetach")).await?;

    // Nothing new is attached.
    driver.claim("waiting-new").await?;
    let words = "the AttacherConfig of driver waiting.csi.test is being deleted (spec.deletionPolicy: WaitForDetach) and attaches \
                 no further volumes; create another AttacherConfig for the driver, which takes over";
    let error = fixtures.wait_for_attach_error_saying("waiting-new", words).await?;
    assert_indexed(LEAVING, &error.message.unwrap_or_default());
    event(&world, "VolumeAttachment", "waiting-new", "AttachFailed", words).await?;

    // The detach of the first works at once, that of the second only after a while.
    let rule = Rule::on(Method::ControllerUnpublishVolume)
        .volume("waiting-second")
        .times(3);
    driver.mock.script(rule.fail(Code::Internal, "busy"));
    detach(fixtures, "waiting-first").await?;
    let kept = configs.get("waiting").await.expect("it is still there");
    assert_eq!(kept.finalizers(), [FINALIZER]);
    detach(fixtures, "waiting-second").await?;
    wait_for_gone(&world, "waiting").await?;
    let new = fixtures.get_attachment("waiting-new").await?;
    assert!(new.finalizers().is_empty(), "claimed by nobody who stays");
    assert!(driver.calls_for("waiting-new").is_empty());

    // Nobody serves it any more.
    let other = world.driver("waited", json!({})).await?;
    driver.claim("waiting-later").await?;
    other.attach("waited-va").await?;
    assert!(driver.calls_for("waiting-later").is_empty());
    Ok(())
}

#[tokio::test]
async fn a_config_waits_for_volumes_whose_deletion_waits_for_it() -> Result<()> {
    let world = World::shared().await?;
    let driver = world
        .driver("releasing", json!({ "deletionPolicy": "WaitForDetach" }))
        .await?;
    let fixtures = &world.fixtures;
    driver.attach("releasing-gone").await?;
    driver.attach("releasing-live").await?;
    wait_for_finalizer(&world, "releasing").await?;
    // The attachment of a driver that nobody serves keeps the volume from being released.
    fixtures
        .volume_attachment(
            "releasing-other",
            "unserved.csi.test",
            "releasing-gone",
            "releasing-node-2",
        )
        .await?;
    for name in ["releasing-gone", "releasing-live"] {
        detach(fixtures, name).await?;
    }
    fixtures.delete::<PersistentVolume>("releasing-gone").await?;
    fixtures.delete::<AttacherConfig>("releasing").await?;
    told(
        &driver,
        "Reconciling",
        "True",
        "WaitingForDetach",
        &["1 PersistentVolume", "releasing-gone"],
    )
    .await?;
    fixtures.delete::<VolumeAttachment>("releasing-other").await?;
    fixtures.wait_for_volume_gone("releasing-gone").await?;
    wait_for_gone(&world, "releasing").await?;
    // A live volume keeps the finalizer, and that is told.
    let live = fixtures.cluster::<PersistentVolume>().get("releasing-live").await;
    assert_eq!(live.expect("there").finalizers(), [driver.finalizer()]);
    let finalizer = driver.finalizer();
    event(&world, "AttacherConfig", "releasing", "FinalizersLeft", &finalizer)
        .await
        .map(drop)
}
