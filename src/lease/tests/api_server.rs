//! A Lease behind as much of an API server as an election needs, which can be out of order.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;

/// One Lease.
#[derive(Clone, Default)]
pub struct ApiServer(pub(super) Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    pub lease: Option<Lease>,
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
        self.0.lock().lease.clone()
    }

    pub fn holder(&self) -> Option<String> {
        self.lease()?.spec?.holder_identity
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

    /// Changes the Lease, as another client would.
    pub fn change(&self, change: impl FnOnce(&mut Lease)) {
        let mut state = self.0.lock();
        let mut lease = state.lease.clone().unwrap_or_default();
        change(&mut lease);
        state.store(lease);
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        if self.0.lock().down {
            std::future::pending::<()>().await;
        }
        let mut state = self.0.lock();
        let is_list = parts.uri.path().ends_with("/leases");
        match parts.method {
            // Watching is forbidden, as it may be for the account of a sidecar.
            Method::GET if is_list => refused(StatusCode::FORBIDDEN),
            Method::GET => {
                state.reads += 1;
                match &state.lease {
                    Some(lease) => found(lease),
                    None => refused(StatusCode::NOT_FOUND),
                }
            }
            _ => {
                state.writes += 1;
                let lease: Lease = serde_json::from_slice(&body).unwrap();
                let known = state
                    .lease
                    .as_ref()
                    .map(|lease| lease.metadata.resource_version.clone());
                match (&parts.method, known) {
                    (&Method::POST, Some(_)) => refused(StatusCode::CONFLICT),
                    (&Method::PUT, None) => refused(StatusCode::NOT_FOUND),
                    (&Method::PUT, Some(known)) if known != lease.metadata.resource_version => {
                        refused(StatusCode::CONFLICT)
                    }
                    _ => found(&state.store(lease)),
                }
            }
        }
    }
}

impl State {
    fn store(&mut self, mut lease: Lease) -> Lease {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        lease
    }
}

fn found(lease: &Lease) -> Response<Body> {
    Response::new(Body::from(serde_json::to_vec(lease).unwrap()))
}

fn refused(code: StatusCode) -> Response<Body> {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code.as_u16(),
        "reason": reason, "message": "refused",
    });
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = code;
    response
}
