//! Pods with volumes of every access mode, on one node and on two.

use csi_mock_driver::Method;

use crate::rig::{Driver, World};
use crate::support::Result;

/// What the driver was asked for, as access mode and access type.
fn asked(driver: &Driver<'_>, volume: &str) -> Vec<String> {
    let calls = driver.calls_for(volume);
    let published = calls
        .iter()
        .filter(|call| call.method == Method::ControllerPublishVolume);
    let capabilities = published.filter_map(|call| call.capability.as_ref());
    capabilities
        .map(|capability| format!("{} {}", capability.access_mode, capability.access_type))
        .collect()
}

/// One pod on one node: attached, usable, detached, and told.
async fn on_one_node(driver: &Driver<'_>, volume: &str, expected: &str) -> Result<()> {
    let node = driver.node();
    let attachment = driver.run_pod(volume, &node, volume).await?;
    driver.told(volume, "Attached", "in attempt 1").await?;
    driver.end_pod(volume, &node, &attachment).await?;
    driver.told(volume, "Detached", "in attempt 1").await?;
    assert_eq!(asked(driver, volume), [expected]);
    let id = driver.node_id();
    assert_eq!(driver.answered(volume), [format!("pub {id}"), format!("unpub {id}")]);
    Ok(())
}

#[tokio::test]
async fn pods_with_volumes_for_one_node() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.managed_driver("single").await?;
    let cases = [
        (
            "single-rwo",
            driver.volume("single-rwo"),
            "SINGLE_NODE_MULTI_WRITER mount",
        ),
        (
            "single-rwop",
            driver.volume("single-rwop").access_modes(&["ReadWriteOncePod"]),
            "SINGLE_NODE_SINGLE_WRITER mount",
        ),
        (
            "single-block",
            driver.volume("single-block").block(),
            "SINGLE_NODE_MULTI_WRITER block",
        ),
    ];
    for (name, volume, expected) in cases {
        driver.claimed(&volume, name).await?;
        on_one_node(&driver, name, expected).await?;
    }
    assert!(driver.mock.published().is_empty());
    Ok(())
}

#[tokio::test]
async fn pods_on_two_nodes_share_volumes() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.managed_driver("several").await?;
    let (first, second) = (driver.node(), driver.second_node().await?);
    let cases = [
        ("several-rwx", "ReadWriteMany", "MULTI_NODE_MULTI_WRITER mount"),
        ("several-rox", "ReadOnlyMany", "MULTI_NODE_READER_ONLY mount"),
    ];
    for (name, mode, expected) in cases {
        driver.claimed(&driver.volume(name).access_modes(&[mode]), name).await?;
        let pods = [(format!("{name}-1"), &first), (format!("{name}-2"), &second)];
        let mut attachments = Vec::new();
        for (pod, node) in &pods {
            attachments.push(driver.run_pod(pod, node, name).await?);
        }
        assert_eq!(asked(&driver, name), [expected, expected]);
        assert_eq!(driver.mock.published().len(), 2, "at the same time");
        for ((pod, node), attachment) in pods.iter().zip(&attachments) {
            driver.end_pod(pod, node, attachment).await?;
        }
        assert!(driver.mock.published().is_empty());
    }
    Ok(())
}

/// A volume for one node that moves: the controller asks for the detach first, and the attach does not come before it.
#[tokio::test]
async fn a_volume_moves_with_its_pod() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.managed_driver("moving").await?;
    let (first, second) = (driver.node(), driver.second_node().await?);
    driver.claimed(&driver.volume("moving-pv"), "moving-pv").await?;
    let attachment = driver.run_pod("moving-1", &first, "moving-pv").await?;
    driver.end_pod("moving-1", &first, &attachment).await?;
    let attachment = driver.run_pod("moving-2", &second, "moving-pv").await?;
    driver.end_pod("moving-2", &second, &attachment).await?;
    let id = driver.node_id();
    let expected = [
        format!("pub {id}"),
        format!("unpub {id}"),
        format!("pub {second}"),
        format!("unpub {second}"),
    ];
    assert_eq!(driver.answered("moving-pv"), expected);
    Ok(())
}
