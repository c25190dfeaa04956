//! AttacherConfigs that get in each other's way, that are suspended and deleted. Other changes are in `reload`.

use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{CallResult, Method, Rule};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use serde_json::json;

use crate::rig::World;
use crate::support::Result;
use crate::support::operator::{apply_config, wait_condition};

#[tokio::test]
async fn of_two_configs_for_one_endpoint_the_older_works() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("twin-a", json!({})).await?;
    apply_config(&world.client, "twin-b", world.spec("twin-a", &json!({}))).await?;
    let conflict = Some("EndpointConflict");
    let newer = wait_condition(&world.client, "twin-b", "Stalled", "True", conflict).await?;
    let shown = format!("{:?}", newer.status);
    assert!(shown.contains("already belongs to AttacherConfig twin-a;"), "{shown}");
    wait_condition(&world.client, "twin-b", "Ready", "False", conflict).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach("twin-1").await?;

    // While the older one still finishes a call, the newer one must wait; then it takes over at once.
    let slow = Rule::on(Method::ControllerPublishVolume).volume("twin-2");
    driver.mock.script(slow.delay(Duration::from_secs(2)));
    driver.claim("twin-2").await?;
    driver.call(Method::ControllerPublishVolume, "twin-2", |_| true).await?;
    world.fixtures.delete::<AttacherConfig>("twin-a").await?;
    world.fixtures.wait_for_attached("twin-2").await?;
    assert_eq!(driver.calls_for("twin-2").len(), 1);
    // One that is stalled looks again after half a minute anyway.
    let impatient = world.fixtures.clone().with_limit(Duration::from_secs(20));
    driver.claim("twin-3").await?;
    impatient.wait_for_attached("twin-3").await?;
    wait_condition(&world.client, "twin-b", "Ready", "True", Some("Running"))
        .await
        .map(drop)
}

#[tokio::test]
async fn a_suspended_driver_finishes_what_runs_and_starts_nothing() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("rest", json!({})).await?;
    let other = world.driver("restless", json!({})).await?;
    let slow = Rule::on(Method::ControllerPublishVolume).volume("rest-running");
    driver.mock.script(slow.delay(Duration::from_millis(800)));
    driver.claim("rest-running").await?;
    driver
        .call(Method::ControllerPublishVolume, "rest-running", |_| true)
        .await?;
    driver.configure(&json!({ "suspend": true })).await?;
    driver.wait("Ready", "True", Some("Suspended")).await?;
    world.fixtures.wait_for_attached("rest-running").await?;
    driver.claim("rest-later").await?;
    other.attach_one_more("restless-va").await?;
    assert_eq!(world.requests(&["rest-later"])?, []);
    assert!(driver.calls_for("rest-later").is_empty());

    driver.configure(&json!({ "suspend": false })).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    world.fixtures.wait_for_attached("rest-later").await?;
    assert_eq!(driver.calls_for("rest-running").len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_deleted_config_ends_the_driver_after_what_runs_and_touches_no_finalizer() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("removed", json!({})).await?;
    let slow = Rule::on(Method::ControllerPublishVolume).volume("removed-running");
    driver.mock.script(slow.delay(Duration::from_millis(1500)));
    driver.claim("removed-running").await?;
    driver
        .call(Method::ControllerPublishVolume, "removed-running", |_| true)
        .await?;
    let fixtures = &world.fixtures;
    fixtures.delete::<AttacherConfig>("removed").await?;
    let attached = fixtures.wait_for_attached("removed-running").await?;
    assert_eq!(driver.calls_for("removed-running")[0].outcome, CallResult::Answered);
    // The end of one AttacherConfig and the beginning of another come by the same watch, so that the operator knows of the end
    // before there are attachments, which come by another one.
    let other = world.driver("remains", json!({})).await?;
    driver.claim("removed-later").await?;
    fixtures.delete::<VolumeAttachment>("removed-running").await?;
    other.attach_one_more("remains-va").await?;

    assert_eq!(world.requests(&["removed-later"])?, []);
    assert_eq!(attached.finalizers(), [driver.finalizer()]);
    let stored = fixtures.get_attachment("removed-running").await?;
    assert_eq!(stored.finalizers(), [driver.finalizer()]);
    let volumes = fixtures.cluster::<PersistentVolume>();
    let volume = volumes.get("removed-running").await.expect("the volume is there");
    assert_eq!(volume.finalizers(), [driver.finalizer()]);
    assert_eq!(driver.calls_for("removed-running").len(), 1);

    driver.configure(&json!({})).await?;
    fixtures.wait_for_attachment_gone("removed-running").await?;
    fixtures.wait_for_attached("removed-later").await.map(drop)
}
