//! Applies manifests of any kinds of objects.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::discovery::{self, ApiCapabilities, ApiResource, Scope};
use kube::runtime::wait::{Condition, conditions};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, interval};

use super::error::{Context, Error, Result};
use super::wait::wait_for;

/// The field manager under which manifests are applied.
pub const FIELD_MANAGER: &str = "csi-attacher-operator-tests";

/// How long a new CustomResourceDefinition may take until its objects can be made; seconds when the machine is busy.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// Applies every document of a YAML text by server-side apply, in the order given, and returns the objects as stored.
/// Fields which somebody else manages are taken over. An object which has a namespace but names none goes to
/// `default`. After a CustomResourceDefinition it waits until its objects can be made.
pub async fn apply_yaml(client: &Client, manifest: &str) -> Result<Vec<DynamicObject>> {
    let mut applied = Vec::new();
    for document in serde_yaml::Deserializer::from_str(manifest) {
        let value = Value::deserialize(document)?;
        if !value.is_null() {
            applied.push(apply_object(client, serde_json::from_value(value)?).await?);
        }
    }
    Ok(applied)
}

/// Applies one object, see [`apply_yaml`].
pub async fn apply_object(client: &Client, object: DynamicObject) -> Result<DynamicObject> {
    let (Some(types), Some(name)) = (object.types.clone(), object.metadata.name.clone()) else {
        let text = "an object lacks apiVersion, kind or metadata.name";
        return Err(Error::Other(text.to_owned()));
    };
    let (resource, capabilities) = discover(client, &types).await?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
    };
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let stored = api.patch(&name, &params, &Patch::Apply(&object)).await;
    let stored = stored.while_trying(|| format!("apply {} {name}", types.kind))?;
    if types.kind == "CustomResourceDefinition" {
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let established = conditions::is_crd_established();
        let is_so = |state: Option<&CustomResourceDefinition>| established.matches_object(state);
        wait_for(definitions, &name, "established", SERVED_WITHIN, is_so).await?;
    }
    Ok(stored)
}

/// Asks the API server how this kind is served. A kind that is not served is asked for again for some time: the
/// discovery documents follow an established CustomResourceDefinition with a delay.
async fn discover(client: &Client, types: &TypeMeta) -> Result<(ApiResource, ApiCapabilities)> {
    let kind = GroupVersionKind::try_from(types).while_trying(|| format!("read {types:?}"))?;
    let deadline = Instant::now() + SERVED_WITHIN;
    let mut ticks = interval(Duration::from_millis(50));
    loop {
        ticks.tick().await;
        let answer = discovery::pinned_kind(client, &kind).await;
        let not_served = match &answer {
            // A group that is not served is answered in plain text, for which `is_not_found` does not hold.
            Err(kube::Error::Api(status)) => status.code == 404,
            Err(kube::Error::Discovery(_)) => true,
            _ => false,
        };
        if !not_served || Instant::now() >= deadline {
            return answer.while_trying(|| format!("discover {}/{}", types.api_version, types.kind));
        }
    }
}
