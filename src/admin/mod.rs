//! HTTP endpoints for the kubelet and for Prometheus: `/livez`, `/healthz`, `/readyz` and metrics.
//!
//! The endpoints only read: they change nothing and show no secret. They answer as long as the process can run tasks,
//! so that they must be served before any driver is connected. Whoever reaches them must not be able to cost the process
//! more than a bounded part of it: connections, requests and answers are counted.

mod address;
mod answer;
mod listener;

use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::request::Parts;
use http::{Method, StatusCode, header};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::health::{CheckReport, Health};
use crate::lease::LeaseHealth;
use answer::{Exposition, accepts};

pub use answer::Scrape;

pub use address::{AddressError, ListenAddress};

const JSON: &str = "application/json";

#[derive(Clone, Debug)]
pub struct AdminState {
    pub metrics: Arc<dyn Scrape>,
    /// Served at `/livez`, `/healthz` and `/readyz`.
    pub health: Health,
    /// Path of the metrics, usually `/metrics`. One of the health paths is never taken over by it.
    pub metrics_path: String,
    /// Served at `/healthz/leader-election` as the sidecar does, if at all.
    pub leases: Option<LeaseHealth>,
}

/// Serves the endpoints until `shutdown` is cancelled, then lets open requests finish for two seconds.
pub async fn serve(listener: TcpListener, state: AdminState, shutdown: CancellationToken) {
    listener::serve(listener, router(state), shutdown).await;
}

fn router(state: AdminState) -> Router {
    let AdminState {
        metrics,
        health,
        metrics_path,
        leases,
    } = state;
    // That this is answered at all is the check.
    let live = get(async |request: Parts| health_answer(&[], &request));
    let ready = get(async move |request: Parts| health_answer(&health.readiness(), &request));
    let router = Router::new()
        .route("/livez", live.clone())
        .route("/healthz", live)
        .route("/readyz", ready);
    let router = match leases {
        Some(leases) => router.route("/healthz/leader-election", get(async move || leases_answer(&leases))),
        None => router,
    };
    // The path of the metrics is input, which a router would take for a pattern. So it comes last, and never in the place of another.
    let exposition = Exposition::new(metrics);
    router.fallback(move |request: Parts| async move {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")]).into_response();
        }
        if is_same(&metrics_path, request.uri.path()) {
            exposition.answer(&request.headers).await
        } else {
            StatusCode::NOT_FOUND.into_response()
        }
    })
}

/// Whether two paths are one; that of the metrics may have been given without its slash.
fn is_same(one: &str, other: &str) -> bool {
    one.trim_start_matches('/') == other.trim_start_matches('/')
}

/// `ok`, or the error, as the sidecar answers it.
fn leases_answer(leases: &LeaseHealth) -> Response {
    match leases.check(Instant::now()) {
        Ok(()) => "ok".into_response(),
        Err(fault) => {
            let text = format!("internal server error: {fault}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

/// 200 or 503, as text in the API server's manner, or as JSON when asked for. Passing checks are listed on request.
fn health_answer(reports: &[CheckReport], request: &Parts) -> Response {
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
    let is_listed = |report: &&CheckReport| verbose || report.failure.is_some();
    let listed: Vec<&CheckReport> = reports.iter().filter(is_listed).collect();
    if accepts(&request.headers, JSON) {
        let json = health_json(healthy, &listed);
        (status, [(header::CONTENT_TYPE, JSON)], json).into_response()
    } else {
        (status, health_text(request.uri.path(), healthy, &listed)).into_response()
    }
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
