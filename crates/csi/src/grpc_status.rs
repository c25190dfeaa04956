//! The status that the driver itself sent at the end of a call, as opposed to what the library makes of an answer.
//!
//! An answer that cannot be read is an error of the library that looks like one of the driver, INTERNAL or OUT_OF_RANGE:
//! codes by which a driver says that it did nothing. But this driver may have done what the call asked for.

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
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
    /// An answer of gRPC, with no status so far, with one that is no number, or with several that differ.
    NoStatus,
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
        let mut sent = headers.get_all("grpc-status").iter().map(status_of);
        if let Some(first) = sent.next() {
            // Somebody on the way may have added its own. Libraries take the first or the last; which is the driver's, nobody can tell.
            let agreed = first.filter(|_| sent.all(|other| other == first));
            *status = agreed.unwrap_or(GrpcStatus::NoStatus);
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
            // In headers it is for answers that end with them. Where trailers may follow, the library would not wait for theirs.
            if !answer.body().is_end_stream() {
                answer.headers_mut().remove("grpc-status");
            }
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
    use crate::decide::VolumeOnNode;
    use crate::telemetry::{Metrics, Span};
    use crate::{ControllerUnpublishVolume, CsiClient, DriverConnection};
    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Bytes;
    use std::convert::Infallible;
    use std::time::Duration;

    fn headers_with(statuses: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for status in statuses.split_whitespace() {
            headers.append("grpc-status", HeaderValue::from_static(status));
        }
        headers
    }

    /// An answer that ends with its headers, or after a message with its trailers.
    fn answer(in_headers: &'static str, in_trailers: &'static str) -> Response<Body> {
        let body = if in_trailers.is_empty() {
            Body::empty()
        } else {
            let message = Frame::data(Bytes::from_static(&[0; 5]));
            let frames = [message, Frame::trailers(headers_with(in_trailers))];
            Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))))
        };
        let mut answer = Response::new(body);
        *answer.headers_mut() = headers_with(in_headers);
        let grpc = HeaderValue::from_static("application/grpc");
        answer.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
        answer
    }

    /// Taken for OK, a detach that failed would end with the volume at the node; taken for a refusal, a volume that was made would be
    /// forgotten.
    #[tokio::test]
    async fn a_status_counts_at_the_end_of_the_answer_and_if_nothing_contradicts_it() {
        let (refused, doubt) = (Err((Code::FailedPrecondition, false)), Err((Code::Unavailable, false)));
        let rows = [
            ("", "0", Ok(())),
            ("", "0 0", Ok(())),
            ("", "9", refused),
            ("", "9 9", refused),
            ("", "0 9", doubt),
            ("", "9 0", doubt),
            ("", "0 OK", doubt),
            ("9", "", refused),
            ("0 9", "", doubt),
            ("9 0", "", doubt),
            ("9", "0", Ok(())),
            ("0", "9", refused),
        ];
        for (in_headers, in_trailers, expected) in rows {
            let respond = move |_: Request<Body>| {
                let answer = answer(in_headers, in_trailers);
                std::future::ready(Ok::<_, Infallible>(answer))
            };
            let connection = DriverConnection::in_process(tower::service_fn(respond));
            let client = CsiClient::new(connection, Metrics::default());
            let place = VolumeOnNode::new("v", "n").unwrap();
            let call = ControllerUnpublishVolume { place, secrets: None };
            let ended = client.call(&call, Duration::from_secs(30), &Span::disabled()).await;
            let ended = ended.map_err(|error| (error.code, error.transport));
            assert_eq!(ended, expected, "headers {in_headers:?}, trailers {in_trailers:?}");
        }
    }

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
