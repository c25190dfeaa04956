//! What is told of a list or a watch that is not answered with success.
//!
//! A proxy or a load balancer may answer in the place of the API server: by a redirect, by a page for people, or in JSON of its own. kube takes a
//! redirect for a watch without events, any object for a Status, also without a code, and a page as a whole for the words of the API server.

use std::time::Duration;

use http::header::{CONTENT_LENGTH, LOCATION};
use http::{HeaderMap, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::{Body as HttpBody, Bytes};
use kube::core::Status;
use serde_json::json;
use tokio::time::timeout;
use tower::BoxError;

use super::answer::{MetaStatusWire, wordless};
use super::pages::read_beginning;
use crate::decide::shown_error;

/// No more is read of a refusal. A Status has a few hundred bytes.
const MAX_BODY: usize = 64 << 10;

/// After its head the rest of a refusal may take so long. What it says counts without it.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What is told of an answer that is neither a success nor a refusal of the API server, with its words. A redirect has them in its header
/// `Location` and its body, and may hold credentials there: its host alone is told.
pub(super) fn foreign(status: StatusCode, headers: &HeaderMap, words: Option<&str>) -> String {
    let told = if status.is_client_error() {
        let words = words.map(|words| format!(" ({words})"));
        format!("is {status}{}", words.unwrap_or_default())
    } else {
        match redirect_host(headers) {
            Some(host) => format!("{status} leads to the host {host}"),
            None => format!("is {status}"),
        }
    };
    format!("the answer {told}; check what is between the operator and the API server")
}

/// The same answer with a body that is a Status and has a code: that of the API server, or one that says the same as the number of HTTP.
pub(super) async fn refusal<B>(answer: Response<B>) -> Result<Response<Full<Bytes>>, BoxError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (mut head, body) = answer.into_parts();
    let status = head.status;
    if !status.is_client_error() && !status.is_server_error() {
        return Err(foreign(status, &head.headers, None).into());
    }
    let read = timeout(BODY_TIMEOUT, read_beginning(body, MAX_BODY)).await;
    // One that breaks off or does not end has its number all the same.
    let (mut body, _) = read.ok().and_then(Result::ok).unwrap_or_default();
    let wire: MetaStatusWire = serde_json::from_slice(&body).unwrap_or_default();
    if !is_status(&wire, &body) {
        head.headers.remove(CONTENT_LENGTH);
        body = status_of(status, &wire, &body);
    }
    Ok(Response::from_parts(head, Full::new(body)))
}

fn redirect_host(headers: &HeaderMap) -> Option<String> {
    let url = headers.get(LOCATION)?.to_str().ok()?.parse::<Uri>().ok()?;
    url.host().filter(|host| !host.is_empty()).map(str::to_owned)
}

/// Whether kube reads this as a Status that refuses.
fn is_status(wire: &MetaStatusWire, body: &[u8]) -> bool {
    let refuses = wire.kind.as_deref() == Some("Status") && wire.code >= Some(400);
    // What is not UTF-8 kube does not read.
    refuses && std::str::from_utf8(body).is_ok_and(|text| serde_json::from_str::<Status>(text).is_ok())
}

/// The Status of this number, with the beginning of what the answer says.
fn status_of(status: StatusCode, wire: &MetaStatusWire, body: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(body);
    let message = match wire.words().unwrap_or(&text).trim() {
        "" => wordless(status),
        words => shown_error(words).into_owned(),
    };
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "code": status.as_u16(), "reason": reason(status), "message": message,
    });
    status.to_string().into()
}

/// The reason that the API server gives with such a number (`metav1.StatusReason`).
fn reason(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        406 => "NotAcceptable",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    }
}
