//! A process of the operator in a replay: store, queue, engine and requests of production, between gates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher_csi::{CsiClient, DriverConnection};
use csi_attacher_model_check::replay::{self, DriverAnswer, ObjectKind, Stored};
use futures::StreamExt as _;
use futures::stream::{self, Stream};
use http::Request;
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Response, Status};
use tower::BoxError;

use super::super::super::engine::Engine;
use csi_attacher_proto::v1;
use csi_attacher_proto::v1::controller_server::{Controller, ControllerServer};
use csi_attacher_runtime::DriverState;
use csi_attacher_runtime::fence::FencedClient;

use super::super::super::{Rules, SharedContext};
use super::super::answers::{Answer, respond};
use super::super::cluster::{Kind, not_found};
use super::super::service::{ServedRequest, asked};
use super::super::{scenario, secrets};
use super::gate::{Asked, Gate, Reply, run_begins};
use crate::api::validated::PublishSecrets;
use crate::api::{AttacherConfigSpec, DriverConfig};
use crate::apiserver::Requests;
use crate::cache::Store;
use crate::decide::{Capabilities, DriverFacts, ReleaseWithoutCall, VolumeOnNode};
use crate::objects::{CsiNodeWire, PersistentVolumeWire, VolumeAttachmentWire};
use crate::reflect::{Sink, WatchedKind, follow_from_list};
use crate::telemetry::Metrics;
use csi_attacher_base::health::Health;
use csi_attacher_runtime::state::DriverStateSender;

/// The event list ends what is asked, and no deadline.
const NEVER: Duration = Duration::from_hours(1_000);
/// A failure is tried again at once: when is not what is replayed.
const BACKOFF: Duration = Duration::from_millis(1);

type Watched<K> = watcher::Result<Event<K>>;

/// A process. Dropped, it ends at once.
pub struct Operator {
    attachments: mpsc::UnboundedSender<Watched<VolumeAttachmentWire>>,
    volumes: mpsc::UnboundedSender<Watched<PersistentVolumeWire>>,
    nodes: mpsc::UnboundedSender<Watched<CsiNodeWire>>,
    _engine: Engine,
    _settings: watch::Sender<Arc<DriverConfig>>,
    _watches: [AbortOnDropHandle<()>; 3],
}

impl Operator {
    /// A process lists everything and begins to work.
    pub async fn start(gate: &Gate, rules: Rules) -> Result<Self, String> {
        let store = Store::default();
        let listed = gate.list();
        let (attachments, one) = follow(gate, &store, ObjectKind::Attachment, &listed);
        let (volumes, other) = follow(gate, &store, ObjectKind::Volume, &listed);
        let (nodes, third) = follow(gate, &store, ObjectKind::Node, &listed);
        store.lists().wait_synced().await;
        let metrics = Metrics::default();
        let requests = Requests::new(client(gate, &store), "model", NEVER, metrics.clone());
        let context = SharedContext {
            rules: Rules {
                begins: run_begins,
                ..rules
            },
            ..SharedContext::new(store, requests, metrics.clone())
        };
        let able = Capabilities {
            publish_unpublish: true,
            publish_readonly: true,
            ..Capabilities::default()
        };
        let driver = scenario::DRIVERS[0];
        let facts = DriverFacts::new(driver, able).releasing(ReleaseWithoutCall::Unclaimed);
        let settings = watch::Sender::new(Arc::new(settings(driver)?));
        let publisher = DriverStateSender::new(watch::Sender::new(DriverState::default()));
        let connection = DriverConnection::in_process(ControllerServer::new(GatedDriver(gate.clone())));
        let client = CsiClient::new(connection, metrics).with_driver_name(driver.into());
        let client = FencedClient::new(client, None);
        let engine = Engine::start(context, settings.subscribe(), "config".into(), facts, client, publisher);
        Ok(Self {
            attachments,
            volumes,
            nodes,
            _engine: engine.map_err(|conflict| conflict.to_string())?,
            _settings: settings,
            _watches: [one, other, third],
        })
    }

    /// A watch shows its next event.
    pub fn show(&self, kind: ObjectKind, object: &Value, gone: bool) -> Result<(), String> {
        let sent = match kind {
            ObjectKind::Attachment => self.attachments.send(Ok(news(object, gone)?)).is_ok(),
            ObjectKind::Volume => self.volumes.send(Ok(news(object, gone)?)).is_ok(),
            ObjectKind::Node => self.nodes.send(Ok(news(object, gone)?)).is_ok(),
        };
        sent.then_some(()).ok_or_else(|| "a watch has ended".to_owned())
    }
}

fn settings(driver: &str) -> Result<DriverConfig, String> {
    let mut spec = AttacherConfigSpec::new("unix:///model");
    spec.driver_name = Some(driver.to_owned());
    let mut settings = DriverConfig::try_from(&spec).map_err(|error| format!("{error:?}"))?;
    settings.publish_secrets = PublishSecrets::Any;
    (settings.timeouts.publish, settings.timeouts.unpublish) = (NEVER, NEVER);
    (settings.backoff.initial, settings.backoff.max) = (BACKOFF, BACKOFF);
    Ok(settings)
}

fn news<K: WatchedKind>(object: &Value, gone: bool) -> Result<Event<K>, String> {
    let object = K::deserialize(object).map_err(|error| error.to_string())?;
    Ok(if gone {
        Event::Delete(object)
    } else {
        Event::Apply(object)
    })
}

/// Follows a kind from a list on.
fn follow<K: WatchedKind>(
    gate: &Gate,
    store: &Store,
    kind: ObjectKind,
    listed: &[Stored],
) -> (mpsc::UnboundedSender<Watched<K>>, AbortOnDropHandle<()>)
where
    Store: Sink<K>,
{
    let (sender, receiver) = mpsc::unbounded_channel();
    let objects = listed.iter().filter(|stored| stored.kind == kind);
    let objects: Vec<K> = objects
        .filter_map(|stored| K::deserialize(&stored.object).ok())
        .collect();
    let mut list = Some((objects, receiver));
    let gate = gate.clone();
    let events = move || {
        if let Some((objects, receiver)) = list.take() {
            return from_list(objects, receiver).left_stream();
        }
        gate.odd("the store asks for fresh lists");
        stream::pending().right_stream()
    };
    let check = Health::new().check("watch");
    let following = tokio::spawn(follow_from_list(events, store.clone(), check));
    (sender, AbortOnDropHandle::new(following))
}

fn from_list<K: Send + 'static>(
    objects: Vec<K>,
    receiver: mpsc::UnboundedReceiver<Watched<K>>,
) -> impl Stream<Item = Watched<K>> {
    let list = objects.into_iter().map(Event::InitApply);
    let list = std::iter::once(Event::Init).chain(list).chain([Event::InitDone]);
    let list: Vec<Watched<K>> = list.map(Ok).collect();
    let after = stream::unfold(receiver, |mut receiver| async move {
        let event = receiver.recv().await?;
        Some((event, receiver))
    });
    stream::iter(list).chain(after)
}

fn client(gate: &Gate, store: &Store) -> Client {
    let (gate, store) = (gate.clone(), store.clone());
    let service = tower::service_fn(move |request: Request<Body>| serve(gate.clone(), store.clone(), request));
    Client::new(service, "default")
}

async fn serve(gate: Gate, store: Store, request: Request<Body>) -> Result<Answer, BoxError> {
    if let Some(key) = secrets::handover_due(&request) {
        let kind = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"});
        return secret(&gate, &key, kind);
    }
    let asked = asked(request).await?;
    let reply = match asked {
        ServedRequest::Secret(key) => return secret(&gate, &key, json!({"data": {}})),
        // The model reads what the cache does not know in one step with its decision.
        ServedRequest::Read(kind @ Kind::Node, name) => gate.read(kind, &name),
        ServedRequest::Read(kind @ Kind::Volume, name) if store.volume(&name).is_none() => gate.read(kind, &name),
        ServedRequest::Read(kind, name) => gate.ask(replay::read(&name), Asked::Read(kind, name)).await,
        ServedRequest::Write(write) => gate.ask(replay::patch(&write), Asked::Write(write)).await,
    };
    match reply {
        Reply::Http(code, body) => respond(code, &body),
        Reply::Broken | Reply::Driver(_) => Err("connection reset".into()),
    }
}

/// The model reads a Secret in one step with its decision.
fn secret(gate: &Gate, key: &str, mut object: Value) -> Result<Answer, BoxError> {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    if !gate.has_secret() {
        return respond(404, &not_found(Kind::Secret, name));
    }
    object["metadata"] = json!({"namespace": namespace, "name": name, "resourceVersion": "1"});
    respond(200, &object)
}

/// The driver, whose answers the event list gives.
struct GatedDriver(Gate);

impl GatedDriver {
    async fn call(&self, publishes: bool, volume_id: &str, node_id: &str) -> Result<BTreeMap<String, String>, Status> {
        let Some(at) = VolumeOnNode::new(volume_id, node_id) else {
            return Err(Status::invalid_argument("a volume and a node are needed"));
        };
        let code = match self.0.ask(replay::call(publishes, at), Asked::Call).await {
            Reply::Driver(DriverAnswer::Ok(context)) => return Ok(context),
            Reply::Driver(DriverAnswer::Fails(code)) => Code::from_i32(code),
            Reply::Http(..) | Reply::Broken => Code::Unavailable,
        };
        Err(Status::new(code, "as the event list says"))
    }
}

#[tonic::async_trait]
impl Controller for GatedDriver {
    async fn controller_publish_volume(
        &self,
        request: tonic::Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        let request = request.get_ref();
        let publish_context = self.call(true, &request.volume_id, &request.node_id).await?;
        Ok(Response::new(v1::ControllerPublishVolumeResponse { publish_context }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: tonic::Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.get_ref();
        self.call(false, &request.volume_id, &request.node_id).await?;
        Ok(Response::new(v1::ControllerUnpublishVolumeResponse::default()))
    }
}
