//! Connections to the API server, which are replaced when they are dead, or lead to an API server that refuses everything.
//!
//! When a load balancer dies or a network is cut, no FIN arrives: packets are lost and the connection looks open. Three
//! things detect that: HTTP/2 pings, also on an idle connection, so that a watch ends with an error; a request that was
//! cancelled before the end of its answer, after which the next request uses a new connection, because a proxy may answer pings
//! and nothing else; and a timeout for connecting. A new client certificate makes a new connection too (`tls::identity`).
//!
//! Where several API servers have one address, one of them may answer pings, and every request with 401 or 5xx. A load balancer chooses
//! once for each connection, so that only a new one leads to another API server.
//!
//! An API server allows a connection so many streams, and hyper takes no request at all while one waits for a stream. So each connection
//! gets fewer requests than that: watches keep their streams for minutes, and must not hold up a renewal of a Lease.
//!
//! This module must not send a request twice that the API server may have begun to process: only the caller knows whether that is safe.
//! What was refused unprocessed is sent again unseen.
//!
//! Every request that `flow` does not count is counted here: the lists and watches of kube, and those of `Requests::immediate` (Leases,
//! AttacherConfigs).

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use http::header::AUTHORIZATION;
use http::{Request, Response, StatusCode};
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::connect::Connect;
use hyper_util::client::legacy::{Client as HyperClient, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tower::{BoxError, Service};
use tracing::{debug, info};

use super::pages::parameter;
use super::tls::{Identity, explain};
use crate::error_chain::causes;
use crate::telemetry::Metrics;
use crate::window::Window;

/// A silence after which a ping is sent, and how long its answer may take. The answer comes from the HTTP/2 layer of the API
/// server, which waits for no handler and sends it before all data. Whatever is received puts the next ping off. No object depends
/// on these numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pings {
    interval: Duration,
    timeout: Duration,
    /// How long a connection is kept that takes no request; without end if none.
    idle: Option<Duration>,
}

impl Pings {
    /// For single requests: a dead connection is replaced within 5 s. A false alarm costs a handshake and repeated requests. What a
    /// network loses for 3 s TCP sends again within this time.
    pub const REQUESTS: Self = Self {
        interval: Duration::from_secs(1),
        timeout: Duration::from_millis(3500),
        idle: Some(Duration::from_secs(90)),
    };
    /// For lists and watches: a false alarm makes each replica list three kinds again, when the API server has too much to do
    /// already. An API server that stands still for 6 s, or a network that loses everything for 6 s, ends no watch. Renewals
    /// of Leases that go the same way have deadlines of their own, after which they take a new connection.
    pub const WATCHES: Self = Self {
        interval: Duration::from_secs(2),
        timeout: Duration::from_secs(7),
        // One that is full of watches takes no request for minutes, and must not be forgotten meanwhile: each watch that begins again would
        // connect by itself.
        idle: None,
    };

    /// After how long a silence a connection counts as dead.
    pub const fn dead_after(self) -> Duration {
        self.interval.saturating_add(self.timeout)
    }
}

/// After how long a silence of the API server all lists and watches begin again.
pub const WATCHES_DEAD_AFTER: Duration = Pings::WATCHES.dead_after();

/// How long an attempt to connect may take, with the handshake of TLS.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A request that was given up after a silence of less than this was not given up because of its connection.
const UNANSWERED: Duration = Duration::from_millis(500);
/// How often a request is sent again that the API server refused unprocessed, and the pauses before: none at first. An API server
/// that ends connections now and then refuses a request once, one that does nothing else must not be asked in a loop.
const MAX_RESENDS: u32 = 10;
const RESEND_BACKOFF: Duration = Duration::from_millis(10);
const MAX_RESEND_BACKOFF: Duration = Duration::from_millis(500);
/// What may be under way in one answer before we read it: about a page of a list. The HTTP/2 default of 64 KiB would make
/// each page many round trips. An adaptive window sends pings to find its size; which of the two is cheaper was not
/// measured.
const STREAM_WINDOW: u32 = 2 << 20;
/// The same for all answers of a connection together, so that a page of one list does not hold up another watch.
const CONNECTION_WINDOW: u32 = 8 << 20;
/// So many requests at a time go over one connection: half of the streams that kube-apiserver allows where nothing else is set
/// (`--http2-max-streams-per-connection`).
const MAX_STREAMS: usize = 50;
/// After so many answers of 5xx in a row over a connection its API server counts as out of order. Fewer may be about what was asked for,
/// such as a webhook that cannot be called.
const MAX_SERVER_ERRORS: usize = 5;
/// So often in a minute connections are replaced for what their API server refuses. There are mostly three of them, and all may refuse it, as
/// where a webhook cannot be called or the token is wrong.
const MAX_REFUSALS: usize = 3;

/// On a request: `Requests` counts it, with the time of its whole exchange and with its span.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedByCaller;

/// On a request: it is made again after an answer of this status asked to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryOf(pub u16);

/// Sends requests over one HTTP/2 connection, over further ones while all before have as many as they may, or over some of HTTP/1.1
/// where the other side speaks nothing else. Clones share them.
#[derive(Clone)]
pub(super) struct ApiServerConnection<C> {
    connector: C,
    pings: Pings,
    identity: Identity,
    metrics: Metrics,
    current: Arc<Mutex<Current<C>>>,
}

/// The connections that requests take, which are replaced together: what swallows one is on the way of all.
struct Current<C> {
    connections: Vec<SharedConnection<C>>,
    /// How often they were replaced before.
    number: u64,
    /// The client certificate that they are made with, by its number.
    identity: u64,
    /// When they were replaced for what their API server refused.
    refusals: Window<MAX_REFUSALS, 60>,
}

/// One connection, which is opened when it is needed.
#[derive(Clone)]
struct SharedConnection<C> {
    http: HyperClient<C, Body>,
    /// Each request under way holds a clone.
    streams: Arc<Streams>,
}

/// What the requests over one connection share: how many answers of 5xx came since the last one that was none.
#[derive(Debug, Default)]
struct Streams(AtomicUsize);

impl Streams {
    /// Takes in the status of an answer: whether another API server is to be asked. What one refuses with another status it has decided.
    fn take_status(&self, status: StatusCode) -> bool {
        match status {
            StatusCode::UNAUTHORIZED => true,
            // Who has too much to do is neither in order nor out of order.
            StatusCode::TOO_MANY_REQUESTS => false,
            _ if status.is_server_error() => self.0.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_SERVER_ERRORS,
            _ => {
                self.0.store(0, Ordering::Relaxed);
                false
            }
        }
    }
}

impl<C> SharedConnection<C> {
    fn has_free_stream(&self) -> bool {
        // One is its own.
        Arc::strong_count(&self.streams) <= MAX_STREAMS
    }
}

impl<C: Clone> Current<C> {
    /// Lets the next request take a new connection. What runs over the old ones goes on.
    fn renew(&mut self) {
        self.connections.clear();
        self.number += 1;
    }

    /// The first connection that has a free stream, else a new one. The stream is in use as long as the `streams` of the answer.
    fn take_stream(&mut self, open: impl FnOnce() -> HyperClient<C, Body>) -> SharedConnection<C> {
        if let Some(free) = self.connections.iter().find(|known| known.has_free_stream()) {
            return free.clone();
        }
        let opened = SharedConnection {
            http: open(),
            streams: Arc::default(),
        };
        self.connections.push(opened.clone());
        opened
    }
}

/// The body of an answer, whose stream is in use until it is dropped.
pub(super) struct StreamedBody<C: Connect + Clone> {
    inner: Incoming,
    pending: PendingRequest<C>,
    _stream: Arc<Streams>,
}

// Nothing of it is pinned.
impl<C: Connect + Clone> Unpin for StreamedBody<C> {}

impl<C: Connect + Clone> HttpBody for StreamedBody<C> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        let is_over = !matches!(frame, Some(Ok(_))) || self.inner.is_end_stream();
        self.pending.hear(is_over);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<C: Connect + Clone> ApiServerConnection<C> {
    pub fn new(connector: C, identity: Identity, pings: Pings, metrics: Metrics) -> Self {
        let current = Current {
            connections: Vec::new(),
            number: 0,
            identity: identity.number(),
            refusals: Window::default(),
        };
        Self {
            connector,
            pings,
            identity,
            metrics,
            current: Arc::new(Mutex::new(current)),
        }
    }

    /// What the next request is sent over, with its stream, and the number of the connections: new ones if the client certificate is
    /// another one since.
    fn current(&self) -> (SharedConnection<C>, u64) {
        let identity = self.identity.number();
        let mut current = self.current.lock();
        if current.identity != identity {
            current.renew();
            current.identity = identity;
        }
        let taken = current.take_stream(|| http(self.connector.clone(), self.pings));
        (taken, current.number)
    }

    /// Lets the next request take a new connection, unless others took the place of these already. The API server refuses whatever is asked
    /// with the status `refusal`, or did not answer to the end.
    fn replace(&self, number: u64, refusal: Option<StatusCode>) {
        let mut current = self.current.lock();
        if current.number != number {
            return;
        }
        if refusal.is_some() && current.refusals.try_count(Instant::now()).is_err() {
            return;
        }
        current.renew();
        drop(current);
        match refusal {
            None => {
                info!(
                    "the API server did not answer a request, or not to its end; the next one takes a new connection"
                );
            }
            Some(status) => debug!(%status, "the API server refuses requests; the next one takes a new connection"),
        }
    }
}

fn http<C: Connect + Clone>(connector: C, pings: Pings) -> HyperClient<C, Body> {
    HyperClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(pings.idle)
        .http2_keep_alive_interval(pings.interval)
        .http2_keep_alive_timeout(pings.timeout)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector)
}

impl<C: Connect + Clone + Send + Sync + 'static> ApiServerConnection<C> {
    async fn send(&self, mut request: Request<Body>) -> Result<Response<StreamedBody<C>>, Error> {
        let (SharedConnection { http, streams: stream }, number) = self.current();
        // It is silent for minutes, and ends when whoever follows it wants a list.
        let is_watch = parameter(request.uri(), "watch").is_some();
        if let Some(token) = self.identity.token() {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        let answer = http.request(request);
        let mut pending = PendingRequest {
            connection: self.clone(),
            number,
            heard: Instant::now(),
            is_over: false,
        };
        let answer = answer.await.inspect_err(|_| pending.hear(true))?;
        pending.hear(is_watch || answer.body().is_end_stream());
        let status = answer.status();
        if status == StatusCode::UNAUTHORIZED {
            self.identity.refused();
        }
        if stream.take_status(status) {
            self.replace(number, Some(status));
        }
        Ok(answer.map(|inner| StreamedBody {
            inner,
            pending,
            _stream: stream,
        }))
    }
}

/// The same request, if its body is at hand.
pub(super) fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    copy.extensions_mut().clone_from(request.extensions());
    Some(copy)
}

/// Whether a request was certainly not processed: it was refused (`REFUSED_STREAM`), it is one of those that a GOAWAY of the
/// server leaves out (RFC 9113, 6.8), or it was never sent.
pub fn is_unprocessed(error: &(dyn StdError + 'static)) -> bool {
    for error in causes(error) {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return error.is_remote() && (error.is_go_away() || is_refused);
        }
        if error.downcast_ref().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
    }
    false
}

impl<C: Connect + Clone + Send + Sync + 'static> Service<Request<Body>> for ApiServerConnection<C> {
    type Response = Response<StreamedBody<C>>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Error>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (connection, metrics) = (self.clone(), self.metrics.clone());
        let is_counted = request.extensions().get::<CountedByCaller>().is_none();
        let (method, retry) = (request.method().clone(), request.extensions().get::<RetryOf>().copied());
        let host = is_counted.then(|| request.uri().authority().map(ToString::to_string).unwrap_or_default());
        if let (Some(host), Some(RetryOf(status))) = (&host, retry) {
            metrics.rest_request_retried(method.as_str(), host, status);
        }
        let answer = async move {
            for resend in 0..MAX_RESENDS {
                let again = copy(&request);
                let outcome = connection.send(request).await;
                match (&outcome, again) {
                    (Err(error), Some(again)) if is_unprocessed(error) => request = again,
                    _ => return outcome,
                }
                if let Some(doublings) = resend.checked_sub(1) {
                    sleep((RESEND_BACKOFF * (1 << doublings)).min(MAX_RESEND_BACKOFF)).await;
                }
            }
            connection.send(request).await
        };
        Box::pin(async move {
            let started = std::time::Instant::now();
            let answer = answer.await;
            if let Some(host) = host {
                // The time ends with the head of the answer, as in client-go: a watch goes on for minutes.
                let status = answer.as_ref().ok().map(Response::status);
                metrics.rest_request(method.as_str(), &host, status, started.elapsed(), None);
            }
            answer
        })
    }
}

/// A request whose answer has not come to its end. Dropped so, it was given up.
struct PendingRequest<C: Connect + Clone> {
    connection: ApiServerConnection<C>,
    number: u64,
    /// When it was sent, or the last part of its answer came. Whoever gives up what comes in, as it is too large, does so for another reason.
    heard: Instant,
    is_over: bool,
}

impl<C: Connect + Clone> PendingRequest<C> {
    /// A part of the answer came, or its end.
    fn hear(&mut self, is_over: bool) {
        self.heard = Instant::now();
        self.is_over |= is_over;
    }
}

impl<C: Connect + Clone> Drop for PendingRequest<C> {
    fn drop(&mut self) {
        if !self.is_over && self.heard.elapsed() >= UNANSWERED {
            self.connection.replace(self.number, None);
        }
    }
}

/// The same connection, but not for ever.
pub(super) fn in_time<T: 'static>(
    connecting: impl Future<Output = Result<T, BoxError>> + Send + 'static,
) -> BoxFuture<'static, Result<T, BoxError>> {
    let late = |_| BoxError::from(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs_f32()));
    let connecting = timeout(CONNECT_TIMEOUT, connecting.map_err(explain));
    connecting.map(move |outcome| outcome.map_err(late)?).boxed()
}
