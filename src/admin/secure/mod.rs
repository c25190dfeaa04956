//! Metrics behind TLS, for who may read them: a bearer token that the API server knows (TokenReview) and whose owner may GET the
//! path of the metrics (SubjectAccessReview). The rules are those of kube-rbac-proxy and of controller-runtime.
//!
//! Must never answer with metrics when the API server did not say so, and must not become a way to bring the API server,
//! or the process, to its knees: connections, requests to the API server and what is remembered are all bounded.

mod authorizer;
mod certificate;

use std::sync::Arc;

use http::request::Parts;
use http::{Method, StatusCode, header};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, Exposition};
use super::listener::{self, HttpEndpoint, Transport};
use crate::telemetry::metrics::Metrics;

pub use authorizer::{ApiServerReviewer, MetricsAuthorizer, ReviewDecision, ReviewError, TokenReviewer};
pub use certificate::{CertificateFiles, ServerCertificate};

use authorizer::AuthResult;

/// What the endpoint shows, and to whom.
pub struct SecureState<J> {
    /// Served at [`SecureState::path`].
    pub metrics: Metrics,
    /// Path of the metrics, with a slash at its beginning.
    pub path: String,
    /// Who decides.
    pub gatekeeper: Arc<MetricsAuthorizer<J>>,
}

/// Serves metrics by TLS until `shutdown` is cancelled, then lets open requests finish for two seconds.
pub async fn serve_secure<J: TokenReviewer>(
    listener: TcpListener,
    state: SecureState<J>,
    certificates: ServerCertificate,
    shutdown: CancellationToken,
) {
    let secure = Secure {
        exposition: Exposition::new(state.metrics.clone()),
        state,
    };
    listener::serve(listener, Transport::Tls(certificates), secure, shutdown).await;
}

/// The endpoint behind TLS.
struct Secure<J> {
    state: SecureState<J>,
    exposition: Exposition,
}

impl<J: TokenReviewer> HttpEndpoint for Secure<J> {
    /// What is not at the path of the metrics is not there for anybody, so that nobody is asked.
    async fn answer(&self, request: &Parts) -> Answer {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return Answer::not_allowed();
        }
        let path = request.uri.path();
        if path != self.state.path {
            return Answer::empty(StatusCode::NOT_FOUND);
        }
        match self.state.gatekeeper.authorize(&request.headers).await {
            AuthResult::Allowed => self.exposition.answer(&request.headers).await,
            AuthResult::Unauthenticated => {
                let text = "a valid bearer token is needed\n";
                Answer::text(StatusCode::UNAUTHORIZED, text).with(header::WWW_AUTHENTICATE, "Bearer")
            }
            AuthResult::Forbidden => {
                let text = format!("the owner of the token needs the verb get on the nonResourceURL {path}\n");
                Answer::text(StatusCode::FORBIDDEN, text)
            }
            AuthResult::Busy => {
                let text = "too many tokens that are not known yet\n";
                Answer::text(StatusCode::TOO_MANY_REQUESTS, text).with(header::RETRY_AFTER, "1")
            }
            AuthResult::Unavailable => {
                let text =
                    "the API server cannot be asked for the owner of the token; the log of the operator says why\n";
                Answer::text(StatusCode::SERVICE_UNAVAILABLE, text).with(header::RETRY_AFTER, "5")
            }
        }
    }
}

#[cfg(test)]
mod tests;
