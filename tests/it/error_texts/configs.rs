//! Messages about an AttacherConfig: conditions, what the API server answers, and the operator's own end.

use csi_attacher_model::api::AttacherConfig;
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::index::assert_indexed;
use crate::rig::World;
use crate::support::Result;
use crate::support::operator::apply_config;

pub const SOCKET_MISSING: &str = "<path>: no such socket; is the driver running and its socket directory mounted into this pod?; retrying every \
                              <n> s";
pub const REFUSED: &str = "<path>: connection refused; the driver is not listening (any more) (socket with owner <owner>, mode <mode>); \
                       retrying every <n> s";
pub const NAME_MISMATCH: &str = "the driver at <endpoint> calls itself \"<driver>\", but spec.driverName is \"<driver>\"; fix spec.endpoint or \
                             spec.driverName";
pub const STANDBY: &str = "<holder> holds the driver's Lease; this replica is ready to take over";
pub const CAPABILITY_LOST: &str =
    "driver <driver> does not announce PUBLISH_UNPUBLISH_VOLUME any more, but VolumeAttachment <name> <explanation>";
const UNKNOWN_FIELD: &str = "strict decoding error: unknown field \"spec.<field>\"";
const INVALID: &str = "AttacherConfig.attacher.csi.dev \"<name>\" is invalid: <field>: Invalid value: <explanation>";
pub const UNKNOWN_FLAG: &str = "flag provided but not defined: -<flag>";

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
