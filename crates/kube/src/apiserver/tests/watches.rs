//! What kube makes of watches that are refused or cut off: it resumes those that ended in time, and tells of others.

use futures::StreamExt as _;
use http::{Request, Response};
use http_body_util::{Full, StreamBody};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use kube::api::WatchParams;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::json;
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::time::Duration;
use tower::{BoxError, Service};

use crate::apiserver::list_watch::ListWatchService;
use crate::objects::VolumeAttachmentWire;
use crate::watch_answers::WatchAnswers;

/// What is watched of a server.
fn attachments<S, B>(server: S) -> Api<VolumeAttachmentWire>
where
    S: Service<Request<Body>, Response = Response<B>, Error = io::Error> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = ListWatchService::new(server, Duration::from_mins(1), WatchAnswers::default());
    Api::all(Client::new(service, "default"))
}

/// That its body ends at once is not taken for a watch that is cut off: what follows depends on why it was refused.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_says_why() {
    let api = attachments(tower::service_fn(|_: Request<Body>| async {
        let status = json!({"kind": "Status", "status": "Failure", "reason": "TooManyRequests", "code": 429});
        let refused = Response::builder().status(429).header("retry-after", "1");
        refused
            .body(Full::<Bytes>::from(status.to_string()))
            .map_err(io::Error::other)
    }));
    let refused = api.watch(&WatchParams::default(), "1").await.err();
    assert!(
        matches!(&refused, Some(kube::Error::Api(status)) if status.code == 429),
        "{refused:?}"
    );
}

/// An end of file among the causes of an error, or in its words, would pass for an end in time.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_cut_off_has_failed() {
    for (kind, text) in [
        (ErrorKind::UnexpectedEof, "unexpected EOF during chunk size line"),
        (ErrorKind::UnexpectedEof, "end of file before message length reached"),
        (
            ErrorKind::UnexpectedEof,
            "peer closed connection without sending TLS close_notify",
        ),
        (ErrorKind::TimedOut, "timed out"),
        (ErrorKind::ConnectionReset, "connection reset by peer"),
    ] {
        let api = attachments(tower::service_fn(move |_: Request<Body>| async move {
            let cut_off = futures::stream::once(async move { Err::<Frame<Bytes>, _>(io::Error::new(kind, text)) });
            Ok::<_, io::Error>(Response::new(StreamBody::new(cut_off)))
        }));
        let mut events = pin!(api.watch(&WatchParams::default(), "1").await.unwrap());
        let event = events.next().await;
        let told = event.and_then(Result::err).map(|error| error.to_string());
        assert!(
            told.as_ref()
                .is_some_and(|told| told.contains("the watch was cut off: ")),
            "{text}: {told:?}"
        );
    }
}
