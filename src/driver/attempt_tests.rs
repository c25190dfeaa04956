//! Attempts against an API server and a driver in this process: what happens between an answer and the next decision.

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::{Method, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Barrier, watch};

mod lanes;
mod lease;
mod secrets;
mod traces;
mod truth;

use super::engine::Engine;
use super::fence::FencedClient;
use super::status::Publisher;
use super::{Context, DriverStatus};
use crate::api::{AttacherConfigSpec, DriverConfig};
use crate::csi::{Connection, CsiClient};
use crate::decide::patch::{Form, Target, Write};
use crate::decide::tests::api_server::{apply, is_gone, not_found};
use crate::decide::{Capabilities, DriverFacts};
use crate::events::Events;
use crate::kubernetes::{Requests, connect};
use crate::lease::Term;
use crate::mock::{Method as Call, MockDriver, MockHandle};
use crate::objects::{CsiNode, PersistentVolumeWire, VolumeAttachmentWire};
use crate::store::Store;
use crate::telemetry::{Metrics, Tracer, Tracers};

const DRIVER: &str = "a.test";
const FINALIZER: &str = "external-attacher/a-test";
/// A driver whose volumes here are in-tree ones.
const GCE: &str = "pd.csi.storage.gke.io";
const GCE_FINALIZER: &str = "external-attacher/pd-csi-storage-gke-io";
const LIMIT: Duration = Duration::from_secs(20);
const VOLUMES: &str = "/api/v1/persistentvolumes/";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments/";

/// The API server: objects by path, and every patch in the order of arrival.
#[derive(Default)]
struct Api {
    objects: Mutex<BTreeMap<String, Value>>,
    patches: Mutex<Vec<(String, Value, u16)>>,
    /// Paths of all reads in the order of arrival.
    reads: Mutex<Vec<String>>,
    /// Whether reads of Secrets are answered with 403.
    secrets_forbidden: AtomicBool,
    /// Whether patches of attachments wait.
    hold_attachments: AtomicBool,
    version: Mutex<u64>,
    changes: watch::Sender<()>,
    /// Patches of volumes wait here until so many have come.
    volumes_together: Option<Barrier>,
    /// How many patches of volumes have come so far.
    volume_patches: AtomicUsize,
    /// How many patches of a status are answered with 503 first.
    out_of_order: Mutex<usize>,
    /// Answers that somebody on the way gives in place of the API server, which does not get the request.
    untrue: Mutex<Vec<Untrue>>,
    /// Reads wait here, before they are answered and after, if they are to.
    reads_together: Option<Barrier>,
}

/// An answer that is not the API server's.
struct Untrue {
    method: Method,
    /// What the path ends in.
    path: String,
    times: usize,
    code: u16,
    body: String,
}

impl Api {
    fn put(&self, path: String, mut object: Value) -> Value {
        let mut version = self.version.lock();
        *version += 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        self.objects.lock().insert(path, object.clone());
        object
    }

    fn get(&self, path: &str) -> Option<Value> {
        self.objects.lock().get(path).cloned()
    }

    /// Has somebody on the way answer the next so many requests of a kind.
    fn answer_untruly(&self, method: Method, path: &str, times: usize, code: u16, body: &str) {
        self.untrue.lock().push(Untrue {
            method,
            path: path.to_owned(),
            times,
            code,
            body: body.to_owned(),
        });
    }

    fn untrue_answer(&self, method: &Method, path: &str) -> Option<Response> {
        let mut all = self.untrue.lock();
        let is_meant =
            |untrue: &&mut Untrue| untrue.times > 0 && untrue.method == *method && path.ends_with(&untrue.path);
        let untrue = all.iter_mut().find(is_meant)?;
        untrue.times -= 1;
        Some((StatusCode::from_u16(untrue.code).unwrap(), untrue.body.clone()).into_response())
    }

    async fn until(&self, reached: impl Fn(&Self) -> bool) {
        let mut changes = self.changes.subscribe();
        let wait = async {
            while !reached(self) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(LIMIT, wait).await.expect("in time");
    }

    /// Carries out a patch; the status and the object that is answered.
    fn patch(&self, path: &str, form: Form, body: Value) -> (u16, Value) {
        let object_path = path.trim_end_matches("/status").to_owned();
        let Some(object) = self.get(&object_path) else {
            return (404, not_found(path));
        };
        let target = match (path.ends_with("/status"), path.starts_with(VOLUMES)) {
            (true, _) => Target::AttachmentStatus("".into()),
            (false, true) => Target::Volume("".into()),
            (false, false) => Target::Attachment("".into()),
        };
        let status = matches!(target, Target::AttachmentStatus(_));
        let mut out_of_order = self.out_of_order.lock();
        if status && *out_of_order > 0 {
            *out_of_order -= 1;
            return (503, json!({"message": "out of order"}));
        }
        match apply(&object, &Write { target, form, body }) {
            Err(message) => (422, json!({"message": message})),
            Ok(patched) => {
                let stored = self.put(object_path.clone(), patched);
                if is_gone(&stored) {
                    self.objects.lock().remove(&object_path);
                }
                (200, stored)
            }
        }
    }
}

async fn serve(State(api): State<Arc<Api>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if request.method() == Method::GET {
        api.reads.lock().push(path.clone());
        api.changes.send_replace(());
    }
    if let Some(untrue) = api.untrue_answer(request.method(), &path) {
        api.changes.send_replace(());
        return untrue;
    }
    let (code, object) = if request.method() == Method::GET {
        let answer = if path.contains("/secrets/") && api.secrets_forbidden.load(Ordering::SeqCst) {
            (403, json!({"message": "forbidden"}))
        } else {
            api.get(&path)
                .map_or_else(|| (404, not_found(&path)), |object| (200, object))
        };
        if let Some(barrier) = &api.reads_together {
            barrier.wait().await;
            barrier.wait().await;
        }
        answer
    } else {
        let json_patch = request.headers()[header::CONTENT_TYPE] == "application/json-patch+json";
        let form = if json_patch { Form::Json } else { Form::Merge };
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        if path.starts_with(VOLUMES) {
            api.volume_patches.fetch_add(1, Ordering::SeqCst);
            api.changes.send_replace(());
        }
        if let Some(barrier) = api.volumes_together.as_ref().filter(|_| path.starts_with(VOLUMES)) {
            barrier.wait().await;
        }
        while path.starts_with(ATTACHMENTS) && api.hold_attachments.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (code, object) = api.patch(&path, form, body.clone());
        api.patches.lock().push((path, body, code));
        api.changes.send_replace(());
        (code, object)
    };
    (StatusCode::from_u16(code).unwrap(), axum::Json(object)).into_response()
}

struct Stage {
    name: &'static str,
    api: Arc<Api>,
    driver: MockHandle,
    store: Store,
    engine: Engine,
    metrics: Metrics,
    _settings: watch::Sender<Arc<DriverConfig>>,
    _folder: tempfile::TempDir,
}

impl Stage {
    async fn of(api: Api) -> Self {
        Self::named(api, DRIVER).await
    }

    /// With a driver of this name.
    async fn named(api: Api, name: &'static str) -> Self {
        Self::with(api, name, |_| {}).await
    }

    /// With a driver of this name and other settings than those of a bare AttacherConfig.
    async fn with(api: Api, name: &'static str, edit: impl FnOnce(&mut AttacherConfigSpec)) -> Self {
        Self::telling(Arc::new(api), name, Tracer::disabled(), edit).await
    }

    /// With an API server that others may use too, and traces.
    async fn telling(
        api: Arc<Api>,
        name: &'static str,
        tracer: Tracer,
        edit: impl FnOnce(&mut AttacherConfigSpec),
    ) -> Self {
        Self::in_term(None, api, name, tracer, edit).await
    }

    /// The same, in a term of the driver's Lease.
    async fn in_term(
        term: Option<Term>,
        api: Arc<Api>,
        name: &'static str,
        tracer: Tracer,
        edit: impl FnOnce(&mut AttacherConfigSpec),
    ) -> Self {
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let router = axum::Router::new().fallback(serve).with_state(api.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        let config = kube::Config::new(format!("http://{host}").parse().unwrap());
        let metrics = Metrics::default();
        let context = Context {
            store: Store::default(),
            events: Events::disabled(),
            requests: Requests::new(connect(&config).unwrap(), host, LIMIT, metrics.clone()),
            metrics: metrics.clone(),
            tracers: Tracers::from(tracer),
            logs: crate::telemetry::DriverLogs::default(),
            config_trace: crate::driver::ConfigTrace::default(),
        };
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("csi.sock");
        let driver = MockDriver::builder(name)
            .accept_any_volume()
            .start(&socket)
            .await
            .unwrap();
        let mut spec = AttacherConfigSpec::new(format!("unix://{}", socket.display()));
        edit(&mut spec);
        let settings = Arc::new(DriverConfig::try_from(&spec).unwrap());
        let client = CsiClient::new(Connection::new(&settings.endpoint), metrics.clone()).named(name.into());
        let (settings, seen) = watch::channel(settings);
        let publish_unpublish = true;
        let facts = DriverFacts::new(
            name,
            Capabilities {
                publish_unpublish,
                ..Capabilities::default()
            },
        );
        let publisher = Publisher::new(watch::Sender::new(DriverStatus::new()));
        let store = context.store.clone();
        let client = FencedClient::new(Arc::new(client), term);
        let engine = Engine::start(context, seen, "config".into(), facts, client, publisher);
        let Ok(engine) = engine else { panic!("conflict") };
        Self {
            name,
            api,
            driver,
            store,
            engine,
            metrics,
            _settings: settings,
            _folder: folder,
        }
    }

    /// Makes the volume pv1, as the watch brings it.
    fn volume(&self, metadata: &Value) {
        let mut object = json!({
            "metadata": {"name": "pv1", "uid": "pv-uid"},
            "spec": {"accessModes": ["ReadWriteMany"], "csi": {"driver": DRIVER, "volumeHandle": "h"}},
        });
        if self.name == GCE {
            object["spec"] = json!({"accessModes": ["ReadWriteOnce"], "gcePersistentDisk": {"pdName": "d"}});
        }
        json_patch::merge(&mut object, &json!({"metadata": metadata}));
        self.put_volume(object);
    }

    fn put_volume(&self, object: Value) {
        let object = self.api.put(format!("{VOLUMES}pv1"), object);
        self.store
            .apply_volume(serde_json::from_value::<PersistentVolumeWire>(object).unwrap().into());
    }

    /// Makes an attachment of pv1, as the watch brings it.
    fn attachment(&self, name: &str, node: &str, metadata: &Value) {
        let mut object = json!({
            "metadata": {"name": name, "uid": format!("{name}-uid")},
            "spec": {"attacher": self.name, "nodeName": node, "source": {"persistentVolumeName": "pv1"}},
        });
        json_patch::merge(&mut object, &json!({"metadata": metadata}));
        let object = self.api.put(format!("{ATTACHMENTS}{name}"), object);
        self.store
            .apply_attachment(serde_json::from_value::<VolumeAttachmentWire>(object).unwrap().into());
    }

    fn is_attached(api: &Api, name: &str) -> bool {
        api.get(&format!("{ATTACHMENTS}{name}"))
            .is_some_and(|object| object["status"]["attached"] == true)
    }

    /// Path without the prefix, and code, of all patches.
    fn patches(&self) -> Vec<(String, u16)> {
        let patches = self.api.patches.lock();
        let short = |path: &str| {
            path.trim_start_matches(VOLUMES)
                .trim_start_matches(ATTACHMENTS)
                .to_owned()
        };
        patches.iter().map(|(path, _, code)| (short(path), *code)).collect()
    }

    fn calls(&self, call: Call) -> usize {
        self.driver.calls_of(call).len()
    }
}

/// Of five attachments of a new volume four protect it from a stale copy. That is nobody's failure.
#[tokio::test]
async fn attachments_of_one_volume_protect_it_together() {
    const COUNT: usize = 5;
    let stage = Stage::of(Api {
        volumes_together: Some(Barrier::new(COUNT)),
        ..Api::default()
    })
    .await;
    stage.volume(&json!({"finalizers": ["kubernetes.io/pv-protection"]}));
    let names: Vec<String> = (0..COUNT).map(|number| format!("va{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let node = format!("n{number}");
        stage
            .store
            .apply_node(CsiNode::new(&node, &[(DRIVER, &format!("id{number}"))]));
        stage.attachment(name, &node, &json!({}));
    }
    stage
        .api
        .until(|api| names.iter().all(|name| Stage::is_attached(api, name)))
        .await;
    let volume = stage.api.get(&format!("{VOLUMES}pv1")).unwrap();
    assert_eq!(
        volume["metadata"]["finalizers"],
        json!(["kubernetes.io/pv-protection", FINALIZER])
    );
    let of_volume: Vec<u16> = stage
        .patches()
        .iter()
        .filter(|(path, _)| path == "pv1")
        .map(|(_, code)| *code)
        .collect();
    assert_eq!(
        (of_volume.len(), of_volume.iter().filter(|code| **code == 200).count()),
        (COUNT, 1)
    );
    for (path, body, _) in stage.api.patches.lock().iter() {
        assert!(body["status"]["attachError"].is_null(), "{path}: {body}");
    }
    assert_eq!(stage.calls(Call::ControllerPublishVolume), COUNT, "one call each");
    assert_eq!(stage.engine.queue().held().len(), 0, "nobody backs off");
}

#[tokio::test]
async fn a_detach_ends_with_the_object_and_frees_the_volume() {
    let stage = Stage::of(Api::default()).await;
    let deleted = "2026-01-01T00:00:00Z";
    stage.volume(&json!({"finalizers": [FINALIZER], "deletionTimestamp": deleted}));
    let annotations = json!({"csi.alpha.kubernetes.io/node-id": "id0"});
    let held = json!({"finalizers": [FINALIZER], "deletionTimestamp": deleted, "annotations": annotations});
    stage.driver.drift_attach("h", "id0");
    stage.attachment("va0", "gone", &held);
    stage.api.until(|api| api.objects.lock().is_empty()).await;
    // Nothing is written on what is gone.
    assert_eq!(stage.patches(), [("va0".to_owned(), 200), ("pv1".to_owned(), 200)]);
    assert!(stage.driver.published().is_empty());
    assert_eq!(stage.calls(Call::ControllerUnpublishVolume), 1);
}

#[tokio::test]
async fn a_result_outlives_an_api_server_that_is_out_of_order() {
    let stage = Stage::of(Api {
        out_of_order: Mutex::new(2),
        ..Api::default()
    })
    .await;
    stage.volume(&json!({"finalizers": [FINALIZER]}));
    stage.store.apply_node(CsiNode::new("n0", &[(DRIVER, "id0")]));
    stage.attachment("va0", "n0", &json!({}));
    stage.api.until(|api| Stage::is_attached(api, "va0")).await;
    let status = "va0/status".to_owned();
    assert_eq!(
        stage.patches(),
        [
            ("va0".to_owned(), 200),
            (status.clone(), 503),
            (status.clone(), 503),
            (status, 200)
        ]
    );
    assert_eq!(
        stage.calls(Call::ControllerPublishVolume),
        1,
        "the call is not made again"
    );
}

/// A live volume that is released, because nothing says that it is migrated, may be attached again at that very moment.
#[tokio::test]
async fn a_volume_that_is_just_released_is_protected_again_before_the_call() {
    let together = Some(Barrier::new(2));
    let api = Api {
        volumes_together: together,
        ..Api::default()
    };
    let stage = Stage::named(api, GCE).await;
    let let_through = async || {
        let barrier = stage.api.volumes_together.as_ref().unwrap();
        tokio::time::timeout(LIMIT, barrier.wait()).await.expect("in time");
    };
    stage.volume(&json!({"finalizers": [GCE_FINALIZER]}));
    stage
        .api
        .until(|api| api.volume_patches.load(Ordering::SeqCst) == 1)
        .await;
    stage.store.apply_node(CsiNode::new("n0", &[(GCE, "id0")]));
    stage.attachment("va0", "n0", &json!({}));
    let claimed = |api: &Api| {
        let attachment = api.get(&format!("{ATTACHMENTS}va0"));
        attachment.is_some_and(|object| object["metadata"]["finalizers"] == json!([GCE_FINALIZER]))
    };
    stage.api.until(claimed).await;
    let_through().await;
    let_through().await;
    stage.api.until(|api| Stage::is_attached(api, "va0")).await;
    let volume = stage.api.get(&format!("{VOLUMES}pv1")).unwrap();
    assert_eq!(volume["metadata"]["finalizers"], json!([GCE_FINALIZER]));
    let order: Vec<String> = stage.patches().into_iter().map(|(path, _)| path).collect();
    assert_eq!(order, ["va0", "pv1", "pv1", "va0/status"]);
    assert_eq!(stage.calls(Call::ControllerPublishVolume), 1);
}
