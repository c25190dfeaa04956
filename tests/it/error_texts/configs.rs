//! Messages about an AttacherConfig: conditions, what the API server answers, and the operator's own end.

use std::os::unix::net::UnixListener;
use std::process::Command;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::ControllerCapability;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::index::assert_indexed;
use crate::rig::{LIMIT, World};
use crate::support::Result;
use crate::support::operator::apply_config;
use crate::support::wait::wait_for;

const SOCKET_MISSING: &str = "<path>: no such socket; is the driver running and its socket directory mounted into this pod?; retrying every \
                              <n> s";
const REFUSED: &str = "<path>: connection refused; the driver is not listening (any more) (socket with owner <owner>, mode <mode>); \
                       retrying every <n> s";
const NAME_MISMATCH: &str = "the driver at <endpoint> calls itself \"<driver>\", but spec.driverName is \"<driver>\"; fix spec.endpoint or \
                             spec.driverName";
const STANDBY: &str = "<holder> holds the driver's Lease; this replica is ready to take over";
const CAPABILITY_LOST: &str =
    "driver <driver> does not announce PUBLISH_UNPUBLISH_VOLUME any more, but VolumeAttachment <name> <explanation>";
const UNKNOWN_FIELD: &str = "strict decoding error: unknown field \"spec.<field>\"";
const INVALID: &str = "AttacherConfig.attacher.csi.dev \"<name>\" is invalid: <field>: Invalid value: <explanation>";
const UNKNOWN_FLAG: &str = "flag provided but not defined: -<flag>";

pub fn staged() -> Vec<&'static str> {
    vec![
        SOCKET_MISSING,
        REFUSED,
        NAME_MISMATCH,
        STANDBY,
        CAPABILITY_LOST,
        UNKNOWN_FIELD,
        INVALID,
        UNKNOWN_FLAG,
    ]
}

/// The message of a condition, once it has this reason.
async fn condition(client: &Client, config: &str, kind: &str, reason: &str) -> Result<String> {
    let found = |config: Option<&AttacherConfig>| {
        let conditions = &config?.status.as_ref()?.conditions;
        let found = conditions.iter().find(|condition| condition.type_ == kind)?;
        (found.reason == reason).then(|| found.message.clone())
    };
    let api: Api<AttacherConfig> = Api::all(client.clone());
    let what = format!("{kind} with reason {reason}");
    let config = wait_for(api, config, &what, LIMIT, |config| found(config).is_some()).await?;
    Ok(found(config.as_ref()).unwrap_or_default())
}

#[tokio::test]
async fn why_a_socket_is_of_no_use_is_in_the_condition() -> Result<()> {
    let world = World::shared().await?;
    apply_config(&world.client, "text-missing", world.spec("text-missing", &json!({}))).await?;
    let message = condition(&world.client, "text-missing", "DriverReachable", "SocketMissing").await?;
    assert_indexed(SOCKET_MISSING, &message);

    // The file stays when the listener is gone.
    let path = world.socket("text-refused-socket");
    drop(UnixListener::bind(&path).expect("the socket can be made"));
    let spec = world.spec("text-refused-socket", &json!({}));
    apply_config(&world.client, "text-refused-socket", spec).await?;
    let message = condition(
        &world.client,
        "text-refused-socket",
        "DriverReachable",
        "ConnectionRefused",
    )
    .await?;
    assert_indexed(REFUSED, &message);
    Ok(())
}

#[tokio::test]
async fn a_driver_with_another_name_is_not_served() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.unconfigured_driver("text-named", |builder| builder).await?;
    driver
        .configure(&json!({ "driverName": "text-wanted.csi.test" }))
        .await?;
    let message = condition(&world.client, "text-named", "Stalled", "DriverNameMismatch").await?;
    assert_indexed(NAME_MISMATCH, &message);
    Ok(())
}

#[tokio::test]
async fn a_lease_of_somebody_else_is_waited_for() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.unconfigured_driver("text-standby", |builder| builder).await?;
    let spec = world.spec(
        "text-standby",
        &json!({ "leaderElection": { "leaseDuration": "3600s" } }),
    );
    // The Lease is where the operator looks for it when the AttacherConfig names no namespace.
    let lease: Lease = serde_json::from_value(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": format!("external-attacher-leader-{}", driver.name.replace('.', "-")) },
        "spec": {
            "holderIdentity": "ebs-csi-controller-7d9f", "leaseDurationSeconds": 3600, "leaseTransitions": 0,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    }))?;
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "csi-attacher-operator");
    let name = lease.metadata.name.clone().unwrap_or_default();
    let held = leases
        .patch(&name, &PatchParams::apply("sidecar").force(), &Patch::Apply(&lease))
        .await;
    held?;
    apply_config(&world.client, "text-standby", spec).await?;
    let message = condition(&world.client, "text-standby", "Ready", "Standby").await?;
    assert_indexed(STANDBY, &message);
    Ok(())
}

#[tokio::test]
async fn a_driver_that_attached_and_cannot_any_more_is_named() -> Result<()> {
    let world = World::shared().await?;
    world.fixtures.csi_driver("text-lost.csi.test", true).await?;
    let driver = world.driver("text-lost", json!({})).await?;
    driver.attach("text-lost-pv").await?;
    driver.stop().await;
    driver
        .mock
        .set_capability(ControllerCapability::PublishUnpublishVolume, false);
    driver.start_again().await?;
    let message = condition(&world.client, "text-lost", "Stalled", "CapabilityLost").await?;
    assert_indexed(CAPABILITY_LOST, &message);
    driver.stop().await;
    driver
        .mock
        .set_capability(ControllerCapability::PublishUnpublishVolume, true);
    driver.start_again().await?;
    driver.wait("Ready", "True", None).await?;
    world.fixtures.delete::<VolumeAttachment>("text-lost-pv").await?;
    world.fixtures.wait_for_attachment_gone("text-lost-pv").await
}

/// What the API server answers to a change of an AttacherConfig's spec.
async fn refusal(client: &Client, name: &str, spec: Value) -> String {
    let configs: Api<AttacherConfig> = Api::all(client.clone());
    let params = PatchParams {
        // As kubectl asks for.
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({ "spec": spec }));
    match configs.patch(name, &params, &patch).await {
        Err(kube::Error::Api(status)) => status.message,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn the_api_server_names_the_field() -> Result<()> {
    let world = World::shared().await?;
    apply_config(&world.client, "text-field", world.spec("text-field", &json!({}))).await?;
    let message = refusal(&world.client, "text-field", json!({ "driver": "x.csi.test" })).await;
    // Behind what the API server tried to decode.
    let at = message.find("strict decoding error").expect(&message);
    assert_indexed(UNKNOWN_FIELD, &message[at..]);
    let message = refusal(&world.client, "text-field", json!({ "endpoint": "tcp://storage:9000" })).await;
    assert_indexed(INVALID, &message);
    Ok(())
}

#[test]
fn a_flag_that_the_sidecar_does_not_have_ends_the_operator() {
    let ended = Command::new(env!("CARGO_BIN_EXE_csi-attacher-operator"))
        .args(["--csi-address=/csi/csi.sock", "--worker-treads=10"])
        .output()
        .expect("it starts");
    assert_eq!(ended.status.code(), Some(2));
    let log = String::from_utf8_lossy(&ended.stderr);
    assert_indexed(UNKNOWN_FLAG, log.lines().next().unwrap_or_default());
}
