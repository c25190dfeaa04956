//! Looks into a cache that is filled by hand, with an API server that knows CSIDrivers only.

use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::apiserver::Requests;
use crate::cache::{Registration, Route, Store};
use crate::decide::{Capabilities, DriverFacts};
use crate::objects::{Attachment, CsiNode, PersistentVolumeWire, Volume, VolumeAttachmentWire};
use crate::queue::{Backoff, Builder};
use crate::telemetry::Metrics;
use csi_attacher_model::findings::FindingKind;
use csi_attacher_testbed::api_answers::{not_found, refusal};

const DRIVER: &str = "d.csi.test";
const FINALIZER: &str = "external-attacher/d-csi-test";

/// CSIDrivers by name: `attachRequired`.
type CsiDrivers = Arc<Mutex<HashMap<String, bool>>>;

fn client(drivers: CsiDrivers) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let known = drivers.lock().get(&name).copied();
        let (status, body) = match known {
            Some(required) => (
                StatusCode::OK,
                json!({"metadata": {"name": name, "uid": "u"}, "spec": {"attachRequired": required}}),
            ),
            None => (StatusCode::NOT_FOUND, not_found(request.uri().path())),
        };
        let response = Response::builder()
            .status(status)
            .body(Body::from(body.to_string().into_bytes()));
        async move { response.map_err(std::io::Error::other) }
    });
    Client::new(service, "default")
}

/// An API server that has each request wait for 5 minutes, and counts them.
fn busy(asked: Arc<AtomicUsize>) -> Client {
    let service = tower::service_fn(move |_: Request<Body>| {
        asked.fetch_add(1, Ordering::Relaxed);
        let response = Response::builder()
            .status(StatusCode::TOO_MANY_REQUESTS)
            .header("retry-after", "300")
            .body(Body::from(refusal(429, "slow down").to_string().into_bytes()));
        async move { response.map_err(std::io::Error::other) }
    });
    Client::new(service, "default")
}

struct Scene {
    inspector: FindingsScanner,
    store: Store,
    metrics: Metrics,
    drivers: CsiDrivers,
    version: u64,
}

impl Scene {
    fn new() -> Self {
        let drivers = CsiDrivers::default();
        drivers.lock().insert(DRIVER.to_owned(), true);
        Self::with_client(client(drivers.clone()), drivers)
    }

    fn with_client(client: Client, drivers: CsiDrivers) -> Self {
        let metrics = Metrics::default();
        let context = SharedContext::new(
            Store::default(),
            Requests::new(client, "none", Duration::from_secs(1), metrics.clone()),
            metrics.clone(),
        );
        let settings = ScannerSettings {
            interval: Duration::from_secs(30),
            stuck_after: Duration::from_mins(5),
        };
        Self {
            inspector: FindingsScanner::new(&context, settings),
            store: context.store,
            metrics,
            drivers,
            version: 0,
        }
    }

    fn lead(&self, driver: &str) -> Registration {
        self.lead_with(driver, true)
    }

    fn lead_with(&self, driver: &str, publish_unpublish: bool) -> Registration {
        let capabilities = Capabilities {
            publish_unpublish,
            ..Capabilities::default()
        };
        let route = Route {
            facts: Arc::new(DriverFacts::new(driver, capabilities)),
            config: "config".into(),
            queue: Builder::new(Backoff::default()).build(),
            settled: Arc::new(|_, _, _| {}),
        };
        self.store.register(route).unwrap()
    }

    fn node(&self, name: &str) {
        self.store
            .apply(CsiNode::new(name, &[(DRIVER, "id"), ("other.csi.test", "id")]));
    }

    fn attachment(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.version += 1;
        let mut object = json!({
            "metadata": {
                "name": name, "uid": format!("{name}-uid"), "resourceVersion": self.version.to_string(),
                "creationTimestamp": at(0), "finalizers": [FINALIZER],
            },
            "spec": {"attacher": DRIVER, "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
            "status": {"attached": true},
        });
        change(&mut object);
        let wire: VolumeAttachmentWire = serde_json::from_value(object).unwrap();
        self.store.apply::<Attachment>(wire.into());
    }

    fn volume(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.version += 1;
        let mut object = json!({
            "metadata": {"name": name, "uid": format!("{name}-uid"), "resourceVersion": self.version.to_string()},
            "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": name}},
        });
        change(&mut object);
        let wire: PersistentVolumeWire = serde_json::from_value(object).unwrap();
        self.store.apply::<Volume>(wire.into());
    }

    async fn pass(&mut self, now: i64) -> bool {
        let led = self.store.drivers();
        self.inspector.keep(&led);
        self.inspector.read_csi_drivers().await;
        self.inspector.pass(&led, at(now)).await
    }

    fn gauge(&self, line: &str) -> String {
        let text = self.metrics.encode_openmetrics();
        let found = text.lines().find_map(|found| found.strip_prefix(line));
        found.unwrap_or("none").trim().to_owned()
    }

    fn counts<const KINDS: usize>(&self, kinds: [FindingKind; KINDS]) -> [String; KINDS] {
        kinds.map(|kind| self.count(kind))
    }

    fn is_told(&self) -> bool {
        self.inspector.insights.summary(DRIVER).is_some()
    }

    fn count(&self, kind: FindingKind) -> String {
        let line = format!(
            "csi_attacher_findings{{driver_name=\"{DRIVER}\",kind=\"{}\"}}",
            kind.as_str()
        );
        self.gauge(&line)
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

#[tokio::test]
async fn every_gauge_begins_at_zero_and_goes_with_the_driver() {
    let mut scene = Scene::new();
    let leads = scene.lead(DRIVER);
    assert!(scene.pass(0).await, "nothing waits");
    for kind in FindingKind::of_role(true) {
        assert_eq!(scene.count(kind), "0");
    }
    assert!(scene.is_told());
    drop(leads);
    scene.inspector.scan(false).await;
    assert_eq!(scene.count(FindingKind::NodeGone), "none");
    assert!(!scene.is_told());
}

#[tokio::test]
async fn what_is_around_an_attachment_is_seen() {
    let mut scene = Scene::new();
    let _leads = scene.lead(DRIVER);
    scene.node("n");
    scene.node("m");
    scene.volume("pv", |_| {});
    scene.attachment("one", |_| {});
    scene.attachment("lost", |it| {
        it["spec"]["source"]["persistentVolumeName"] = json!("nowhere");
    });
    scene.attachment("else", |it| it["spec"]["nodeName"] = json!("gone"));
    scene.attachment("other", |it| it["spec"]["attacher"] = json!("other.csi.test"));
    // What has been told stays as it is while the objects do.
    for (now, lasts) in [(1000, false), (2000, true)] {
        assert_eq!(scene.pass(now).await, lasts, "at {now}");
    }
    // "one" and "else" have the same volume.
    for (kind, count) in [
        (FindingKind::AttachedTwice, "2"),
        (FindingKind::VolumeGone, "1"),
        (FindingKind::NodeGone, "1"),
        (FindingKind::DriverNotOnNode, "0"),
        (FindingKind::AttachStuck, "0"),
    ] {
        assert_eq!(scene.count(kind), count, "{kind:?}");
    }
    for name in ["else", "lost"] {
        let target = crate::decide::patch::WriteTarget::Attachment(name.into());
        scene.store.mark_deleted(&target, &format!("{name}-uid"));
    }
    assert!(scene.pass(2001).await, "all is well again");
    let now = scene.counts([FindingKind::AttachedTwice, FindingKind::NodeGone]);
    assert_eq!(now, ["0", "0"]);
}

/// How many are found to be attached twice, where PersistentVolume pv-a of handle h is attached to node n, and pv-b has
/// the same handle. `change` adds the rest.
async fn attached_twice(change: impl FnOnce(&mut Scene)) -> String {
    let mut scene = Scene::new();
    let _leads = scene.lead(DRIVER);
    for (node, volume) in [("n", "pv-a"), ("m", "pv-b")] {
        scene.node(node);
        scene.volume(volume, |it| it["spec"]["csi"]["volumeHandle"] = json!("h"));
    }
    scene.attachment("a", |it| it["spec"]["source"] = json!({"persistentVolumeName": "pv-a"}));
    change(&mut scene);
    scene.pass(1000).await;
    scene.count(FindingKind::AttachedTwice)
}

/// The attachment "b" of pv-b to node m.
fn beside(scene: &mut Scene, change: impl FnOnce(&mut Value)) {
    scene.attachment("b", |it| {
        it["spec"]["source"] = json!({"persistentVolumeName": "pv-b"});
        it["spec"]["nodeName"] = json!("m");
        change(it);
    });
}

/// The driver knows a volume by its handle, whatever the PersistentVolumes are called.
#[tokio::test]
async fn one_volume_under_two_names_is_attached_twice() {
    assert_eq!(attached_twice(|_| {}).await, "0");
    assert_eq!(attached_twice(|scene| beside(scene, |_| {})).await, "2");
    let at_the_same_node = |scene: &mut Scene| beside(scene, |it| it["spec"]["nodeName"] = json!("n"));
    assert_eq!(attached_twice(at_the_same_node).await, "0");
    let not_yet = |scene: &mut Scene| beside(scene, |it| it["status"]["attached"] = json!(false));
    assert_eq!(attached_twice(not_yet).await, "0");
    let leaving = |scene: &mut Scene| beside(scene, |it| it["metadata"]["deletionTimestamp"] = json!(at(900)));
    assert_eq!(attached_twice(leaving).await, "0");
    let by_another_driver = |scene: &mut Scene| beside(scene, |it| it["spec"]["attacher"] = json!("other.csi.test"));
    assert_eq!(attached_twice(by_another_driver).await, "0");
    // Where one of them may be at many nodes, the other is what is wrong.
    let for_many_nodes = |scene: &mut Scene| {
        scene.volume("pv-b", |it| {
            it["spec"]["accessModes"] = json!(["ReadWriteMany"]);
            it["spec"]["csi"]["volumeHandle"] = json!("h");
        });
        beside(scene, |_| {});
    };
    assert_eq!(attached_twice(for_many_nodes).await, "1");
    // As a migrated volume in the spec of a pod.
    let in_line = |scene: &mut Scene| {
        beside(scene, |it| {
            it["spec"]["source"] = json!({"inlineVolumeSpec": {
                "accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": "h"},
            }});
        });
    };
    assert_eq!(attached_twice(in_line).await, "2");
}

/// The API server says when something was written, and its clock may be ahead.
#[tokio::test]
async fn what_a_sidecar_wrote_before_it_handed_over_is_no_other_attacher() {
    let mut scene = Scene::new();
    let _leads = scene.lead(DRIVER);
    let write = |scene: &mut Scene, time: i64| {
        scene.attachment("va", |it| {
            it["metadata"]["managedFields"] =
                json!([{"manager": "csi-attacher", "subresource": "status", "time": at(time)}]);
        });
    };
    write(&mut scene, 1030);
    for now in [1000, 1025] {
        scene.pass(now).await;
        assert_eq!(scene.count(FindingKind::OtherAttacher), "0", "at {now}");
    }
    write(&mut scene, 1060);
    scene.pass(1030).await;
    assert_eq!(scene.count(FindingKind::OtherAttacher), "1");
}

#[tokio::test]
async fn of_two_attachments_of_an_in_line_volume_the_older_is_left_over() {
    let mut scene = Scene::new();
    let _leads = scene.lead(DRIVER);
    scene.node("n");
    scene.node("m");
    let inline = |handle: &str| {
        json!({"inlineVolumeSpec": {
            "accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": handle},
        }})
    };
    scene.attachment("old", |it| it["spec"]["source"] = inline("h"));
    scene.attachment("alone", |it| it["spec"]["source"] = inline("other"));
    scene.attachment("new", |it| {
        it["spec"]["source"] = inline("h");
        it["spec"]["nodeName"] = json!("m");
        it["metadata"]["creationTimestamp"] = json!(at(500));
    });
    for now in [1000, 2000] {
        scene.pass(now).await;
    }
    assert_eq!(scene.count(FindingKind::InlineLeftOver), "1");
    let summary = scene.inspector.insights.summary(DRIVER).unwrap();
    let example = summary.example(FindingKind::InlineLeftOver).unwrap();
    assert!(
        example.contains("VolumeAttachment old") && example.contains("node m"),
        "{example}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_csidriver_is_read_now_and_then() {
    use FindingKind::{AttachNotRequired, CSIDriverMissing, LeftOver};
    let mut scene = Scene::new();
    let _leads = scene.lead(DRIVER);
    scene.node("n");
    scene.volume("pv", |_| {});
    scene.attachment("va", |_| {});
    scene.drivers.lock().clear();
    for (now, lasts) in [(0, false), (1000, true)] {
        assert_eq!(scene.pass(now).await, lasts, "at {now}");
    }
    assert_eq!(scene.counts([CSIDriverMissing, LeftOver]), ["1", "0"]);
    // It is made, but wrongly; it is looked for again after a minute or so.
    scene.drivers.lock().insert(DRIVER.to_owned(), false);
    scene.pass(1001).await;
    assert_eq!(scene.count(CSIDriverMissing), "1", "it is not read in each pass");
    tokio::time::advance(Duration::from_secs(70)).await;
    for now in [1002, 2002] {
        scene.pass(now).await;
    }
    assert_eq!(scene.count(CSIDriverMissing), "0");
    assert_eq!(scene.counts([AttachNotRequired, LeftOver]), ["1", "1"]);
    // Volumes that need no attach are provisioned, and what is left over of attaching is told all the same.
    let provisions = ConfiguredDriver {
        provisions: true,
        ..configured()
    };
    scene.inspector.insights.set_configs(vec![provisions]);
    scene.pass(2003).await;
    assert_eq!(scene.counts([AttachNotRequired, LeftOver]), ["0", "1"]);
    scene.drivers.lock().insert(DRIVER.to_owned(), true);
    tokio::time::advance(Duration::from_secs(70)).await;
    assert!(scene.pass(2004).await);
    assert_eq!(scene.counts([AttachNotRequired, LeftOver]), ["0", "0"]);
}

/// The next driver would wait for as long, and so would what is found of all.
#[tokio::test(start_paused = true)]
async fn what_is_found_does_not_wait_for_an_api_server_that_asks_to_wait() {
    let asked = Arc::<AtomicUsize>::default();
    let mut scene = Scene::with_client(busy(asked.clone()), CsiDrivers::default());
    let _leads = [DRIVER, "other.csi.test", "third.csi.test"].map(|driver| scene.lead(driver));
    scene.volume("pv", |_| {});
    scene.attachment("va", |_| {});
    for (now, limit) in [(1000, Duration::ZERO), (2000, READ_LIMIT)] {
        let began = Instant::now();
        scene.pass(now).await;
        let took = began.elapsed();
        assert!(took <= limit + Duration::from_secs(1), "{now}: {took:?}");
    }
    assert_eq!(scene.count(FindingKind::NodeGone), "1");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// The endpoint may be the node plugin of a driver that attaches. Where the CSIDriver says that it does not attach, or cannot be read, nothing
/// is wrong.
#[tokio::test(start_paused = true)]
async fn a_driver_without_calls_whose_volumes_are_to_be_attached_is_told() {
    use FindingKind::{AttachedWithoutCall, CSIDriverMissing};
    for (publishes, attach_required, counts) in [
        (true, Some(true), ["0", "0"]),
        (false, Some(true), ["1", "0"]),
        (false, None, ["1", "1"]),
        (true, None, ["0", "1"]),
        (false, Some(false), ["0", "0"]),
    ] {
        let row = format!("publishes: {publishes}, attachRequired: {attach_required:?}");
        let mut scene = Scene::new();
        let _leads = scene.lead_with(DRIVER, publishes);
        scene.drivers.lock().clear();
        let made = attach_required.map(|required| (DRIVER.to_owned(), required));
        scene.drivers.lock().extend(made);
        for now in [0, 1000] {
            scene.pass(now).await;
        }
        assert_eq!(scene.counts([AttachedWithoutCall, CSIDriverMissing]), counts, "{row}");
        let summary = scene.inspector.insights.summary(DRIVER).unwrap();
        let words = summary.example(AttachedWithoutCall).unwrap_or_default();
        for part in ["spec.endpoint", "node plugin", "attachRequired: false"] {
            assert_eq!(words.contains(part), counts[0] == "1", "{row}: {words}");
        }
        // It is made as it should be, which is seen soon.
        scene.drivers.lock().insert(DRIVER.to_owned(), publishes);
        tokio::time::advance(Duration::from_secs(70)).await;
        scene.pass(1001).await;
        assert_eq!(
            scene.counts([AttachedWithoutCall, CSIDriverMissing]),
            ["0", "0"],
            "{row}"
        );
    }
}

/// Led by another replica, or not connected yet.
fn configured() -> ConfiguredDriver {
    ConfiguredDriver {
        driver: DRIVER.to_owned(),
        reports: false,
        name: "config".to_owned(),
        uid: "uid".to_owned(),
        provisions: false,
    }
}

#[tokio::test]
async fn what_waits_for_a_driver_without_an_attacherconfig_is_counted() {
    let mut scene = Scene::new();
    let attachments = "csi_attacher_unserved{resource=\"volumeattachments\"}";
    let volumes = "csi_attacher_unserved{resource=\"persistentvolumes\"}";
    let other = |it: &mut Value| {
        it["spec"]["attacher"] = json!("other.csi.test");
        it["metadata"]["finalizers"] = json!(["external-attacher/other-csi-test"]);
    };
    // A sidecar serves this one.
    scene.attachment("served", other);
    scene.attachment("waits", |it| {
        other(it);
        it["status"]["attached"] = json!(false);
    });
    scene.attachment("leaves", |it| {
        other(it);
        it["metadata"]["deletionTimestamp"] = json!(at(100));
    });
    scene.attachment("standby", |it| it["status"]["attached"] = json!(false));
    for (name, finalizer) in [
        ("kept", "external-attacher/other-csi-test"),
        ("own", FINALIZER),
        ("foreign", "kubernetes.io/pv-protection"),
    ] {
        scene.volume(name, |it| {
            it["metadata"]["deletionTimestamp"] = json!(at(100));
            it["metadata"]["finalizers"] = json!([finalizer]);
        });
    }
    scene.pass(1000).await;
    assert_eq!(
        scene.gauge(attachments),
        "none",
        "in place of a sidecar nobody asks about other drivers"
    );
    scene.inspector.insights.set_configs(vec![configured()]);
    for (now, waiting, kept) in [(200, "0", "0"), (301, "1", "0"), (401, "2", "0"), (501, "2", "1")] {
        assert!(!scene.pass(now).await);
        assert_eq!(
            (&*scene.gauge(attachments), &*scene.gauge(volumes)),
            (waiting, kept),
            "at {now}"
        );
    }
}

#[tokio::test]
async fn a_quiet_cluster_is_not_looked_at_again() {
    let mut scene = Scene::new();
    let _leads = scene.lead(DRIVER);
    scene.node("n");
    scene.volume("pv", |_| {});
    scene.attachment("va", |_| {});
    scene.inspector.scan(true).await;
    let quiet = scene.inspector.quiet_at;
    assert_eq!(quiet, Some((scene.store.generation(), 0)));
    // What a look finds is put aside here, to see whether there is another one.
    scene.inspector.insights.0.lock().summaries.remove(DRIVER);
    assert!(!scene.is_told());
    scene.inspector.scan(false).await;
    assert!(!scene.is_told(), "nothing changed");
    scene.inspector.insights.set_configs(vec![]);
    scene.inspector.scan(false).await;
    assert!(scene.is_told(), "an AttacherConfig may have gone");
    scene.inspector.insights.0.lock().summaries.remove(DRIVER);
    scene.inspector.insights.set_configs(vec![]);
    scene.inspector.scan(false).await;
    assert!(!scene.is_told(), "again nothing changed");
    scene.attachment("more", |it| it["spec"]["nodeName"] = json!("gone"));
    scene.inspector.scan(false).await;
    assert!(scene.is_told());
    assert_eq!(scene.inspector.quiet_at, None, "the finding waits for its time");
}
