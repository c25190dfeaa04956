//! HTTP endpoints for the kubelet and for Prometheus: `/livez`, `/healthz`, `/readyz` and metrics.
//!
//! The endpoints only read: they change nothing and show no secret. They answer as long as the process can run tasks,
//! so that they must be served before any driver is connected. Whoever reaches them must not be able to cost the process
//! more than a bounded part of it: connections, requests and answers are counted.

mod address;
mod answer;
mod listener;

use http::request::Parts;
use http::{Method, StatusCode};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::health::{CheckReport, Health};
use crate::lease::LeaseHealth;
use crate::telemetry::metrics::Metrics;
use answer::{Answer, Exposition, TEXT, accepts};
use listener::HttpEndpoint;

pub use address::{AddressError, ListenAddress};

const JSON: &str = "application/json";

/// What the endpoints show.
#[derive(Clone, Debug)]
pub struct AdminState {
    /// Served at [`AdminState::metrics_path`].
    pub metrics: Metrics,
    /// Served at `/livez`, `/healthz` and `/readyz`.
    pub health: Health,
    /// Path of the metrics, usually `/metrics`. One of the health paths is never taken over by it.
    pub metrics_path: String,
    /// Served at `/healthz/leader-election` as the sidecar does, if at all.
    pub leases: Option<LeaseHealth>,
}

/// Serves the endpoints until `shutdown` is cancelled, then lets open requests finish for two seconds.
pub async fn serve(listener: TcpListener, state: AdminState, shutdown: CancellationToken) {
    let endpoint = Endpoint {
        exposition: Exposition::new(state.metrics.clone()),
        state,
    };
    listener::serve(listener, endpoint, shutdown).await;
}

struct Endpoint {
    state: AdminState,
    exposition: Exposition,
}

impl HttpEndpoint for Endpoint {
    async fn answer(&self, request: &Parts) -> Answer {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return Answer::not_allowed();
        }
        // Paths are compared by hand: that of the metrics is input.
        let (state, path) = (&self.state, request.uri.path());
        match path {
            // That this is answered at all is the check.
            "/livez" | "/healthz" => health_answer(path, &[], request),
            "/healthz/leader-election" if state.leases.is_some() => leases_answer(state.leases.as_ref()),
            "/readyz" => health_answer(path, &state.health.readiness(), request),
            _ if is_same(&state.metrics_path, path) => self.exposition.answer(&request.headers).await,
            _ => Answer::empty(StatusCode::NOT_FOUND),
        }
    }
}

/// Whether two paths are one; that of the metrics may have been given without its slash.
fn is_same(one: &str, other: &str) -> bool {
    one.trim_start_matches('/') == other.trim_start_matches('/')
}

/// `ok`, or the fault, in the words of the sidecar.
fn leases_answer(leases: Option<&LeaseHealth>) -> Answer {
    match leases.map_or(Ok(()), |leases| leases.check(Instant::now())) {
        Ok(()) => Answer::text(StatusCode::OK, "ok"),
        Err(fault) => Answer::text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("internal server error: {fault}\n"),
        ),
    }
}

/// 200 or 503, as text in the API server's manner, or as JSON when asked for. Passing checks are listed on request.
fn health_answer(path: &str, reports: &[CheckReport], request: &Parts) -> Answer {
    let healthy = reports.iter().all(|report| report.failure.is_none());
    let status = if healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let query = request.uri.query().unwrap_or_default();
    let verbose = query
        .split('&')
        .any(|parameter| parameter.split('=').next() == Some("verbose"));
    let listed: Vec<&CheckReport> = reports
        .iter()
        .filter(|report| verbose || report.failure.is_some())
        .collect();
    let (content_type, body) = if accepts(&request.headers, JSON) {
        (JSON, health_json(healthy, &listed))
    } else {
        (TEXT, health_text(path, healthy, &listed))
    };
    Answer::of(status, content_type, body)
}

fn health_text(path: &str, healthy: bool, listed: &[&CheckReport]) -> String {
    let mut text = String::new();
    for CheckReport { name, failure } in listed {
        match failure {
            None => text.extend(["[+]", name, " ok\n"]),
            Some(reason) => text.extend(["[-]", name, " failed: ", reason, "\n"]),
        }
    }
    match (healthy, listed.is_empty()) {
        (true, true) => text.push_str("ok\n"),
        (true, false) => text.extend([path.trim_start_matches('/'), " check passed\n"]),
        (false, _) => text.extend([path.trim_start_matches('/'), " check failed\n"]),
    }
    text
}

fn health_json(healthy: bool, listed: &[&CheckReport]) -> String {
    let checks: Vec<_> = listed
        .iter()
        .map(
            |report| serde_json::json!({"name": report.name, "ok": report.failure.is_none(), "reason": report.failure}),
        )
        .collect();
    serde_json::json!({"status": if healthy { "ok" } else { "failed" }, "checks": checks}).to_string()
}

#[cfg(test)]
mod tests;
