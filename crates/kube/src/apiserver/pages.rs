//! Lists in pages of a bounded size: the API counts the objects of a page, and an object may have a megabyte.

use http::{Request, Uri};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Bytes};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::client::Body;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use tower::BoxError;

use super::connection::copy;
use super::flow::retry_after::RequestKind;
use crate::objects::ResourceVersion;

/// How many bytes a page is to have.
const PAGE: usize = 4 << 20;

/// A page that is larger is not read to its end, and asked for again with fewer objects.
const MAX_PAGE: usize = 4 * PAGE;

/// No list that is asked for as a whole is read that is larger: several kinds may be read at once.
const MAX_WHOLE: usize = 32 << 20;

/// No object is read that is larger, of a list or a watch. The largest ones of the API server have a few MiB.
pub(super) const MAX_OBJECT: usize = 64 << 20;

/// So many objects are asked for while nothing is known of their size.
const FIRST_LIMIT: usize = 100;

/// A page of this size is looked through beside the tasks of the runtime, which renew Leases meanwhile.
const LARGE: usize = 256 << 10;

/// What is known of the lists of each kind.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownLists(Arc<Mutex<ListsSeen>>);

#[derive(Debug, Default)]
struct ListsSeen {
    /// How large the objects were that were listed last, in bytes.
    sizes: HashMap<RequestKind, usize>,
    /// Those whose last list ended with a page that was asked for too late.
    expired: HashSet<RequestKind>,
}

impl KnownLists {
    /// How many objects to ask for instead of `wanted`.
    pub fn limit(&self, kind: &RequestKind, wanted: usize) -> usize {
        let limit = self.0.lock().sizes.get(kind).map_or(FIRST_LIMIT, |size| PAGE / size);
        limit.clamp(1, wanted.max(1))
    }

    /// Takes in the size of a page and the number of its objects.
    pub fn learn(&self, kind: &RequestKind, bytes: usize, objects: usize) {
        if let Some(size) = bytes.checked_div(objects) {
            self.0.lock().sizes.insert(kind.clone(), size.max(1));
        }
    }

    /// The API server does not have the state any more that the pages of a list are of.
    pub fn expire(&self, kind: &RequestKind) {
        self.0.lock().expired.insert(kind.clone());
    }

    /// Whether a list is to be asked for as a whole, as client-go does (`FullListIfExpired`): where each second page comes too late, no list
    /// of pages would ever come in. Only the next one is: where it is too large or takes too long, pages have their turn again.
    pub fn takes_whole(&self, kind: &RequestKind) -> bool {
        self.0.lock().expired.remove(kind)
    }
}

/// How many bytes are read of a page of at most so many objects, or of a list as a whole.
pub(super) fn most_bytes(limit: Option<usize>) -> usize {
    match limit {
        None => MAX_WHOLE,
        Some(1) => MAX_OBJECT,
        Some(_) => MAX_PAGE,
    }
}

/// Reads at most so many bytes; and whether that is all.
pub(super) async fn read_beginning<B>(body: B, most: usize) -> Result<(Bytes, bool), BoxError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut body: Pin<Box<B>> = Box::pin(body);
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(Into::into)?.into_data() {
            read.extend_from_slice(&data);
        }
        if read.len() > most {
            read.truncate(most);
            return Ok((read.into(), false));
        }
    }
    Ok((read.into(), true))
}

/// The value of a parameter of a list or watch.
pub(super) fn parameter<'u>(uri: &'u Uri, name: &str) -> Option<&'u str> {
    let mut pairs = uri.query()?.split('&');
    pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// How many objects a list asks for at a time; none when it asks for all.
pub(super) fn limit_of(uri: &Uri) -> Option<usize> {
    parameter(uri, "limit")?.parse().ok().filter(|limit| *limit > 0)
}

/// The same list; with another number of objects at a time, of which 0 is all of them.
pub(super) fn with_limit(request: &Request<Body>, limit: Option<usize>) -> Result<Request<Body>, BoxError> {
    let mut same = copy(request).ok_or("a list cannot be asked for again")?;
    let Some(limit) = limit else { return Ok(same) };
    let query = request.uri().query().unwrap_or_default();
    let pairs = query.split('&').map(|pair| {
        if pair.starts_with("limit=") {
            format!("limit={limit}")
        } else {
            pair.to_owned()
        }
    });
    let query = pairs.collect::<Vec<_>>().join("&");
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = Some(format!("{}?{query}", request.uri().path()).parse()?);
    *same.uri_mut() = Uri::from_parts(parts)?;
    Ok(same)
}

/// The kind of a list, its version, and how many objects it has; none when the text is no list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PageContent {
    pub kind: Option<String>,
    pub version: ResourceVersion,
    pub objects: usize,
}

pub(super) async fn content_of(page: &Bytes) -> Option<PageContent> {
    if page.len() < LARGE {
        return content(page);
    }
    let page = page.clone();
    tokio::task::spawn_blocking(move || content(&page)).await.ok().flatten()
}

fn content(page: &[u8]) -> Option<PageContent> {
    #[derive(Deserialize)]
    struct ListWire {
        kind: Option<String>,
        // The version of a list is where that of an object is.
        metadata: Option<ObjectMeta>,
        // These have no size, so that only their number is kept.
        items: Option<Vec<IgnoredAny>>,
    }
    let wire: ListWire = serde_json::from_slice(page).ok()?;
    Some(PageContent {
        kind: wire.kind,
        version: wire.metadata.as_ref().map(ResourceVersion::of).unwrap_or_default(),
        objects: wire.items.map_or(0, |items| items.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_as_many_objects_as_fit() {
        let (known, kind) = (KnownLists::default(), RequestKind::from("/api/v1/nodes"));
        assert_eq!((known.limit(&kind, 500), known.limit(&kind, 1)), (100, 1));
        for (bytes, objects, limit) in [
            (200_000, 100, 500),
            (0, 0, 500),
            (70 << 20, 100, 5),
            (30 << 20, 5, 1),
            (4_000, 1, 500),
        ] {
            known.learn(&kind, bytes, objects);
            assert_eq!(known.limit(&kind, 500), limit, "{bytes} bytes, {objects} objects");
        }
    }

    #[test]
    fn the_limit_of_a_list_is_replaced() {
        let request = |uri: &str| Request::get(uri).header("accept", "json").body(Body::empty()).unwrap();
        let list = request("/api/v1/pods?&limit=500&continue=a%3D%3D");
        assert_eq!(limit_of(list.uri()), Some(500));
        let smaller = with_limit(&list, Some(7)).unwrap();
        assert_eq!(smaller.uri(), "/api/v1/pods?&limit=7&continue=a%3D%3D");
        assert_eq!(smaller.headers(), list.headers());
        assert_eq!(limit_of(request("/api/v1/pods?watch=true").uri()), None);
        assert_eq!(limit_of(with_limit(&list, Some(0)).unwrap().uri()), None, "all of them");
    }

    #[test]
    fn objects_are_counted_and_not_built() {
        let text = br#"{"kind": "PodList", "metadata": {"resourceVersion": "7", "continue": "x"},
                        "items": [{"a": [1, 2]}, {}, {"b": "c"}]}"#;
        let pods = |version, objects| PageContent {
            kind: Some("PodList".to_owned()),
            version: ResourceVersion(version),
            objects,
        };
        assert_eq!(content(text), Some(pods(7, 3)));
        assert_eq!(content(br#"{"kind": "PodList", "items": null}"#), Some(pods(0, 0)));
        assert_eq!(content(b"<html>"), None);
    }
}
