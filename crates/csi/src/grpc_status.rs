//! The status that the driver itself sent at the end of a call, as opposed to what the library makes of an answer.
//!
//! An answer that cannot be read is an error of the library that looks like one of the driver, INTERNAL or OUT_OF_RANGE:
//! codes by which a driver says that it did nothing. But this driver may have done what the call asked for.

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Frame;
use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use std::borrow::Cow;
use std::sync::Arc;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt};

/// Whether an answer came, and with which status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GrpcStatus {
    /// Nothing came back, or nothing of gRPC.
    #[default]
    Nothing,
    /// An answer of gRPC, with no status so far, or with one that is no number.
    NoStatus,
    /// The driver sent OK.
    Ok,
    /// One of the other sixteen, or UNKNOWN for any other number. The library makes UNKNOWN of it when it cannot read the message that
    /// comes with it.
    Error(Code),
}

/// The status of one call. Goes with the request as an extension.
#[derive(Clone, Debug, Default)]
pub(super) struct GrpcStatusCell(Arc<Mutex<GrpcStatus>>);

impl GrpcStatusCell {
    pub fn get(&self) -> GrpcStatus {
        *self.0.lock()
    }

    /// `headers` may be the trailers.
    fn record_headers(&self, headers: &HeaderMap) {
        let mut status = self.0.lock();
        let is_grpc = |value: &HeaderValue| value.as_bytes().starts_with(b"application/grpc");
        if *status == GrpcStatus::Nothing && headers.get(http::header::CONTENT_TYPE).is_some_and(is_grpc) {
            *status = GrpcStatus::NoStatus;
        }
        if let Some(sent) = headers.get("grpc-status").and_then(status_of) {
            *status = sent;
        }
    }
}

/// What a driver sent as its status; none when it is no number. A number that gRPC does not know is an answer as well, and is UNKNOWN by
/// its specification.
fn status_of(sent: &HeaderValue) -> Option<GrpcStatus> {
    let digits = sent.to_str().ok().filter(|text| !text.is_empty())?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // A number that is too large for its type is no code either.
    Some(match digits.parse::<i32>() {
        Ok(0) => GrpcStatus::Ok,
        number => GrpcStatus::Error(number.map_or(Code::Unknown, Code::from_i32)),
    })
}

/// Puts into a form that the library reads what it would panic about, or lose the text for: `grpc-status-details-bin` that is not Base64,
/// and of which nothing is used, and a message that is not UTF-8.
fn make_readable(headers: &mut HeaderMap) {
    headers.remove("grpc-status-details-bin");
    let Some(message) = headers.get_mut("grpc-message") else {
        return;
    };
    let bytes: Vec<u8> = percent_decode(message.as_bytes()).collect();
    let Cow::Owned(text) = String::from_utf8_lossy(&bytes) else {
        return;
    };
    if let Ok(readable) = utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string().try_into() {
        *message = readable;
    }
}

/// A service for calls, whatever transport is below.
pub(super) type CallService = BoxCloneSyncService<Request<Body>, Response<Body>, Status>;

/// The same service, which fills the [`GrpcStatusCell`] of each request that carries one, and whose statuses can be read.
pub(super) fn recording_status<S>(service: S) -> CallService
where
    S: Service<Request<Body>, Response = Response<Body>, Future: Send> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
{
    BoxCloneSyncService::new(tower::service_fn(move |mut request: Request<Body>| {
        let service = service.clone();
        async move {
            let cell = request.extensions_mut().remove::<GrpcStatusCell>();
            let answer = service.oneshot(request).await;
            let mut answer = answer.map_err(|error| Status::from_error(error.into()))?;
            let cell = cell.unwrap_or_default();
            cell.record_headers(answer.headers());
            make_readable(answer.headers_mut());
            let record = move |mut frame: Frame<_>| {
                if let Some(trailers) = frame.trailers_mut() {
                    cell.record_headers(trailers);
                    make_readable(trailers);
                }
                frame
            };
            Ok(answer.map(|body| Body::new(body.map_frame(record))))
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_an_answer_of_the_driver() {
        let error = GrpcStatus::Error;
        let rows = [
            ("0", GrpcStatus::Ok),
            ("1", error(Code::Cancelled)),
            ("9", error(Code::FailedPrecondition)),
            ("16", error(Code::Unauthenticated)),
            ("17", error(Code::Unknown)),
            ("100", error(Code::Unknown)),
            ("99999999999999999999", error(Code::Unknown)),
            ("", GrpcStatus::NoStatus),
            ("-1", GrpcStatus::NoStatus),
            ("+9", GrpcStatus::NoStatus),
            ("9 ", GrpcStatus::NoStatus),
            ("OK", GrpcStatus::NoStatus),
        ];
        for (sent, status) in rows {
            let mut headers = HeaderMap::new();
            headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from_static(sent));
            let cell = GrpcStatusCell::default();
            cell.record_headers(&headers);
            assert_eq!(cell.get(), status, "{sent:?}");
        }
    }
}
