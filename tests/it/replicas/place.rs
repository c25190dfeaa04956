//! A change of where the Lease lives, or whether there is one, while a call is in flight.

use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{CallResult, Method, Rule};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::{Value, json};

use super::{lasting, moves, other};
use crate::rig::{Driver, LIMIT, World};
use crate::support::Result;
use crate::support::wait::wait_for;

const ELSEWHERE: &str = "default";
/// Long enough for a replica that does not wait.
const CALL: Duration = Duration::from_secs(8);

/// The settings with another place of the Lease.
fn with(field: &str, value: Value) -> Value {
    let mut settings = lasting();
    settings["leaderElection"][field] = value;
    settings
}

/// What the chart grants in the namespace of the Lease of a driver whose name is known.
async fn grant(world: &World, driver: &str) -> Result<()> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "leader-election", "namespace": ELSEWHERE},
        "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
            {
                "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [lease_name(driver)],
                "verbs": ["get", "list", "watch", "update"],
            },
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "leader-election", "namespace": ELSEWHERE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "leader-election"},
        "subjects": [{"kind": "ServiceAccount", "namespace": super::NAMESPACE, "name": super::NAMESPACE}],
    });
    let manifest = format!("{role}\n---\n{binding}\n");
    world.cluster.apply_yaml(&manifest).await.map(drop)
}

/// Claims a volume whose call takes long, and waits until that runs.
async fn begin_call(driver: &Driver<'_>, name: &str) -> Result<()> {
    driver.mock.clear_rules();
    driver
        .mock
        .script(Rule::on(Method::ControllerPublishVolume).delay(CALL));
    driver.claim(name).await?;
    driver
        .call(Method::ControllerPublishVolume, name, |_| true)
        .await
        .map(drop)
}

/// All calls so far: each volume was published once, and never by two at a time.
fn assert_one_at_a_time(driver: &Driver<'_>, volumes: usize) {
    let calls = moves(&driver.mock);
    let sound = |call: &csi_mock_driver::CallRecord| !call.overlap && call.outcome == CallResult::Answered;
    assert!(calls.iter().all(sound), "both in a call for one volume: {calls:#?}");
    assert_eq!(calls.len(), volumes, "{calls:#?}");
}

#[tokio::test]
async fn a_change_of_the_namespace_hands_over_with_a_call_in_flight() -> Result<()> {
    let world = World::own().await?;
    let _first = world.replica("first").await?;
    let driver = world.driver("moves", lasting()).await?;
    grant(&world, &driver.name).await?;
    world.holder(&driver.name, Some("first")).await?;
    let _second = world.replica("second").await?;
    world.reported_holder("moves", Some("first")).await?;
    world.renewals(&driver.name, 2).await?;

    begin_call(&driver, "moves-1").await?;
    driver.configure(&with("namespace", json!(ELSEWHERE))).await?;
    // One that knows the former place from the status only.
    let _third = world.replica("third").await?;
    world.fixtures.wait_for_attached("moves-1").await?;
    driver.attach("moves-2").await?;
    assert_one_at_a_time(&driver, 2);
    world.holder(&driver.name, None).await?;
    let elsewhere: Api<Lease> = Api::namespaced(world.client.clone(), ELSEWHERE);
    let name = lease_name(&driver.name);
    let held = wait_for(elsewhere, &name, "the Lease at its new place", LIMIT, |lease| {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        spec.is_some_and(|spec| spec.holder_identity.is_some())
    });
    held.await?;
    let configs: Api<AttacherConfig> = Api::all(world.client.clone());
    let status = configs.get("moves").await.map_err(other)?.status.unwrap_or_default();
    let place = serde_json::to_value(&status.leader_election).map_err(other)?;
    assert_eq!(place, json!({"namespace": ELSEWHERE, "runsOutAfterSeconds": 60}));
    // And back.
    begin_call(&driver, "moves-3").await?;
    driver.configure(&lasting()).await?;
    world.fixtures.wait_for_attached("moves-3").await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    assert_one_at_a_time(&driver, 3);
    Ok(())
}

#[tokio::test]
async fn an_election_that_is_turned_off_and_on_hands_over_with_a_call_in_flight() -> Result<()> {
    let world = World::own().await?;
    let _first = world.replica("first").await?;
    let driver = world.driver("turned", lasting()).await?;
    let second = world.replica("second").await?;
    world.reported_holder("turned", Some("first")).await?;
    world.renewals(&driver.name, 2).await?;

    begin_call(&driver, "turned-1").await?;
    driver.configure(&with("enabled", json!(false))).await?;
    world.fixtures.wait_for_attached("turned-1").await?;
    assert_one_at_a_time(&driver, 1);
    // The others work too from then on: that is for one replica.
    world.holder(&driver.name, None).await?;
    drop(second);
    driver.attach("turned-2").await?;
    begin_call(&driver, "turned-3").await?;
    driver.configure(&lasting()).await?;
    // The second was killed while it was recorded as one that works without a Lease: it is waited for.
    let _third = world.replica("third").await?;
    world.fixtures.wait_for_attached("turned-3").await?;
    assert_one_at_a_time(&driver, 3);
    Ok(())
}
