//! A change of the namespaces whose Leases are held, while a call is in flight.

use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{CallResult, Method, Rule};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::{Value, json};

use super::{lasting, moves};
use crate::rig::{Driver, LIMIT, World, merge_status};
use crate::support::Result;
use crate::support::operator::release_lease;
use crate::support::wait::wait_for;

const ELSEWHERE: &str = "default";
/// Long enough for a replica that does not wait.
const CALL: Duration = Duration::from_secs(8);

/// The settings with another namespace.
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
async fn a_change_of_the_namespaces_hands_over_with_a_call_in_flight() -> Result<()> {
    let world = World::own().await?;
    let _first = world.replica("first").await?;
    let driver = world.driver("moves", lasting()).await?;
    grant(&world, &driver.name).await?;
    world.holder(&driver.name, Some("first")).await?;
    let _second = world.replica("second").await?;
    world.reported_holder("moves", Some("first")).await?;
    world.renewals(&driver.name, 2).await?;

    // As a sidecar leaves it that has ended.
    release_lease(&world.client, ELSEWHERE, &driver.name).await?;
    begin_call(&driver, "moves-1").await?;
    driver.configure(&with("sidecarNamespaces", json!([ELSEWHERE]))).await?;
    let _third = world.replica("third").await?;
    world.fixtures.wait_for_attached("moves-1").await?;
    driver.attach("moves-2").await?;
    assert_one_at_a_time(&driver, 2);
    let elsewhere: Api<Lease> = Api::namespaced(world.client.clone(), ELSEWHERE);
    let name = lease_name(&driver.name);
    let held = wait_for(elsewhere, &name, "the Lease of a sidecar", LIMIT, |lease| {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        spec.is_some_and(|spec| spec.holder_identity.is_some())
    });
    held.await?;
    // And back.
    begin_call(&driver, "moves-3").await?;
    driver.configure(&lasting()).await?;
    world.fixtures.wait_for_attached("moves-3").await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    assert_one_at_a_time(&driver, 3);
    Ok(())
}

/// A former release recorded where its Lease is. It still has a call in flight under that Lease, and the spec names no namespace any more.
#[tokio::test]
async fn the_lease_that_a_former_release_recorded_is_held_as_well_and_forgotten() -> Result<()> {
    let world = World::own().await?;
    let _first = world.replica("first").await?;
    let driver = world.driver("upgraded", lasting()).await?;
    grant(&world, &driver.name).await?;
    world.holder(&driver.name, Some("first")).await?;
    release_lease(&world.client, ELSEWHERE, &driver.name).await?;
    let elsewhere: Api<Lease> = Api::namespaced(world.client.clone(), ELSEWHERE);
    let name = lease_name(&driver.name);
    let mut former = elsewhere.get(&name).await?;
    let spec = former.spec.get_or_insert_default();
    (spec.holder_identity, spec.lease_duration_seconds) = (Some("former".to_owned()), Some(3600));
    let held = elsewhere
        .replace(&name, &kube::api::PostParams::default(), &former)
        .await;
    let mut former = held?;

    let configs: Api<AttacherConfig> = Api::all(world.client.clone());
    let record = json!({"status": {"leaderElection": {"namespace": ELSEWHERE}}});
    merge_status(&configs, "upgraded", &record).await?;
    driver.wait("Ready", "True", Some("Standby")).await?;
    driver.claim("upgraded-1").await?;
    world.renewals(&driver.name, 5).await?;
    assert!(moves(&driver.mock).is_empty(), "the former release may be calling");

    former.spec.get_or_insert_default().holder_identity = None;
    let released = elsewhere
        .replace(&name, &kube::api::PostParams::default(), &former)
        .await;
    released?;
    world.fixtures.wait_for_attached("upgraded-1").await?;
    let forgotten = wait_for(configs, "upgraded", "no record", LIMIT, |config| {
        let status = config.and_then(|config| config.status.as_ref());
        status.is_some_and(|status| status.leader_election.is_none())
    });
    forgotten.await?;
    driver.attach("upgraded-2").await?;
    assert_one_at_a_time(&driver, 2);
    let leases = world.holder(&driver.name, Some("first")).await?;
    assert_eq!(
        leases.spec.and_then(|spec| spec.lease_transitions),
        Some(2),
        "no other election"
    );
    Ok(())
}
