//! The publish Secrets of the drivers: they vanish, have other values, come back; and what is in them is to be seen nowhere.

use csi_mock_driver::MockCredentials;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Resource, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::sleep;

use csi_attacher_model::api::AttacherConfig;

use super::checker::Kind;
use super::other;
use super::world::{Driver, World};
use crate::support::{Error, Result};

/// Namespace of all publish Secrets.
pub const NAMESPACE: &str = "chaos-secrets";
const KEY: &str = "token";
/// In each line of each value, and nowhere else.
const WORD: &str = "canary7c1f";

/// Whether a volume names the publish Secret of its driver.
pub fn has_secret(number: usize) -> bool {
    number % 4 == 1
}

/// What is in the Secret: the value that the driver wants, or another one. Two lines, with characters that quoting changes.
fn value(is_right: bool) -> String {
    format!("{WORD} \"{is_right}\" + / & = % \\\n{WORD} the second line")
}

/// What the driver wants to be given.
pub fn wanted() -> MockCredentials {
    MockCredentials([(KEY.to_owned(), value(true))].into())
}

/// In which form a text shows what is in a Secret, if it does.
pub fn shown_in(text: &str) -> Option<&'static str> {
    let encoded = |is_right| {
        let encoded = serde_json::to_string(&ByteString(value(is_right).into_bytes())).unwrap_or_default();
        text.contains(encoded.trim_matches('"'))
    };
    if text.contains(WORD) {
        Some("as it stands")
    } else if encoded(true) || encoded(false) {
        Some("as base64")
    } else {
        None
    }
}

/// Makes the Secret of a driver, with the value that the driver wants or another one, as soon as the API server takes it.
pub async fn put(world: &World, driver: &Driver, is_right: bool) -> Result<()> {
    let api: Api<Secret> = Api::namespaced(world.client.clone(), NAMESPACE);
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": driver.config}, "data": {KEY: ByteString(value(is_right).into_bytes())},
    });
    let params = PatchParams::apply("chaos").force();
    let mut last = None;
    for _ in 0..super::faults::TRIES {
        match api.patch(&driver.config, &params, &Patch::Apply(&object)).await {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
        sleep(super::faults::PAUSE).await;
    }
    Err(last.map_or_else(|| Error::Other("never tried".to_owned()), other))
}

/// Deletes the Secret of a driver; that may fail while the API server is away.
pub async fn delete(world: &World, driver: &Driver) {
    let api: Api<Secret> = Api::namespaced(world.client.clone(), NAMESPACE);
    drop(api.delete(&driver.config, &DeleteParams::default()).await);
}

/// Looks whether anything that the operator wrote shows what is in a Secret.
pub async fn look_for(world: &World) -> Result<()> {
    for (identity, log) in world.logs().await {
        look_in(world, &format!("the log of {identity}"), &log);
    }
    look_in_all::<Event>(world).await?;
    look_in_all::<AttacherConfig>(world).await?;
    look_in_all::<PersistentVolume>(world).await
}

async fn look_in_all<K>(world: &World) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let all = Api::<K>::all(world.client.clone()).list(&ListParams::default()).await;
    for object in all? {
        let what = format!("{} {}", K::kind(&()), object.name_any());
        look_in(world, &what, &serde_json::to_value(&object)?.to_string());
    }
    Ok(())
}

/// Writes down when a text shows what is in a Secret.
pub fn look_in(world: &World, what: &str, text: &str) {
    if let Some(form) = shown_in(text) {
        let line = text.lines().find(|line| shown_in(line).is_some()).unwrap_or_default();
        let line: String = line.chars().take(2000).collect();
        world.recorder.finding(
            Kind::SecretShown,
            what,
            format!("shows a publish Secret {form}: {line}"),
        );
    }
}

/// What `spec.publishSecrets` lists.
pub fn listed(config: &str) -> Value {
    json!([{"namespace": NAMESPACE, "names": [config]}])
}
