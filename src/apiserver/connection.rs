//! Connections to the API server, which are replaced when they are dead.
//!
//! When a load balancer dies or a network is cut, no FIN arrives: packets are lost and the connection looks open. Three
//! things detect that: HTTP/2 pings, also on an idle connection, so that a watch ends with an error; a request that was
//! cancelled without an answer, after which the next request uses a new connection, because a proxy may answer pings and
//! nothing else; and a timeout for connecting. This module must not send a request twice: only the caller knows whether
//! that is safe.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::Connect;
use hyper_util::client::legacy::{Client as HyperClient, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tower::{BoxError, Service};
use tracing::info;

/// A silence after which a ping is sent, and how long its answer may take. Together 3 s, so that a dead connection is
/// replaced within 5 s also where a watch begins again only after its own pause of 0.8 to 1.6 s. The answer comes from the
/// HTTP/2 layer of the API server, which waits for no handler and sends it before all data: milliseconds, and not 2 s as long
/// as requests can be answered at all. Whatever is received puts the next ping off. A false alarm costs a handshake and a
/// repeated request, so that no object depends on these numbers.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an attempt to connect may take, with the handshake of TLS.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A request that was given up after less than this was not given up because of its connection.
const UNANSWERED: Duration = Duration::from_millis(500);
/// What may be under way in one answer before we read it: about a page of a list. The HTTP/2 default of 64 KiB would make
/// each page many round trips. An adaptive window sends pings to find its size; which of the two is cheaper was not
/// measured.
const STREAM_WINDOW: u32 = 2 << 20;
/// The same for all answers of a connection together, so that a page of one list does not hold up another watch.
const CONNECTION_WINDOW: u32 = 8 << 20;

type Http<C> = HyperClient<Bounded<C>, Body>;

/// Sends requests over one HTTP/2 connection, or over some of HTTP/1.1 where the other side speaks nothing else. Clones share
/// them.
#[derive(Clone)]
pub(super) struct ApiServerConnection<C> {
    connector: Bounded<C>,
    current: Arc<Mutex<Current<C>>>,
}

struct Current<C> {
    http: Http<C>,
    /// How often it was replaced before.
    number: u64,
}

impl<C> ApiServerConnection<C>
where
    C: Clone,
    Bounded<C>: Connect + Clone,
{
    pub fn new(connector: C) -> Self {
        let connector = Bounded(connector);
        let http = http(connector.clone());
        Self {
            connector,
            current: Arc::new(Mutex::new(Current { http, number: 0 })),
        }
    }

    /// Lets the next request take a new connection, unless another one took the place of this already. What runs over the old
    /// one goes on.
    fn replace(&self, number: u64) {
        let mut current = self.current.lock();
        if current.number == number {
            *current = Current {
                http: http(self.connector.clone()),
                number: number + 1,
            };
            drop(current);
            info!("the API server did not answer a request; the next one takes a new connection");
        }
    }
}

fn http<C: Connect + Clone>(connector: C) -> HyperClient<C, Body> {
    HyperClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector)
}

impl<C> Service<Request<Body>> for ApiServerConnection<C>
where
    C: Clone + Send + Sync + 'static,
    Bounded<C>: Connect + Clone + Send + Sync + 'static,
{
    type Response = Response<Incoming>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Error>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (answer, number) = {
            let current = self.current.lock();
            (current.http.request(request), current.number)
        };
        let mut pending = PendingRequest {
            connection: self.clone(),
            number,
            since: Instant::now(),
            answered: false,
        };
        Box::pin(async move {
            let answer = answer.await;
            pending.end();
            answer
        })
    }
}

/// A request without an answer. Dropped so, it was given up.
struct PendingRequest<C>
where
    C: Clone,
    Bounded<C>: Connect + Clone,
{
    connection: ApiServerConnection<C>,
    number: u64,
    since: Instant,
    answered: bool,
}

impl<C> PendingRequest<C>
where
    C: Clone,
    Bounded<C>: Connect + Clone,
{
    fn end(&mut self) {
        self.answered = true;
    }
}

impl<C> Drop for PendingRequest<C>
where
    C: Clone,
    Bounded<C>: Connect + Clone,
{
    fn drop(&mut self) {
        if !self.answered && self.since.elapsed() >= UNANSWERED {
            self.connection.replace(self.number);
        }
    }
}

/// Connects, but not for ever.
#[derive(Clone)]
pub(super) struct Bounded<C>(C);

impl<C> Service<Uri> for Bounded<C>
where
    C: Service<Uri>,
    C::Future: Send + 'static,
    C::Response: Send + 'static,
    C::Error: Into<BoxError> + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let late = |_| BoxError::from(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs_f32()));
        let connecting = timeout(CONNECT_TIMEOUT, self.0.call(uri).map_err(Into::into));
        connecting.map(move |outcome| outcome.map_err(late)?).boxed()
    }
}
