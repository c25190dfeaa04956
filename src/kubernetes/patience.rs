//! What lists and watches need beside a connection: kube's watcher knows neither `Retry-After` nor an end to waiting for an
//! answer.

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body as HttpBody, Bytes};
use kube::client::Body;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{BoxError, Service};

use super::gate::{Gate, Kind, retry_after};

/// How long a list may take, page by page, and a watch until it begins. The API server itself gives up after a minute.
pub(super) const ANSWER: Duration = Duration::from_secs(65);

/// A service that waits where the API server asked to, but not for ever where it does not answer.
#[derive(Clone, Debug)]
pub(super) struct Patient<S> {
    inner: S,
    gate: Gate,
    answer: Duration,
}

impl<S> Patient<S> {
    /// Waits for `answer` at most.
    pub fn new(inner: S, answer: Duration) -> Self {
        Self {
            inner,
            gate: Gate::default(),
            answer,
        }
    }
}

/// How a request reads a collection; others have deadlines of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    List,
    Watch,
}

fn reads(request: &Request<Body>) -> Option<Reads> {
    let query = request.uri().query().filter(|_| request.method() == Method::GET)?;
    let has = |key: &str| query.split('&').any(|pair| pair.split('=').next() == Some(key));
    if has("watch") {
        Some(Reads::Watch)
    } else {
        (has("limit") || has("resourceVersion") || has("continue")).then_some(Reads::List)
    }
}

impl<S, B> Service<Request<Body>> for Patient<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(reads) = reads(&request) else {
            let answer = self.inner.call(request);
            return Box::pin(async { Ok(answer.await.map_err(Into::into)?.map(Either::Left)) });
        };
        // The one that is ready is used, and a clone takes its place.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let (gate, longest) = (self.gate.clone(), self.answer);
        // A list and the watch that follows it are of one kind: they read the same.
        let kind = Kind::from(request.uri().path().to_owned());
        Box::pin(async move {
            gate.pass(&kind).await;
            let answer = async {
                let response = inner.call(request).await.map_err(Into::into)?;
                gate.take_in(&kind, retry_after(response.status().as_u16(), response.headers()));
                if reads == Reads::Watch {
                    return Ok(response.map(Either::Left));
                }
                // A page is read as a whole anyway.
                let (head, body) = response.into_parts();
                let body = body.collect().await.map_err(Into::into)?.to_bytes();
                Ok(Response::from_parts(head, Either::Right(Full::new(body))))
            };
            let late = |_| {
                BoxError::from(format!(
                    "no answer from the API server within {} s",
                    longest.as_secs_f32()
                ))
            };
            tokio::time::timeout(longest, answer).await.map_err(late)?
        })
    }
}
