//! Drivers that come back without PUBLISH_UNPUBLISH_VOLUME while volumes are attached, and detaches that a driver refuses at a
//! former node ID.

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{CallRecord, ControllerCapability, Method, Rule};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::ResourceExt;
use serde_json::{Value, json};
use tonic::Code;

use crate::drop_in::{self, DRIVER, Scene};
use crate::error_texts::configs::CAPABILITY_LOST;
use crate::error_texts::index::assert_indexed;
use crate::events::event;
use crate::insight::told;
use crate::rig::{Driver, World, merge, other};
use crate::support::Result;
use crate::support::wait::wait_for;

const CONFIRM: &str = "attacher.csi.dev/confirm-capability-lost";
const NOT_ATTACHED_AT: &str = "attacher.csi.dev/not-attached-at";

fn settings() -> Value {
    json!({ "backoff": { "initial": "50ms", "max": "100ms" }, "reconcileSync": { "mode": "Disabled" } })
}

/// A driver whose volume `<short>-kept` is attached and was deleted while the driver was away, and which came back without
/// the capability; `<short>-pending` waits to be attached.
async fn lost<'w>(world: &'w World, short: &str) -> Result<Driver<'w>> {
    let fixtures = &world.fixtures;
    fixtures.csi_driver(&format!("{short}.csi.test"), true).await?;
    let driver = world.driver(short, settings()).await?;
    let kept = format!("{short}-kept");
    driver.attach(&kept).await?;
    driver.stop().await;
    fixtures.delete::<VolumeAttachment>(&kept).await?;
    driver.claim(&format!("{short}-pending")).await?;
    set_publish(&driver, false).await?;
    Ok(driver)
}

/// Lets the driver come back with or without the capability.
async fn set_publish(driver: &Driver<'_>, on: bool) -> Result<()> {
    driver.stop().await;
    driver
        .mock
        .set_capability(ControllerCapability::PublishUnpublishVolume, on);
    driver.start_again().await
}

async fn annotate_config(world: &World, name: &str, value: &str) -> Result<()> {
    let patch = json!({ "metadata": { "annotations": { CONFIRM: value } } });
    merge(&world.fixtures.cluster::<AttacherConfig>(), name, &patch)
        .await
        .map(drop)
}

async fn annotate_attachment(world: &World, name: &str, key: &str, value: &str) -> Result<()> {
    let patch = json!({ "metadata": { "annotations": { key: value } } });
    merge(&world.fixtures.cluster::<VolumeAttachment>(), name, &patch)
        .await
        .map(drop)
}

fn unpublished(driver: &Driver<'_>, volume: &str) -> usize {
    driver.count(Method::ControllerUnpublishVolume, volume)
}

/// The state of a driver that lost the capability: nothing released, nothing marked attached.
async fn is_stalled(driver: &Driver<'_>, parts: &[&str]) -> Result<()> {
    let (world, short) = (driver.world, &driver.short);
    told(driver, "Stalled", "True", "CapabilityLost", parts).await?;
    let answers = format!("csi_attacher_driver_up{{driver_name=\"{}\"}} 1", driver.name);
    let metrics = world.shared_operator().metrics().await?;
    assert!(metrics.contains(&answers), "{answers} is not in {metrics}");
    let kept = world.fixtures.get_attachment(&format!("{short}-kept")).await?;
    assert_eq!(kept.finalizers(), [driver.finalizer()], "released while published");
    let pending = world.fixtures.get_attachment(&format!("{short}-pending")).await?;
    assert!(!pending.status.is_some_and(|status| status.attached), "marked attached");
    let at = (format!("{short}-kept"), driver.node_id());
    assert!(driver.mock.published().contains(&at));
    Ok(())
}

#[tokio::test]
async fn a_driver_that_loses_publish_keeps_what_is_attached_until_it_is_back() -> Result<()> {
    let world = World::shared().await?;
    let driver = lost(&world, "lost-back").await?;
    let annotate = format!("kubectl annotate attacherconfig lost-back {CONFIRM}=lost-back.csi.test");
    is_stalled(
        &driver,
        &[
            "PUBLISH_UNPUBLISH_VOLUME",
            "spec.endpoint",
            "attachRequired: true",
            &annotate,
        ],
    )
    .await?;
    let message = told(&driver, "Stalled", "True", "CapabilityLost", &[]).await?;
    assert_indexed(CAPABILITY_LOST, &message);
    driver.wait("Ready", "False", Some("CapabilityLost")).await?;
    event(&world, "AttacherConfig", "lost-back", "Stalled", "CapabilityLost").await?;

    // Nothing is lost with the capability that is back: what waited is done.
    set_publish(&driver, true).await?;
    world.fixtures.wait_for_attachment_gone("lost-back-kept").await?;
    world.fixtures.wait_for_attached("lost-back-pending").await?;
    assert_eq!(unpublished(&driver, "lost-back-kept"), 1);
    driver.wait("Ready", "True", Some("Running")).await
}

#[tokio::test]
async fn a_person_confirms_that_the_capability_is_gone() -> Result<()> {
    let world = World::shared().await?;
    let driver = lost(&world, "lost-sure").await?;
    is_stalled(&driver, &[]).await?;
    // The name of another driver confirms nothing, as in a manifest that was copied.
    annotate_config(&world, "lost-sure", "other.csi.test").await?;
    is_stalled(&driver, &["other.csi.test"]).await?;

    annotate_config(&world, "lost-sure", "lost-sure.csi.test").await?;
    world.fixtures.wait_for_attachment_gone("lost-sure-kept").await?;
    world.fixtures.wait_for_attached("lost-sure-pending").await?;
    assert_eq!(unpublished(&driver, "lost-sure-kept"), 0);
    let told = event(
        &world,
        "VolumeAttachment",
        "lost-sure-kept",
        "Detached",
        "without ControllerUnpublishVolume",
    );
    assert_eq!(told.await?.type_.as_deref(), Some("Warning"));

    // A confirmation counts once: it goes when the driver publishes again.
    set_publish(&driver, true).await?;
    let api = world.fixtures.cluster::<AttacherConfig>();
    let used_up =
        |config: Option<&AttacherConfig>| config.is_some_and(|config| !config.annotations().contains_key(CONFIRM));
    wait_for(api, "lost-sure", "no confirmation", crate::rig::LIMIT, used_up).await?;
    driver.attach("lost-sure-again").await?;
    set_publish(&driver, false).await?;
    driver.wait("Stalled", "True", Some("CapabilityLost")).await
}

/// In the place of a sidecar a driver that lost the capability releases nothing.
pub async fn of_a_sidecar(scene: &Scene) -> Result<()> {
    let mut operator = scene
        .start(&["--retry-interval-start=50ms", "--retry-interval-max=100ms"])
        .await?;
    operator.wait_ready().await?;
    scene.attach("drop-in-kept").await?;
    let capability = ControllerCapability::PublishUnpublishVolume;
    scene.mock.set_capability(capability, false);
    scene.mock.start_again().await.map_err(other)?;
    // Attached is what the sidecar would mark so, and nothing is released.
    scene.attach("drop-in-marked").await?;
    scene.world.fixtures.delete::<VolumeAttachment>("drop-in-kept").await?;
    let error = scene.world.fixtures.wait_for_detach_error("drop-in-kept").await?;
    let message = error.message.unwrap_or_default();
    assert!(message.contains("PUBLISH_UNPUBLISH_VOLUME"), "{message}");
    let kept = scene.world.fixtures.get_attachment("drop-in-kept").await?;
    let finalizer = csi_attacher_model::api::names::finalizer_name(DRIVER);
    assert_eq!(kept.finalizers(), [finalizer]);
    scene.mock.set_capability(capability, true);
    scene.mock.start_again().await.map_err(other)?;
    scene.world.fixtures.wait_for_attachment_gone("drop-in-kept").await?;
    drop_in::end(&mut operator).await
}

#[tokio::test]
async fn a_detach_that_is_refused_at_a_former_node_id_can_be_confirmed() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("former-id", settings()).await?;
    let fixtures = &world.fixtures;
    driver.attach("former-id-va").await?;
    let former = driver.node_id();
    let refuse = Rule::on(Method::ControllerUnpublishVolume).node(former.as_str());
    driver
        .mock
        .script(refuse.fail(Code::InvalidArgument, "node ID has no slash"));
    fixtures.delete::<VolumeAttachment>("former-id-va").await?;
    let first = event(
        &world,
        "VolumeAttachment",
        "former-id-va",
        "DetachFailed",
        "has no slash",
    )
    .await?;
    fixtures.delete::<CSINode>(&driver.node()).await?;
    fixtures.csi_node(&driver.node(), &driver.name, "form-2/id").await?;

    let command = format!("kubectl annotate volumeattachment former-id-va {NOT_ATTACHED_AT}={former}");
    let said = |attachment: &VolumeAttachment| {
        let error = attachment
            .status
            .as_ref()
            .and_then(|status| status.detach_error.as_ref());
        let message = error.and_then(|error| error.message.as_deref());
        message.is_some_and(|message| message.contains(&command))
    };
    fixtures
        .wait_for_attachment("former-id-va", &format!("a detachError with {command:?}"), said)
        .await?;
    let helps = event(&world, "VolumeAttachment", "former-id-va", "DetachFailed", &command).await?;
    // On the event of the first refusal the command would wait until that may be written again.
    assert_ne!(helps.name_any(), first.name_any());
    told(&driver, "AttachmentsHealthy", "False", "AttachmentsFailing", &[&former]).await?;

    // That of the node as it is now has to be asked for, whatever a person says.
    annotate_attachment(&world, "former-id-va", NOT_ATTACHED_AT, "form-2/id").await?;
    let seen = driver.mock.call_count();
    let is_new = move |call: &CallRecord| call.id >= seen && call.node.as_deref() == Some("form-2/id");
    driver
        .call(Method::ControllerUnpublishVolume, "former-id-va", is_new)
        .await?;
    fixtures.get_attachment("former-id-va").await?;

    annotate_attachment(&world, "former-id-va", NOT_ATTACHED_AT, &former).await?;
    fixtures.wait_for_attachment_gone("former-id-va").await?;
    event(&world, "VolumeAttachment", "former-id-va", "Detached", NOT_ATTACHED_AT)
        .await
        .map(drop)
}
