//! Leases of one name, behind as much of an API server as an election needs, which can be out of order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;

use crate::api_answers::not_found;

/// Where the Lease is unless a test says otherwise.
pub const NAMESPACE: &str = "default";

#[derive(Clone, Default)]
pub struct ApiServer(pub Arc<Mutex<State>>);

/// A request that makes a Lease, and is carried out late.
#[derive(Default)]
pub enum LateCreation {
    #[default]
    None,
    /// The next one is.
    Awaited,
    /// The Lease that it makes, in this namespace.
    Kept(String, Box<Lease>),
}

#[derive(Default)]
pub struct State {
    /// By namespace.
    pub leases: BTreeMap<String, Lease>,
    /// Namespaces whose Leases may not be read or written.
    pub forbidden: BTreeSet<String>,
    /// Namespaces in which nothing may be written.
    pub read_only: BTreeSet<String>,
    /// What admission says to each write, by namespace.
    pub denied: BTreeMap<String, (StatusCode, &'static str)>,
    /// Namespaces that there are not.
    pub gone: BTreeSet<String>,
    /// Namespaces that are being deleted.
    pub terminating: BTreeSet<String>,
    pub late_creation: LateCreation,
    /// Whether a proxy answers 404 to what is asked about Leases.
    pub proxy_lost_its_way: bool,
    version: u64,
    /// No request is answered.
    down: bool,
    /// How long a request takes after it was carried out.
    slow: std::time::Duration,
    reads: usize,
    writes: usize,
}

impl ApiServer {
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let answer = server.answer(request).await;
                let slow = server.0.lock().slow;
                if !slow.is_zero() {
                    tokio::time::sleep(slow).await;
                }
                Ok::<_, std::io::Error>(answer)
            }
        });
        Client::new(service, "default")
    }

    pub fn lease(&self) -> Option<Lease> {
        self.0.lock().leases.get(NAMESPACE).cloned()
    }

    pub fn holder(&self) -> Option<String> {
        self.lease()?.spec?.holder_identity
    }

    pub fn holder_in(&self, namespace: &str) -> Option<String> {
        self.0
            .lock()
            .leases
            .get(namespace)?
            .spec
            .as_ref()?
            .holder_identity
            .clone()
    }

    pub fn set_down(&self, down: bool) {
        self.0.lock().down = down;
    }

    pub fn set_slow(&self, slow: std::time::Duration) {
        self.0.lock().slow = slow;
    }

    pub fn reads(&self) -> usize {
        self.0.lock().reads
    }

    pub fn writes(&self) -> usize {
        self.0.lock().writes
    }

    /// Removes the Lease.
    pub fn remove(&self) {
        self.0.lock().leases.remove(NAMESPACE);
    }

    fn keep_late(&self, namespace: &str, body: &[u8]) -> bool {
        let mut state = self.0.lock();
        let is_awaited = matches!(state.late_creation, LateCreation::Awaited);
        if is_awaited {
            let lease = serde_json::from_slice(body).unwrap();
            state.late_creation = LateCreation::Kept(namespace.to_owned(), Box::new(lease));
        }
        is_awaited
    }

    /// Somebody deletes the Lease, and the request that was kept is carried out.
    pub fn make_late(&self) {
        let mut state = self.0.lock();
        if let LateCreation::Kept(namespace, lease) = std::mem::take(&mut state.late_creation) {
            state.leases.remove(&namespace);
            state.store(&namespace, *lease);
        }
    }

    /// A Lease that nobody holds is there, as after a release: it is taken without a wait.
    pub fn release_in(&self, namespace: &str) {
        self.change_in(namespace, |lease| {
            let spec = lease.spec.get_or_insert_default();
            (spec.holder_identity, spec.lease_duration_seconds) = (None, Some(1));
            spec.lease_transitions = Some(0);
        });
    }

    /// Changes the Lease, as another client would.
    pub fn change(&self, change: impl FnOnce(&mut Lease)) {
        self.change_in(NAMESPACE, change);
    }

    pub fn change_in(&self, namespace: &str, change: impl FnOnce(&mut Lease)) {
        let mut state = self.0.lock();
        let mut lease = state.leases.get(namespace).cloned().unwrap_or_default();
        change(&mut lease);
        state.store(namespace, lease);
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        if self.0.lock().down {
            std::future::pending::<()>().await;
        }
        let path: Vec<_> = parts.uri.path().trim_matches('/').split('/').collect();
        if let ["apis", _, _, "namespaces", namespace, "leases"] = path.as_slice()
            && parts.method == Method::POST
            && self.keep_late(namespace, &body)
        {
            std::future::pending::<()>().await;
        }
        let mut state = self.0.lock();
        match path.as_slice() {
            ["apis", _, _, "namespaces", namespace, "leases", rest @ ..] => {
                state.answer_lease(&parts.method, namespace, rest, &body)
            }
            path => panic!("{path:?}"),
        }
    }
}

impl State {
    fn answer_lease(&mut self, method: &Method, namespace: &str, rest: &[&str], body: &[u8]) -> Response<Body> {
        let may_not_write = self.read_only.contains(namespace) && *method != Method::GET;
        if may_not_write || self.forbidden.contains(namespace) {
            return refused_as(StatusCode::FORBIDDEN, "", WITHOUT_RULE);
        }
        if let Some((code, message)) = self.denied.get(namespace).filter(|_| *method != Method::GET) {
            return refused_as(*code, "", message);
        }
        if self.terminating.contains(namespace) && *method == Method::POST {
            return refused_as(StatusCode::FORBIDDEN, "", TERMINATING);
        }
        if self.proxy_lost_its_way {
            let mut response = Response::new(Body::from(b"404 page not found".to_vec()));
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        }
        let known = self.leases.get(namespace);
        match (method, rest) {
            // Watching is forbidden, as it may be for the account of a sidecar.
            (&Method::GET, []) => refused(StatusCode::FORBIDDEN, ""),
            (&Method::GET, [name]) => {
                self.reads += 1;
                let Some(mut lease) = known.cloned() else {
                    return missing(namespace, name);
                };
                lease.metadata.name = Some((*name).to_owned());
                found(&lease)
            }
            _ => {
                self.writes += 1;
                let lease: Lease = serde_json::from_slice(body).unwrap();
                let known = known.map(|lease| lease.metadata.resource_version.clone());
                match (method, known) {
                    (&Method::POST, None) if self.gone.contains(namespace) => without_namespace(namespace),
                    (&Method::POST, Some(_)) => refused(StatusCode::CONFLICT, ""),
                    (&Method::PUT, None) => refused(StatusCode::NOT_FOUND, ""),
                    (&Method::PUT, Some(known)) if known != lease.metadata.resource_version => {
                        refused(StatusCode::CONFLICT, "")
                    }
                    _ => found(&self.store(namespace, lease)),
                }
            }
        }
    }

    fn store(&mut self, namespace: &str, mut lease: Lease) -> Lease {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.leases.insert(namespace.to_owned(), lease.clone());
        lease
    }
}

fn found(object: &impl serde::Serialize) -> Response<Body> {
    Response::new(Body::from(serde_json::to_vec(object).unwrap()))
}

fn missing(namespace: &str, lease: &str) -> Response<Body> {
    let status = not_found(&format!(
        "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}"
    ));
    let mut response = found(&status);
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

fn without_namespace(namespace: &str) -> Response<Body> {
    let message = format!("namespaces \"{namespace}\" not found");
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": message,
        "details": {"name": namespace, "kind": "namespaces"},
    });
    let mut response = found(&status);
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// As Kubernetes says it of a right that is missing.
const WITHOUT_RULE: &str = "leases.coordination.k8s.io \"d\" is forbidden: User \"system:serviceaccount:csi:operator\" cannot \
                            update resource \"leases\" in API group \"coordination.k8s.io\" in the namespace \"default\"";

/// As Kubernetes says it of a namespace.
const TERMINATING: &str = "leases.coordination.k8s.io \"d\" is forbidden: unable to create new content in namespace default \
                           because it is being terminated";

fn refused(code: StatusCode, name: &str) -> Response<Body> {
    refused_as(code, name, "refused")
}

fn refused_as(code: StatusCode, name: &str, message: &str) -> Response<Body> {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code.as_u16(),
        "reason": reason, "message": message, "details": {"name": name},
    });
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = code;
    response
}
