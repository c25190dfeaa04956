//! Attachments whose volumes name Secrets, against a model of the API server in virtual time.

use futures::StreamExt as _;
use futures::future::BoxFuture;
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::admin::Health;
use crate::api::PublishSecretsSpec;
use crate::api::condition::Reason;
use crate::csi::CallError;
use crate::decide::{Place, PublishRequest};
use crate::driver::calls::Calls;
use crate::kubernetes::SecretData;
use crate::objects::StringMap;
use crate::store::follow_from_list;
use crate::telemetry::Span;

type Watched = watcher::Result<Event<VolumeAttachmentWire>>;

/// A driver that answers OK, and keeps the keys of the secrets that it is given.
#[derive(Default)]
struct Recorder {
    given: Mutex<Vec<(&'static str, Vec<String>)>>,
}

impl Recorder {
    fn note(&self, method: &'static str, secrets: Option<&SecretData>) {
        let keys = secrets.map(|secrets| secrets.expose().keys().cloned().collect());
        self.given.lock().push((method, keys.unwrap_or_default()));
    }
}

impl Calls for Recorder {
    fn publish<'a>(
        &'a self,
        _plan: &'a PublishRequest<'_>,
        secrets: Option<&'a SecretData>,
        _deadline: Duration,
        _parent: &'a Span,
    ) -> BoxFuture<'a, Result<StringMap, CallError>> {
        self.note("publish", secrets);
        Box::pin(std::future::ready(Ok(StringMap::default())))
    }

    fn unpublish<'a>(
        &'a self,
        _place: Place<'a>,
        secrets: Option<&'a SecretData>,
        _deadline: Duration,
        _parent: &'a Span,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        self.note("unpublish", secrets);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// One engine, its API server and the watch of attachments.
struct Scene {
    api: Arc<Api>,
    driver: Arc<Recorder>,
    store: Store,
    engine: Engine,
    settings: watch::Sender<Arc<DriverConfig>>,
    status: watch::Receiver<DriverStatus>,
    watch: mpsc::UnboundedSender<Watched>,
    _watch: AbortOnDropHandle<()>,
}

impl Scene {
    fn new(edit: impl FnOnce(&mut AttacherConfigSpec)) -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        let api = Arc::new(Api::default());
        let router = axum::Router::new().fallback(serve).with_state(api.clone());
        let service = tower::ServiceBuilder::new()
            .map_request(|request: Request<kube::client::Body>| request.map(axum::body::Body::new))
            .service(router);
        let metrics = Metrics::default();
        let context = Context {
            store: Store::default(),
            events: Events::disabled(),
            requests: Requests::new(kube::Client::new(service, "default"), "model", LIMIT, metrics.clone()),
            metrics,
            tracers: Tracers::from(Tracer::disabled()),
            logs: crate::telemetry::DriverLogs::default(),
            config_trace: crate::driver::ConfigTrace::default(),
        };
        let mut spec = AttacherConfigSpec::new("unix:///model");
        edit(&mut spec);
        let (settings, seen) = watch::channel(Arc::new(DriverConfig::try_from(&spec).unwrap()));
        let able = Capabilities {
            publish_unpublish: true,
            ..Capabilities::default()
        };
        let facts = DriverFacts::new(DRIVER, able);
        let (status, told) = watch::channel(DriverStatus::new());
        let (store, driver) = (context.store.clone(), Arc::new(Recorder::default()));
        let calls: Arc<dyn Calls> = driver.clone();
        let engine = Engine::start(context, seen, "config".into(), facts, calls, Publisher::new(status));
        let Ok(engine) = engine else { panic!("conflict") };
        let (events, receiver) = mpsc::unbounded_channel::<Watched>();
        let mut receiver = Some(receiver);
        let stream = move || {
            let receiver = receiver.take().expect("listed once");
            futures::stream::unfold(receiver, |mut receiver| async {
                receiver.recv().await.map(|event| (event, receiver))
            })
            .boxed()
        };
        let following = follow_from_list(stream, store.clone(), Health::new().check("watch"));
        let scene = Self {
            api,
            driver,
            store,
            engine,
            settings,
            status: told,
            watch: events,
            _watch: AbortOnDropHandle::new(tokio::spawn(following)),
        };
        scene.list(&[]);
        scene.store.apply_node(CsiNode::new("n", &[(DRIVER, "id")]));
        scene
    }

    fn send(&self, event: Event<VolumeAttachmentWire>) {
        self.watch.send(Ok(event)).unwrap();
    }

    /// The watch lists anew and sees these objects only.
    fn list(&self, objects: &[Value]) {
        self.send(Event::Init);
        for object in objects {
            self.send(Event::InitApply(wire(object)));
        }
        self.send(Event::InitDone);
    }

    /// Makes or changes a volume, whose Secret is of this namespace and name.
    fn volume(&self, name: &str, secret: Option<(&str, &str)>) {
        let reference = secret.map(|(namespace, name)| json!({"namespace": namespace, "name": name}));
        let object = json!({
            "metadata": {"name": name, "uid": format!("{name}-uid"), "finalizers": [FINALIZER]},
            "spec": {"accessModes": ["ReadWriteMany"], "csi": {"driver": DRIVER, "volumeHandle": name,
                "controllerPublishSecretRef": reference}},
        });
        let object = self.api.put(format!("{VOLUMES}{name}"), object);
        self.store
            .apply_volume(serde_json::from_value::<PersistentVolumeWire>(object).unwrap().into());
    }

    /// Makes an attachment of the volume of the same name.
    fn attachment(&self, name: &str, metadata: &Value) -> Value {
        let mut object = json!({
            "metadata": {"name": name, "uid": format!("{name}-uid")},
            "spec": {"attacher": DRIVER, "nodeName": "n", "source": {"persistentVolumeName": name}},
        });
        json_patch::merge(&mut object, &json!({"metadata": metadata}));
        let object = self.api.put(format!("{ATTACHMENTS}{name}"), object);
        self.send(Event::Apply(wire(&object)));
        object
    }

    fn deleted(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        self.api.objects.lock().remove(&format!("{ATTACHMENTS}{name}"));
        self.send(Event::Delete(wire(object)));
    }

    fn secret(&self, namespace: &str, name: &str) {
        let object = json!({"metadata": {"name": name, "namespace": namespace}, "data": {name: "c2VjcmV0"}});
        self.api.put(format!("/api/v1/namespaces/{namespace}/secrets/{name}"), object);
    }

    /// Reads of Secrets so far.
    fn reads(&self) -> Vec<String> {
        let reads = self.api.reads.lock();
        reads.iter().filter(|path| path.contains("/secrets/")).cloned().collect()
    }

    fn waiting(&self) -> Option<usize> {
        self.status.borrow().withheld.as_ref().map(|withheld| withheld.attachments)
    }
}

/// Settings by which the driver may be given all Secrets of these namespaces.
fn allowing(namespaces: &[&str]) -> impl FnOnce(&mut AttacherConfigSpec) + use<> {
    let entry = |namespace: &&str| PublishSecretsSpec {
        namespace: (*namespace).to_owned(),
        names: None,
    };
    let entries = namespaces.iter().map(entry).collect();
    move |spec| spec.publish_secrets = entries
}

fn wire(object: &Value) -> VolumeAttachmentWire {
    serde_json::from_value(object.clone()).unwrap()
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn missing_secrets_of_attachments_that_are_gone_are_asked_for_no_more() {
    let scene = Scene::new(allowing(&["ns"]));
    let names: Vec<String> = (0..200).map(|number| format!("va{number}")).collect();
    let made: Vec<Value> = names
        .iter()
        .map(|name| {
            scene.volume(name, Some(("ns", name)));
            scene.attachment(name, &json!({}))
        })
        .collect();
    seconds(60).await;
    let asked = scene.reads().len();
    assert!(asked >= 200, "each Secret was asked for: {asked}");
    made.iter().for_each(|object| scene.deleted(object));
    seconds(10).await;
    let before = scene.reads().len();
    seconds(600).await;
    assert_eq!(scene.reads().len() - before, 0, "reads in ten minutes without an attachment");
}

#[tokio::test(start_paused = true)]
async fn the_condition_about_a_secret_ends_with_the_attachment() {
    let scene = Scene::new(allowing(&["ns"]));
    scene.api.secrets_forbidden.store(true, Ordering::SeqCst);
    scene.volume("va0", Some(("ns", "s")));
    let made = scene.attachment("va0", &json!({}));
    seconds(1).await;
    assert_eq!(scene.waiting(), Some(1));
    scene.deleted(&made);
    seconds(1).await;
    assert_eq!(scene.waiting(), None, "attachments that wait, of none that are there");
}

/// The watch had a gap, and the list after it does not show the attachments any more.
#[tokio::test(start_paused = true)]
async fn nothing_waits_for_an_attachment_that_a_list_does_not_show() {
    let scene = Scene::new(allowing(&["ns"]));
    scene.api.secrets_forbidden.store(true, Ordering::SeqCst);
    for name in ["va0", "va1"] {
        scene.volume(name, Some(("ns", name)));
        scene.attachment(name, &json!({}));
    }
    seconds(60).await;
    assert_eq!(scene.waiting(), Some(2));
    scene.api.objects.lock().retain(|path, _| !path.starts_with(ATTACHMENTS));
    scene.list(&[]);
    seconds(1).await;
    assert_eq!(scene.waiting(), None);
    let before = scene.reads().len();
    seconds(600).await;
    assert_eq!(scene.reads().len(), before);
}

/// A volume that is made anew under its name has another Secret, or none, or is another driver's.
#[tokio::test(start_paused = true)]
async fn nothing_waits_for_a_secret_that_the_volume_does_not_name_any_more() {
    let scene = Scene::new(|spec| {
        allowing(&["ns"])(spec);
        // Only an event brings about a second try.
        (spec.backoff.initial, spec.backoff.max) = ("1h".parse().unwrap(), "1h".parse().unwrap());
    });
    scene.api.secrets_forbidden.store(true, Ordering::SeqCst);
    scene.volume("va0", Some(("ns", "first")));
    scene.attachment("va0", &json!({}));
    seconds(30).await;
    assert_eq!(scene.waiting(), Some(1));
    scene.volume("va0", Some(("ns", "second")));
    seconds(10).await;
    let first_of = |reads: &[String]| reads.iter().filter(|path| path.ends_with("/first")).count();
    let before = first_of(&scene.reads());
    seconds(60).await;
    assert_eq!(first_of(&scene.reads()), before, "reads of the Secret that is named no more");
    assert_eq!(scene.waiting(), Some(1), "for the other one");
    scene.volume("va0", Some(("elsewhere", "third")));
    seconds(10).await;
    let before = scene.reads().len();
    seconds(60).await;
    assert_eq!((scene.reads().len(), scene.waiting()), (before, Some(1)), "that is not allowed");
    let gone = scene.api.get(&format!("{VOLUMES}va0")).unwrap();
    let mut others = gone.clone();
    others["spec"]["csi"]["driver"] = "another.test".into();
    let others = scene.api.put(format!("{VOLUMES}va0"), others);
    scene
        .store
        .apply_volume(serde_json::from_value::<PersistentVolumeWire>(others).unwrap().into());
    seconds(10).await;
    assert_eq!((scene.reads().len(), scene.waiting()), (before, None), "of a volume of another driver");
    scene.volume("va0", None);
    seconds(10).await;
    assert_eq!(*scene.driver.given.lock(), [("publish", Vec::new())]);
    assert_eq!((scene.reads().len(), scene.waiting()), (before, None));
}

/// However many Secrets are missing, a few are asked for in a second, in turns; with news of each in the end.
#[tokio::test(start_paused = true)]
async fn looks_at_missing_secrets_are_few_and_in_turns() {
    let scene = Scene::new(|spec| {
        allowing(&["ns"])(spec);
        (spec.backoff.initial, spec.backoff.max) = ("24h".parse().unwrap(), "24h".parse().unwrap());
    });
    let names: Vec<String> = (0..300).map(|number| format!("va{number:03}")).collect();
    for name in &names {
        scene.volume(name, Some(("ns", name)));
        scene.attachment(name, &json!({}));
    }
    seconds(10).await;
    let before = scene.reads().len();
    seconds(600).await;
    let reads = scene.reads().split_off(before);
    assert!(reads.len() <= 4 * 600 + 1, "{} looks in ten minutes", reads.len());
    let looked_at: std::collections::BTreeSet<&String> = reads.iter().collect();
    assert_eq!(looked_at.len(), 256, "Secrets that are looked at");
    let least = looked_at.iter().map(|path| reads.iter().filter(|read| read == path).count()).min();
    assert!(least >= Some(8), "each has its turn: {least:?}");
    // What a look finds is acted on at once.
    let name = looked_at.iter().next_back().unwrap().rsplit('/').next().unwrap().to_owned();
    scene.secret("ns", &name);
    seconds(70).await;
    assert!(Stage::is_attached(&scene.api, &name));
}

/// With a limit of requests that the work uses up, nothing is left for looks.
#[tokio::test(start_paused = true)]
async fn looks_leave_the_limit_of_requests_to_the_work() {
    let scene = Scene::new(|spec| {
        allowing(&["ns"])(spec);
        (spec.backoff.initial, spec.backoff.max) = ("24h".parse().unwrap(), "24h".parse().unwrap());
        (spec.kubernetes_api.qps, spec.kubernetes_api.burst) = (5, 5);
    });
    for number in 0..200 {
        let name = format!("va{number}");
        scene.volume(&name, Some(("ns", &name)));
        scene.attachment(&name, &json!({}));
    }
    // A read and a write each.
    seconds(100).await;
    let looks = scene.reads().len();
    // Two writes each: 20 seconds.
    for number in 0..50 {
        let name = format!("work{number}");
        scene.volume(&name, None);
        scene.attachment(&name, &json!({}));
    }
    let began = tokio::time::Instant::now();
    let all = |api: &Api| (0..50).all(|number| Stage::is_attached(api, &format!("work{number}")));
    while !all(&scene.api) {
        seconds(1).await;
        assert!(began.elapsed() < Duration::from_secs(60), "the work waits behind looks");
    }
    assert!(began.elapsed() <= Duration::from_secs(21), "{:?}", began.elapsed());
    let during = scene.reads().len() - looks;
    assert!(during <= 3, "{during} looks while there was work");
    seconds(60).await;
    assert!(scene.reads().len() > looks + during + 100, "they go on afterwards");
}

#[tokio::test(start_paused = true)]
async fn a_driver_is_not_given_a_secret_that_its_attacherconfig_does_not_list() {
    let scene = Scene::new(allowing(&["of-driver-b"]));
    scene.secret("of-driver-a", "credentials");
    scene.volume("va0", Some(("of-driver-a", "credentials")));
    scene.attachment("va0", &json!({}));
    seconds(60).await;
    assert_eq!(scene.reads(), Vec::<String>::new());
    assert_eq!(*scene.driver.given.lock(), []);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_added_ends_the_wait_at_once() {
    let scene = Scene::new(|spec| {
        (spec.backoff.initial, spec.backoff.max) = ("24h".parse().unwrap(), "24h".parse().unwrap());
    });
    scene.secret("ns", "s");
    scene.volume("va0", Some(("ns", "s")));
    scene.attachment("va0", &json!({}));
    seconds(60).await;
    let told = scene.status.borrow().withheld.clone().expect("told");
    assert_eq!((told.reason, told.attachments), (Reason::SecretNotAllowed, 1));
    for part in ["Secret ns/s", "spec.publishSecrets of AttacherConfig config", "add {namespace: ns, names: [s]}"] {
        assert!(told.message.contains(part), "{part}: {}", told.message);
    }
    let stored = scene.api.get(&format!("{ATTACHMENTS}va0")).unwrap();
    assert_eq!(stored["status"]["attachError"]["message"], json!(told.message));
    assert_eq!(stored["metadata"]["finalizers"], Value::Null, "it is not claimed");

    let mut spec = AttacherConfigSpec::new("unix:///model");
    allowing(&["ns"])(&mut spec);
    let config = Arc::new(DriverConfig::try_from(&spec).unwrap());
    scene.settings.send_replace(config.clone());
    scene.engine.reconfigure(&config);
    seconds(1).await;
    assert!(Stage::is_attached(&scene.api, "va0"));
    assert_eq!(*scene.driver.given.lock(), [("publish", vec!["s".to_owned()])]);
    assert_eq!(scene.waiting(), None);
}

/// The list is shorter than it was when the volume was attached.
#[tokio::test(start_paused = true)]
async fn a_detach_may_use_the_secret_that_the_claim_noted_and_no_other() {
    let note = |note: &Value| {
        json!({"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations":
            {"csi.alpha.kubernetes.io/node-id": "id", "attacher.csi.dev/volume": note.to_string()}})
    };
    let noted = note(&json!({"handle": "va0", "secret": {"namespace": "ns", "name": "noted"}}));
    let without = note(&json!({"handle": "va0"}));
    let unnoted = json!({"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"csi.alpha.kubernetes.io/node-id": "id"}});
    let given = |name: &str| vec![("unpublish", vec![name.to_owned()])];
    // What the volume names and what the claim noted | what the driver is given.
    for (named, metadata, expected) in [
        (("ns", "noted"), &noted, given("noted")),
        (("of-driver-a", "credentials"), &noted, given("noted")),
        (("allowed", "new"), &noted, given("new")),
        (("of-driver-a", "credentials"), &without, vec![("unpublish", Vec::new())]),
        (("of-driver-a", "credentials"), &unnoted, Vec::new()),
    ] {
        let scene = Scene::new(allowing(&["allowed"]));
        for (namespace, name) in [("ns", "noted"), ("of-driver-a", "credentials"), ("allowed", "new")] {
            scene.secret(namespace, name);
        }
        scene.volume("va0", Some(named));
        scene.attachment("va0", metadata);
        seconds(30).await;
        assert_eq!(*scene.driver.given.lock(), expected, "{named:?} {metadata}");
        assert!(scene.reads().iter().all(|path| !path.contains("of-driver-a")), "{named:?} {metadata}");
        assert_eq!(scene.waiting().is_some(), expected.is_empty(), "{named:?} {metadata}");
    }
}

/// What was read for a volume is not sent for another one that took its name in the middle of the attempt.
#[tokio::test(start_paused = true)]
async fn a_secret_that_was_read_goes_with_the_volume_that_names_it() {
    let scene = Scene::new(allowing(&["ns"]));
    scene.secret("ns", "first");
    scene.secret("ns", "second");
    scene.volume("va0", Some(("ns", "first")));
    // The claim waits for us: after the Secret was read.
    scene.api.hold_attachments.store(true, Ordering::SeqCst);
    scene.attachment("va0", &json!({}));
    while scene.reads().is_empty() {
        tokio::task::yield_now().await;
    }
    seconds(1).await;
    scene.volume("va0", Some(("ns", "second")));
    scene.api.hold_attachments.store(false, Ordering::SeqCst);
    seconds(10).await;
    assert_eq!(*scene.driver.given.lock(), [("publish", vec!["second".to_owned()])]);
}
