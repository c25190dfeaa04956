//! What lists and watches need beside a connection: kube's watcher knows neither `Retry-After` nor an end to waiting for an
//! answer.

use futures::future::BoxFuture;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use kube::Resource as _;
use kube::client::Body;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use thiserror::Error;
use tokio::time::{Instant, sleep_until, timeout};
use tower::{BoxError, Service};
use tracing::info;

use super::answer::unanswered;
use super::connection::{CountedByCaller, RetryOf, copy};
use super::flow::retry_after::{RequestKind, RetryAfterGate, page_retry_after, retry_after};
use super::pages::{
    KnownLists, MAX_OBJECT, PageContent, content_of, limit_of, most_bytes, parameter, read_beginning, with_limit,
};
use super::refusal::refusal;
use super::requests::{KIND_OF_METADATA_LIST, METADATA_LIST, METADATA_ONLY};
use crate::error_chain;
use crate::objects::{NodeLabelsWire, ResourceVersion};
use crate::watch_answers::WatchAnswers;
use crate::window::Window;

/// How long a list may take, page by page, and a watch until it begins. The API server itself gives up after a minute.
pub(super) const ANSWER: Duration = Duration::from_secs(65);

/// How often a further page of a list is asked for while the API server refuses it for now: as often as client-go asks again.
const PAGE_TRIES: usize = 10;

/// At most 4 watches of a kind begin within 4 s: one whose stream ends is begun again at once, and an API server that ends every one of
/// them would be asked without a pause.
type Starts = Window<4, 4>;

/// So much earlier than it is asked to, a watch may end.
const EARLY: Duration = Duration::from_secs(10);

/// When watches of each kind began lately.
#[derive(Clone, Debug, Default)]
struct WatchStarts(Arc<Mutex<HashMap<RequestKind, Starts>>>);

impl WatchStarts {
    /// Waits for the turn of a watch, which counts when it comes: one that is given up before has not begun. Each Lease that is taken has
    /// everything listed anew, and ends the watches before, also those that wait here.
    async fn wait(&self, kind: &RequestKind) {
        let try_begin = || {
            let (mut all, now) = (self.0.lock(), Instant::now());
            all.retain(|_, starts| !starts.is_over(now));
            all.entry(kind.clone()).or_default().try_count(now)
        };
        while let Err(later) = try_begin() {
            sleep_until(later).await;
        }
    }
}

/// A service that waits where the API server asked to, but not for ever where it does not answer.
#[derive(Clone, Debug)]
pub(super) struct ListWatchService<S> {
    inner: S,
    gate: RetryAfterGate,
    begun: WatchStarts,
    known: KnownLists,
    /// How long each answer may take.
    longest: Duration,
    answers: WatchAnswers,
}

impl<S> ListWatchService<S> {
    /// Waits for `longest` at most, and records in `answers` which watches are accepted.
    pub fn new(inner: S, longest: Duration, answers: WatchAnswers) -> Self {
        Self {
            inner,
            gate: RetryAfterGate::default(),
            begun: WatchStarts::default(),
            known: KnownLists::default(),
            longest,
            answers,
        }
    }
}

/// How a request reads a collection; others have deadlines of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CollectionRead {
    List,
    Watch,
}

/// What a watcher asks for; nothing in a request of the reconcilers, which says itself how much it takes.
fn reads(request: &Request<Body>) -> Option<CollectionRead> {
    if request.method() != Method::GET || request.extensions().get::<CountedByCaller>().is_some() {
        return None;
    }
    let has = |name: &&str| parameter(request.uri(), name).is_some();
    if has(&"watch") {
        return Some(CollectionRead::Watch);
    }
    let is_list = ["limit", "resourceVersion", "continue"].iter().any(has);
    is_list.then_some(CollectionRead::List)
}

/// What distinguishes the watches of one collection, such as those of single Secrets.
fn selector(request: &Request<Body>) -> &str {
    parameter(request.uri(), "fieldSelector").unwrap_or_default()
}

/// Whether only the metadata is asked for of the objects of a collection. A Node has tens of KiB, and its status changes all the time.
fn is_metadata_only(path: &str) -> bool {
    path == NodeLabelsWire::url_path(&(), None)
}

/// Refuses a list of another kind: the answer to another request would make all objects of this kind look gone.
fn check_list(path: &str, content: &PageContent) -> Result<(), BoxError> {
    let plural = path.rsplit('/').next().unwrap_or_default();
    if is_metadata_only(path) && content.kind.as_deref() == Some(KIND_OF_METADATA_LIST) {
        return Ok(());
    }
    // A plural ends in "s" or, as that of a class, in "es".
    let is_of_plural = |kind: &str| {
        let singular = kind.to_lowercase();
        let singular = singular.strip_suffix("list").unwrap_or_default();
        ["s", "es"]
            .iter()
            .any(|ending| plural.strip_suffix(ending) == Some(singular))
    };
    match &content.kind {
        Some(kind) if !is_of_plural(kind) => Err(format!("the answer is a {kind}, and no list of {plural}").into()),
        _ => Ok(()),
    }
}

/// What an answer asks to wait, by its status and headers.
type RetryAfterRule = fn(u16, &HeaderMap) -> Option<Duration>;

/// The answer, if it comes within this time.
async fn in_time<T>(longest: Duration, answer: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    let late = |_| BoxError::from(unanswered(longest));
    timeout(longest, answer).await.map_err(late)?
}

/// Waits for the turn of a request.
async fn wait_for_turn(gate: &RetryAfterGate, kind: &RequestKind, request: &mut Request<Body>) {
    gate.wait_open(kind).await;
    if let Some(status) = gate.retry_of(kind) {
        request.extensions_mut().insert(RetryOf(status));
    }
}

impl<S, B> ListWatchService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    /// Asks for one page. A further page that is refused for now is asked for again: kube's watcher would begin with the first page again,
    /// and of a list of many pages hardly one would come in as a whole. A first page is not, so that readiness and the log tell that lists
    /// are refused. After a page that came too late (410) the next list has no pages; the token that the API server offers then goes on with
    /// another state, and is not used.
    async fn page(
        &mut self,
        kind: &RequestKind,
        mut request: Request<Body>,
    ) -> Result<Response<Full<Bytes>>, BoxError> {
        let is_further = parameter(request.uri(), "continue").is_some();
        let rule: RetryAfterRule = if is_further { page_retry_after } else { retry_after };
        let mut tries_left = if is_further { PAGE_TRIES } else { 1 };
        // One object is asked for by who wants to know the version only.
        if !is_further && limit_of(request.uri()) > Some(1) && self.known.takes_whole(kind) {
            request = with_limit(&request, Some(0))?;
        }
        loop {
            tries_left -= 1;
            let again = copy(&request).filter(|_| tries_left > 0);
            // The wait is no part of the time for the answer.
            wait_for_turn(&self.gate, kind, &mut request).await;
            let page = in_time(self.longest, self.answer(kind, request, rule)).await?;
            let status = page.status().as_u16();
            if is_further && page.status() == StatusCode::GONE {
                info!(
                    path = &**kind,
                    "a page of a list came too late; the next list is asked for as a whole"
                );
                self.known.expire(kind);
            }
            match again {
                Some(same) if rule(status, page.headers()).is_some() => request = same,
                _ => return Ok(page),
            }
            info!(path = &**kind, status, "asking again for a page of a list");
        }
    }

    /// The answer to a request for one page, with fewer objects when it is too large.
    async fn answer(
        &mut self,
        kind: &RequestKind,
        request: Request<Body>,
        rule: RetryAfterRule,
    ) -> Result<Response<Full<Bytes>>, BoxError> {
        let wanted = limit_of(request.uri());
        // A watch follows this list, and reports what is newer than its last page.
        let is_followed = wanted != Some(1) && selector(&request).is_empty();
        if is_followed {
            self.answers.listed(kind, ResourceVersion::default());
        }
        let mut limit = wanted.map(|wanted| self.known.limit(kind, wanted));
        loop {
            poll_fn(|context| self.inner.poll_ready(context))
                .await
                .map_err(Into::into)?;
            let sent = with_limit(&request, limit)?;
            let response = self.inner.call(sent).await.map_err(Into::into)?;
            self.record(kind, &response, rule);
            if !response.status().is_success() {
                return refusal(response).await;
            }
            // A page is read as a whole anyway.
            let (head, body) = response.into_parts();
            let most = most_bytes(limit);
            let (body, is_all) = read_beginning(body, most).await?;
            if !is_all {
                let Some(objects) = limit.filter(|objects| *objects > 1) else {
                    return Err(format!("the answer has more than {} MiB", most >> 20).into());
                };
                self.known.learn(kind, most, objects);
                limit = Some(self.known.limit(kind, objects / 4));
                continue;
            }
            if let Some(content) = content_of(&body).await {
                check_list(kind, &content)?;
                if is_followed {
                    self.answers.listed(kind, content.version);
                }
                if wanted > Some(1) {
                    self.known.learn(kind, body.len(), content.objects);
                }
            }
            return Ok(Response::from_parts(head, Full::new(body)));
        }
    }

    /// The answer to a watch: its events, or why it is refused.
    async fn watch(&mut self, kind: &RequestKind, request: Request<Body>) -> Result<Response<AnswerBody<B>>, BoxError> {
        let lasts = parameter(request.uri(), "timeoutSeconds").and_then(|seconds| seconds.parse::<u64>().ok());
        let response = self.inner.call(request).await.map_err(Into::into)?;
        self.record(kind, &response, retry_after);
        if response.status().is_success() {
            let ends = lasts.map(|seconds| Instant::now() + Duration::from_secs(seconds).saturating_sub(EARLY));
            return Ok(response.map(|events| {
                let inner = Box::pin(events);
                Either::Left(Timely { inner, ends, event: 0 })
            }));
        }
        // It ends at once, and is not cut off.
        let refused = refusal(response).await?;
        Ok(refused.map(|body| Either::Right(Either::Right(body))))
    }

    /// Takes in what an answer asks to wait.
    fn record(&self, kind: &RequestKind, answer: &Response<B>, rule: RetryAfterRule) {
        let status = answer.status().as_u16();
        self.gate
            .record_response(kind, Some(status), rule(status, answer.headers()));
    }
}

/// Why the body of a watch did not come to its end, or not in time.
#[derive(Debug, Error)]
pub(super) enum WatchBodyError {
    /// It ended as if it were complete.
    #[error("the watch ended early")]
    Early,
    /// It broke off, for this reason. The error itself is no source of this one: where kube finds an end of file among the causes, or the
    /// words of hyper for it, it takes that for an end in time.
    #[error("the watch was cut off: {0}")]
    CutOff(String),
    /// kube keeps an event until its end, however long it is.
    #[error("an event of the watch has more than {} MiB", MAX_OBJECT >> 20)]
    TooLarge,
}

/// The body of a watch that is not to end before its time. The API server ends a watch when that is over; what ends earlier
/// was cut off, and whoever follows it has to know: only one that ended in time may be resumed.
#[derive(Debug)]
pub(super) struct Timely<B> {
    inner: Pin<Box<B>>,
    /// None when it may end at any time.
    ends: Option<Instant>,
    /// How many bytes have come of the event that is not complete. Each is a line.
    event: usize,
}

impl<B> HttpBody for Timely<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = WatchBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WatchBodyError>>> {
        let frame = ready!(self.inner.as_mut().poll_frame(context));
        if frame.is_none() && self.ends.take().is_some_and(|ends| Instant::now() < ends) {
            return Poll::Ready(Some(Err(WatchBodyError::Early)));
        }
        if let Some(part) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            let end = part.iter().rposition(|byte| *byte == b'\n');
            self.event = end.map_or(self.event + part.len(), |end| part.len() - end - 1);
            if self.event > MAX_OBJECT {
                return Poll::Ready(Some(Err(WatchBodyError::TooLarge)));
            }
        }
        let cut_off = |error: B::Error| {
            let error: BoxError = error.into();
            WatchBodyError::CutOff(error_chain::chain(&*error).replace("unexpected EOF", "end of file"))
        };
        Poll::Ready(frame.map(|frame| frame.map_err(cut_off)))
    }

    fn is_end_stream(&self) -> bool {
        self.ends.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of a watch, of what is no list, and of a list.
type AnswerBody<B> = Either<Timely<B>, Either<B, Full<Bytes>>>;

impl<S, B> Service<Request<Body>> for ListWatchService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnswerBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Some(reads) = reads(&request) else {
            let answer = self.inner.call(request);
            return Box::pin(async {
                let answer = answer.await.map_err(Into::into)?;
                Ok(answer.map(|body| Either::Right(Either::Left(body))))
            });
        };
        // The one that is ready is used, and a clone takes its place.
        let spare = self.clone();
        let mut service = std::mem::replace(self, spare);
        // A list and the watch that follows it are of one kind: they read the same.
        let kind = RequestKind::from(request.uri().path().to_owned());
        if is_metadata_only(&kind) {
            // Kubernetes API, "Alternate representations of resources".
            let accepted = match reads {
                CollectionRead::List => METADATA_LIST,
                CollectionRead::Watch => METADATA_ONLY,
            };
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accepted));
        }
        let selected = RequestKind::from(format!("{kind} {}", selector(&request)));
        // Single objects are watched for themselves.
        let whole = reads == CollectionRead::Watch && selector(&request).is_empty();
        if whole {
            service.answers.asked(&kind);
        }
        Box::pin(async move {
            if reads == CollectionRead::List {
                let page = service.page(&kind, request).await?;
                return Ok(page.map(|body| Either::Right(Either::Right(body))));
            }
            service.begun.wait(&selected).await;
            wait_for_turn(&service.gate, &kind, &mut request).await;
            let longest = service.longest;
            let response = in_time(longest, service.watch(&kind, request)).await?;
            if whole && response.status().is_success() {
                service.answers.accepted(&kind);
            }
            Ok(response)
        })
    }
}
