//! Publish Secrets: what they hold, which driver may have them, and looks at their metadata.

use http::{Request, header};
use k8s_openapi::ByteString;
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tower::BoxError;

use super::answers::{Answer, respond};
use super::cluster::{Kind, not_found};
use super::scenario::{DRIVERS, Disk, Secret};
use super::world::{State, World};

const PATH: &str = "/api/v1/namespaces/";

/// The namespace of the Secrets that a driver may have.
pub fn namespace(driver: usize) -> String {
    format!("of-{}", &DRIVERS[driver][..1])
}

/// The namespace of a volume's Secret.
pub fn namespace_of(disk: &Disk) -> String {
    match disk.secret {
        Secret::Forbidden => "of-nobody".to_owned(),
        Secret::None | Secret::Own => namespace(disk.driver),
    }
}

/// What Secrets hold and held, by namespace and name.
#[derive(Default)]
pub struct SecretValues(BTreeMap<String, BTreeSet<String>>);

impl SecretValues {
    /// Whether a Secret held this value at some time.
    pub fn held(&self, key: &str, value: &str) -> bool {
        self.0.get(key).is_some_and(|values| values.contains(value))
    }
}

/// The key of a volume's Secret among the objects.
pub fn key_of(disk: &Disk) -> String {
    format!("{}/{}", namespace_of(disk), disk.name)
}

/// Makes a volume's Secret, or changes its value.
pub fn write(state: &mut State, disk: &Disk) {
    let (key, number) = (key_of(disk), state.rng.u16(..));
    let value = format!("value {number} of {key}");
    let data = json!({"key": ByteString(value.clone().into_bytes())});
    state.secrets.0.entry(key.clone()).or_default().insert(value);
    let object = json!({"metadata": {"namespace": namespace_of(disk)}, "data": data});
    if !state.cluster.create(Kind::Secret, &key, object) {
        state.cluster.edit(Kind::Secret, &key, |object| object["data"] = data);
    }
}

/// The key of the Secret at an address.
pub fn key_at(path: &str) -> Option<String> {
    let (namespace, name) = path.strip_prefix(PATH)?.split_once("/secrets/")?;
    Some(format!("{namespace}/{name}"))
}

/// The Secret whose metadata alone is asked for.
pub fn handover_due(request: &Request<Body>) -> Option<String> {
    let accepts = request.headers().get(header::ACCEPT)?.to_str().ok()?;
    let key = key_at(request.uri().path())?;
    accepts.contains("as=PartialObjectMetadata").then_some(key)
}

/// Answers at once and without a fault: such a look is no step of a history, and there are many of them.
pub fn serve(world: &World, key: &str) -> Result<Answer, BoxError> {
    let found = world.with(|state| {
        state.secret_looks += 1;
        let object = state.cluster.get(Kind::Secret, key)?;
        Some(metadata(object, key))
    });
    let name = key.rsplit('/').next().unwrap_or_default();
    match found {
        Some(metadata) => {
            let kind = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
            respond(200, &kind)
        }
        None => respond(404, &not_found(Kind::Secret, name)),
    }
}

/// The metadata of a Secret as the API server answers it; here it is kept under namespace and name.
pub fn metadata(object: &Value, key: &str) -> Value {
    let mut metadata = object["metadata"].clone();
    metadata["name"] = key.rsplit('/').next().unwrap_or_default().into();
    metadata
}
