//! Leases of one name, behind as much of an API server as an election needs, which can be out of order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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

/// What is the matter with a namespace.
pub enum Trouble {
    /// Its Leases may not be read or written.
    Forbidden,
    /// The API server, or what is before it, takes no request now.
    Unavailable,
    /// A proxy that has lost its way answers 404 to what is asked about Leases.
    Proxy,
    /// Nothing may be written.
    ReadOnly,
    /// What admission says to each write.
    Denied(StatusCode, &'static str),
    /// There is none.
    Gone,
    /// It is being deleted.
    Terminating,
}

/// Leases and troubles by namespace.
#[derive(Default)]
pub struct State {
    leases: BTreeMap<String, Lease>,
    pub troubles: BTreeMap<String, Trouble>,
    /// No request is answered.
    pub down: bool,
    /// How long a request takes after it was carried out.
    pub slow: Duration,
    version: u64,
    reads: usize,
    writes: usize,
}

impl ApiServer {
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, std::io::Error>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    pub fn lease(&self) -> Option<Lease> {
        self.0.lock().leases.get(NAMESPACE).cloned()
    }

    /// Who holds the Lease; empty when nobody does.
    pub fn holder(&self) -> String {
        self.holder_in(NAMESPACE)
    }

    pub fn holder_in(&self, namespace: &str) -> String {
        let lease = self.0.lock().leases.get(namespace).cloned();
        let spec = lease.and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    }

    pub fn reads(&self) -> usize {
        self.0.lock().reads
    }

    pub fn writes(&self) -> usize {
        self.0.lock().writes
    }

    /// Something is the matter with a namespace from now on. When it goes, its Lease goes.
    pub fn trouble(&self, namespace: &str, trouble: Trouble) {
        let mut state = self.0.lock();
        if matches!(trouble, Trouble::Gone | Trouble::Terminating) {
            state.leases.remove(namespace);
        }
        state.troubles.insert(namespace.to_owned(), trouble);
    }

    /// Removes the Lease.
    pub fn remove(&self) {
        self.0.lock().leases.remove(NAMESPACE);
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
        let ["apis", _, _, "namespaces", namespace, "leases", rest @ ..] = path.as_slice() else {
            panic!("{path:?}");
        };
        let answer = self.0.lock().answer(&parts.method, namespace, rest, &body);
        let slow = self.0.lock().slow;
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        answer
    }
}

impl State {
    fn answer(&mut self, method: &Method, namespace: &str, rest: &[&str], body: &[u8]) -> Response<Body> {
        let (is_write, is_new) = (*method != Method::GET, *method == Method::POST);
        match self.troubles.get(namespace) {
            Some(Trouble::Forbidden) => return refused(StatusCode::FORBIDDEN, WITHOUT_RULE),
            Some(Trouble::Unavailable) => return refused(StatusCode::SERVICE_UNAVAILABLE, "refused"),
            Some(Trouble::Proxy) => return respond(StatusCode::NOT_FOUND, b"404 page not found".to_vec()),
            Some(Trouble::ReadOnly) if is_write => return refused(StatusCode::FORBIDDEN, WITHOUT_RULE),
            Some(Trouble::Denied(code, message)) if is_write => return refused(*code, message),
            Some(Trouble::Terminating) if is_new => return refused(StatusCode::FORBIDDEN, TERMINATING),
            Some(Trouble::Gone) if is_new => return gone(&format!("/api/v1/namespaces/{namespace}")),
            _ => {}
        }
        let known = self.leases.get(namespace);
        match (method, rest) {
            // Watching is forbidden, as it may be for the account of a sidecar.
            (&Method::GET, []) => refused(StatusCode::FORBIDDEN, "refused"),
            (&Method::GET, [name]) => {
                self.reads += 1;
                let Some(mut lease) = known.cloned() else {
                    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
                    return gone(&path);
                };
                lease.metadata.name = Some((*name).to_owned());
                answer(StatusCode::OK, &lease)
            }
            _ => {
                self.writes += 1;
                let lease: Lease = serde_json::from_slice(body).unwrap();
                let known = known.map(|lease| lease.metadata.resource_version.clone());
                match known {
                    None if !is_new => refused(StatusCode::NOT_FOUND, "refused"),
                    Some(known) if is_new || known != lease.metadata.resource_version => {
                        refused(StatusCode::CONFLICT, "refused")
                    }
                    _ => answer(StatusCode::OK, &self.store(namespace, lease)),
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

fn respond(code: StatusCode, body: Vec<u8>) -> Response<Body> {
    Response::builder().status(code).body(Body::from(body)).unwrap()
}

fn answer(code: StatusCode, object: &impl serde::Serialize) -> Response<Body> {
    respond(code, serde_json::to_vec(object).unwrap())
}

fn gone(path: &str) -> Response<Body> {
    answer(StatusCode::NOT_FOUND, &not_found(path))
}

/// As Kubernetes says it of a right that is missing.
const WITHOUT_RULE: &str = "leases.coordination.k8s.io \"d\" is forbidden: User \"system:serviceaccount:csi:operator\" cannot \
                            update resource \"leases\" in API group \"coordination.k8s.io\" in the namespace \"default\"";

/// As Kubernetes says it of a namespace.
const TERMINATING: &str = "leases.coordination.k8s.io \"d\" is forbidden: unable to create new content in namespace default \
                           because it is being terminated";

fn refused(code: StatusCode, message: &str) -> Response<Body> {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code.as_u16(),
        "reason": reason, "message": message, "details": {"name": ""},
    });
    answer(code, &status)
}
