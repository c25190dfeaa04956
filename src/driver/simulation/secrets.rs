//! Lists and watches of single Secrets, as `kube` asks for them.

use futures::stream::unfold;
use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tower::BoxError;

use super::cluster::{Change, Kind, text};
use super::service::{Answer, respond};
use super::world::World;

const FIELD: &str = "metadata.name%3D";

/// Answers a list, or a watch that lasts until nobody reads it any more.
pub fn serve(world: &World, query: &str) -> Result<Answer, BoxError> {
    let value = |key: &str| {
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
    };
    let field = value("fieldSelector").unwrap_or_default();
    let name = field
        .strip_prefix(FIELD)
        .ok_or_else(|| format!("a list of secrets that nobody expects: {query}"))?;
    if value("watch").is_none() {
        let list = world.with(|state| {
            let version = state.cluster.version().to_string();
            let items: Vec<Value> = state
                .cluster
                .get(Kind::Secret, name)
                .map(|object| Value::clone(object))
                .into_iter()
                .collect();
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                   "metadata": {"resourceVersion": version}, "items": items})
        });
        return respond(200, &list);
    }
    let since = value("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
    let lines = lines(world.clone(), name.to_owned(), since);
    Ok(Response::new(StreamBody::new(lines).boxed_unsync()))
}

type Line = Result<Frame<Bytes>, std::convert::Infallible>;

/// The changes of a Secret after a version.
fn lines(world: World, name: String, since: u64) -> impl futures::Stream<Item = Line> + Send {
    unfold((world, name, since), |(world, name, since)| async move {
        let next = |change: &&Change| is_next(change, &name, since);
        let change = world
            .wait_for(|state| state.cluster.changes.iter().find(next).cloned())
            .await;
        let kind = if change.deleted { "DELETED" } else { "MODIFIED" };
        let mut line = json!({"type": kind, "object": &*change.object}).to_string();
        line.push('\n');
        let line = Ok(Frame::data(Bytes::from(line)));
        let since = version(&change);
        Some((line, (world, name, since)))
    })
}

fn is_next(change: &Change, name: &str, since: u64) -> bool {
    change.kind == Kind::Secret && text(&change.object, "/metadata/name") == name && version(change) > since
}

fn version(change: &Change) -> u64 {
    text(&change.object, "/metadata/resourceVersion").parse().unwrap_or(0)
}
