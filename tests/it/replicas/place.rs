//! A change of the namespaces whose Leases are held, while a call is in flight.

use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::json;

use super::{assert_one_at_a_time, lasting, moves};
use crate::rig::{LIMIT, World, held, merge, merge_status};
use crate::support::Result;
use crate::support::operator::{IDENTITY, release_lease};
use crate::support::wait::wait_for;

const ELSEWHERE: &str = "default";
const PUBLISH: Method = Method::ControllerPublishVolume;
/// Long enough for a replica that does not wait.
const CALL: Duration = Duration::from_secs(8);

/// The Lease of a driver as a sidecar leaves it there that has ended, and which the operator may hold.
async fn elsewhere(world: &World, driver: &str) -> Result<Api<Lease>> {
    world.grant_leases(ELSEWHERE, &[lease_name(driver)]).await?;
    release_lease(&world.client, ELSEWHERE, driver).await?;
    Ok(Api::namespaced(world.client.clone(), ELSEWHERE))
}

pub async fn a_change_of_the_namespaces_hands_over_with_a_call_in_flight(world: &World) -> Result<()> {
    let _first = world.replica("first").await?;
    let driver = world.driver("moves", lasting()).await?;
    let (elsewhere, name) = (elsewhere(world, &driver.name).await?, lease_name(&driver.name));
    world.holder(&driver.name, Some("first")).await?;
    let _second = world.replica("second").await?;
    world.reported_holder("moves", Some("first")).await?;
    world.renewals(&driver.name, 2).await?;

    driver.mock.script(Rule::on(PUBLISH).times(1).delay(CALL));
    driver.mock.script(Rule::on(PUBLISH).delay(Duration::from_secs(1)));
    driver.claim("moves-1").await?;
    driver.call(PUBLISH, "moves-1", |_| true).await?;
    let mut changed = lasting();
    changed["leaderElection"]["sidecarNamespaces"] = json!([ELSEWHERE]);
    driver.configure(&changed).await?;
    let _third = world.replica("third").await?;
    world.fixtures.wait_for_attached("moves-1").await?;
    driver.attach("moves-2").await?;
    assert_one_at_a_time(&driver.mock, 2);
    let holder = |lease: &Lease| lease.spec.as_ref()?.holder_identity.clone();
    let is_held = |lease: Option<&Lease>| lease.and_then(holder).is_some();
    wait_for(elsewhere.clone(), &name, "held", LIMIT, is_held).await?;
    // And back.
    driver.configure(&lasting()).await?;
    held(elsewhere, &name, None).await?;
    driver.attach("moves-3").await?;
    assert_one_at_a_time(&driver.mock, 3);

    // No other replica takes what this one releases.
    let suspended = json!({"suspend": true, "leaderElection": lasting()["leaderElection"]});
    driver.configure(&suspended).await?;
    driver.wait("Ready", "True", Some("Suspended")).await?;
    world.holder(&driver.name, None).await?;
    world.reported_holder("moves", None).await?;
    driver.configure(&lasting()).await?;
    driver.attach("moves-4").await?;
    world.fixtures.delete::<AttacherConfig>("moves").await?;
    world.holder(&driver.name, None).await.map(drop)
}

/// A former release recorded where its Lease is. It still has a call in flight under that Lease, and the spec names no namespace any more.
#[tokio::test]
async fn the_lease_that_a_former_release_recorded_is_held_as_well_and_forgotten() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("upgraded", lasting()).await?;
    world.holder(&driver.name, Some(IDENTITY)).await?;
    let (elsewhere, name) = (elsewhere(&world, &driver.name).await?, lease_name(&driver.name));
    let former = json!({"spec": {"holderIdentity": "former", "leaseDurationSeconds": 3600}});
    merge(&elsewhere, &name, &former).await?;

    let configs: Api<AttacherConfig> = Api::all(world.client.clone());
    let record = json!({"status": {"leaderElection": {"namespace": ELSEWHERE}}});
    merge_status(&configs, "upgraded", &record).await?;
    driver.wait("Ready", "True", Some("Standby")).await?;
    driver.claim("upgraded-1").await?;
    world.renewals(&driver.name, 5).await?;
    assert!(moves(&driver.mock).is_empty(), "the former release may be calling");

    let ended = json!({"spec": {"holderIdentity": null}});
    merge(&elsewhere, &name, &ended).await?;
    world.fixtures.wait_for_attached("upgraded-1").await?;
    let is_forgotten = |config: Option<&AttacherConfig>| {
        let status = config.and_then(|config| config.status.as_ref());
        status.is_some_and(|status| status.leader_election.is_none())
    };
    wait_for(configs, "upgraded", "no record", LIMIT, is_forgotten).await?;
    driver.attach("upgraded-2").await?;
    assert_one_at_a_time(&driver.mock, 2);
    let lease = world.holder(&driver.name, Some(IDENTITY)).await?;
    assert_eq!(lease.lease_transitions, Some(2), "no other election");
    Ok(())
}
