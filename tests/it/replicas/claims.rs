//! Two AttacherConfigs in one replica that claim the same.

use csi_attacher_model::api::AttacherConfig;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use serde_json::json;

use super::{lasting, moves};
use crate::rig::World;
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
    younger.wait("Stalled", "True", Some("FinalizerCollision")).await?;
    let lease = world.holder(&older.name, Some(IDENTITY)).await?;
    assert_eq!(
        lease.spec.and_then(|spec| spec.lease_transitions),
        Some(2),
        "released in between"
    );
    older.attach("claims-2").await?;
    younger.claim("claims-3").await?;
    world.renewals(&older.name, 2).await?;
    assert_eq!(moves(&younger.mock).len(), 1);

    // Another endpoint of the same driver is the older one's too.
    let twin = world.named_driver("c-claims", &older.name, nothing).await?;
    twin.configure(&lasting()).await?;
    twin.wait("Stalled", "True", Some("EndpointConflict")).await?;
    older.wait("Ready", "True", Some("Running")).await?;

    // With the older the others come back by themselves, the next by age first.
    world.fixtures.delete::<AttacherConfig>("a-claims").await?;
    younger.wait("Ready", "True", Some("Running")).await?;
    world.fixtures.wait_for_attached("claims-3").await?;
    twin.wait("Stalled", "True", Some("FinalizerCollision")).await?;
    Ok(())
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
    let held = |lease: &mut Lease| {
        lease.spec = Some(LeaseSpec {
            holder_identity: Some("theirs".to_owned()),
            lease_duration_seconds: Some(3600),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        });
    };
    world.change_lease(&older.name, held).await?;
    let younger = world.named_driver("b-waits", &older.name, nothing).await?;
    younger.configure(&lasting()).await?;
    younger.wait("Ready", "True", Some("Standby")).await?;

    std::fs::remove_file(world.socket(&younger.short))?;
    older.configure(&lasting()).await?;
    younger.wait("DriverReachable", "False", None).await?;
    older.wait("Ready", "True", Some("Standby")).await
}
