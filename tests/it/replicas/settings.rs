//! `spec.leaderElection` and the other settings that concern the Lease.

use std::time::Duration;

use csi_mock_driver::{Method, Rule};
use serde_json::json;

use super::{assert_one_at_a_time, lasting};
use crate::rig::{World, held};
use crate::support::Result;
use crate::support::operator::IDENTITY;

/// The name of a driver may have upper-case letters, and that of a Lease has none.
const DRIVER: &str = "Upper.CSI.test";
const LEASE: &str = "external-attacher-leader-upper-csi-test";

#[tokio::test]
async fn another_election_under_load_touches_that_driver_alone() -> Result<()> {
    let world = World::shared().await?;
    let changed = world.named_driver("upper", DRIVER, |builder| builder).await?;
    changed.configure(&lasting()).await?;
    changed.wait("Ready", "True", Some("Running")).await?;
    let quiet = world.driver("quiet", lasting()).await?;
    for driver in [&changed, &quiet] {
        let slow = Rule::on(Method::ControllerPublishVolume);
        driver.mock.script(slow.delay(Duration::from_millis(200)));
        for number in 0..10 {
            driver.claim(&format!("{}-{number}", driver.short)).await?;
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
            let name = format!("{}-{number}", driver.short);
            world.fixtures.wait_for_attached(&name).await?;
        }
        assert_one_at_a_time(&driver.mock, 10);
    }
    let lease = held(world.leases(), LEASE, Some(IDENTITY)).await?;
    assert_eq!(lease.spec.unwrap().lease_duration_seconds, Some(20));
    assert_eq!(quiet.mock.calls_of(Method::Probe).len(), 1);
    let lease = world.holder(&quiet.name, Some(IDENTITY)).await?;
    assert_eq!(lease.lease_transitions, Some(1));
    Ok(())
}
