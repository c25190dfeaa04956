//! Counts every request that `flow` does not count: the lists and watches of kube, and those of `Requests::immediate` (Leases,
//! AttacherConfigs).

use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body;
use std::task::{Context, Poll};
use std::time::Instant;
use tower::Service;

use crate::telemetry::Metrics;

/// On a request: `Requests` counts it, with the time of its whole exchange and with its span.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedByCaller;

/// On a request: it is made again after an answer of this status asked to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryOf(pub u16);

/// A service that counts what passes it. A request's time ends with the head of the answer, as in client-go: a watch goes on
/// for minutes.
#[derive(Clone, Debug)]
pub(super) struct MetricsService<S> {
    inner: S,
    metrics: Metrics,
}

impl<S> MetricsService<S> {
    pub fn new(inner: S, metrics: Metrics) -> Self {
        Self { inner, metrics }
    }
}

impl<S, B> Service<Request<Body>> for MetricsService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.extensions().get::<CountedByCaller>().is_some() {
            return Box::pin(self.inner.call(request));
        }
        let method = request.method().clone();
        let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let metrics = self.metrics.clone();
        if let Some(RetryOf(status)) = request.extensions().get() {
            metrics.rest_request_retried(method.as_str(), &host, *status);
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            let started = Instant::now();
            let answer = answer.await;
            let status = answer.as_ref().ok().map(Response::status);
            metrics.rest_request(method.as_str(), &host, status, started.elapsed(), None);
            answer
        })
    }
}
