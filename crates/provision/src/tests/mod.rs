//! The engine of one driver in virtual time: with an API server and a driver in this process, and the watches as they would bring what
//! happens.

mod away;
mod distributed;
mod open_calls;
mod reused;
mod secrets;
mod settings;
mod sharers;
mod told;
mod traces;
mod unsent;
mod waits;

use csi_attacher_proto::v1::{self, controller_server::Controller, controller_server::ControllerServer};
use csi_attacher_testbed::api_answers::{apply, is_gone, not_found};
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::api::AttacherConfigSpec;
use crate::api::validated::DriverConfig;
use crate::apiserver::{ApiError, Requests};
use crate::cache::Store;
use crate::context::{DriverContext, SharedContext};
use crate::csi::{CsiClient, DriverConnection};
use crate::decide::patch::{PatchType, WriteTarget};
use crate::decide::{Capabilities, DriverFacts, Write};
use crate::events::EventRecorder;
use crate::nodes::{CsiNodeCache, DriverKeys, NodeWatch, Nodes};
use crate::objects::{Claim, PersistentVolumeClaimWire, PersistentVolumeWire, StorageClass, StorageClassWire, Volume};
use crate::open_calls::OpenCalls;
use crate::provision::Seen;
use crate::reflect::{ListedNames, Listener, Lists, Origin, Sink};
use crate::runtime::fence::FencedClient;
use crate::runtime::{DriverState, DriverStateSender, Engine, Start};
use crate::telemetry::{Metrics, Tracer};
use crate::volumes::{TakeVolume, VolumeCache};
use csi_attacher_kube::watch_answers::WatchAnswers;

const DRIVER: &str = "csi.test";
const MARKER: &str = "attacher.csi.dev/provisioning";
/// How long CreateVolume takes.
const CALL: Duration = Duration::from_millis(100);
/// How long a request to the API server takes.
const REQUEST: Duration = Duration::from_millis(1);
/// CreateVolume calls in flight.
const AT_ONCE: usize = 10;

/// Objects by path, and what was asked for.
#[derive(Default)]
struct Api {
    objects: Mutex<BTreeMap<String, Value>>,
    version: AtomicUsize,
    requests: Mutex<Vec<String>>,
    /// Secrets may not be read.
    forbids_secrets: AtomicBool,
    /// PersistentVolumes cannot be stored.
    fails_to_save: AtomicBool,
    /// A webhook gives them to another driver.
    gives_away: AtomicBool,
    /// With these statuses the next patches of claims are refused.
    refusals: Mutex<Vec<u16>>,
    /// A request for what begins with this path gets no answer.
    swallows: Mutex<Option<&'static str>>,
}

impl Api {
    fn put(&self, path: &str, mut object: Value) -> Value {
        let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        self.objects.lock().insert(path.to_owned(), object.clone());
        object
    }

    /// As [`Self::put`], but for a PersistentVolume in deletion that nobody holds: it is gone.
    fn change(&self, path: &str, object: Value) -> Value {
        let object = self.put(path, object);
        if path.starts_with(VOLUMES) && is_gone(&object) {
            self.objects.lock().remove(path);
        }
        object
    }

    /// How many requests were of this kind, and began with this path.
    fn asked(&self, method: &str, path: &str) -> usize {
        let asked = format!("{method} {path}");
        let requests = self.requests.lock();
        requests.iter().filter(|request| request.starts_with(&asked)).count()
    }

    async fn answer(&self, request: Request<Body>) -> (u16, Value) {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        self.requests.lock().push(format!("{method} {path}"));
        tokio::time::sleep(REQUEST).await;
        let is_swallowed = self.swallows.lock().is_some_and(|prefix| path.starts_with(prefix));
        if is_swallowed {
            std::future::pending::<()>().await;
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let is_of_claim = method == Method::PATCH && path.contains("/persistentvolumeclaims/");
        if let Some(code) = is_of_claim.then(|| self.refusals.lock().pop()).flatten() {
            return (code, json!({"kind": "Status", "code": code, "status": "Failure"}));
        }
        let known = self.objects.lock().get(&path).cloned();
        match (method, known) {
            _ if path.contains("/secrets/") && self.forbids_secrets.load(Ordering::Relaxed) => (
                403,
                json!({"kind": "Status", "code": 403, "status": "Failure", "reason": "Forbidden"}),
            ),
            (Method::POST, _) if self.fails_to_save.load(Ordering::Relaxed) && VOLUMES.starts_with(&path) => {
                (500, json!({"kind": "Status", "code": 500, "status": "Failure"}))
            }
            (Method::POST, _) => {
                let mut body: Value = serde_json::from_slice(&body).unwrap();
                if self.gives_away.load(Ordering::Relaxed) && VOLUMES.starts_with(&path) {
                    body["spec"]["csi"]["driver"] = "other.test".into();
                }
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
                body["metadata"]["uid"] = format!("uid of {path}").into();
                (201, self.put(&path, body))
            }
            (Method::PATCH, Some(object)) => {
                let write = Write {
                    // A claim has the same rules.
                    target: WriteTarget::Volume(path.as_str().into()),
                    form: PatchType::Json,
                    body: serde_json::from_slice(&body).unwrap(),
                };
                match apply(&object, &write) {
                    Ok(patched) => (200, self.change(&path, patched)),
                    Err(_) => (422, json!({"kind": "Status", "code": 422, "status": "Failure"})),
                }
            }
            // What nobody holds is answered as it was: it was never in deletion.
            (Method::DELETE, Some(object)) if object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) => {
                self.objects.lock().remove(&path);
                (200, object)
            }
            (Method::DELETE, Some(mut object)) => {
                object["metadata"]["deletionTimestamp"] = crate::clock::now().to_string().into();
                (200, self.change(&path, object))
            }
            (Method::GET, Some(object)) => (200, object),
            (_, None) => (404, not_found(&path)),
            (method, _) => panic!("{method} {path}"),
        }
    }
}

/// The driver: when each volume was asked for, and what it answers.
#[derive(Default)]
struct ModelDriver {
    calls: Mutex<Vec<(String, Instant)>>,
    /// The parameter of this name in each of them.
    pools: Mutex<Vec<String>>,
    /// What the Secret of each call, DeleteVolume too, has under this key.
    keys: Mutex<Vec<String>>,
    running: AtomicUsize,
    most: AtomicUsize,
    /// The codes that the next calls fail with.
    failures: Mutex<Vec<tonic::Code>>,
    /// The volumes that were to be deleted.
    deleted: Mutex<Vec<String>>,
    /// The codes that the next deletions fail with.
    undo_failures: Mutex<Vec<tonic::Code>>,
    /// Volumes are smaller than was asked for.
    is_stingy: AtomicBool,
    /// CreateVolume takes much longer.
    is_slow: AtomicBool,
    /// The ID of every volume: the driver makes it of something that claims have in common.
    only_id: Mutex<Option<String>>,
    /// How long DeleteVolume takes.
    deletion: Mutex<Duration>,
}

#[tonic::async_trait]
impl Controller for ModelDriver {
    async fn create_volume(
        &self,
        request: tonic::Request<v1::CreateVolumeRequest>,
    ) -> Result<tonic::Response<v1::CreateVolumeResponse>, tonic::Status> {
        let request = request.into_inner();
        self.calls.lock().push((request.name.clone(), Instant::now()));
        let pool = request.parameters.get("pool").cloned();
        self.pools.lock().push(pool.unwrap_or_default());
        self.keys.lock().extend(request.secrets.get("key").cloned());
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(running, Ordering::Relaxed);
        tokio::time::sleep(CALL).await;
        if self.is_slow.load(Ordering::Relaxed) {
            tokio::time::sleep(CALL * 20).await;
        }
        self.running.fetch_sub(1, Ordering::Relaxed);
        if let Some(code) = self.failures.lock().pop() {
            return Err(tonic::Status::new(code, format!("no room for {}", request.name)));
        }
        let asked = request.capacity_range.map_or(0, |range| range.required_bytes);
        let is_stingy = self.is_stingy.load(Ordering::Relaxed);
        let only_id = self.only_id.lock().clone();
        let volume = v1::Volume {
            volume_id: only_id.unwrap_or_else(|| format!("handle of {}", request.name)),
            capacity_bytes: if is_stingy { 1 } else { asked },
            ..v1::Volume::default()
        };
        Ok(tonic::Response::new(v1::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: tonic::Request<v1::DeleteVolumeRequest>,
    ) -> Result<tonic::Response<v1::DeleteVolumeResponse>, tonic::Status> {
        let request = request.into_inner();
        self.keys.lock().extend(request.secrets.get("key").cloned());
        self.deleted.lock().push(request.volume_id);
        let takes = *self.deletion.lock();
        tokio::time::sleep(takes).await;
        match self.undo_failures.lock().pop() {
            Some(code) => Err(tonic::Status::new(code, "no such volume")),
            None => Ok(tonic::Response::new(v1::DeleteVolumeResponse::default())),
        }
    }
}

/// PersistentVolumes as the other part of the process knows them.
#[derive(Default)]
struct Volumes {
    known: Mutex<BTreeMap<Arc<str>, Arc<Volume>>>,
    /// The names of those that have or had a handle.
    by_handle: Mutex<BTreeMap<Box<str>, BTreeSet<Arc<str>>>>,
    /// The names and the handles that VolumeAttachments name or noted.
    attached: Mutex<BTreeSet<String>>,
    /// How often it was asked who noted a handle, in whatever way.
    note_looks: AtomicUsize,
    listener: Mutex<Option<Listener<Arc<Volume>>>>,
}

impl Volumes {
    fn take(&self, volume: Volume) {
        let volume = Arc::new(volume);
        if let Some(source) = volume.spec.csi() {
            let mut by_handle = self.by_handle.lock();
            let names = by_handle.entry(source.handle.clone()).or_default();
            names.insert(volume.name.clone());
        }
        self.known.lock().insert(volume.name.clone(), volume.clone());
        self.tell(&volume);
    }

    fn tell(&self, volume: &Arc<Volume>) {
        let listener = self.listener.lock().clone();
        if let Some(tell) = listener {
            tell(volume);
        }
    }
}

impl VolumeCache for Volumes {
    fn lists(&self) -> Lists {
        let lists = Lists::new(&["persistentvolumes"], true);
        lists.set_failure("persistentvolumes", Some("of volumes".to_owned()));
        lists
    }
    fn volume(&self, name: &str) -> Seen<Arc<Volume>> {
        self.known.lock().get(name).cloned().map_or(Seen::Gone, Seen::Here)
    }
    fn handle_owner(&self, _: &str, handle: &str, except: &str) -> Seen<Arc<str>> {
        let (by_handle, known) = (self.by_handle.lock(), self.known.lock());
        let mut names = by_handle.get(handle).into_iter().flatten();
        let other = names.find(|name| ***name != *except && known.contains_key(*name));
        other.cloned().map_or(Seen::Gone, Seen::Here)
    }
    fn sharers(&self, _: &str, handle: &str) -> Vec<Arc<Volume>> {
        let (by_handle, known) = (self.by_handle.lock(), self.known.lock());
        let names = by_handle.get(handle).into_iter().flatten();
        names.filter_map(|name| known.get(name).cloned()).collect()
    }
    fn attached_to(&self, name: &str, driver: &str, handle: &str) -> Seen<Arc<str>> {
        let is_attached = self.is_noted(driver, handle) || self.is_named(name);
        if is_attached {
            Seen::Here("n1".into())
        } else {
            Seen::Gone
        }
    }
    fn is_named(&self, name: &str) -> bool {
        self.attached.lock().contains(name)
    }
    fn is_noted(&self, _: &str, handle: &str) -> bool {
        self.note_looks.fetch_add(1, Ordering::Relaxed);
        self.attached.lock().contains(handle)
    }
    fn lacks_read(&self, _: &Volume) -> bool {
        false
    }
    fn for_each(&self, look: &mut dyn FnMut(&Arc<Volume>)) {
        let known: Vec<_> = self.known.lock().values().cloned().collect();
        known.iter().for_each(look);
    }
    fn take_answer(&self, volume: Volume) -> bool {
        self.take(volume);
        true
    }
    fn older_answer(&self) -> ApiError {
        panic!("an older answer");
    }
    fn reading(&self, _: &Arc<str>) -> TakeVolume<'_> {
        Box::new(|volume| {
            self.take(volume);
            Ok(())
        })
    }
    fn is_gone(&self, name: &Arc<str>, _: &str) {
        let gone = self.known.lock().remove(name);
        if let Some(gone) = gone {
            self.tell(&gone);
        }
    }
    fn listen(&self, listener: Listener<Arc<Volume>>) {
        *self.listener.lock() = Some(listener);
    }
}

/// No driver has topology.
struct NoCsiNodes;

impl CsiNodeCache for NoCsiNodes {
    fn is_listed(&self) -> bool {
        true
    }
    fn keys(&self, _: &str, _: &str) -> Seen<DriverKeys> {
        Seen::Gone
    }
    fn registered(&self, _: &str) -> Vec<(Arc<str>, DriverKeys)> {
        Vec::new()
    }
    fn is_topology_key(&self, _: &str) -> bool {
        false
    }
    fn moment(&self) -> u64 {
        0
    }
    fn is_known_since(&self, _: Option<u64>) -> bool {
        true
    }
    fn doubt_unwatched(&self, why: &str) {
        panic!("{why}");
    }
    fn listen(&self, _: Listener<Arc<str>>) {}
}

thread_local! {
    static STARTED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The wall clock goes with virtual time.
fn wall() -> Option<jiff::Timestamp> {
    let epoch: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    STARTED
        .get()
        .map(|started| epoch.checked_add(started.elapsed()).unwrap())
}

/// Everything around one engine, and the engine.
struct World {
    api: Arc<Api>,
    driver: Arc<ModelDriver>,
    context: SharedContext,
    volumes: Arc<Volumes>,
    open_calls: Arc<OpenCalls>,
    settings: watch::Sender<Arc<DriverConfig>>,
    state: watch::Sender<DriverState>,
    engine: Option<Engine<DriverContext>>,
}

impl World {
    fn new() -> Self {
        Self::traced(Tracer::disabled(), |_| {})
    }

    /// With spans, and other settings.
    fn traced(tracer: Tracer, edit: impl FnOnce(&mut AttacherConfigSpec)) -> Self {
        STARTED.set(Some(Instant::now()));
        crate::clock::set_source(wall);
        let api = Arc::<Api>::default();
        let server = api.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (code, object) = server.answer(request).await;
                let body = Body::from(object.to_string().into_bytes());
                Response::builder()
                    .status(code)
                    .header(http::header::CONTENT_TYPE, "application/json")
                    .body(body)
                    .map_err(tower::BoxError::from)
            }
        });
        let (metrics, store, volumes) = (Metrics::default(), Store::default(), Arc::<Volumes>::default());
        let client = kube::Client::new(service, "default");
        let nodes = Nodes::new(Arc::new(NoCsiNodes), WatchAnswers::default());
        let watch_nodes = Box::new(|_| AbortOnDropHandle::new(tokio::spawn(std::future::pending())));
        volumes.listen(store.volume_listener());
        let requests = Requests::new(client, "api", Duration::from_secs(10), metrics.clone());
        let (events, written) = EventRecorder::new(requests.clone(), metrics.clone(), "test".to_owned());
        tokio::spawn(written);
        let context = SharedContext {
            store,
            volumes: volumes.clone(),
            nodes: Arc::new(NodeWatch::new(nodes, watch_nodes)),
            requests,
            events,
            metrics,
            tracer,
            stuck_after: Duration::from_mins(10),
        };
        let mut spec = AttacherConfigSpec::new("unix:///csi.sock");
        let provisioning = json!({
            "concurrency": {"create": AT_ONCE},
            "secrets": [{"namespace": "storage"}],
        });
        spec.driver_name = Some(DRIVER.to_owned());
        spec.provisioning = Some(serde_json::from_value(provisioning).unwrap());
        edit(&mut spec);
        let settings = Arc::new(DriverConfig::try_from(&spec).unwrap());
        let world = Self {
            api,
            driver: Arc::default(),
            context,
            volumes,
            open_calls: Arc::default(),
            settings: watch::Sender::new(settings),
            state: watch::Sender::default(),
            engine: None,
        };
        world.list();
        world
    }

    /// With a class "good" of these parameters, and an engine.
    fn started(parameters: &Value) -> Self {
        let mut world = Self::new();
        world.class("good", parameters);
        world.start();
        world
    }

    /// With a claim "a" that was called for, and nobody knows what the call did.
    async fn uncertain(parameters: &Value) -> Self {
        let world = Self::started(parameters);
        world.driver.failures.lock().push(tonic::Code::DeadlineExceeded);
        world.claim("a", "good");
        tokio::time::sleep(CALL * 5).await;
        assert!(world.is_marked("a"));
        world
    }

    /// With a claim "a", for which CreateVolume is under way.
    async fn calling() -> Self {
        let world = Self::started(&json!({}));
        world.claim("a", "good");
        tokio::time::sleep(CALL / 2).await;
        assert_eq!(world.driver.calls.lock().len(), 1);
        world
    }

    /// Changes the settings, and shows them to whoever starts later.
    fn configure(&self, change: impl FnOnce(&mut DriverConfig)) -> Arc<DriverConfig> {
        let mut settings = DriverConfig::clone(&self.settings.borrow());
        change(&mut settings);
        self.settings.send_replace(Arc::new(settings));
        self.settings.borrow().clone()
    }

    /// All lists are complete.
    fn list(&self) {
        let check = csi_attacher_base::health::Health::new().check("lists");
        let (store, mut seen) = (&self.context.store, ListedNames::new());
        crate::reflect::apply::<PersistentVolumeClaimWire, _>(Event::InitDone, store, &mut seen, &check, 0);
        crate::reflect::apply::<StorageClassWire, _>(Event::InitDone, store, &mut seen, &check, 0);
        assert!(store.lists().is_synced());
    }

    fn client(&self) -> FencedClient {
        let connection = DriverConnection::in_process(ControllerServer::from_arc(self.driver.clone()));
        let client = CsiClient::new(connection, self.context.metrics.clone()).with_driver_name(DRIVER.into());
        // There is no election.
        FencedClient::new(client, None)
    }

    fn start(&mut self) {
        self.start_with(Capabilities {
            create_delete_volume: true,
            ..Capabilities::default()
        });
    }

    /// With a driver that can do this.
    fn start_with(&mut self, capabilities: Capabilities) {
        let start = Start {
            name: "config".into(),
            config: self.settings.subscribe(),
            facts: DriverFacts::new(DRIVER, capabilities),
            client: self.client(),
            status: DriverStateSender::new(self.state.clone()),
        };
        self.engine = crate::engine::start(self.context.clone(), start, self.open_calls.clone());
        assert!(self.engine.is_some());
    }

    fn engine(&self) -> &Engine<DriverContext> {
        self.engine.as_ref().unwrap()
    }

    /// Makes a class of a name, or changes it, as the watch brings it.
    fn class(&self, name: &str, parameters: &Value) {
        self.class_with(name, parameters, "Immediate");
    }

    /// The same of a class with this `volumeBindingMode`.
    fn class_with(&self, name: &str, parameters: &Value, binding: &str) {
        let object = json!({
            "metadata": {"name": name, "uid": format!("uid of {name}")}, "provisioner": DRIVER, "parameters": parameters,
            "reclaimPolicy": "Delete", "volumeBindingMode": binding,
        });
        let object = self
            .api
            .put(&format!("/apis/storage.k8s.io/v1/storageclasses/{name}"), object);
        let class: StorageClass = serde_json::from_value::<StorageClassWire>(object).unwrap().into();
        self.context.store.take_copy(class, Origin::Watch);
    }

    /// Makes a claim of a class, as the watch brings it.
    fn claim(&self, name: &str, class: &str) {
        let object = json!({
            "metadata": {
                "name": name, "namespace": "web", "uid": format!("uid-{name}"),
                "annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER},
            },
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Pending"},
        });
        let object = self.api.put(&claim_path(name), object);
        self.take_claim(object);
    }

    /// Somebody changes a claim, and the watch brings it.
    fn change_claim(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.claim_now(name);
        change(&mut object);
        let object = self.api.put(&claim_path(name), object);
        self.take_claim(object);
    }

    fn delete_claim(&self, name: &str) {
        let now = crate::clock::now().to_string();
        self.change_claim(name, |claim| claim["metadata"]["deletionTimestamp"] = now.into());
    }

    /// Somebody takes the finalizers of a claim off by force, and it goes, as the watch brings it.
    fn lose_claim(&self, name: &str) {
        let object = self.api.objects.lock().remove(&claim_path(name)).unwrap();
        let claim: Claim = serde_json::from_value::<PersistentVolumeClaimWire>(object)
            .unwrap()
            .into();
        self.context.store.take_deletion(&claim);
    }

    fn take_claim(&self, object: Value) {
        let claim: Claim = serde_json::from_value::<PersistentVolumeClaimWire>(object)
            .unwrap()
            .into();
        self.context.store.take_copy(claim, Origin::Watch);
    }

    fn claim_now(&self, name: &str) -> Value {
        self.api.objects.lock()[&claim_path(name)].clone()
    }

    fn is_marked(&self, name: &str) -> bool {
        let claim = self.claim_now(name);
        let finalizers = claim["metadata"]["finalizers"].as_array();
        finalizers.is_some_and(|list| list.contains(&json!(MARKER)))
    }

    /// A PersistentVolume of the driver that nobody uses any more.
    fn released(&self, class: &str, policy: &str, finalizers: &[&str]) {
        self.volume(json!({
            "metadata": {
                "name": "pv", "uid": "pv-uid", "finalizers": finalizers,
                "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
            },
            "spec": {
                "persistentVolumeReclaimPolicy": policy, "storageClassName": class,
                "csi": {"driver": DRIVER, "volumeHandle": "h"},
                "claimRef": {"namespace": "web", "name": "old", "uid": "old-uid"},
            },
            "status": {"phase": "Released"},
        }));
    }

    /// Makes a PersistentVolume, as the watch brings it.
    fn volume(&self, object: Value) {
        let path = format!("{VOLUMES}{}", object["metadata"]["name"].as_str().unwrap());
        let object = self.api.put(&path, object);
        let volume = serde_json::from_value::<PersistentVolumeWire>(object).unwrap().into();
        self.context.volumes.take_answer(volume);
    }

    /// Calls about claims whose names begin with this, by the time that each was made after `since`.
    fn calls(&self, prefix: &str, since: Instant) -> Vec<Duration> {
        let prefix = format!("pvc-uid-{prefix}");
        let calls = self.driver.calls.lock();
        let about = calls
            .iter()
            .filter(|(name, at)| name.starts_with(&prefix) && *at >= since);
        about.map(|(_, at)| *at - since).collect()
    }

    /// What was told of the object of this kind and name for this reason.
    fn told(&self, kind: &str, name: &str, reason: &str) -> Vec<String> {
        let objects = self.api.objects.lock();
        let events = objects.values().filter(|object| {
            let of = &object["involvedObject"];
            of["kind"] == kind && of["name"] == name && object["reason"] == reason
        });
        events
            .map(|event| event["message"].as_str().unwrap().to_owned())
            .collect()
    }

    /// How many PersistentVolumes there are.
    fn saved(&self) -> usize {
        self.api
            .objects
            .lock()
            .keys()
            .filter(|path| path.starts_with(VOLUMES))
            .count()
    }
}

const VOLUMES: &str = "/api/v1/persistentvolumes/";

fn claim_path(name: &str) -> String {
    format!("/api/v1/namespaces/web/persistentvolumeclaims/{name}")
}

/// Parameters of a class that names a Secret in this namespace.
fn secret(namespace: &str) -> Value {
    json!({
        "csi.storage.k8s.io/provisioner-secret-name": "key",
        "csi.storage.k8s.io/provisioner-secret-namespace": namespace,
    })
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
