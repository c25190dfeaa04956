//! Looks at the metadata of single Secrets.

use http::{Request, header};
use kube::client::Body;
use serde_json::json;
use tower::BoxError;

use super::cluster::Kind;
use super::service::{Answer, respond};
use super::world::World;
use crate::decide::tests::api_server::not_found;

/// Where the Secrets are.
pub const PATH: &str = "/api/v1/namespaces/ns/secrets";

/// The name of the Secret whose metadata alone is asked for.
pub fn asked_for(request: &Request<Body>) -> Option<&str> {
    let accepts = request.headers().get(header::ACCEPT)?.to_str().ok()?;
    let name = request.uri().path().strip_prefix(PATH)?.strip_prefix('/')?;
    accepts.contains("as=PartialObjectMetadata").then_some(name)
}

/// Answers at once and without a fault: such a look is no step of a history, and there are many of them.
pub fn serve(world: &World, name: &str) -> Result<Answer, BoxError> {
    let found = world.with(|state| {
        let object = state.cluster.get(Kind::Secret, name)?;
        Some(object["metadata"].clone())
    });
    match found {
        Some(metadata) => {
            let kind = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
            respond(200, &kind)
        }
        None => respond(404, &not_found(&format!("{PATH}/{name}"))),
    }
}
