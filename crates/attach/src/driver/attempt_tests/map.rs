//! Attaches for `tests/attach-map`, which runs this test under a profiler that counts calls: from the watch of a real client to the
//! status, one attach after the other.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use kube::Client;

use super::*;
use crate::api::PublishSecretsSpec;
use crate::cache::Index;
use crate::objects::CsiNodeWire;
use crate::reflect::{CachedKind, WatchedKind, reflect};
use csi_attacher_base::health::Health;
use csi_attacher_kube::lease::{Clock, LeaseRules, LeaseTimings};
use csi_attacher_testbed::ShiftedClock;
use tokio_util::task::AbortOnDropHandle;

const NODES: &str = "/apis/storage.k8s.io/v1/csinodes/";

/// Lists and watches for the three kinds; all else is answered by [`serve`].
async fn serve_watches(State(api): State<Arc<Api>>, request: Request) -> Response {
    let prefix = format!("{}/", request.uri().path());
    if ![VOLUMES, ATTACHMENTS, NODES].contains(&&*prefix) {
        return serve(State(api), request).await;
    }
    let query = request.uri().query().unwrap_or_default();
    if !query.contains("watch=true") {
        let items = later_than(&api, &prefix, 0);
        let list = json!({"metadata": {"resourceVersion": api.version.lock().to_string()}, "items": items});
        return axum::Json(list).into_response();
    }
    let seen = query
        .split('&')
        .find_map(|field| field.strip_prefix("resourceVersion="));
    let seen: u64 = seen.and_then(|version| version.parse().ok()).unwrap_or(0);
    let changes = api.changes.subscribe();
    let events = stream::unfold(
        (api, prefix, seen, changes),
        |(api, prefix, mut seen, mut changes)| async move {
            loop {
                let objects = later_than(&api, &prefix, seen);
                if objects.is_empty() {
                    changes.changed().await.ok()?;
                    continue;
                }
                seen = objects.iter().map(version).max().unwrap_or(seen);
                let lines: Vec<String> = objects
                    .into_iter()
                    .map(|object| json!({"type": "MODIFIED", "object": object}).to_string() + "\n")
                    .collect();
                return Some((
                    Ok::<_, Infallible>(Bytes::from(lines.concat())),
                    (api, prefix, seen, changes),
                ));
            }
        },
    );
    Body::from_stream(events).into_response()
}

fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn later_than(api: &Api, prefix: &str, seen: u64) -> Vec<Value> {
    let objects = api.objects.lock();
    let of_kind = objects.iter().filter(|(path, _)| path.starts_with(prefix));
    let mut later: Vec<Value> = of_kind.map(|(_, object)| object.clone()).collect();
    later.retain(|object| version(object) > seen);
    later.sort_by_key(version);
    later
}

fn watching<K: WatchedKind>(client: Client, store: &Store) -> AbortOnDropHandle<()>
where
    K::Record: CachedKind<Index>,
{
    let reflecting = reflect::<K, _>(client, store.clone(), Health::new().check(K::PLURAL));
    AbortOnDropHandle::new(tokio::spawn(reflecting))
}

/// So many attaches as ATTACHES says, each of a volume of its own with a Secret.
#[tokio::test]
#[ignore = "tests/attach-map runs it"]
async fn attaches_to_be_counted() {
    let count: usize = std::env::var("ATTACHES").unwrap().parse().unwrap();
    // valgrind does not know how the clock of the machine is read.
    let clock = Clock::from(ShiftedClock::default().source());
    let timings = LeaseTimings::new(Duration::from_hours(2), Duration::from_hours(1), Duration::from_secs(2));
    let term = Term::new(LeaseRules::default(), clock.clone(), timings.unwrap(), clock.now());
    let api = Arc::new(Api::default());
    let fixture = AttemptFixture::in_term(Some(term), api.clone(), DRIVER, Tracer::disabled(), |spec| {
        spec.publish_secrets = vec![PublishSecretsSpec {
            namespace: "n".to_owned(),
            names: None,
        }];
        spec.timeouts.publish = "10m".parse().unwrap();
    });
    let fixture = fixture.await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap();
    let router = axum::Router::new().fallback(serve_watches).with_state(api.clone());
    tokio::spawn(axum::serve(listener, router).into_future());
    let client = connect(&kube::Config::new(format!("http://{host}").parse().unwrap())).unwrap();
    let _watches = [
        watching::<VolumeAttachmentWire>(client.clone(), &fixture.store),
        watching::<PersistentVolumeWire>(client.clone(), &fixture.store),
        watching::<CsiNodeWire>(client, &fixture.store),
    ];
    let node = json!({
        "metadata": {"name": "n0", "uid": "n0"},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": "id0", "topologyKeys": null}]},
    });
    api.put(format!("{NODES}n0"), node);
    api.put(
        "/api/v1/namespaces/n/secrets/s".to_owned(),
        json!({"metadata": {"name": "s"}, "data": {"k": "dg=="}}),
    );
    for number in 0..count {
        let (volume, name) = (format!("pv{number}"), format!("va{number}"));
        let source = json!({"driver": DRIVER, "volumeHandle": format!("h{number}"),
            "controllerPublishSecretRef": {"namespace": "n", "name": "s"}});
        api.put(
            format!("{VOLUMES}{volume}"),
            json!({"metadata": {"name": volume, "uid": volume}, "spec": {"accessModes": ["ReadWriteOnce"], "csi": source}}),
        );
        api.changes.send_replace(());
        tokio::time::sleep(Duration::from_millis(100)).await;
        let attachment = json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"attacher": DRIVER, "nodeName": "n0", "source": {"persistentVolumeName": volume}},
        });
        api.put(format!("{ATTACHMENTS}{name}"), attachment);
        api.changes.send_replace(());
        let attached = async {
            while !AttemptFixture::is_attached(&api, &name) || !fixture.engine.queue().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(10 * LIMIT, attached).await.expect("in time");
    }
    assert_eq!(fixture.calls(PUBLISH), count);
}
