//! The CLIENT spans of requests to the API server.

use http::uri::Authority;
use http::{Method, Request};

use super::error::ApiError;
use super::requests::Requests;
use super::resource::Resource;
use crate::telemetry::names::{attr, error_type};
use crate::telemetry::{Span, SpanKind};

impl Requests {
    /// The span of a request, from when it is sent.
    pub(super) fn span<B>(&self, request: &Request<B>, resource: Resource, parent: &Span) -> Span {
        let method = request.method();
        let mut span = parent.child(format!("{method} {}", resource.path), SpanKind::Client);
        if span.is_recording() {
            span.set(attr::HTTP_REQUEST_METHOD, method.as_str());
            span.set(attr::URL_TEMPLATE, resource.path);
            // Without the query.
            let url = format!("https://{}{}", self.host, request.uri().path());
            span.set(attr::URL_FULL, url.as_str());
            span.set(attr::SERVER_ADDRESS, self.server.0.as_str());
            span.set(attr::SERVER_PORT, i64::from(self.server.1));
            span.set(attr::K8S_VERB, if method == Method::GET { "get" } else { "patch" });
            span.set(attr::K8S_RESOURCE, resource.name);
            if self.resends > 0 {
                span.set(attr::HTTP_REQUEST_RESEND_COUNT, i64::from(self.resends));
            }
        }
        span
    }
}

/// Ends the span of a request with its HTTP status, if there was an answer, and its error, if there was one.
pub(super) fn finish(mut span: Span, status: Option<u16>, error: Option<&ApiError>) {
    if let Some(status) = status {
        span.set(attr::HTTP_RESPONSE_STATUS_CODE, i64::from(status));
    }
    if let Some(error) = error {
        let kind = status.map_or_else(|| error_type::OTHER.to_owned(), |status| status.to_string());
        span.fail(&kind, &error.message);
    }
    span.end();
}

/// Host and port as the OpenTelemetry conventions want them: apart, an IPv6 address without its brackets.
pub(super) fn server(authority: &str) -> (String, u16) {
    const HTTPS: u16 = 443;
    let Ok(parsed) = authority.parse::<Authority>() else {
        return (authority.to_owned(), HTTPS);
    };
    let host = parsed.host().trim_start_matches('[').trim_end_matches(']');
    (host.to_owned(), parsed.port_u16().unwrap_or(HTTPS))
}
