//! What a request of the operator's work passes on its way: the pause that the API server asked for, the limits, a slot, which
//! the drivers share and whose number follows the API server's answers, and the span and the metric of how it ended.

mod limit;
mod lines;
pub(super) mod retry_after;
pub(super) mod slots;
pub(super) mod throttle;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use csi_attacher_kubeconfig::port_of;
use http::uri::Authority;
use http::{Method, Request, StatusCode, Uri};
use kube::client::Body;
use tokio::time::Instant;

use super::answer::About;
use super::connection::CountedByCaller;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::names::attr;
use crate::telemetry::{Span, SpanKind};
use csi_attacher_model::answer::ApiError;
use retry_after::{RequestKind, RetryAfterGate};
use slots::{RequestSlot, RequestSlots, SlotAnswer, SlotRequest};
use throttle::RequestThrottles;

/// What took less before a request was sent is no wait: timers count milliseconds.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// What requests are for, hence which others they leave the API server to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// Work, and the results of work.
    Work,
    /// To release a volume, or to note and protect what is attached: in line they come after the other requests of the driver, for which
    /// somebody waits.
    Upkeep,
    /// To poll for a change: as upkeep, and they leave the limits of requests to all others.
    Poll,
}

impl Rank {
    /// Whether others go first.
    fn can_wait(self) -> bool {
        self != Self::Work
    }
}

/// What a request passes. Clones share the pauses, limits and slots.
#[derive(Clone)]
pub(super) struct Flow {
    metrics: Metrics,
    server: Arc<ApiServerName>,
    pub limits: RequestThrottles,
    pub gate: RetryAfterGate,
    pub slots: Option<RequestSlots>,
    pub rank: Rank,
    /// How often the request was sent before.
    pub resends: u32,
}

/// A request that may be sent now, until it is answered.
pub(super) struct Admitted {
    method: Method,
    kind: RequestKind,
    span: Span,
    slot: Option<RequestSlot>,
    sent_at: Instant,
}

impl Flow {
    /// Requests to the API server of this URL, without any limit.
    pub fn new(url: &Uri, metrics: Metrics) -> Self {
        let server = ApiServerName::from(url);
        metrics.init_requests(&server.host);
        Self {
            metrics,
            server: server.into(),
            limits: RequestThrottles::default(),
            gate: RetryAfterGate::default(),
            slots: None,
            rank: Rank::Work,
            resends: 0,
        }
    }

    /// Waits until a request may be sent, for work for this node if it is for one. Its span, one below `parent`, begins then.
    pub async fn admit(
        &self,
        request: &mut Request<Body>,
        about: &About<'_>,
        node: Option<&Arc<str>>,
        parent: &Span,
    ) -> Admitted {
        let method = request.method().clone();
        let kind = RequestKind::from(format!("{method} {}", about.resource()));
        let verb = method.as_str();
        let began = Instant::now();
        let slot = loop {
            self.gate.wait_open(&kind).await;
            if self.rank == Rank::Poll {
                self.limits.wait_until_idle().await;
            }
            let can_wait = self.rank.can_wait();
            self.limits.wait(can_wait, &self.metrics, verb, &self.server.host).await;
            let slot = self.acquire_slot(about, &method, node).await;
            // The API server may have asked to wait meanwhile, and then those in line wait too. Their turns are lost: kept, they would be used
            // all at once after the pause.
            if self.gate.closed_until(&kind).is_none() {
                break slot;
            }
        };
        let waited = began.elapsed();
        let mut span = self.span(request, about, parent);
        if waited >= SHORTEST_WAIT {
            span.set(attr::K8S_LIMIT_WAIT, waited.as_secs_f64());
        }
        span.inject(request.headers_mut());
        request.extensions_mut().insert(CountedByCaller);
        if let Some(code) = self.gate.retry_of(&kind) {
            self.metrics.rest_request_retried(verb, &self.server.host, code);
        }
        Admitted {
            method,
            kind,
            span,
            slot,
            sent_at: Instant::now(),
        }
    }

    /// Records how a request ended.
    pub fn finish(&self, admitted: Admitted, outcome: Result<StatusCode, &ApiError>) {
        let Admitted { kind, mut span, .. } = admitted;
        let status = match outcome {
            Ok(status) => Some(status),
            Err(error) => {
                self.gate.record_response(&kind, error.status, error.retry_after);
                error.status.and_then(|status| StatusCode::from_u16(status).ok())
            }
        };
        // After the gate, which the next one in line asks.
        if let Some(slot) = admitted.slot {
            slot.finish(slot_answer(outcome.err()));
        }
        let (verb, elapsed) = (admitted.method.as_str(), admitted.sent_at.elapsed());
        self.metrics
            .rest_request(verb, &self.server.host, status, elapsed, span.ids());
        if let Some(status) = status {
            span.set(attr::HTTP_RESPONSE_STATUS_CODE, i64::from(status.as_u16()));
        }
        if let Err(error) = outcome {
            span.fail(&error.error_type(), &error.message);
        }
        span.end();
    }

    /// Waits for a slot. Requests that are for no driver, such as events, need none: they are few at a time.
    async fn acquire_slot(&self, about: &About<'_>, method: &Method, node: Option<&Arc<str>>) -> Option<RequestSlot> {
        let (slots, driver) = self.slots.as_ref().zip(self.limits.driver())?;
        let request = SlotRequest {
            driver,
            node,
            kind: about.slot_kind(*method != Method::GET),
            can_wait: self.rank.can_wait(),
        };
        Some(slots.acquire(request).await)
    }

    fn span(&self, request: &Request<Body>, about: &About<'_>, parent: &Span) -> Span {
        // The usual case where traces are off: the names are not made for nothing.
        if parent.is_disabled() {
            return Span::disabled();
        }
        let (method, path) = (request.method(), about.path_template());
        let mut span = parent.child(format!("{method} {path}"), SpanKind::Client).must_end();
        if !span.is_recording() {
            return span;
        }
        span.set(attr::HTTP_REQUEST_METHOD, method.as_str());
        span.set(attr::URL_TEMPLATE, path.as_str());
        // Without the query.
        let url = format!("{}{}", self.server.url, request.uri().path());
        span.set(attr::URL_FULL, url.as_str());
        span.set(attr::SERVER_ADDRESS, self.server.address.as_str());
        span.set(attr::SERVER_PORT, i64::from(self.server.port));
        let verb = match *method {
            Method::GET => "get",
            Method::POST => "create",
            Method::DELETE => "delete",
            _ => "patch",
        };
        span.set(attr::K8S_VERB, verb);
        span.set(attr::K8S_RESOURCE, about.resource().as_str());
        if self.resends > 0 {
            span.set(attr::HTTP_REQUEST_RESEND_COUNT, i64::from(self.resends));
        }
        span
    }
}

/// What the end of a request says about how much the API server has to do. A gateway before it that waits too long says 504.
fn slot_answer(error: Option<&ApiError>) -> SlotAnswer {
    let Some(error) = error else {
        return SlotAnswer::Served;
    };
    match error.status {
        _ if error.is_of_webhook() => SlotAnswer::Other,
        // Without a status there was no answer in time, or no connection.
        None | Some(429 | 503 | 504) => SlotAnswer::Overloaded,
        Some(_) => SlotAnswer::Other,
    }
}

/// How the API server is called in spans and metrics.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ApiServerName {
    /// What the paths of requests come after: scheme, authority and path, without a slash at the end, as kube has it.
    pub url: String,
    /// The authority, as the metrics of client-go have it.
    pub host: String,
    /// `server.address`: an IPv6 address without its brackets, by the OpenTelemetry conventions.
    pub address: String,
    /// `server.port`.
    pub port: u16,
}

impl From<&Uri> for ApiServerName {
    fn from(url: &Uri) -> Self {
        let host = url.authority().map_or("", Authority::as_str);
        let (scheme, path) = (url.scheme_str().unwrap_or("http"), url.path().trim_end_matches('/'));
        Self {
            url: format!("{scheme}://{host}{path}"),
            host: host.to_owned(),
            address: url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            port: port_of(url),
        }
    }
}
