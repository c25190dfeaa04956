//! `spec.leaderElection` and the other settings that concern the Lease.

use std::time::Duration;

use csi_mock_driver::{Method, Rule};
use serde_json::json;

use super::{assert_one_at_a_time, lasting};
use crate::rig::{World, held};
use crate::support::Result;
use crate::support::operator::IDENTITY;

#[tokio::test]
async fn a_driver_whose_name_has_upper_case_letters_has_a_lease() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.named_driver("upper", "Upper.CSI.test", |builder| builder).await?;
    driver.configure(&lasting()).await?;
    driver.attach("upper-1").await?;
    let lease = "external-attacher-leader-upper-csi-test";
    held(world.leases(), lease, Some(IDENTITY)).await.map(drop)
}

#[tokio::test]
async fn another_election_under_load_touches_that_driver_alone() -> Result<()> {
    let world = World::shared().await?;
    let changed = world.driver("changed", lasting()).await?;
    let quiet = world.driver("quiet", lasting()).await?;
    let name = |short: &str, number: usize| format!("{short}-{number}");
    for driver in [&changed, &quiet] {
        let slow = Rule::on(Method::ControllerPublishVolume);
        driver.mock.script(slow.delay(Duration::from_millis(200)));
        for number in 0..10 {
            driver.claim(&name(&driver.short, number)).await?;
        }
    }
    // There is no right to Leases in that namespace: nothing is done, and the status says so.
    let forbidden = json!({"leaderElection": {"leaseDuration": "20s", "namespace": "default"}});
    changed.configure(&forbidden).await?;
    changed.wait("Stalled", "True", Some("LeaseForbidden")).await?;
    let allowed = json!({"leaderElection": {"leaseDuration": "20s"}});
    changed.configure(&allowed).await?;
    for driver in [&changed, &quiet] {
        for number in 0..10 {
            let name = name(&driver.short, number);
            world.fixtures.wait_for_attached(&name).await?;
        }
        assert_one_at_a_time(&driver.mock, 10);
    }
    let lease = world.holder(&changed.name, Some(IDENTITY)).await?;
    assert_eq!(lease.lease_duration_seconds, Some(20));
    assert_eq!(quiet.mock.calls_of(Method::Probe).len(), 1);
    let lease = world.holder(&quiet.name, Some(IDENTITY)).await?;
    assert_eq!(lease.lease_transitions, Some(1));
    Ok(())
}
