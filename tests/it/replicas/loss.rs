//! A replica that loses its driver or its Lease.

use csi_mock_driver::MockDriver;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::json;

use super::{lasting, moves, named};
use crate::error_texts::configs::STANDBY;
use crate::error_texts::index::assert_indexed;
use crate::insight::told;
use crate::rig::{World, other};
use crate::support::Result;
use crate::support::operator::{IDENTITY, apply_config, release_lease, wait_condition};

#[tokio::test]
async fn the_lease_goes_to_a_replica_that_reaches_the_driver() -> Result<()> {
    const NAME: &str = "near.csi.test";
    let world = World::own().await?;
    world.fixtures.csi_node("near-node", NAME, "near-node-id").await?;
    let (here, there) = (world.sockets.path().join("here"), world.sockets.path().join("there"));
    for folder in [&here, &there] {
        std::fs::create_dir(folder)?;
    }
    // Each replica looks in a folder of its own; only one finds a driver.
    let at = |folder: &std::path::Path| {
        let mut options = named(if folder.ends_with("here") { "here" } else { "there" });
        options.folder = Some(folder.to_owned());
        options
    };
    let mock = MockDriver::builder(NAME).accept_any_volume();
    let mock = mock.start(there.join("csi.sock")).await?;
    let _first = world.operator(at(&here)).await?;
    release_lease(&world.client, IDENTITY, NAME).await?;
    let mut spec = lasting();
    spec["endpoint"] = json!("unix:///proc/self/cwd/csi.sock");
    apply_config(&world.client, "near", spec).await?;
    wait_condition(&world.client, "near", "DriverReachable", "False", None).await?;
    let _second = world.operator(at(&there)).await?;
    world.reported_holder("near", Some("there")).await?;
    wait_condition(&world.client, "near", "Ready", "True", Some("Running")).await?;

    // The one that sees no driver is silent while the other one works.
    let writes = world.status_writes("near")?.len();
    world.renewals(NAME, 7).await?;
    let late = world.status_writes("near")?.split_off(writes);
    assert!(late.iter().all(|body| body["status"]["holder"] == "there"), "{late:#?}");

    // The driver moves to the other node.
    mock.stop().await;
    let moved = MockDriver::builder(NAME).accept_any_volume();
    let moved = moved.start(here.join("csi.sock")).await?;
    world.holder(NAME, Some("here")).await?;
    world.reported_holder("near", Some("here")).await?;
    wait_condition(&world.client, "near", "Ready", "True", Some("Running")).await?;
    moved.stop().await;
    world.holder(NAME, None).await?;
    let shown = wait_condition(&world.client, "near", "DriverReachable", "False", None).await?;
    assert_eq!(shown.status.and_then(|status| status.holder), None);
    // Neither writes over the other when nobody leads.
    mock.start_again().await.map_err(other)?;
    world.holder(NAME, Some("there")).await?;
    Ok(())
}

#[tokio::test]
async fn a_lease_that_a_sidecar_takes_stops_that_driver_and_no_other() -> Result<()> {
    let world = World::own().await?;
    let operator = world.replica("ours").await?;
    let (taken, kept) = (
        world.driver("taken", lasting()).await?,
        world.driver("kept", lasting()).await?,
    );
    taken.attach("taken-1").await?;
    world
        .change_lease(&taken.name, |lease| {
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some("csi-attacher-0".to_owned());
            spec.lease_duration_seconds = Some(600);
            spec.renew_time = Some(MicroTime(jiff::Timestamp::now()));
        })
        .await?;
    taken.wait("Ready", "True", Some("Standby")).await?;
    taken.claim("taken-2").await?;
    kept.attach("kept-1").await?;
    kept.wait("Ready", "True", Some("Running")).await?;
    world.renewals(&kept.name, 3).await?;
    assert_eq!(moves(&taken.mock).len(), 1);
    let untouched = world.fixtures.get_attachment("taken-2").await?;
    assert_eq!(untouched.metadata.finalizers, None);
    assert_eq!(operator.get("/livez").await?.0, 200);
    assert_eq!(operator.get("/healthz/leader-election").await?.0, 200);

    // The sidecar stops and releases it.
    world
        .change_lease(&taken.name, |lease| {
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
        })
        .await?;
    world.fixtures.wait_for_attached("taken-2").await?;
    world.reported_holder("taken", Some("ours")).await?;
    assert_eq!(kept.mock.calls_of(csi_mock_driver::Method::Probe).len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_sidecar_that_is_there_first_is_waited_for() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.unconfigured_driver("sidecars", |mock| mock).await?;
    // The record of a sidecar that stopped without releasing it, some time ago by its own clock. It counts from when we see it.
    // That somebody waits for it is told after 5 to 7 s.
    let held = SignedDuration::from_secs(15);
    let of_sidecar = LeaseSpec {
        holder_identity: Some("csi-attacher-0".to_owned()),
        lease_duration_seconds: i32::try_from(held.as_secs()).ok(),
        acquire_time: Some(MicroTime(jiff::Timestamp::UNIX_EPOCH)),
        renew_time: Some(MicroTime(jiff::Timestamp::UNIX_EPOCH)),
        lease_transitions: Some(3),
        ..LeaseSpec::default()
    };
    let change = |lease: &mut Lease| lease.spec = Some(of_sidecar.clone());
    world.change_lease(&driver.name, change).await?;
    driver.claim("sidecars-va").await?;
    let configured = Timestamp::now();
    driver.configure(&lasting()).await?;
    let message = told(&driver, "Ready", "True", "Standby", &[]).await?;
    assert_indexed(STANDBY, &message);

    world.fixtures.wait_for_attached("sidecars-va").await?;
    let taken = world.holder(&driver.name, Some(IDENTITY)).await?;
    let taken = taken.spec.unwrap_or_default();
    assert_eq!(taken.lease_transitions, Some(4));
    let end = configured + held;
    let acquired = taken.acquire_time.map(|time| time.0);
    assert!(acquired >= Some(end), "{acquired:?} {end}");
    // Nothing was written on it and no call was made for it before.
    let steps = driver.steps(&["sidecars-va"], "sidecars-va")?;
    let first = steps.iter().find(|step| !step.what.starts_with("get "));
    let first = first.map(|step| step.at);
    assert!(first >= Some(end), "{end}: {steps:#?}");
    driver.wait("Ready", "True", Some("Running")).await
}
