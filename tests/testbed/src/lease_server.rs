//! Leases of one name, and the AttacherConfig of their driver, behind as much of an API server as an election needs, which can
//! be out of order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::api_answers::not_found;

/// Where the Lease is unless a test says otherwise.
pub const NAMESPACE: &str = "default";
/// Name of the AttacherConfig.
pub const CONFIG: &str = "config";

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
#[allow(clippy::struct_excessive_bools, reason = "each is a fault of its own")]
pub struct State {
    /// By namespace.
    pub leases: BTreeMap<String, Lease>,
    /// Namespaces whose Leases may not be read or written.
    pub forbidden: BTreeSet<String>,
    /// The AttacherConfig, while there is one.
    pub config: Option<Value>,
    /// Whether its status may not be written.
    pub status_forbidden: bool,
    /// After how long reads of the AttacherConfig fail, while they do.
    pub config_unread_after: Option<std::time::Duration>,
    /// Whether somebody deletes the Lease after the next write that comes too late.
    pub deleted_after_conflict: bool,
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

    /// Gives the AttacherConfig this `spec.leaderElection`; its status stays.
    pub fn configure(&self, leader_election: &Value) {
        let mut state = self.0.lock();
        let status = state.config.take().map(|mut config| config["status"].take());
        let timeouts = json!({"publish": "40s", "unpublish": "30s"});
        let spec = json!({"endpoint": "unix:///d.sock", "timeouts": timeouts, "leaderElection": leader_election});
        let metadata = json!({"name": CONFIG, "uid": "1"});
        state.store_config(json!({"metadata": metadata, "spec": spec, "status": status}));
    }

    /// What the status says of the place of the Lease.
    pub fn recorded(&self) -> Value {
        let state = self.0.lock();
        state
            .config
            .as_ref()
            .map(|config| config["status"]["leaderElection"].clone())
            .unwrap_or_default()
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        if self.0.lock().down {
            std::future::pending::<()>().await;
        }
        let path: Vec<_> = parts.uri.path().trim_matches('/').split('/').collect();
        let pause = self.0.lock().config_unread_after;
        if let (["apis", _, _, "attacherconfigs"], Some(pause)) = (path.as_slice(), pause) {
            tokio::time::sleep(pause).await;
        }
        if let ["apis", _, _, "namespaces", namespace, "leases"] = path.as_slice()
            && parts.method == Method::POST
            && self.keep_late(namespace, &body)
        {
            std::future::pending::<()>().await;
        }
        let mut state = self.0.lock();
        match path.as_slice() {
            ["apis", _, _, "attacherconfigs", rest @ ..] => state.answer_config(&parts.method, rest, &body),
            ["apis", _, _, "namespaces", namespace, "leases", rest @ ..] => {
                state.answer_lease(&parts.method, namespace, rest, &body)
            }
            path => panic!("{path:?}"),
        }
    }
}

impl State {
    fn answer_lease(&mut self, method: &Method, namespace: &str, rest: &[&str], body: &[u8]) -> Response<Body> {
        if self.forbidden.contains(namespace) {
            return refused(StatusCode::FORBIDDEN, "");
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
                    (&Method::POST, Some(_)) => refused(StatusCode::CONFLICT, ""),
                    (&Method::PUT, None) => refused(StatusCode::NOT_FOUND, ""),
                    (&Method::PUT, Some(known)) if known != lease.metadata.resource_version => {
                        if std::mem::take(&mut self.deleted_after_conflict) {
                            self.leases.remove(namespace);
                        }
                        refused(StatusCode::CONFLICT, "")
                    }
                    _ => found(&self.store(namespace, lease)),
                }
            }
        }
    }

    fn answer_config(&mut self, method: &Method, rest: &[&str], body: &[u8]) -> Response<Body> {
        match (method, rest, self.config.clone()) {
            (&Method::GET, [], _) if self.config_unread_after.is_some() => refused(StatusCode::SERVICE_UNAVAILABLE, ""),
            (&Method::GET, [], config) => {
                let items: Vec<_> = config.into_iter().collect();
                found(&json!({"metadata": {}, "items": items}))
            }
            (&Method::PATCH, [CONFIG, "status"], Some(mut config)) => {
                let patch: Value = serde_json::from_slice(body).unwrap();
                if self.status_forbidden {
                    return refused(StatusCode::FORBIDDEN, "");
                }
                if patch["metadata"]["resourceVersion"] != config["metadata"]["resourceVersion"] {
                    return refused(StatusCode::CONFLICT, "");
                }
                let mut place = patch["status"]["leaderElection"].clone();
                place.as_object_mut().unwrap().retain(|_, value| !value.is_null());
                config["status"] = json!({"leaderElection": place});
                found(&self.store_config(config))
            }
            (_, _, None) => refused(StatusCode::NOT_FOUND, CONFIG),
            (method, rest, _) => panic!("{method} {rest:?}"),
        }
    }

    fn store_config(&mut self, mut config: Value) -> Value {
        self.version += 1;
        config["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.config.insert(config).clone()
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

fn refused(code: StatusCode, name: &str) -> Response<Body> {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code.as_u16(),
        "reason": reason, "message": "refused", "details": {"name": name},
    });
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = code;
    response
}
