//! Two AttacherConfigs in one replica that claim the same.

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::lease_name;
use serde_json::json;

use super::{lasting, moves};
use crate::insight::told;
use crate::rig::{World, merge};
use crate::support::Result;
use crate::support::operator::IDENTITY;

#[tokio::test]
async fn of_two_drivers_with_one_lease_that_of_the_older_config_wins_whichever_came_first() -> Result<()> {
    let world = World::shared().await?;
    let nothing = |builder| builder;
    let older = world.named_driver("a-claims", "claim.csi.test", nothing).await?;
    let younger = world.named_driver("b-claims", "claim-csi.test", nothing).await?;
    older.stop().await;
    older.configure(&lasting()).await?;
    older.wait("DriverReachable", "False", None).await?;
    younger.configure(&lasting()).await?;
    younger.wait("Ready", "True", Some("Running")).await?;
    younger.attach("claims-1").await?;

    older.start_again().await?;
    older.wait("Ready", "True", Some("Running")).await?;
    let rival = [
        "external-attacher/claim-csi-test",
        "driver claim.csi.test of AttacherConfig a-claims",
    ];
    told(&younger, "Stalled", "True", "FinalizerCollision", &rival).await?;
    let lease = world.holder(&older.name, Some(IDENTITY)).await?;
    assert_eq!(lease.lease_transitions, Some(2), "released in between");
    older.attach("claims-2").await?;
    younger.claim("claims-3").await?;
    world.renewals(&older.name, 2).await?;
    assert_eq!(moves(&younger.mock).len(), 1);

    // With the older one the other comes back by itself.
    world.fixtures.delete::<AttacherConfig>("a-claims").await?;
    younger.wait("Ready", "True", Some("Running")).await?;
    world.fixtures.wait_for_attached("claims-3").await.map(drop)
}

/// The younger one is connected and waits for the Lease when the older one comes back, and no new connection reaches its driver.
#[tokio::test]
async fn who_cannot_connect_again_leaves_the_driver_to_the_older_config() -> Result<()> {
    let world = World::shared().await?;
    let nothing = |builder| builder;
    let older = world.named_driver("a-waits", "waits.csi.test", nothing).await?;
    older.configure(&lasting()).await?;
    older.wait("Ready", "True", Some("Running")).await?;
    older.configure(&json!({"suspend": true})).await?;
    older.wait("Ready", "True", Some("Suspended")).await?;
    let held = json!({"spec": {"holderIdentity": "theirs", "leaseDurationSeconds": 3600}});
    merge(&world.leases(), &lease_name(&older.name), &held).await?;
    let younger = world.named_driver("b-waits", &older.name, nothing).await?;
    younger.configure(&lasting()).await?;
    younger.wait("Ready", "True", Some("Standby")).await?;

    std::fs::remove_file(world.socket(&younger.short))?;
    older.configure(&lasting()).await?;
    younger.wait("DriverReachable", "False", None).await?;
    older.wait("Ready", "True", Some("Standby")).await
}
