//! What kube makes of lists and watches that are refused, and of watches that are cut off: it resumes those that ended in time, and tells of
//! others.

use futures::StreamExt as _;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use kube::api::{ListParams, WatchParams};
use kube::client::Body;
use kube::{Api, Client};
use serde_json::json;
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceExt as _};

use crate::apiserver::list_watch::ListWatchService;
use crate::apiserver::refusal::BODY_TIMEOUT;
use crate::error_chain::chain;
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
    let is_told = matches!(&refused, Some(kube::Error::Api(status)) if status.code == 429);
    assert!(is_told, "{refused:?}");
}

/// The errors of a list and of a watch.
async fn refused(api: &Api<VolumeAttachmentWire>) -> [kube::Error; 2] {
    let listed = api.list(&ListParams::default().limit(500)).await;
    let watched = api.watch(&WatchParams::default(), "1").await;
    [listed.err(), watched.err()].map(|error| error.expect("it is refused"))
}

/// An answer of this status and body, for each request.
fn answering(status: u16, location: Option<&'static str>, body: String) -> Api<VolumeAttachmentWire> {
    attachments(tower::service_fn(move |_: Request<Body>| {
        let mut answer = Response::builder().status(status);
        if let Some(location) = location {
            answer = answer.header("location", location);
        }
        let answer = answer.body(Full::<Bytes>::from(body.clone()));
        async move { answer.map_err(io::Error::other) }
    }))
}

/// Status, reason, body and the message of it. In the last row the word of the API server stays.
const TOLD: &str = r#"429 | TooManyRequests | {"message":"API rate limit exceeded"} | API rate limit exceeded
    403 | Forbidden | {"error":{"code":403}} | {"error":{"code":403}}
    403 | Forbidden | {"kind":"Status","message":"without a code"} | without a code
    403 | Forbidden | {"kind":"Status","code":200,"message":"of another code"} | of another code
    500 | InternalError | {"kind":"Status","code":403,"status":"No","message":"of no status"} | of no status
    403 | Own | {"kind":"Status","code":403,"reason":"Own","message":"its words"} | its words"#;

/// Something on the way may answer in the place of the API server. The number decides what is done, and says what to do.
#[tokio::test(start_paused = true)]
async fn what_is_no_status_counts_by_its_number() {
    let page = format!("<html>\n{}", "x".repeat(2 << 20));
    let shown = format!("<html> {}", "x".repeat(1017));
    let rows = TOLD.lines().map(|row| {
        let fields: Vec<&str> = row.trim().split(" | ").collect();
        let [status, reason, body, message] = fields[..] else {
            panic!("{row}")
        };
        (status.parse().unwrap(), reason, body, message)
    });
    for (status, reason, body, message) in rows.chain([
        (401, "Unauthorized", "", "the API server answered 401 Unauthorized"),
        (404, "NotFound", "404 page not found\n", "404 page not found"),
        (502, "Unknown", "[1,\r\n2]", "[1,  2]"),
        (503, "ServiceUnavailable", &*page, &*shown),
    ]) {
        for error in refused(&answering(status, None, body.to_owned())).await {
            let kube::Error::Api(told) = &error else {
                panic!("{status} {body:.80}: {error}");
            };
            let told = (told.code, &*told.reason, &*told.message);
            assert_eq!(told, (status, reason, message), "{body:.80}");
        }
    }
}

/// kube would take it for a watch without events, which it begins again at once, without end.
#[tokio::test(start_paused = true)]
async fn a_redirect_is_an_error_that_names_the_host_alone() {
    for (status, location, wanted) in [
        (
            302,
            Some("https://me:s3cret@login.example.com:8443/realm?token=s3cret"),
            "the answer 302 Found leads to the host login.example.com; check what is between",
        ),
        (
            307,
            Some("/login?token=s3cret"),
            "the answer is 307 Temporary Redirect; check what is between",
        ),
        (301, None, "the answer is 301 Moved Permanently; check what is between"),
        (304, None, "the answer is 304 Not Modified; check what is between"),
    ] {
        for error in refused(&answering(status, location, String::new())).await {
            let told = chain(&error);
            let is_wanted = told.contains(wanted) && !told.contains("s3cret");
            assert!(is_wanted, "{location:?}: {told}");
        }
    }
}

/// It would hold up the kind for as long as the connection stands.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_does_not_end_is_not_waited_for() {
    let api = attachments(tower::service_fn(|_: Request<Body>| async {
        let endless = StreamBody::new(futures::stream::pending::<io::Result<Frame<Bytes>>>());
        Response::builder().status(403).body(endless).map_err(io::Error::other)
    }));
    let began = Instant::now();
    for error in refused(&api).await {
        let is_told = matches!(&error, kube::Error::Api(status) if status.is_forbidden());
        assert!(is_told, "{error}");
    }
    assert_eq!(began.elapsed().as_secs(), 2 * BODY_TIMEOUT.as_secs());
}

/// An end of file among the causes of an error, or in its words, would pass for an end in time.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_cut_off_has_failed() {
    let without_notice = "peer closed connection without sending TLS close_notify";
    for (kind, text) in [
        (ErrorKind::UnexpectedEof, "unexpected EOF during chunk size line"),
        (ErrorKind::UnexpectedEof, "end of file before message length reached"),
        (ErrorKind::UnexpectedEof, without_notice),
        (ErrorKind::TimedOut, "timed out"),
        (ErrorKind::ConnectionReset, "connection reset by peer"),
    ] {
        let api = attachments(tower::service_fn(move |_: Request<Body>| async move {
            let cut_off = futures::stream::once(async move { Err::<Frame<Bytes>, _>(io::Error::new(kind, text)) });
            Ok::<_, io::Error>(Response::new(StreamBody::new(cut_off)))
        }));
        let mut events = pin!(api.watch(&WatchParams::default(), "1").await.unwrap());
        let event = events.next().await;
        let told = event.and_then(Result::err).unwrap().to_string();
        assert!(told.contains("the watch was cut off: "), "{text}: {told}");
    }
}

/// kube keeps an event until its end: one without an end would fill the memory.
#[tokio::test(start_paused = true)]
async fn an_event_of_a_watch_is_not_read_without_end() {
    const PART: usize = 1 << 20;
    let endless = vec![b'x'; PART];
    let mut line = endless.clone();
    line[PART / 2] = b'\n';
    let too_long = Some("an event of the watch has more than 64 MiB".to_owned());
    for (part, parts, wanted) in [(endless, 64, too_long), (line, 200, None)] {
        let part = Bytes::from(part);
        let server = tower::service_fn(move |_: Request<Body>| {
            let frames = futures::stream::iter(std::iter::repeat_n(part.clone(), 200));
            let frames = frames.map(|part| Ok::<_, io::Error>(Frame::data(part)));
            async move { Ok::<_, io::Error>(Response::new(StreamBody::new(frames))) }
        });
        let service = ListWatchService::new(server, Duration::from_mins(1), WatchAnswers::default());
        let request = Request::get("/apis/a/b?watch=true").body(Body::empty()).unwrap();
        let mut body = pin!(service.oneshot(request).await.unwrap().into_body());
        let (mut read, mut end) = (0, body.frame().await);
        while let Some(Ok(_)) = end {
            (read, end) = (read + 1, body.frame().await);
        }
        let told = end.and_then(Result::err).map(|error| error.to_string());
        assert_eq!((read, told), (parts, wanted));
    }
}
