//! A volume that goes from node to node with its pod. Access modes are in the suite (`access-modes`, `attach/block`, `nodes/two-nodes`).

use crate::rig::World;
use crate::support::Result;

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
