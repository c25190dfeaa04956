//! Nodes and volumes that go while a pod uses them: everything ends settled, and is told.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::CSINode;

use super::node_is_seen;
use crate::events::event;
use crate::rig::{World, strip};
use crate::support::Result;

#[tokio::test]
async fn a_node_is_deleted_under_a_pod() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.managed_driver("lost").await?;
    let node = driver.node();
    driver.claimed(&driver.volume("lost-pv"), "lost-pv").await?;
    let attachment = driver.run_pod("lost-pod", &node, "lost-pv").await?;
    world.fixtures.delete::<Node>(&node).await?;
    world.fixtures.delete::<CSINode>(&node).await?;
    driver.nodes_are_seen().await?;
    world.fixtures.delete_pod("default", "lost-pod").await?;
    let name = attachment.metadata.name.unwrap_or_default();
    world.fixtures.wait_for_attachment_gone(&name).await?;
    driver.told("lost-pv", "NodeGone", "has no CSINode any more").await?;
    driver.told("lost-pv", "Detached", "in attempt 1").await?;
    let id = driver.node_id();
    assert_eq!(driver.answered("lost-pv"), [format!("pub {id}"), format!("unpub {id}")]);
    assert!(driver.mock.published().is_empty());
    Ok(())
}

/// The volume is with the old ID, which the CSINode does not know any more: it is taken from both.
#[tokio::test]
async fn a_node_comes_back_with_another_id() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.managed_driver("again").await?;
    let node = driver.node();
    driver.claimed(&driver.volume("again-pv"), "again-pv").await?;
    let attachment = driver.run_pod("again-1", &node, "again-pv").await?;
    world.fixtures.delete::<Node>(&node).await?;
    world.fixtures.delete::<CSINode>(&node).await?;
    world.fixtures.csi_node(&node, &driver.name, "another-id").await?;
    world.fixtures.node(&node).await?;
    node_is_seen(&world.fixtures, &node).await?;
    driver.nodes_are_seen().await?;
    world.fixtures.delete_pod("default", "again-1").await?;
    let name = attachment.metadata.name.unwrap_or_default();
    world.fixtures.wait_for_attachment_gone(&name).await?;
    driver
        .told("again-pv", "NodeGone", "came back with another node ID")
        .await?;
    assert!(driver.mock.published().is_empty(), "{:?}", driver.mock.published());

    let attachment = driver.run_pod("again-2", &node, "again-pv").await?;
    driver.end_pod("again-2", &node, &attachment).await?;
    let id = driver.node_id();
    let expected = [
        format!("pub {id}"),
        "unpub another-id".to_owned(),
        format!("unpub {id}"),
        "pub another-id".to_owned(),
        "unpub another-id".to_owned(),
    ];
    assert_eq!(driver.answered("again-pv"), expected);
    Ok(())
}

/// The volume's handle and its secret are noted on the attachment: without its PersistentVolume it is detached all the
/// same, where the sidecar fails for ever.
#[tokio::test]
async fn a_volume_is_removed_by_force() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.managed_driver("forced").await?;
    let node = driver.node();
    driver.claimed(&driver.volume("forced-pv"), "forced-pv").await?;
    let attachment = driver.run_pod("forced-pod", &node, "forced-pv").await?;
    // The kubelet still unmounts while the volume goes. (Asked about a pod whose volume is gone, the controller would need
    // a minute to find out that it is to be detached.)
    let fixtures = &world.fixtures;
    fixtures.mark_volume_in_use(&node, &driver.name, "forced-pv").await?;
    node_is_seen(fixtures, &node).await?;
    fixtures.delete_pod("default", "forced-pod").await?;
    fixtures.delete::<PersistentVolume>("forced-pv").await?;
    strip(&fixtures.cluster::<PersistentVolume>(), "forced-pv").await?;
    world.fixtures.wait_for_volume_gone("forced-pv").await?;
    fixtures.unmark_volume_in_use(&node, &driver.name, "forced-pv").await?;
    let name = attachment.metadata.name.unwrap_or_default();
    let patient = fixtures.clone().with_limit(Duration::from_secs(100));
    patient.wait_for_attachment_gone(&name).await?;
    event(&world, "VolumeAttachment", &name, "Detached", "volume forced-pv").await?;
    assert!(driver.mock.published().is_empty());
    Ok(())
}
