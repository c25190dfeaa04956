//! HTTP endpoints for the kubelet and for Prometheus: `/livez`, `/healthz`, `/readyz` and metrics.
//!
//! The endpoints only read: they change nothing and show no secret. They answer as long as the process can run tasks,
//! so that they must be served before any driver is connected.

mod health;
mod secure;

use std::convert::Infallible;
use std::future::IntoFuture;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lease::LeaseHealth;
use crate::telemetry::metrics::{Metrics, OPENMETRICS_CONTENT_TYPE, PROMETHEUS_CONTENT_TYPE};

pub use health::{CheckHandle, CheckReport, Health};
pub use secure::{
    ApiServer, CertificateError, CertificateFiles, Certificates, Fault, Gatekeeper, Judge, SecureState, Verdict,
    serve_secure,
};

/// What connections get after the shutdown signal to finish their request.
const DRAIN_TIME: Duration = Duration::from_secs(2);
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// What the endpoints show.
#[derive(Clone, Debug)]
pub struct AdminState {
    /// Served at [`AdminState::metrics_path`], if there is one.
    pub metrics: Metrics,
    /// Served at `/livez`, `/healthz` and `/readyz`.
    pub health: Health,
    /// Path of the metrics, usually `/metrics`; none when they are served elsewhere ([`serve_secure`]). One of the health paths
    /// is never taken over by it.
    pub metrics_path: Option<String>,
    /// Served at `/healthz/leader-election` as the sidecar does, if at all.
    pub leases: Option<LeaseHealth>,
}

/// Serves the endpoints until `shutdown` is cancelled, then lets open requests finish for two seconds.
///
/// Fails when the listener fails.
pub async fn serve(listener: TcpListener, state: AdminState, shutdown: CancellationToken) -> std::io::Result<()> {
    // Paths are compared by hand: a router panics on a path it cannot parse, and the metrics path is input.
    let router = Router::new().fallback(answer).with_state(state);
    let graceful = shutdown.clone().cancelled_owned();
    let server = axum::serve(listener, router)
        .with_graceful_shutdown(graceful)
        .into_future();
    let overdue = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN_TIME).await;
    };
    tokio::select! {
        result = server => result,
        () = overdue => Ok(()),
    }
}

async fn answer(State(state): State<AdminState>, request: Request) -> Result<Response, Infallible> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok((StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")]).into_response());
    }
    let path = request.uri().path();
    Ok(match path {
        "/livez" | "/healthz" => health_response(path, &state.health.liveness(), &request),
        "/healthz/leader-election" if state.leases.is_some() => leases_response(state.leases.as_ref()),
        "/readyz" => health_response(path, &state.health.readiness(), &request),
        _ if state
            .metrics_path
            .as_deref()
            .is_some_and(|metrics| is_same(metrics, path)) =>
        {
            metrics_response(&state.metrics, request.headers())
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    })
}

/// Whether two paths are one; that of the metrics may have been given without its slash.
fn is_same(one: &str, other: &str) -> bool {
    one.trim_start_matches('/') == other.trim_start_matches('/')
}

/// `ok`, or the fault, in the words of the sidecar.
fn leases_response(leases: Option<&LeaseHealth>) -> Response {
    match leases.map_or(Ok(()), |leases| leases.check(Instant::now())) {
        Ok(()) => "ok".into_response(),
        Err(fault) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("internal server error: {fault}\n"),
        )
            .into_response(),
    }
}

/// OpenMetrics for a scraper that names it and does not prefer plain text, the classic text format for everybody else.
fn metrics_response(metrics: &Metrics, headers: &HeaderMap) -> Response {
    let openmetrics = weight(headers, "application/openmetrics-text");
    let wanted = openmetrics.filter(|weight| *weight > 0.0);
    let (content_type, body) = if wanted.is_some_and(|weight| weight >= wanted_plain(headers)) {
        (OPENMETRICS_CONTENT_TYPE, metrics.encode_openmetrics())
    } else {
        (PROMETHEUS_CONTENT_TYPE, metrics.encode_prometheus())
    };
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// 200 or 503, as text in the API server's manner, or as JSON when asked for. Passing checks are listed on request.
fn health_response(path: &str, reports: &[CheckReport], request: &Request) -> Response {
    let healthy = reports.iter().all(|report| report.failure.is_none());
    let status = if healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let query = request.uri().query().unwrap_or_default();
    let verbose = query
        .split('&')
        .any(|parameter| parameter.split('=').next() == Some("verbose"));
    let listed: Vec<&CheckReport> = reports
        .iter()
        .filter(|report| verbose || report.failure.is_some())
        .collect();
    let (content_type, body) = if accepts(request.headers(), JSON) {
        (JSON, health_json(healthy, &listed))
    } else {
        (TEXT, health_text(path, healthy, &listed))
    };
    (status, [(header::CONTENT_TYPE, content_type)], body).into_response()
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

/// How much the classic text format is wanted; not at all when it is not named.
fn wanted_plain(headers: &HeaderMap) -> f32 {
    weight(headers, "text/plain").unwrap_or_default()
}

/// Whether a media type is named in `Accept`; a wildcard does not name it.
fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    weight(headers, media_type).is_some()
}

/// The greatest quality value (RFC 9110, 12.4.2) that `Accept` gives to a media type by name; one that cannot be read counts
/// as 1, as if it were not there.
fn weight(headers: &HeaderMap, media_type: &str) -> Option<f32> {
    let values = headers.get_all(header::ACCEPT).iter();
    let ranges = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let weights = ranges.filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        if !parts.next()?.eq_ignore_ascii_case(media_type) {
            return None;
        }
        let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        Some(quality.and_then(|text| text.parse().ok()).unwrap_or(1.0))
    });
    weights.max_by(f32::total_cmp)
}

#[cfg(test)]
mod tests;
