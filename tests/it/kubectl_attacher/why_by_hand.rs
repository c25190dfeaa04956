//! `why`, where nothing goes on before a person has done something.

use csi_mock_driver::ControllerCapability;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use super::why::{Asked, held, patch, record_attached};
use crate::rig::World;
use crate::support::{Result, Volume};

#[tokio::test]
async fn the_attacherconfig_waits_for_a_person() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.managed_driver("why-stalled").await?;
    driver.attach("why-stalled-kept").await?;
    driver.stop().await;
    let capability = ControllerCapability::PublishUnpublishVolume;
    driver.mock.set_capability(capability, false);
    driver.start_again().await?;
    driver.wait("Stalled", "True", Some("CapabilityLost")).await?;
    driver.claim("why-stalled").await?;
    asked
        .why("capability-lost", "va", "why-stalled", 3, &["CapabilityLost"])
        .await?;
    driver.stop().await;
    driver.mock.set_capability(capability, true);
    driver.start_again().await?;
    asked.fixtures().wait_for_attached("why-stalled").await?;
    // The socket that its AttacherConfig names is another driver's.
    let named = world.unconfigured_driver("why-named", |builder| builder).await?;
    named.configure(&json!({ "driverName": "why-wanted.csi.test" })).await?;
    named.wait("Stalled", "True", Some("DriverNameMismatch")).await?;
    asked
        .fixtures()
        .persistent_volume(&Volume::new("why-named", "why-wanted.csi.test", "why-named"))
        .await?;
    asked
        .fixtures()
        .volume_attachment("why-named", "why-wanted.csi.test", "why-named", &named.node())
        .await?;
    asked
        .why("config-stalled", "va", "why-named", 3, &["ConfigStalled"])
        .await
}

#[tokio::test]
async fn what_no_controller_resolves() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.unconfigured_driver("why-twice", |builder| builder).await?;
    asked.fixtures().csi_driver(&driver.name, true).await?;
    asked.fixtures().persistent_volume(&driver.volume("why-twice")).await?;
    held(&driver, "why-twice").await?;
    asked
        .fixtures()
        .csi_node("why-twice-other", &driver.name, "other-id")
        .await?;
    asked
        .fixtures()
        .volume_attachment("why-twice-other", &driver.name, "why-twice", "why-twice-other")
        .await?;
    record_attached(&driver, "why-twice-other").await;
    asked
        .why("attached-twice", "va", "why-twice", 3, &["AttachedTwice"])
        .await?;
    // No Node lists the volume, so kube-controller-manager does not know of it.
    let plain = world.unconfigured_driver("why-left", |builder| builder).await?;
    asked.fixtures().csi_driver(&plain.name, false).await?;
    asked.fixtures().persistent_volume(&plain.volume("why-left")).await?;
    held(&plain, "why-left").await?;
    asked.why("left-over", "va", "why-left", 3, &["LeftOver"]).await
}

#[tokio::test]
async fn the_finalizer_of_another_controller() -> Result<()> {
    let world = World::managed().await?;
    let asked = Asked::in_world(&world).await?;
    let driver = world.managed_driver("why-foreign").await?;
    driver.attach("why-foreign").await?;
    let held = json!({"metadata": {"finalizers": [driver.finalizer(), "example.com/backup"]}});
    patch(&driver, "why-foreign", &held).await;
    asked.fixtures().delete::<VolumeAttachment>("why-foreign").await?;
    asked
        .why("foreign-finalizer", "va", "why-foreign", 3, &["ForeignFinalizer"])
        .await?;
    patch(&driver, "why-foreign", &json!({"metadata": {"finalizers": null}})).await;
    asked.fixtures().wait_for_attachment_gone("why-foreign").await
}
