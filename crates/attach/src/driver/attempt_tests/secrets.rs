//! Attachments whose volumes name Secrets, against a model of the API server in virtual time.

mod allowed;
mod waits;

use futures::StreamExt as _;
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};

use super::*;
use crate::api::PublishSecretsSpec;
use crate::objects::Volume;
use crate::reflect::follow_from_list;
use csi_attacher_base::health::Health;
use csi_attacher_proto::v1;
use csi_attacher_proto::v1::controller_server::{Controller, ControllerServer};
use csi_attacher_testbed::api_answers::{not_found, refusal};

type Watched = watcher::Result<Event<VolumeAttachmentWire>>;

/// A driver that answers OK, but to the next publishes that are to fail, and keeps the keys of the secrets that it is given.
#[derive(Default)]
struct Recorder {
    given: Mutex<Vec<(&'static str, Vec<String>)>>,
    failures: Mutex<Vec<tonic::Code>>,
}

impl Recorder {
    fn note(&self, method: &'static str, secrets: &BTreeMap<String, String>) {
        self.given.lock().push((method, secrets.keys().cloned().collect()));
    }
}

#[tonic::async_trait]
impl Controller for Recorder {
    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        self.note("publish", &request.get_ref().secrets);
        if let Some(code) = self.failures.lock().pop() {
            return Err(Status::new(code, "as the test wants"));
        }
        Ok(Response::new(v1::ControllerPublishVolumeResponse::default()))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        self.note("unpublish", &request.get_ref().secrets);
        Ok(Response::new(v1::ControllerUnpublishVolumeResponse::default()))
    }
}

impl Api {
    pub(super) fn read(&self, path: &str) -> (u16, Value) {
        if path.contains("/secrets/") && self.secrets_forbidden.load(Ordering::SeqCst) {
            return (403, refusal(403, "forbidden"));
        }
        self.get(path)
            .map_or_else(|| (404, not_found(path)), |object| (200, object))
    }

    pub(super) async fn hold(&self, path: &str) {
        while path.starts_with(ATTACHMENTS) && self.hold_attachments.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// One engine, its API server and the watch of attachments.
struct Scene {
    api: Arc<Api>,
    driver: Arc<Recorder>,
    store: Store,
    engine: Engine,
    settings: watch::Sender<Arc<DriverConfig>>,
    status: watch::Receiver<DriverState>,
    watch: mpsc::UnboundedSender<Watched>,
    _watch: AbortOnDropHandle<()>,
}

impl Scene {
    fn new(edit: impl FnOnce(&mut AttacherConfigSpec)) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let api = Arc::new(Api::default());
        let router = axum::Router::new().fallback(serve).with_state(api.clone());
        let of_axum = |request: http::Request<kube::client::Body>| request.map(axum::body::Body::new);
        let service = tower::ServiceBuilder::new().map_request(of_axum).service(router);
        let metrics = Metrics::default();
        let context = SharedContext::new(
            Store::default(),
            Requests::new(kube::Client::new(service, "default"), "model", LIMIT, metrics.clone()),
            metrics,
        );
        let mut spec = AttacherConfigSpec::new("unix:///model");
        edit(&mut spec);
        let (settings, seen) = watch::channel(Arc::new(DriverConfig::try_from(&spec).unwrap()));
        let able = Capabilities {
            publish_unpublish: true,
            ..Capabilities::default()
        };
        let facts = DriverFacts::new(DRIVER, able);
        let (status, told) = watch::channel(DriverState::default());
        let (store, driver) = (context.store.clone(), Arc::new(Recorder::default()));
        let connection = DriverConnection::in_process(ControllerServer::from_arc(driver.clone()));
        let client = CsiClient::new(connection, context.metrics.clone());
        let start = Start {
            name: "config".into(),
            config: seen,
            facts,
            client: FencedClient::new(client, None),
            status: DriverStateSender::new(status),
        };
        let Ok(engine) = engine::start(context, start) else {
            panic!("conflict")
        };
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
        scene.store.apply(CsiNode::new("n", &[(DRIVER, "id")]));
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
        let csi = json!({"controllerPublishSecretRef": reference});
        self.volume_with(name, &json!({"spec": {"csi": csi}}));
    }

    /// Makes or changes a volume, which has no Secret unless the changes name one.
    fn volume_with(&self, name: &str, changes: &Value) {
        let mut object = json!({
            "metadata": {"name": name, "uid": format!("{name}-uid"), "finalizers": [FINALIZER]},
            "spec": {"accessModes": ["ReadWriteMany"], "csi": {"driver": DRIVER, "volumeHandle": name}},
        });
        json_patch::merge(&mut object, changes);
        let object = self.api.put(format!("{VOLUMES}{name}"), object);
        let volume: PersistentVolumeWire = serde_json::from_value(object).unwrap();
        self.store.apply::<Volume>(volume.into());
    }

    /// Makes an attachment of the volume of the same name.
    fn attachment(&self, name: &str, metadata: &Value) -> Value {
        self.attachment_with(name, &json!({"metadata": metadata}))
    }

    fn attachment_with(&self, name: &str, changes: &Value) -> Value {
        let mut object = json!({
            "metadata": {"name": name, "uid": format!("{name}-uid")},
            "spec": {"attacher": DRIVER, "nodeName": "n", "source": {"persistentVolumeName": name}},
        });
        json_patch::merge(&mut object, changes);
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
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        self.api.put(path, object);
    }

    /// Reads of Secrets so far.
    fn reads(&self) -> Vec<String> {
        let reads = self.api.reads.lock();
        let of_secrets = reads.iter().filter(|path| path.contains("/secrets/"));
        of_secrets.cloned().collect()
    }

    fn waiting(&self) -> Option<usize> {
        let status = self.status.borrow();
        status.withheld.as_ref().map(|withheld| withheld.attachments)
    }
}

/// The driver may be given all Secrets of the namespace ns, and only an event brings about a second try.
fn patient(spec: &mut AttacherConfigSpec) {
    allowing(&["ns"])(spec);
    retry(spec, "24h", "24h");
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
