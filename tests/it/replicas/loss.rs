//! A replica that loses its driver or its Lease.

use std::path::Path;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{Method, MockDriver};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{lasting, named};
use crate::error_texts::configs::STANDBY;
use crate::error_texts::index::assert_indexed;
use crate::insight::told;
use crate::rig::{World, merge};
use crate::support::Result;
use crate::support::operator::{IDENTITY, wait_condition};

pub async fn the_lease_goes_to_a_replica_that_reaches_the_driver(world: &World) -> Result<()> {
    // Each replica looks in a folder of its own; only one finds a driver.
    let at = |name: &str, folder: &Path| {
        let mut options = named(name);
        options.folder = Some(folder.to_owned());
        options
    };
    let (here, there) = (world.sockets.path().join("here"), world.sockets.path());
    std::fs::create_dir(&here)?;
    let _first = world.operator(at("here", &here)).await?;
    let driver = world.unconfigured_driver("near", |builder| builder).await?;
    let mut settings = lasting();
    settings["endpoint"] = json!("unix:///proc/self/cwd/near.sock");
    driver.configure(&settings).await?;
    driver.wait("DriverReachable", "False", None).await?;
    let _second = world.operator(at("there", there)).await?;
    world.reported_holder("near", Some("there")).await?;
    driver.wait("Ready", "True", Some("Running")).await?;

    // The one that sees no driver is silent while the other one works.
    world.writes_of("there", "near", 7).await?;

    // The driver moves to the other node.
    driver.stop().await;
    let moved = MockDriver::builder(&driver.name).accept_any_volume();
    let moved = moved.start(here.join("near.sock")).await?;
    world.holder(&driver.name, Some("here")).await?;
    world.reported_holder("near", Some("here")).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    moved.stop().await;
    world.holder(&driver.name, None).await?;
    let shown = wait_condition(&world.client, "near", "DriverReachable", "False", None).await?;
    assert_eq!(shown.status.and_then(|status| status.holder), None);
    // Neither writes over the other when nobody leads.
    driver.start_again().await?;
    world.holder(&driver.name, Some("there")).await?;
    world.fixtures.delete::<AttacherConfig>("near").await
}

/// It has ended without releasing the Lease, some time ago by its own clock. That counts from when we see it.
#[tokio::test]
async fn a_lease_that_a_sidecar_takes_stops_that_driver_until_it_is_over_and_no_other() -> Result<()> {
    let world = World::shared().await?;
    let operator = world.shared_operator();
    let taken = world.driver("taken", lasting()).await?;
    let kept = world.driver("kept", lasting()).await?;
    taken.attach("taken-1").await?;
    // That somebody waits for it is told 5 to 7 s after it was noticed.
    let (changed, held) = (Timestamp::now(), SignedDuration::from_secs(18));
    let of_sidecar = json!({
        "holderIdentity": "csi-attacher-0", "leaseDurationSeconds": held.as_secs(), "leaseTransitions": 3,
        "acquireTime": "1970-01-01T00:00:00.000000Z", "renewTime": "1970-01-01T00:00:00.000000Z",
    });
    merge(&world.leases(), &lease_name(&taken.name), &json!({"spec": of_sidecar})).await?;
    let message = told(&taken, "Ready", "True", "Standby", &[]).await?;
    assert_indexed(STANDBY, &message);
    taken.claim("taken-2").await?;
    kept.attach("kept-1").await?;
    kept.wait("Ready", "True", Some("Running")).await?;
    assert_eq!(operator.get("/livez").await?.0, 200);
    assert_eq!(operator.get("/healthz/leader-election").await?.0, 200);

    world.fixtures.wait_for_attached("taken-2").await?;
    let lease = world.holder(&taken.name, Some(IDENTITY)).await?;
    assert_eq!(lease.lease_transitions, Some(4));
    let end = changed + held;
    let acquired = lease.acquire_time.map(|time| time.0);
    assert!(acquired >= Some(end), "{acquired:?} {end}");
    // Nothing was written on it and no call was made for it before.
    let steps = taken.steps(&["taken-2"], "taken-2")?;
    let first = steps.iter().find(|step| !step.what.starts_with("get "));
    assert!(first.unwrap().at >= end, "{end}: {steps:#?}");
    taken.wait("Ready", "True", Some("Running")).await?;
    world.reported_holder("taken", Some(IDENTITY)).await?;
    assert_eq!(kept.mock.calls_of(Method::Probe).len(), 1);
    Ok(())
}
