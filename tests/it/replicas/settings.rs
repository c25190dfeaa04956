//! `spec.leaderElection` and the other settings that concern the Lease.

use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{Method, Rule};
use serde_json::json;

use super::{lasting, moves};
use crate::rig::World;
use crate::support::Result;
use crate::support::operator::IDENTITY;

#[tokio::test]
async fn suspended_or_deleted_it_releases_the_lease() -> Result<()> {
    let world = World::own().await?;
    let _first = world.replica("first").await?;
    let driver = world.driver("rest", lasting()).await?;
    let _second = world.replica("second").await?;
    driver.attach("rest-1").await?;
    let mut suspended = lasting();
    suspended["suspend"] = json!(true);
    driver.configure(&suspended).await?;
    driver.wait("Ready", "True", Some("Suspended")).await?;
    world.holder(&driver.name, None).await?;
    world.reported_holder("rest", None).await?;
    driver.configure(&lasting()).await?;
    driver.attach("rest-2").await?;
    world.fixtures.delete::<AttacherConfig>("rest").await?;
    world.holder(&driver.name, None).await?;
    Ok(())
}

#[tokio::test]
async fn a_driver_whose_name_has_upper_case_letters_has_a_lease() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.named_driver("upper", "Upper.CSI.test", |builder| builder).await?;
    driver.configure(&lasting()).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach("upper-1").await?;
    world.holder(&driver.name, Some(IDENTITY)).await?;
    let lease = world.leases().get_opt("external-attacher-leader-upper-csi-test").await;
    assert!(lease?.is_some());
    Ok(())
}

#[tokio::test]
async fn another_election_under_load_touches_that_driver_alone() -> Result<()> {
    let world = World::shared().await?;
    let (changed, quiet) = (
        world.driver("changed", lasting()).await?,
        world.driver("quiet", lasting()).await?,
    );
    for driver in [&changed, &quiet] {
        let slow = Rule::on(Method::ControllerPublishVolume);
        driver.mock.script(slow.delay(Duration::from_millis(200)));
        for number in 0..10 {
            driver.claim(&format!("{}-{number}", driver.short)).await?;
        }
    }
    let defaults = json!({"leaderElection": {"leaseDuration": "20s", "namespace": "default"}});
    // There is no right to Leases in that namespace: nothing is done, and the status says so.
    changed.configure(&defaults).await?;
    changed.wait("Stalled", "True", Some("LeaseForbidden")).await?;
    changed
        .configure(&json!({"leaderElection": {"leaseDuration": "20s"}}))
        .await?;
    for driver in [&changed, &quiet] {
        for number in 0..10 {
            world
                .fixtures
                .wait_for_attached(&format!("{}-{number}", driver.short))
                .await?;
        }
        let calls = moves(&driver.mock);
        assert!(
            calls.len() == 10 && calls.iter().all(|call| !call.overlap),
            "{calls:#?}"
        );
    }
    let lease = world.holder(&changed.name, Some(IDENTITY)).await?;
    assert_eq!(lease.spec.and_then(|spec| spec.lease_duration_seconds), Some(20));
    assert_eq!(quiet.mock.calls_of(Method::Probe).len(), 1);
    let lease = world.holder(&quiet.name, Some(IDENTITY)).await?;
    assert_eq!(lease.spec.and_then(|spec| spec.lease_transitions), Some(1));
    Ok(())
}
