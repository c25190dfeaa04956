//! The requests that an attacher sends: patches of volumes and attachments, and reads of single objects.

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use super::answer::{About, unreadable};
use super::error::{ApiError, ApiErrorKind};
use super::flow::retry_after::{RequestKind, RetryAfterGate, retry_after};
use super::flow::slots::{RequestSlot, RequestSlots, SlotAnswer, SlotKind, SlotRequest};
use super::flow::throttle::{RequestThrottles, Throttle};
use super::metrics::CountedByCaller;
use super::resource::{ATTACHMENT_STATUS, ATTACHMENTS, NODES, Resource, SECRETS, VOLUMES};
use super::secret_data::SecretData;
use super::spans;
use crate::api::names::FIELD_MANAGER;
use crate::decide::Write;
use crate::decide::patch::{PatchType, WriteTarget};
use crate::error_chain::chain;
use crate::objects::{
    Attachment, CsiNode, CsiNodeWire, PersistentVolumeWire, ResourceVersion, SecretReference, Volume,
    VolumeAttachmentWire,
};
use crate::telemetry::Span;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::names::attr;

/// Answers larger than this are not read: the largest object an API server stores has less than 3 MiB.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// An object as the API server returned it.
#[derive(Clone, Debug)]
pub enum Returned {
    /// A VolumeAttachment.
    Attachment(Box<Attachment>),
    /// A PersistentVolume.
    Volume(Box<Volume>),
}

/// What requests are for, hence which others they leave the API server to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    /// Work, and the results of work.
    Work,
    /// To release a volume: in line they come after the other requests of the driver, for which somebody waits.
    Release,
    /// To look whether something has changed: as releases, and they leave the limits of requests to all others.
    Look,
}

/// Sends requests over one client, each with a deadline, a CLIENT span and a metric.
#[derive(Clone)]
pub struct Requests {
    client: Client,
    metrics: Metrics,
    pub(super) host: String,
    /// `server.address` and `server.port` of spans; metrics carry `host` as client-go does.
    pub(super) server: (String, u16),
    deadline: Duration,
    limits: RequestThrottles,
    gate: RetryAfterGate,
    places: Option<RequestSlots>,
    rank: Rank,
    /// How often they were sent before.
    pub(super) resends: u32,
}

impl Requests {
    /// Requests over `client` to `host` (for metrics and spans), each of which may take `deadline`.
    pub fn new(client: Client, host: impl Into<String>, deadline: Duration, metrics: Metrics) -> Self {
        let host = host.into();
        metrics.init_requests(&host);
        Self {
            client,
            metrics,
            server: spans::server(&host),
            host,
            deadline,
            limits: RequestThrottles::default(),
            gate: RetryAfterGate::default(),
            places: None,
            rank: Rank::Work,
            resends: 0,
        }
    }

    /// The same requests, held back to a limit. The wait is not part of a request's deadline.
    #[must_use]
    pub fn throttled(self, throttle: Throttle) -> Self {
        let limits = self.limits.of_process(throttle);
        Self { limits, ..self }
    }

    /// The same requests, of which only so many are in flight at a time as the API server answers without making them wait.
    /// Those of one driver ([`Requests::for_driver`]) do not wait for the crowd of another; those that are for none do not
    /// count. The wait is not part of a request's deadline.
    #[must_use]
    pub fn with_slots(self, places: RequestSlots) -> Self {
        let places = Some(places);
        Self { places, ..self }
    }

    /// The same requests for one driver, held back to its own limit as well. Where the API server asks it to wait, others
    /// go on.
    #[must_use]
    pub fn for_driver(self, driver: Arc<str>, throttle: Throttle) -> Self {
        let limits = self.limits.of_driver(driver, throttle);
        let gate = RetryAfterGate::default();
        Self { limits, gate, ..self }
    }

    /// The same requests, of which each releases a volume: others of the driver go first.
    #[must_use]
    pub fn for_releases(&self) -> Self {
        Self {
            rank: Rank::Release,
            ..self.clone()
        }
    }

    /// The same requests, of which none is for more than to look whether something has changed: they wait until nothing
    /// else makes use of the limits.
    #[must_use]
    pub fn for_looks(&self) -> Self {
        Self {
            rank: Rank::Look,
            ..self.clone()
        }
    }

    /// The same requests, sent again after that many tries.
    #[must_use]
    pub fn with_resends(&self, resends: u32) -> Self {
        Self {
            resends,
            ..self.clone()
        }
    }

    /// The driver that the requests are for, if they are for one.
    pub fn driver(&self) -> Option<&str> {
        self.limits.driver().map(|driver| &**driver)
    }

    /// Sends a patch, for work for this node if it is for one; the object that the API server made of it comes back.
    pub async fn patch(&self, write: &Write, node: Option<&Arc<str>>, parent: &Span) -> Result<Returned, ApiError> {
        let (resource, name) = match &write.target {
            WriteTarget::Volume(name) => (VOLUMES, name),
            WriteTarget::Attachment(name) => (ATTACHMENTS, name),
            WriteTarget::AttachmentStatus(name) => (ATTACHMENT_STATUS, name),
        };
        let content_type = match write.form {
            PatchType::Json => "application/json-patch+json",
            PatchType::Merge => "application/merge-patch+json",
        };
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(format!("{}?fieldManager={FIELD_MANAGER}", resource.url(name)))
            .header(header::CONTENT_TYPE, content_type)
            .body(Body::from(write.body.to_string().into_bytes()));
        match &write.target {
            WriteTarget::Volume(_) => self
                .send_for_node::<PersistentVolumeWire>(request, resource, node, parent)
                .await
                .map(volume),
            WriteTarget::Attachment(_) | WriteTarget::AttachmentStatus(_) => self
                .send_for_node::<VolumeAttachmentWire>(request, resource, node, parent)
                .await
                .map(attachment),
        }
    }

    /// Reads the object that a write goes to, after that write was found to be stale; for work for this node if it is for one.
    pub async fn get(
        &self,
        target: &WriteTarget,
        node: Option<&Arc<str>>,
        parent: &Span,
    ) -> Result<Returned, ApiError> {
        match target {
            WriteTarget::Volume(name) => {
                let request = Request::get(VOLUMES.url(name)).body(Body::empty());
                self.send_for_node::<PersistentVolumeWire>(request, VOLUMES, node, parent)
                    .await
                    .map(volume)
            }
            WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => {
                let request = Request::get(ATTACHMENTS.url(name)).body(Body::empty());
                self.send_for_node::<VolumeAttachmentWire>(request, ATTACHMENTS, node, parent)
                    .await
                    .map(attachment)
            }
        }
    }

    /// Reads a CSINode, for work for that node.
    pub async fn get_csi_node(&self, name: &Arc<str>, parent: &Span) -> Result<CsiNode, ApiError> {
        let request = Request::get(NODES.url(name)).body(Body::empty());
        self.send_for_node::<CsiNodeWire>(request, NODES, Some(name), parent)
            .await
            .map(CsiNode::from)
    }

    /// Reads a Secret, live: secrets are never cached. For work for this node if it is for one.
    pub async fn get_secret(
        &self,
        reference: &SecretReference,
        node: Option<&Arc<str>>,
        parent: &Span,
    ) -> Result<SecretData, ApiError> {
        #[derive(Deserialize)]
        struct SecretDataWire {
            #[serde(default)]
            metadata: ObjectMeta,
            #[serde(default)]
            data: BTreeMap<String, k8s_openapi::ByteString>,
        }
        let url = SECRETS.url_of_secret(reference)?;
        let wire: SecretDataWire = self
            .send_for_node(Request::get(url).body(Body::empty()), SECRETS, node, parent)
            .await?;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_else(|error| lossy(&error));
        let data = wire.data.into_iter().map(|(key, value)| (key, text(value.0)));
        Ok(SecretData::of_version(
            data.collect(),
            ResourceVersion::of(&wire.metadata),
        ))
    }

    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        request: http::Result<Request<Body>>,
        resource: Resource,
        parent: &Span,
    ) -> Result<T, ApiError> {
        self.send_for_node(request, resource, None, parent).await
    }

    /// Waits for a slot. Requests that are for no driver, such as events, need none: they come one after another.
    async fn acquire_slot(&self, resource: Resource, method: &Method, node: Option<&Arc<str>>) -> Option<RequestSlot> {
        let (slots, driver) = self.places.as_ref().zip(self.limits.driver())?;
        let kind = SlotKind {
            resource: resource.name,
            is_write: *method != Method::GET,
        };
        let request = SlotRequest {
            driver,
            node,
            kind,
            can_wait: self.rank != Rank::Work,
        };
        Some(slots.acquire(request).await)
    }

    async fn send_for_node<T: DeserializeOwned>(
        &self,
        request: http::Result<Request<Body>>,
        resource: Resource,
        node: Option<&Arc<str>>,
        parent: &Span,
    ) -> Result<T, ApiError> {
        let mut request =
            request.map_err(|error| ApiError::without_answer(ApiErrorKind::Refused, error.to_string()))?;
        let method = request.method().clone();
        let about = About::new(resource, request.uri().path());
        let kind = RequestKind::from(format!("{method} {}", resource.name));
        let again = self.gate.wait(&kind).await;
        let verb = method.as_str();
        let waited = match self.rank {
            Rank::Look => self.limits.pass_when_idle(&self.metrics, verb, &self.host).await,
            Rank::Work | Rank::Release => self.limits.wait(&self.metrics, verb, &self.host).await,
        };
        let mut span = self.span(&request, resource, parent);
        let slot = self.acquire_slot(resource, &method, node).await;
        let waited_for_slot = slot.as_ref().and_then(RequestSlot::waited);
        if waited.is_some() || waited_for_slot.is_some() {
            let waited = waited.unwrap_or_default() + waited_for_slot.unwrap_or_default();
            span.set(attr::K8S_LIMIT_WAIT, waited.as_secs_f64());
        }
        span.inject(request.headers_mut());
        request.extensions_mut().insert(CountedByCaller);
        if let Some(code) = again {
            self.metrics.rest_request_retried(method.as_str(), &self.host, code);
        }
        let started = Instant::now();
        let exchange = async {
            let response = self.client.send(request).await;
            read_response(response.map_err(|error| broken(chain(&error)))?, &about).await
        };
        let outcome = tokio::time::timeout(self.deadline, exchange).await.unwrap_or_else(|_| {
            let waited = format!("no answer from the API server within {} s", self.deadline.as_secs_f32());
            Err(ApiError::without_answer(ApiErrorKind::Unknown, waited))
        });
        let outcome = outcome.and_then(|(status, body)| {
            let object = decode(status, &body)?;
            about.check(status, &body)?;
            Ok((status, object))
        });
        if let Some(slot) = slot {
            slot.finish(slot_answer(outcome.as_ref().err()));
        }
        let status = outcome
            .as_ref()
            .map_or_else(|error| error.status, |(status, _)| Some(status.as_u16()));
        if let Err(error) = &outcome {
            self.gate.record_response(&kind, error.status, error.retry_after);
        }
        let code = status.and_then(|status| StatusCode::from_u16(status).ok());
        self.metrics
            .rest_request(method.as_str(), &self.host, code, started.elapsed(), span.ids());
        spans::finish(span, status, outcome.as_ref().err());
        outcome.map(|(_, object)| object)
    }
}

/// What the end of a request says about how much the API server has to do. A gateway before it that waits too long says 504.
fn slot_answer(error: Option<&ApiError>) -> SlotAnswer {
    match error.map(|error| error.status) {
        None => SlotAnswer::Served,
        // Without a status there was no answer in time, or no connection.
        Some(None | Some(429 | 503 | 504)) => SlotAnswer::Overloaded,
        Some(Some(_)) => SlotAnswer::Other,
    }
}

/// The failure of a request that brought no answer, or not all of it.
fn broken(error: String) -> ApiError {
    ApiError::without_answer(ApiErrorKind::Unknown, error)
}

/// Reads an answer up to a bounded size; anything but a success is an error.
async fn read_response(response: Response<Body>, about: &About) -> Result<(StatusCode, Vec<u8>), ApiError> {
    let status = response.status();
    let retry_after = retry_after(status.as_u16(), response.headers());
    let body = http_body_util::Limited::new(response.into_body(), MAX_ANSWER_BYTES);
    let body = body.collect().await.map_err(|error| broken(error.to_string()))?;
    let body = body.to_bytes();
    if status.is_success() {
        return Ok((status, body.to_vec()));
    }
    let (kind, message) = about.refusal(status, &body);
    Err(ApiError {
        kind,
        message,
        status: Some(status.as_u16()),
        retry_after,
    })
}

fn volume(wire: PersistentVolumeWire) -> Returned {
    Returned::Volume(Box::new(wire.into()))
}

fn attachment(wire: VolumeAttachmentWire) -> Returned {
    Returned::Attachment(Box::new(wire.into()))
}

/// A Secret may hold bytes that are no text; CSI carries text only, so they are carried as near to it as can be.
fn lossy(error: &std::string::FromUtf8Error) -> String {
    String::from_utf8_lossy(error.as_bytes()).into_owned()
}

fn decode<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| unreadable(status, &error))
}
