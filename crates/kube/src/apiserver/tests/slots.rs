//! What requests tell the slots about themselves. The clock is paused.

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::apiserver::{RateLimit, RequestSlots, Requests, SecretWire, SlotLimits, Throttle};
use crate::decide::Write;
use crate::decide::patch::{PatchType, WriteTarget};
use crate::objects::SecretReference;
use crate::telemetry::{Metrics, Span};

/// Names of objects, in the order in which they were asked for.
type Log = Arc<Mutex<Vec<String>>>;

/// Requests of one driver with one slot, to an API server that takes a second for each.
fn requests(log: &Log) -> Requests {
    throttled(log, Throttle::new(None))
}

/// The same, with a limit.
fn throttled(log: &Log, throttle: Throttle) -> Requests {
    let log = log.clone();
    let server = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().trim_end_matches("/status").to_owned();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        log.lock().push(name.clone());
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let object = json!({
                "metadata": {"name": name, "uid": "u"}, "spec": {"attacher": "a", "nodeName": "n", "source": {}},
            });
            Ok::<_, io::Error>(Response::new(Full::<Bytes>::from(object.to_string())))
        }
    });
    let (client, deadline) = (Client::new(server, "default"), Duration::from_secs(15));
    Requests::new(client, "none", deadline, Metrics::default())
        .with_slots(RequestSlots::new(SlotLimits { min: 1, max: 1 }))
        .for_driver("driver".into(), throttle)
}

async fn patch(requests: &Requests, target: WriteTarget) {
    let write = Write {
        target,
        form: PatchType::Merge,
        body: json!({}),
    };
    requests.write(&write, None, &Span::disabled()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn releases_of_volumes_let_others_go_first() {
    let log = Log::default();
    let requests = requests(&log);
    let releases = requests.for_upkeep();
    let attachment = |name: &str| WriteTarget::Attachment(name.into());
    tokio::join!(
        patch(&requests, attachment("first")),
        patch(&releases, WriteTarget::Volume("volume".into())),
        patch(&requests, attachment("second")),
        patch(&requests, attachment("third")),
    );
    assert_eq!(*log.lock(), ["first", "second", "third", "volume"]);
}

/// The limit of requests serves them in order. Of those that can wait one at a time is in it.
#[tokio::test(start_paused = true)]
async fn releases_of_volumes_stand_before_others_as_one_at_a_limit() {
    let log = Log::default();
    let limit = RateLimit {
        per_second: 0.1,
        burst: 1,
    };
    let requests = throttled(&log, Throttle::new(limit));
    let releases = requests.for_upkeep();
    let volume = |name: &str| WriteTarget::Volume(name.into());
    tokio::join!(
        patch(&releases, volume("first")),
        patch(&releases, volume("second")),
        patch(&releases, volume("third")),
        patch(&requests, WriteTarget::Attachment("attachment".into())),
    );
    assert_eq!(*log.lock(), ["first", "second", "attachment", "third"]);
}

/// Results, and failures that are noted, do not wait for claims, nor reads for writes.
#[tokio::test(start_paused = true)]
async fn each_kind_of_request_has_a_slot() {
    let log = Log::default();
    let requests = requests(&log);
    let target = WriteTarget::Attachment("read".into());
    let read = async { requests.read(&target, None, &Span::disabled()).await.unwrap() };
    let began = tokio::time::Instant::now();
    let _ = tokio::join!(
        patch(&requests, WriteTarget::Attachment("claimed".into())),
        patch(&requests, WriteTarget::AttachmentStatus("attached".into())),
        patch(&requests, WriteTarget::Volume("protected".into())),
        read,
    );
    assert_eq!(began.elapsed(), Duration::from_secs(1));
}

/// A node on which many volumes need a Secret does not keep another one waiting.
#[tokio::test(start_paused = true)]
async fn reads_are_for_a_node_too() {
    let log = Log::default();
    let requests = requests(&log);
    let read = async |name: &str, node: &str| {
        let reference = SecretReference {
            namespace: "default".into(),
            name: name.into(),
        };
        let (node, span) = (node.into(), Span::disabled());
        let secret = requests.get::<SecretWire>(&reference, Some(&node), &span);
        secret.await.unwrap();
    };
    tokio::join!(
        read("busy-1", "busy"),
        read("busy-2", "busy"),
        read("busy-3", "busy"),
        read("busy-4", "busy"),
        read("other", "other"),
    );
    assert_eq!(*log.lock(), ["busy-1", "busy-2", "other", "busy-3", "busy-4"]);
}
