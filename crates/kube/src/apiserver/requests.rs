//! The requests that are sent about objects: each once, within a deadline, and believed when the answer is about that object.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;
use tower::BoxError;

use super::answer::{About, ObjectName, encoded, unanswered, unreadable};
use super::flow::retry_after::{RetryAfterGate, retry_after};
use super::flow::slots::RequestSlots;
use super::flow::throttle::Throttle;
use super::flow::{Flow, Rank};
use super::secret_data::HeldContents;
use crate::api::names::FIELD_MANAGER;
use crate::decide::Write;
use crate::decide::patch::{PatchType, WriteTarget};
use crate::error_chain::chain;
use crate::kinds::Kind;
use crate::objects::{PersistentVolumeWire, ResourceVersion, VolumeAttachmentWire, slim};
use crate::telemetry::Span;
use crate::telemetry::metrics::Metrics;
use csi_attacher_model::answer::{ApiError, ApiErrorKind, Returned};

/// Answers larger than this are not read: the largest object an API server stores has less than 3 MiB.
const MAX_ANSWER_BYTES: usize = 8 << 20;
const JSON: &str = "application/json";
/// The media type of a server-side apply.
const APPLY: &str = "application/apply-patch+yaml";
/// Asks the API server for the metadata alone.
pub(super) const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The same of a list.
pub(super) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// The kind of a list of metadata, whatever it is of.
pub(super) const KIND_OF_METADATA_LIST: &str = "PartialObjectMetadataList";

/// How long requests may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDeadlines {
    /// One that reads.
    pub read: Duration,
    /// One that writes.
    pub write: Duration,
}

impl Default for RequestDeadlines {
    /// 15 s, and 40 s for a write. Webhooks may take 30 s (`timeoutSeconds`), and kube-apiserver ends a write itself after 34 s
    /// (`requestTimeoutUpperBound`). It stores nothing of one that was given up before, however often it is sent.
    fn default() -> Self {
        Self {
            read: Duration::from_secs(15),
            write: Duration::from_secs(40),
        }
    }
}

impl From<Duration> for RequestDeadlines {
    /// The same for all.
    fn from(all: Duration) -> Self {
        Self { read: all, write: all }
    }
}

impl RequestDeadlines {
    /// That of one request.
    pub(super) fn of(self, method: &Method) -> Duration {
        if *method == Method::GET { self.read } else { self.write }
    }
}

/// Sends requests over one client.
#[derive(Clone)]
pub struct Requests {
    client: Client,
    deadlines: RequestDeadlines,
    /// What each passes on its way; none for requests that wait for nothing.
    flow: Option<Flow>,
    /// Of the Secrets that are read by these requests and copies of them.
    held: HeldContents,
}

impl Requests {
    /// Requests over `client`, which may take so long each. They obey `Retry-After`; each has a CLIENT span, and is counted. Spans and metrics
    /// name the API server by `url`, that of the client without user and password; what is no URL is no name.
    pub fn new(
        client: Client,
        url: impl TryInto<Uri>,
        deadlines: impl Into<RequestDeadlines>,
        metrics: Metrics,
    ) -> Self {
        Self {
            flow: Some(Flow::new(&url.try_into().unwrap_or_default(), metrics)),
            ..Self::immediate(client, deadlines)
        }
    }

    /// Requests that are sent at once whatever the API server asked for, as what keeps a Lease must be. They have no span, and the
    /// connection counts them.
    pub fn immediate(client: Client, deadlines: impl Into<RequestDeadlines>) -> Self {
        Self {
            client,
            deadlines: deadlines.into(),
            flow: None,
            held: HeldContents::default(),
        }
    }

    /// Requests over the same client with the same deadlines, but as [`Requests::immediate`].
    #[must_use]
    pub fn without_flow(&self) -> Self {
        Self::immediate(self.client.clone(), self.deadlines)
    }

    pub(super) fn held_contents(&self) -> &HeldContents {
        &self.held
    }

    fn with_flow(mut self, change: impl FnOnce(&mut Flow)) -> Self {
        self.flow.as_mut().map(change);
        self
    }

    /// The same requests, held back to a limit. The wait is not part of a request's deadline.
    #[must_use]
    pub fn throttled(self, throttle: Throttle) -> Self {
        self.with_flow(|flow| flow.limits.process = Some(throttle))
    }

    /// The same requests, each with a slot if it is for a driver ([`Requests::for_driver`]). The wait is not part of its deadline.
    #[must_use]
    pub fn with_slots(self, slots: RequestSlots) -> Self {
        self.with_flow(|flow| flow.slots = Some(slots))
    }

    /// The same requests for one driver, held back to its own limit as well. Where the API server asks it to wait, others
    /// go on.
    #[must_use]
    pub fn for_driver(self, driver: Arc<str>, throttle: Throttle) -> Self {
        self.with_flow(|flow| {
            flow.limits.driver = Some((driver, throttle));
            flow.gate = RetryAfterGate::default();
        })
    }

    /// The same requests, for which nobody waits, as they release a volume, or note and protect what is attached: others of the driver go
    /// first.
    #[must_use]
    pub fn for_upkeep(&self) -> Self {
        self.clone().with_flow(|flow| flow.rank = Rank::Upkeep)
    }

    /// The same requests, which only poll for a change: they wait until nothing else makes use of the limits.
    #[must_use]
    pub fn for_polls(&self) -> Self {
        self.clone().with_flow(|flow| flow.rank = Rank::Poll)
    }

    /// The same requests, sent again after that many tries.
    #[must_use]
    pub fn with_resends(&self, resends: u32) -> Self {
        self.clone().with_flow(|flow| flow.resends = resends)
    }

    /// Sends a patch, for work for this node if it is for one; the object that the API server made of it comes back.
    pub async fn write(&self, write: &Write, node: Option<&Arc<str>>, parent: &Span) -> Result<Returned, ApiError> {
        let Write { target, form, body } = write;
        match target {
            WriteTarget::Volume(name) => self.patch(&**name, *form, body, node, parent).await.map(volume),
            WriteTarget::Attachment(name) => self.patch(&**name, *form, body, node, parent).await.map(attachment),
            WriteTarget::AttachmentStatus(name) => {
                let status = ObjectName::status_of(name);
                self.patch(status, *form, body, node, parent).await.map(attachment)
            }
        }
    }

    /// Reads the object that a write goes to, for work for this node if it is for one.
    pub async fn read(
        &self,
        target: &WriteTarget,
        node: Option<&Arc<str>>,
        parent: &Span,
    ) -> Result<Returned, ApiError> {
        match target {
            WriteTarget::Volume(name) => self.get(&**name, node, parent).await.map(volume),
            WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => {
                self.get(&**name, node, parent).await.map(attachment)
            }
        }
    }

    /// Reads an object as it is, past every cache, for work for this node if it is for one.
    pub async fn get<K: Kind>(
        &self,
        name: impl Into<ObjectName<'_>>,
        node: Option<&Arc<str>>,
        parent: &Span,
    ) -> Result<K, ApiError> {
        let about = About::new::<K>(name)?;
        let request = read(about.path(), None)?;
        self.send(request, &about, node, parent).await
    }

    /// The same, for no work in particular; none when the API server says of this very object that it is not there.
    pub async fn find<K: Kind>(&self, name: impl Into<ObjectName<'_>>) -> Result<Option<K>, ApiError> {
        match self.get(name, None, &Span::disabled()).await {
            Err(error) if error.kind == ApiErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Reads the version of an object, whose contents stay with the API server.
    pub async fn get_version<K: Kind>(&self, name: impl Into<ObjectName<'_>>) -> Result<ResourceVersion, ApiError> {
        #[derive(Deserialize)]
        struct MetadataWire {
            #[serde(default, deserialize_with = "slim")]
            metadata: ObjectMeta,
        }
        let mut about = About::new::<K>(name)?;
        about.is_of_metadata = true;
        let request = read(about.path(), Some(METADATA_ONLY))?;
        let wire: MetadataWire = self.send(request, &about, None, &Span::disabled()).await?;
        Ok(ResourceVersion::of(&wire.metadata))
    }

    /// Lists objects with these labels, in all namespaces, and not more than so many of them: their metadata, whose contents stay with the
    /// API server. For no work in particular.
    pub async fn list_metadata<K: Kind>(&self, selector: &str, limit: usize) -> Result<Vec<K>, ApiError> {
        #[derive(Deserialize)]
        struct ListWire<K> {
            kind: Option<String>,
            items: Option<Vec<K>>,
        }
        let mut about = About::new::<K>(ObjectName::all_in(None))?;
        about.may_be_unserved = true;
        let selector = encoded(selector);
        let path = format!("{}?labelSelector={selector}&limit={limit}", about.path());
        let request = read(path, Some(METADATA_LIST))?;
        let list: ListWire<K> = self.send(request, &about, None, &Span::disabled()).await?;
        // What is no list has no objects either.
        match list.kind.as_deref() {
            Some(KIND_OF_METADATA_LIST) => Ok(list.items.unwrap_or_default()),
            _ => Err(ApiError::garbled(format!(
                "the answer is no list of {about}; check what is between the operator and the API server"
            ))),
        }
    }

    /// Makes an object, in this namespace if its kind has namespaces.
    pub async fn create<K: Kind>(
        &self,
        namespace: Option<&str>,
        object: &impl Serialize,
        parent: &Span,
    ) -> Result<K, ApiError> {
        let about = About::new::<K>(ObjectName::all_in(namespace))?;
        let request = write(Method::POST, managed(&about), JSON, object)?;
        self.send(request, &about, None, parent).await
    }

    /// Whether the API server says that a namespace is not there. Who may write Events in all namespaces needs no
    /// permission on these for that: one is written in vain (`dryRun`), and admission refuses what is to be made in a namespace that is gone.
    pub async fn is_namespace_gone(&self, namespace: &str, parent: &Span) -> bool {
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": { "generateName": "namespace-", "namespace": namespace },
            "involvedObject": { "apiVersion": "v1", "kind": "Namespace", "name": namespace, "namespace": namespace },
        });
        let asked = async {
            let about = About::new::<Namespace>(ObjectName::events_of(namespace))?;
            let request = write(Method::POST, managed(&about) + "&dryRun=All", JSON, &event)?;
            self.send::<Value>(request, &about, None, parent).await
        };
        matches!(asked.await, Err(error) if error.kind == ApiErrorKind::NotFound)
    }

    /// Writes a whole object in place of the one of its version.
    pub async fn replace<K: Kind>(
        &self,
        name: impl Into<ObjectName<'_>>,
        object: &impl Serialize,
    ) -> Result<K, ApiError> {
        let about = About::new::<K>(name)?;
        let request = write(Method::PUT, managed(&about), JSON, object)?;
        self.send(request, &about, None, &Span::disabled()).await
    }

    /// Patches an object, for work for this node if it is for one.
    pub async fn patch<K: Kind>(
        &self,
        name: impl Into<ObjectName<'_>>,
        form: PatchType,
        patch: &Value,
        node: Option<&Arc<str>>,
        parent: &Span,
    ) -> Result<K, ApiError> {
        let media_type = match form {
            PatchType::Json => "application/json-patch+json",
            PatchType::Merge => "application/merge-patch+json",
        };
        let about = About::new::<K>(name)?;
        let request = write(Method::PATCH, managed(&about), media_type, patch)?;
        self.send(request, &about, node, parent).await
    }

    /// Deletes an object, on condition that it has this UID. None when it is gone by that; else the object as it is now, as something holds
    /// it (Kubernetes, "Finalizers"). What nobody holds is never in deletion: the answer is a `metav1.Status` then or, as for PersistentVolumes,
    /// the object as it was.
    pub async fn delete<K: Kind>(
        &self,
        name: impl Into<ObjectName<'_>>,
        uid: &str,
        parent: &Span,
    ) -> Result<Option<K>, ApiError> {
        let mut about = About::new::<K>(name)?;
        about.may_be_status = true;
        let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid } });
        let request = write(Method::DELETE, managed(&about), JSON, &options)?;
        let answer: Value = self.send(request, &about, None, parent).await?;
        // A status has neither.
        let metadata = &answer["metadata"];
        let finalizers = metadata["finalizers"].as_array();
        if metadata["deletionTimestamp"].is_null() && finalizers.is_none_or(Vec::is_empty) {
            return Ok(None);
        }
        let object = serde_json::from_value(answer);
        object.map(Some).map_err(|error| unreadable(StatusCode::OK, &error))
    }

    /// Writes what is given of an object by server-side apply, whoever owned these fields before. What the manager gave before and does not
    /// give any more goes, unless another one gives it.
    pub async fn apply<K: Kind>(
        &self,
        manager: &str,
        name: impl Into<ObjectName<'_>>,
        object: &Value,
    ) -> Result<K, ApiError> {
        let about = About::new::<K>(name)?;
        let uri = format!("{}?fieldManager={manager}&force=true", about.path());
        let request = write(Method::PATCH, uri, APPLY, object)?;
        self.send(request, &about, None, &Span::disabled()).await
    }

    /// The way of every request.
    async fn send<T: DeserializeOwned>(
        &self,
        mut request: Request<Body>,
        about: &About<'_>,
        node: Option<&Arc<str>>,
        parent: &Span,
    ) -> Result<T, ApiError> {
        let Some(flow) = &self.flow else {
            return self.exchange(request, about).await.map(|(_, object)| object);
        };
        let admitted = flow.admit(&mut request, about, node, parent).await;
        let outcome = self.exchange(request, about).await;
        flow.finish(admitted, outcome.as_ref().map(|(status, _)| *status));
        outcome.map(|(_, object)| object)
    }

    /// Sends a request within its deadline, and reads the answer.
    async fn exchange<T: DeserializeOwned>(
        &self,
        request: Request<Body>,
        about: &About<'_>,
    ) -> Result<(StatusCode, T), ApiError> {
        let deadline = self.deadlines.of(request.method());
        let answer = async {
            let response = self.client.send(request).await;
            read_response(response.map_err(|error| broken(chain(&error)))?, about).await
        };
        let late = |_| broken(unanswered(deadline));
        let (status, body) = timeout(deadline, answer).await.map_err(late)??;
        let object = serde_json::from_slice(&body).map_err(|error| unreadable(status, &error))?;
        about.check(status, &body)?;
        Ok((status, object))
    }
}

fn read(path: String, accept: Option<&'static str>) -> Result<Request<Body>, ApiError> {
    let mut request = Request::get(path);
    if let Some(accept) = accept {
        request = request.header(header::ACCEPT, accept);
    }
    request.body(Body::empty()).map_err(unsendable)
}

/// Where an object is written in the operator's own name.
fn managed(about: &About<'_>) -> String {
    format!("{}?fieldManager={FIELD_MANAGER}", about.path())
}

fn write(
    method: Method,
    uri: String,
    media_type: &'static str,
    body: &impl Serialize,
) -> Result<Request<Body>, ApiError> {
    Request::builder()
        .method(method)
        .uri(uri)
        .header(header::CONTENT_TYPE, media_type)
        .body(Body::from(serde_json::to_vec(body).map_err(unsendable)?))
        .map_err(unsendable)
}

fn unsendable(error: impl Into<BoxError>) -> ApiError {
    ApiError::without_answer(ApiErrorKind::Refused, error.into().to_string())
}

/// The failure of a request that brought no answer, or not all of it.
fn broken(error: String) -> ApiError {
    ApiError::without_answer(ApiErrorKind::Unknown, error)
}

/// Reads an answer up to a bounded size; anything but a success is an error.
async fn read_response(response: Response<Body>, about: &About<'_>) -> Result<(StatusCode, Bytes), ApiError> {
    let (head, body) = response.into_parts();
    let status = head.status;
    let retry_after = retry_after(status.as_u16(), &head.headers);
    let body = http_body_util::Limited::new(body, MAX_ANSWER_BYTES);
    let body = body.collect().await.map_err(|error| broken(error.to_string()))?;
    let body = body.to_bytes();
    if status.is_success() {
        return Ok((status, body));
    }
    let error = about.classify_failure(status, &head.headers, &body);
    // For that of a webhook all others of the kind would have to wait.
    let retry_after = retry_after.filter(|_| !error.is_of_webhook());
    Err(ApiError { retry_after, ..error })
}

fn volume(wire: PersistentVolumeWire) -> Returned {
    Returned::Volume(Box::new(wire.into()))
}

fn attachment(wire: VolumeAttachmentWire) -> Returned {
    Returned::Attachment(Box::new(wire.into()))
}
