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
        let items: Vec<Value> = sizes_of[from..to]
            .iter()
            .map(|size| json!({"x": "x".repeat(*size)}))
            .collect();
        let next = if to < total { to.to_string() } else { String::new() };
        let list = json!({"kind": "CSINodeList", "metadata": {"continue": next}, "items": items});
        async move { Ok::<_, io::Error>(Response::new(Full::<Bytes>::from(list.to_string()))) }
    });
    let mut service = ListWatchService::new(server, Duration::from_mins(1), WatchAnswers::default());
    let (mut next, mut largest, mut objects) = (String::new(), 0, 0);
    loop {
        let token = if next.is_empty() {
            String::new()
        } else {
            format!("&continue={next}")
        };
        let uri = format!("/apis/storage.k8s.io/v1/csinodes?&limit=500{token}");
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
