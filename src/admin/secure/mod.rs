//! Metrics behind TLS, for who may read them: a bearer token that the API server knows (TokenReview) and whose owner may GET the
//! path of the metrics (SubjectAccessReview). The rules are those of kube-rbac-proxy and of controller-runtime.
//!
//! Must never answer with metrics when the API server did not say so, and must not become a way to bring the API server,
//! or the process, to its knees: connections, requests to the API server and what is remembered are all bounded.

mod certificate;
mod gatekeeper;
mod listener;

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::metrics_response;
use crate::telemetry::metrics::Metrics;

pub use certificate::{CertificateError, CertificateFiles, Certificates};
pub use gatekeeper::{ApiServer, Fault, Gatekeeper, Judge, Verdict};
pub use listener::serve_secure;

use gatekeeper::Access;

/// What the endpoint shows, and to whom.
pub struct SecureState<J> {
    /// Served at [`SecureState::path`].
    pub metrics: Metrics,
    /// Path of the metrics, with a slash at its beginning.
    pub path: String,
    /// Who decides.
    pub gatekeeper: Arc<Gatekeeper<J>>,
}

impl<J: Judge> SecureState<J> {
    /// Answers a request. What is not at the path of the metrics is not there for anybody, so that nobody is asked.
    pub(super) async fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")]).into_response();
        }
        if path != self.path {
            return StatusCode::NOT_FOUND.into_response();
        }
        match self.gatekeeper.admit(headers).await {
            Access::Allowed => metrics_response(&self.metrics, headers),
            Access::Unauthenticated => {
                let challenge = [(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))];
                (StatusCode::UNAUTHORIZED, challenge, "a valid bearer token is needed\n").into_response()
            }
            Access::Forbidden => {
                let text = format!("the owner of the token needs the verb get on the nonResourceURL {path}\n");
                (StatusCode::FORBIDDEN, text).into_response()
            }
            Access::Busy => {
                let later = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
                let text = "too many tokens that are not known yet\n";
                (StatusCode::TOO_MANY_REQUESTS, later, text).into_response()
            }
            Access::Unavailable => {
                let later = [(header::RETRY_AFTER, HeaderValue::from_static("5"))];
                let text =
                    "the API server cannot be asked for the owner of the token; the log of the operator says why\n";
                (StatusCode::SERVICE_UNAVAILABLE, later, text).into_response()
            }
        }
    }
}

#[cfg(test)]
mod tests;
