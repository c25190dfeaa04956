//! What the driver itself said at the end of a call, as opposed to what the library makes of an answer.
//!
//! An answer that cannot be read is an error of the library that looks like one of the driver, INTERNAL or OUT_OF_RANGE:
//! codes by which a driver says that it did nothing. But this driver may have done what it was asked to.

use futures::future::BoxFuture;
use http::HeaderMap;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Code;
use tonic::body::Body;
use tonic::transport::{Channel, Error};
use tower::Service;

/// Who answered a call, and with which status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcStatus {
    /// Nothing came back, or nothing of gRPC.
    Nothing,
    /// An answer of gRPC, without a status so far or with one that there is not.
    NoStatus,
    /// OK.
    Ok,
    /// One of the other sixteen. The library makes UNKNOWN of it when it cannot read the message that comes with it.
    Error(Code),
}

/// What is said about one call. Goes with the request as an extension.
#[derive(Clone, Debug)]
pub(super) struct GrpcStatusCell(Arc<Mutex<GrpcStatus>>);

impl GrpcStatusCell {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(GrpcStatus::Nothing)))
    }

    pub fn get(&self) -> GrpcStatus {
        *self.0.lock()
    }

    /// `headers` may be the trailers.
    fn record_headers(&self, headers: &HeaderMap) {
        let mut said = self.0.lock();
        let is_grpc = |value: &http::HeaderValue| value.as_bytes().starts_with(b"application/grpc");
        if *said == GrpcStatus::Nothing && headers.get(http::header::CONTENT_TYPE).is_some_and(is_grpc) {
            *said = GrpcStatus::NoStatus;
        }
        let status = headers
            .get("grpc-status")
            .map(|value| value.to_str().map(str::parse::<u8>));
        match status {
            Some(Ok(Ok(0))) => *said = GrpcStatus::Ok,
            Some(Ok(Ok(code @ 1..=16))) => *said = GrpcStatus::Error(Code::from_i32(code.into())),
            _ => {}
        }
    }
}

/// A channel that listens to the answers of calls that carry a [`GrpcStatusCell`].
#[derive(Clone, Debug)]
pub(super) struct GrpcStatusChannel(pub Channel);

impl Service<http::Request<Body>> for GrpcStatusChannel {
    type Response = http::Response<Body>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let testimony = request.extensions_mut().remove::<GrpcStatusCell>();
        let answer = self.0.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            let Some(testimony) = testimony else {
                return Ok(answer);
            };
            testimony.record_headers(answer.headers());
            let listen = move |frame: hyper::body::Frame<_>| {
                if let Some(trailers) = frame.trailers_ref() {
                    testimony.record_headers(trailers);
                }
                frame
            };
            Ok(answer.map(|body| Body::new(body.map_frame(listen))))
        })
    }
}
