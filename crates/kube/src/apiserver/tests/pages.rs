//! Pages of lists: as many objects as fit into a bounded size.

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tower::{Service, ServiceExt};

use crate::apiserver::list_watch::ListWatchService;
use crate::objects::ResourceVersion;
use crate::watch_answers::WatchAnswers;

/// Asks for the pages of a list of objects of so many bytes, 500 at a time; how many objects were asked for each time, and the
/// largest answer that came through.
async fn listed(sizes: &[usize]) -> (Vec<usize>, usize) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (log, sizes_of, total) = (asked.clone(), sizes.to_vec(), sizes.len());
    let server = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let number = |key: &str| -> usize {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(key));
            pair.map_or(0, |number| number.parse().unwrap())
        };
        let (from, limit) = (number("continue="), number("limit="));
        log.lock().push(limit);
        let to = total.min(from + limit);
        let items = sizes_of[from..to].iter().map(|size| json!({"x": "x".repeat(*size)}));
        let items: Vec<Value> = items.collect();
        let next = if to < total { to.to_string() } else { String::new() };
        let list = json!({"kind": "CSINodeList", "metadata": {"continue": next}, "items": items});
        async move { Ok::<_, io::Error>(Response::new(Full::<Bytes>::from(list.to_string()))) }
    });
    let mut service = ListWatchService::new(server, Duration::from_mins(1), WatchAnswers::default());
    let (mut next, mut largest, mut objects) = (String::new(), 0, 0);
    loop {
        let token = (!next.is_empty()).then(|| format!("&continue={next}"));
        let query = format!("&limit=500{}", token.unwrap_or_default());
        let uri = format!("/apis/storage.k8s.io/v1/csinodes?{query}");
        let request = Request::get(uri).body(Body::empty()).unwrap();
        let answer = service.ready().await.unwrap().call(request).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        largest = largest.max(body.len());
        let list: Value = serde_json::from_slice(&body).unwrap();
        objects += list["items"].as_array().unwrap().len();
        next = list["metadata"]["continue"].as_str().unwrap().to_owned();
        if next.is_empty() {
            assert_eq!(objects, total, "each object once");
            let asked = asked.lock().clone();
            return (asked, largest);
        }
    }
}

#[tokio::test]
async fn pages_of_small_objects_are_as_large_as_they_were() {
    let (asked, _) = listed(&vec![2_000; 1_700]).await;
    assert_eq!(asked, [100, 500, 500, 500, 500]);
}

/// 500 objects of 700 kB are 350 MB: as many as fit are asked for at a time.
#[tokio::test]
async fn pages_of_large_objects_are_bounded() {
    let (asked, largest) = listed(&vec![700_000; 60]).await;
    assert!(largest <= 8 << 20, "{largest} bytes");
    assert!(asked.len() < 25, "{asked:?}");
    // Small ones come first, and say nothing of what follows.
    let mut sizes = vec![1_000; 300];
    sizes.extend(vec![700_000; 60]);
    let (asked, largest) = listed(&sizes).await;
    assert!(largest <= 16 << 20, "{largest} bytes");
    assert!(asked.len() < 25, "{asked:?}");
}

/// Lists whose further pages always come too late. What was asked for, by the parameters of the requests, and the statuses of the answers,
/// which are none where an answer is too large. A list as a whole has so many bytes more.
async fn asked_too_late(requests: &[&str], padding: usize) -> (Vec<String>, Vec<Option<u16>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let server = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        log.lock().push(query.clone());
        let answer = if query.contains("continue=") {
            // The API server offers to go on with what is there now.
            let expired = json!({
                "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "metadata": {"continue": "now"},
            });
            Response::builder().status(410).body(expired.to_string())
        } else {
            let is_whole = query.contains("limit=0");
            let (next, padding) = if is_whole { ("", padding) } else { ("next", 0) };
            let list = json!({"kind": "CSINodeList", "metadata": {"continue": next}, "items": [{}]});
            Response::builder().body(list.to_string() + &" ".repeat(padding))
        };
        let answer = answer.map(|answer| answer.map(Full::<Bytes>::from));
        async move { answer.map_err(io::Error::other) }
    });
    let mut service = ListWatchService::new(server, Duration::from_mins(1), WatchAnswers::default());
    let mut statuses = Vec::new();
    for query in requests {
        let uri = format!("/apis/storage.k8s.io/v1/csinodes?{query}");
        let request = Request::get(uri).body(Body::empty()).unwrap();
        let answer = service.ready().await.unwrap().call(request).await;
        statuses.push(answer.ok().map(|answer| answer.status().as_u16()));
    }
    let asked = asked.lock().clone();
    (asked, statuses)
}

const FIRST: &str = "&limit=500";
const FURTHER: &str = "&limit=500&continue=next";
const ONE: &str = "&limit=1";

/// Where the API server forgets fast, no list of more than one page would come in.
#[tokio::test]
async fn after_a_page_that_came_too_late_the_list_is_asked_for_as_a_whole_once() {
    let requests = [FIRST, FURTHER, ONE, FIRST, FIRST, FURTHER, FIRST];
    let (asked, statuses) = asked_too_late(&requests, 0).await;
    let (page, whole) = ("&limit=100", "&limit=0");
    assert_eq!(asked, [page, FURTHER, ONE, whole, FIRST, FURTHER, whole]);
    assert_eq!(statuses, [200, 410, 200, 200, 200, 410, 200].map(Some));
}

#[tokio::test]
async fn a_list_that_is_too_large_as_a_whole_has_pages_again() {
    for (mebibytes, whole) in [(31, Some(200)), (33, None)] {
        let (asked, statuses) = asked_too_late(&[FIRST, FURTHER, FIRST, FIRST], mebibytes << 20).await;
        assert_eq!(asked, ["&limit=100", FURTHER, "&limit=0", FIRST], "{mebibytes} MiB");
        assert_eq!(statuses, [Some(200), Some(410), whole, Some(200)], "{mebibytes} MiB");
    }
}

/// The watch that follows a list begins from the version of its last page. Lists that no watch of the kind follows do not count.
#[tokio::test]
async fn the_version_of_the_list_that_a_watch_follows_is_known() {
    let server = tower::service_fn(|request: Request<Body>| {
        let mut pairs = request.uri().query().unwrap_or_default().split('&');
        let version = pairs.find_map(|pair| pair.strip_prefix("version="));
        let metadata = json!({"resourceVersion": version.unwrap_or_default()});
        let list = json!({"kind": "CSINodeList", "metadata": metadata, "items": []}).to_string();
        async move { Ok::<_, io::Error>(Response::new(Full::<Bytes>::from(list))) }
    });
    let (path, answers) = ("/apis/storage.k8s.io/v1/csinodes", WatchAnswers::default());
    let mut service = ListWatchService::new(server, Duration::from_mins(1), answers.clone());
    for (query, known) in [
        ("&limit=500&version=7", 7),
        ("&limit=1&version=9", 7),
        ("&limit=500&fieldSelector=metadata.name%3Dx&version=9", 7),
        ("&limit=500&continue=next&version=8", 8),
        ("&limit=500&version=x", 0),
        ("&limit=500&version=7", 7),
        ("&limit=500", 0),
    ] {
        let request = Request::get(format!("{path}?{query}")).body(Body::empty()).unwrap();
        service.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(answers.list_version(path), ResourceVersion(known), "{query}");
    }
}
