//! Attempts against an API server and a driver in this process: what happens between an answer and the next decision.

use csi_attacher_runtime::Start;

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Barrier, watch};

mod api;
mod copies;
mod events;
mod kept;
mod lanes;
mod lease;
mod map;
mod neighbours;
mod release_requests;
mod releases;
mod secrets;
mod traces;
mod truth;
mod unsent;

use api::{Api, serve};

use super::SharedContext;
use super::engine::{self, Engine};
use crate::api::{AttacherConfigSpec, DriverConfig};
use crate::apiserver::{Requests, connect};
use crate::cache::Store;
use crate::csi::{CsiClient, DriverConnection};
use crate::decide::patch::WriteTarget;
use crate::decide::{Capabilities, DriverFacts, ReleaseWithoutCall, VolumeOnNode};
use crate::objects::{Attachment, CsiNode, PersistentVolumeWire, ResourceVersion, Volume, VolumeAttachmentWire};
use crate::telemetry::{Metrics, Tracer};
use csi_attacher_kube::lease::Term;
use csi_attacher_runtime::DriverState;
use csi_attacher_runtime::fence::FencedClient;
use csi_attacher_runtime::state::DriverStateSender;
use csi_mock_driver::{Method as Call, MockDriver, MockHandle};

const DRIVER: &str = "a.test";
const FINALIZER: &str = "external-attacher/a-test";
/// A driver whose volumes here are in-tree ones.
const GCE: &str = "pd.csi.storage.gke.io";
const GCE_FINALIZER: &str = "external-attacher/pd-csi-storage-gke-io";
/// A driver without ControllerPublishVolume.
const TRIVIAL: &str = "trivial.test";
/// A driver that can list where its volumes are.
const LISTING: &str = "list.test";
const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
const NOTE: &str = "attacher.csi.dev/volume";
const LIMIT: Duration = Duration::from_secs(20);
const VOLUMES: &str = "/api/v1/persistentvolumes/";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments/";
const DELETED: &str = "2026-01-01T00:00:00Z";
const PUBLISH: Call = Call::ControllerPublishVolume;
const UNPUBLISH: Call = Call::ControllerUnpublishVolume;

/// Starts an engine for the driver.
fn engine(
    context: &SharedContext,
    name: &'static str,
    settings: &watch::Sender<Arc<DriverConfig>>,
    term: Option<Term>,
) -> Engine {
    let connection = DriverConnection::new(&settings.borrow().endpoint);
    let client = CsiClient::new(connection, context.metrics.clone()).with_driver_name(name.into());
    let lists = name == LISTING;
    let capabilities = Capabilities {
        publish_unpublish: name != TRIVIAL,
        list_volumes: lists,
        list_volumes_published_nodes: lists,
        ..Capabilities::default()
    };
    let mut facts = DriverFacts::new(name, capabilities);
    if name == TRIVIAL {
        facts = facts.releasing(ReleaseWithoutCall::AttachNotRequired);
    }
    let status = DriverStateSender::new(watch::Sender::new(DriverState::default()));
    let client = FencedClient::new(client, term);
    let (context, settings) = (context.clone(), settings.subscribe());
    let start = Start {
        name: "config".into(),
        config: settings,
        facts,
        client,
        status,
    };
    let Ok(engine) = engine::start(context, start) else {
        panic!("conflict")
    };
    engine
}

struct AttemptFixture {
    name: &'static str,
    api: Arc<Api>,
    driver: MockHandle,
    store: Store,
    engine: Engine,
    metrics: Metrics,
    context: SharedContext,
    settings: watch::Sender<Arc<DriverConfig>>,
    _folder: tempfile::TempDir,
}

impl AttemptFixture {
    async fn of(api: Api) -> Self {
        Self::named(api, DRIVER).await
    }

    /// With a driver of this name.
    async fn named(api: Api, name: &'static str) -> Self {
        Self::with(api, name, |_| {}).await
    }

    /// A driver that is called again at once after a failure, and node n0.
    async fn retrying_fast() -> Self {
        let fixture = Self::with(Api::default(), DRIVER, |spec| retry(spec, "50ms", "200ms")).await;
        fixture.nodes(1);
        fixture
    }

    /// With a driver of this name and other settings than those of a bare AttacherConfig.
    async fn with(api: Api, name: &'static str, edit: impl FnOnce(&mut AttacherConfigSpec)) -> Self {
        Self::in_term(None, Arc::new(api), name, Tracer::disabled(), edit).await
    }

    /// In a term of the driver's Lease, with an API server that others may use too, and traces.
    async fn in_term(
        term: Option<Term>,
        api: Arc<Api>,
        name: &'static str,
        tracer: Tracer,
        edit: impl FnOnce(&mut AttacherConfigSpec),
    ) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let router = axum::Router::new().fallback(serve).with_state(api.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        let config = kube::Config::new(format!("http://{host}").parse().unwrap());
        let metrics = Metrics::default();
        let context = SharedContext {
            tracer,
            ..SharedContext::new(
                Store::default(),
                Requests::new(connect(&config).unwrap(), host, LIMIT, metrics.clone()),
                metrics.clone(),
            )
        };
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("csi.sock");
        let driver = MockDriver::builder(name).accept_any_volume();
        let driver = driver.start(&socket).await.unwrap();
        let mut spec = AttacherConfigSpec::new(format!("unix://{}", socket.display()));
        edit(&mut spec);
        let settings = Arc::new(DriverConfig::try_from(&spec).unwrap());
        let (settings, _) = watch::channel(settings);
        let engine = engine(&context, name, &settings, term);
        Self {
            name,
            api,
            driver,
            store: context.store.clone(),
            engine,
            metrics,
            context,
            settings,
            _folder: folder,
        }
    }

    /// With another engine in the place of the first one, in another term.
    async fn in_another_term(self, term: Option<Term>) -> Self {
        self.engine.drain().await;
        let engine = engine(&self.context, self.name, &self.settings, term);
        Self { engine, ..self }
    }

    /// With another engine in the place of the first one, whose calls were cut off, in this term.
    async fn after_a_cut_off(self, term: Option<Term>) -> Self {
        let gone = self.engine.drained();
        drop(self.engine);
        tokio::time::timeout(LIMIT, gone).await.expect("in time");
        let engine = engine(&self.context, self.name, &self.settings, term);
        Self { engine, ..self }
    }

    /// Waits until no attempt runs. None is begun any more.
    async fn attempts_end(&self) {
        let queue = self.engine.queue();
        queue.close();
        tokio::time::timeout(LIMIT, queue.drained()).await.expect("in time");
    }

    /// Waits until nobody calls for a place, or watches over a Publish there.
    async fn place_is_free(&self, place: VolumeOnNode<'_>) {
        let free = async {
            while let Err(call) = self.engine.work().in_flight.acquire(place) {
                call.wait_finished().await;
            }
        };
        tokio::time::timeout(LIMIT, free).await.expect("in time");
    }

    /// Makes the volume pv1, as the watch brings it.
    fn volume(&self, metadata: &Value) {
        self.volume_with("pv1", &json!({"metadata": metadata}));
    }

    /// Makes a volume that differs in whatever this says.
    fn volume_with(&self, name: &str, changes: &Value) {
        let mut object = json!({
            "metadata": {"name": name, "uid": format!("{name}-uid")},
            "spec": {"accessModes": ["ReadWriteMany"], "csi": {"driver": self.name, "volumeHandle": "h"}},
        });
        if self.name == GCE {
            object["spec"] = json!({"accessModes": ["ReadWriteOnce"], "gcePersistentDisk": {"pdName": "d"}});
        }
        json_patch::merge(&mut object, changes);
        self.put_volume(object);
    }

    fn put_volume(&self, object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let object = self.api.put(format!("{VOLUMES}{name}"), object);
        let volume: PersistentVolumeWire = serde_json::from_value(object).unwrap();
        self.store.apply::<Volume>(volume.into());
    }

    /// Makes an attachment of pv1, as the watch brings it.
    fn attachment(&self, name: &str, node: &str, metadata: &Value) {
        self.attachment_with(name, node, &json!({"metadata": metadata}));
    }

    /// The same with changes of whatever it says, as a status.
    fn attachment_with(&self, name: &str, node: &str, changes: &Value) {
        let mut object = json!({
            "metadata": {"name": name, "uid": format!("{name}-uid")},
            "spec": {"attacher": self.name, "nodeName": node, "source": {"persistentVolumeName": "pv1"}},
        });
        json_patch::merge(&mut object, changes);
        self.put_attachment(name, object);
    }

    fn put_attachment(&self, name: &str, object: Value) {
        let object = self.api.put(format!("{ATTACHMENTS}{name}"), object);
        self.sees(object);
    }

    /// The watch brings this attachment.
    fn sees(&self, attachment: Value) {
        let attachment: VolumeAttachmentWire = serde_json::from_value(attachment).unwrap();
        self.store.apply::<Attachment>(attachment.into());
    }

    /// Somebody deletes va0.
    fn va0_is_deleted(&self) {
        let mut deleted = self.api.get(&format!("{ATTACHMENTS}va0")).unwrap();
        deleted["metadata"]["deletionTimestamp"] = DELETED.into();
        self.put_attachment("va0", deleted);
    }

    /// Takes va0 away as if somebody had removed all its finalizers.
    fn vanishes(&self) {
        self.api.objects.lock().remove(&format!("{ATTACHMENTS}va0"));
        self.is_told_gone();
    }

    /// The cache is told that va0 is gone.
    fn is_told_gone(&self) {
        self.store
            .mark_deleted(&WriteTarget::Attachment("va0".into()), "va0-uid");
    }

    /// As many nodes as this, n0 of ID id0 and so on.
    fn nodes(&self, count: usize) {
        for number in 0..count {
            let (node, id) = (format!("n{number}"), format!("id{number}"));
            self.store.apply(CsiNode::new(&node, &[(DRIVER, &id)]));
        }
    }

    async fn attached(&self, name: &str) {
        self.api.until(|api| Self::is_attached(api, name)).await;
    }

    /// Waits until the status of va0 shows an error that contains this.
    async fn says(&self, error: &str, words: &str) {
        let shown = |api: &Api| error_of(api, error).is_some_and(|text| text.contains(words));
        self.api.until(shown).await;
    }

    async fn gone(&self, name: &str) {
        let path = format!("{ATTACHMENTS}{name}");
        self.api.until(|api| api.get(&path).is_none()).await;
    }

    fn is_attached(api: &Api, name: &str) -> bool {
        api.get(&format!("{ATTACHMENTS}{name}"))
            .is_some_and(|object| object["status"]["attached"] == true)
    }

    /// Path without the prefix, and code, of all patches.
    fn patches(&self) -> Vec<(String, u16)> {
        let patches = self.api.patches.lock();
        let short = |path: &str| path.replace(VOLUMES, "").replace(ATTACHMENTS, "");
        patches.iter().map(|(path, _, code)| (short(path), *code)).collect()
    }

    /// What was patched, in its order.
    fn order(&self) -> Vec<String> {
        self.patches().into_iter().map(|(path, _)| path).collect()
    }

    fn finalizers_of_volume(&self) -> Value {
        let volume = self.api.get(&format!("{VOLUMES}pv1")).unwrap();
        volume["metadata"]["finalizers"].clone()
    }

    /// The messages of failures that were written.
    fn told(&self) -> Vec<String> {
        let patches = self.api.patches.lock();
        let messages = patches.iter().filter_map(|(_, body, _)| {
            let message = |kind: &str| body["status"][kind]["message"].as_str().map(str::to_owned);
            message("attachError").or_else(|| message("detachError"))
        });
        messages.collect()
    }

    /// Waits until the first patch of a volume has come.
    async fn volume_is_patched(&self) {
        let patched = self.api.until(|api| api.volume_patches.load(Ordering::SeqCst) == 1);
        patched.await;
    }

    /// Waits until this attachment has been claimed.
    async fn is_claimed(&self, name: &str, finalizer: &str) {
        let path = format!("{ATTACHMENTS}{name}");
        let finalizers = |api: &Api| Some(api.get(&path)?["metadata"]["finalizers"].clone());
        self.api.until(|api| finalizers(api) == Some(json!([finalizer]))).await;
    }

    /// Waits until each rule of the driver's script was met.
    async fn script_ends(&self) {
        eventually(|| self.driver.rules().is_empty()).await;
    }

    fn calls(&self, call: Call) -> usize {
        self.driver.calls_of(call).len()
    }

    async fn called(&self, method: Call) {
        let called = self.driver.wait_for_call(move |call| call.method == method);
        tokio::time::timeout(LIMIT, called).await.expect("in time");
    }
}

/// So long are the pauses after failures.
fn retry(spec: &mut AttacherConfigSpec, initial: &str, max: &str) {
    (spec.backoff.initial, spec.backoff.max) = (initial.parse().unwrap(), max.parse().unwrap());
}

/// Waits for what nothing tells of.
async fn eventually(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.expect("in time");
}

/// Metadata of an attachment that an earlier attempt claimed for a node.
fn claimed(id: &str, deleted: bool) -> Value {
    let mut metadata = json!({
        "finalizers": [FINALIZER],
        "annotations": {NODE_ID: id},
    });
    if deleted {
        metadata["deletionTimestamp"] = DELETED.into();
    }
    metadata
}

/// Metadata of an attachment that is claimed for this node ID, with a note of its volume.
fn claimed_with(note: &Value, id: &str, deleted: bool) -> Value {
    let mut metadata = claimed(id, deleted);
    metadata["annotations"][NOTE] = note.to_string().into();
    metadata
}

/// What the status of va0 shows as the error of this operation.
fn error_of(api: &Api, error: &str) -> Option<String> {
    let object = api.get(&format!("{ATTACHMENTS}va0"))?;
    object["status"][error]["message"].as_str().map(str::to_owned)
}

/// Of five attachments of a new volume four protect it from a stale copy. That is nobody's failure.
#[tokio::test]
async fn attachments_of_one_volume_protect_it_together() {
    const COUNT: usize = 5;
    let stage = AttemptFixture::of(Api::volumes_together(COUNT)).await;
    stage.volume(&json!({"finalizers": ["kubernetes.io/pv-protection"]}));
    let names: Vec<String> = (0..COUNT).map(|number| format!("va{number}")).collect();
    stage.nodes(COUNT);
    for (number, name) in names.iter().enumerate() {
        stage.attachment(name, &format!("n{number}"), &json!({}));
    }
    for name in &names {
        stage.attached(name).await;
    }
    let protected = json!(["kubernetes.io/pv-protection", FINALIZER]);
    assert_eq!(stage.finalizers_of_volume(), protected);
    let of_volume = |patch: &(String, u16)| (patch.0 == "pv1").then_some(patch.1);
    let of_volume: Vec<u16> = stage.patches().iter().filter_map(of_volume).collect();
    let taken = of_volume.iter().filter(|code| **code == 200).count();
    assert_eq!((of_volume.len(), taken), (COUNT, 1));
    assert_eq!(stage.told(), [""; 0]);
    assert_eq!(stage.calls(PUBLISH), COUNT, "one call each");
    assert_eq!(stage.engine.queue().held().len(), 0, "nobody backs off");
}

#[tokio::test]
async fn a_detach_ends_with_the_object_and_frees_the_volume() {
    let stage = AttemptFixture::of(Api::default()).await;
    stage.volume(&json!({"finalizers": [FINALIZER], "deletionTimestamp": DELETED}));
    stage.driver.drift_attach("h", "id0");
    stage.attachment("va0", "gone", &claimed("id0", true));
    stage.api.until(|api| api.objects.lock().is_empty()).await;
    // Nothing is written on what is gone.
    assert_eq!(stage.patches(), [("va0".to_owned(), 200), ("pv1".to_owned(), 200)]);
    assert!(stage.driver.published().is_empty());
    assert_eq!(stage.calls(UNPUBLISH), 1);
}

#[tokio::test]
async fn a_result_outlives_an_api_server_that_is_out_of_order() {
    let stage = AttemptFixture::of(Api {
        out_of_order: Mutex::new(2),
        ..Api::default()
    })
    .await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.nodes(1);
    stage.attachment("va0", "n0", &json!({}));
    stage.attached("va0").await;
    let status = |code| ("va0/status".to_owned(), code);
    let expected = [("va0".to_owned(), 200), status(503), status(503), status(200)];
    assert_eq!(stage.patches(), expected);
    assert_eq!(stage.calls(PUBLISH), 1, "the call is not made again");
}

/// One of several API servers behind an address, or before the new token is read: the next request goes over another connection.
#[tokio::test]
async fn a_result_outlives_an_api_server_that_does_not_know_us() {
    let stage = AttemptFixture::of(Api::default()).await;
    stage.api.refuse("/va0/status", 2, 401, "Unauthorized");
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.nodes(1);
    stage.attachment("va0", "n0", &json!({}));
    stage.attached("va0").await;
    assert!(stage.api.untrue.lock().iter().all(|untrue| untrue.times == 0));
    assert_eq!(stage.calls(PUBLISH), 1, "the call is not made again");
}

/// A live volume that is released, because nothing says that it is migrated, may be attached again at that very moment.
#[tokio::test]
async fn a_volume_that_is_just_released_is_protected_again_before_the_call() {
    let stage = AttemptFixture::named(Api::volumes_together(2), GCE).await;
    let let_through = async || {
        let barrier = stage.api.volumes_together.as_ref().unwrap();
        tokio::time::timeout(LIMIT, barrier.wait()).await.expect("in time");
    };
    stage.volume(&json!({"finalizers": [GCE_FINALIZER]}));
    stage.volume_is_patched().await;
    stage.store.apply(CsiNode::new("n0", &[(GCE, "id0")]));
    stage.attachment("va0", "n0", &json!({}));
    stage.is_claimed("va0", GCE_FINALIZER).await;
    let_through().await;
    let_through().await;
    stage.attached("va0").await;
    assert_eq!(stage.finalizers_of_volume(), json!([GCE_FINALIZER]));
    assert_eq!(stage.order(), ["va0", "pv1", "pv1", "va0/status"]);
    assert_eq!(stage.calls(PUBLISH), 1);
}

/// That wait may be long: the driver is called for what is so after it.
#[tokio::test]
async fn what_changes_while_a_release_is_waited_for_counts() {
    for is_deleted in [false, true] {
        let stage = AttemptFixture::named(Api::default(), GCE).await;
        let release = stage.engine.work().live_release.lock().await;
        stage.store.apply(CsiNode::new("n0", &[(GCE, "id0")]));
        stage.volume(&json!({"finalizers": [GCE_FINALIZER]}));
        stage.attachment("va0", "n0", &json!({}));
        stage.is_claimed("va0", GCE_FINALIZER).await;
        // From the claim to the wait.
        tokio::time::sleep(Duration::from_millis(100)).await;
        if is_deleted {
            stage.va0_is_deleted();
        } else {
            let mut node = CsiNode::new("n0", &[(GCE, "id1")]);
            node.resource_version = ResourceVersion(1);
            stage.store.apply(node);
        }
        drop(release);
        let expected = if is_deleted {
            stage.gone("va0").await;
            Vec::new()
        } else {
            stage.attached("va0").await;
            vec![Some("id1".to_owned())]
        };
        let calls = stage.driver.calls_of(PUBLISH).into_iter();
        assert_eq!(calls.map(|call| call.node).collect::<Vec<_>>(), expected);
    }
}
