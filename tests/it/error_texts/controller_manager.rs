//! Messages of the stock attach/detach controller in kube-controller-manager, on the pods that wait.

use std::time::Duration;

use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use tonic::Code;

use super::index::assert_indexed;
use crate::rig::{LIMIT, World};
use crate::support::Result;
use crate::support::wait::wait_for_any;

const DRIVER_FAILS: &str =
    "AttachVolume.Attach failed for volume \"<volume>\" : rpc error: code = <code> desc = <message of the driver>";
const NOBODY_SERVES: &str = "AttachVolume.Attach failed for volume \"<volume>\" : timed out waiting for external-attacher of <driver> CSI \
                             driver to attach volume <volume ID>";
const BEING_DELETED: &str = "AttachVolume.Attach failed for volume \"<volume>\" : volume attachment is being deleted";
const USED_BY_PODS: &str = "Multi-Attach error for volume \"<volume>\" Volume is already used by pod(s) <pods>";
const USED_BY_NODE: &str = "Multi-Attach error for volume \"<volume>\" Volume is already exclusively attached to one node and can't be \
                            attached to another";

pub fn staged() -> Vec<&'static str> {
    vec![DRIVER_FAILS, NOBODY_SERVES, BEING_DELETED, USED_BY_PODS, USED_BY_NODE]
}

/// How long kube-controller-manager waits for an attacher (two minutes), and then some.
const WAIT_FOR_ATTACHER: Duration = Duration::from_secs(170);

/// Waits for an event of the attach/detach controller on this pod whose message has this part; returns the message.
async fn on_pod(world: &World, pod: &str, part: &str, limit: Duration) -> Result<String> {
    let events: Api<Event> = Api::namespaced(world.client.clone(), "default");
    let what = format!("FailedAttachVolume on pod {pod} with {part:?}");
    let event = wait_for_any(events, &what, limit, |event| {
        event.involved_object.name.as_deref() == Some(pod)
            && event.reason.as_deref() == Some("FailedAttachVolume")
            && event.message.as_deref().is_some_and(|message| message.contains(part))
    });
    Ok(event.await?.message.unwrap_or_default())
}

#[tokio::test]
async fn a_driver_that_refuses_is_quoted_and_a_second_pod_has_to_wait() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.managed_driver("text-busy").await?;
    let other = driver.second_node().await?;
    driver.claimed(&driver.volume("text-busy-pv"), "text-busy-pv").await?;
    // The controller reads the attachment now and then only, so the error stays until the controller has told of it.
    let publish = Rule::on(Method::ControllerPublishVolume).volume("text-busy-pv");
    driver.mock.script(publish.fail(Code::Internal, "the volume is busy"));
    let (fixtures, node) = (&world.fixtures, driver.node());
    fixtures.pod("default", "text-busy-1", &node, &["text-busy-pv"]).await?;
    let message = on_pod(&world, "text-busy-1", "rpc error", LIMIT).await?;
    driver.mock.clear_rules_of("text-busy-pv");
    assert_indexed(DRIVER_FAILS, &message);
    assert!(
        message.ends_with("code = Internal desc = the volume is busy"),
        "{message}"
    );
    let made = fixtures.wait_for_attachment_of("text-busy-pv", &node).await?;
    let name = made.metadata.name.unwrap_or_default();
    fixtures.wait_for_attached(&name).await?;
    fixtures
        .wait_for_volume_attached(&node, &driver.name, "text-busy-pv")
        .await?;

    fixtures
        .pod("default", "text-busy-2", &other, &["text-busy-pv"])
        .await?;
    let message = on_pod(&world, "text-busy-2", "Multi-Attach", LIMIT).await?;
    assert_indexed(USED_BY_PODS, &message);
    assert!(message.ends_with("text-busy-1"), "{message}");
    Ok(())
}

/// The pod on the first node is gone, but its kubelet still has the volume mounted.
#[tokio::test]
async fn a_volume_that_another_node_has_in_use_is_waited_for() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.managed_driver("text-used").await?;
    let other = driver.second_node().await?;
    driver.claimed(&driver.volume("text-used-pv"), "text-used-pv").await?;
    driver.run_pod("text-used-1", &driver.node(), "text-used-pv").await?;
    let fixtures = &world.fixtures;
    fixtures
        .mark_volume_in_use(&driver.node(), &driver.name, "text-used-pv")
        .await?;
    crate::controller_manager::node_is_seen(fixtures, &driver.node()).await?;
    fixtures.delete_pod("default", "text-used-1").await?;
    fixtures
        .pod("default", "text-used-2", &other, &["text-used-pv"])
        .await?;
    let message = on_pod(&world, "text-used-2", "Multi-Attach", LIMIT).await?;
    assert_indexed(USED_BY_NODE, &message);
    Ok(())
}

/// Somebody deletes the VolumeAttachment of a pod that waits, and the driver does not confirm the detach.
#[tokio::test]
async fn an_attachment_that_is_being_deleted_is_waited_for() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.managed_driver("text-gone").await?;
    driver.claimed(&driver.volume("text-gone-pv"), "text-gone-pv").await?;
    for method in [Method::ControllerPublishVolume, Method::ControllerUnpublishVolume] {
        let rule = Rule::on(method).volume("text-gone-pv");
        driver
            .mock
            .script(rule.fail(Code::Internal, "the backend is read-only"));
    }
    let fixtures = &world.fixtures;
    fixtures
        .pod("default", "text-gone-1", &driver.node(), &["text-gone-pv"])
        .await?;
    let made = fixtures.wait_for_attachment_of("text-gone-pv", &driver.node()).await?;
    let name = made.metadata.name.unwrap_or_default();
    fixtures.wait_for_attach_error(&name).await?;
    fixtures.delete::<VolumeAttachment>(&name).await?;
    let message = on_pod(&world, "text-gone-1", "being deleted", LIMIT).await?;
    assert_indexed(BEING_DELETED, &message);
    Ok(())
}

/// There is no AttacherConfig for the driver and no sidecar.
#[tokio::test]
async fn a_driver_that_nobody_serves_is_named_after_two_minutes() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.unconfigured_driver("text-alone", |builder| builder).await?;
    world.fixtures.csi_driver(&driver.name, true).await?;
    world.fixtures.node(&driver.node()).await?;
    crate::controller_manager::node_is_seen(&world.fixtures, &driver.node()).await?;
    driver.claimed(&driver.volume("text-alone-pv"), "text-alone-pv").await?;
    let node = driver.node();
    world
        .fixtures
        .pod("default", "text-alone-1", &node, &["text-alone-pv"])
        .await?;
    let message = on_pod(&world, "text-alone-1", "timed out", WAIT_FOR_ATTACHER).await?;
    assert_indexed(NOBODY_SERVES, &message);
    assert!(
        message.contains(&driver.name) && message.ends_with("text-alone-pv"),
        "{message}"
    );
    Ok(())
}
