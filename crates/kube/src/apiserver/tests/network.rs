//! Connections in memory, so that the clock can be paused: they can be slow, and they can be swallowed.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as HttpBody, Bytes, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::time::Instant;
use tower::BoxError;

use crate::apiserver::connect::WatchConnection;
use crate::apiserver::over;
use crate::apiserver::tls::Identity;
use crate::telemetry::Metrics;
use crate::watch_answers::WatchAnswers;

/// What may be under way in one direction.
const BUFFER: usize = 64 << 10;
/// As many as kube-apiserver allows.
const MAX_CONCURRENT_STREAMS: u32 = 100;

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;
type Handler = Arc<dyn Fn(usize, Request<Body>) -> BoxFuture<'static, Answer> + Send + Sync>;

/// A network with one HTTP/2 server. Clones share it.
#[derive(Clone)]
pub(crate) struct Network(Arc<State>);

struct State {
    handler: Handler,
    opened: AtomicUsize,
    /// Connections with a smaller number carry nothing more, and do not end.
    swallowed: AtomicUsize,
    /// Attempts to connect with a smaller number come to no end.
    stuck: AtomicUsize,
    delay: Mutex<Duration>,
    /// Nothing arrives before.
    stalled_until: Mutex<Instant>,
}

impl Network {
    /// A server that answers so; it is told the number of the connection, from 0.
    pub fn new<F, B>(handler: impl Fn(usize, Request<Body>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response<B>> + Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let boxed = |answer: Response<B>| answer.map(|body| body.map_err(Into::into).boxed_unsync());
        Self(Arc::new(State {
            handler: Arc::new(move |number, request| handler(number, request).map(boxed).boxed()),
            opened: AtomicUsize::new(0),
            swallowed: AtomicUsize::new(0),
            stuck: AtomicUsize::new(0),
            delay: Mutex::default(),
            stalled_until: Mutex::new(Instant::now()),
        }))
    }

    /// A client as the operator makes it for single requests.
    pub fn client(&self) -> Client {
        self.client_for(None)
    }

    /// A client as the operator makes it for watches and Leases.
    pub fn watch_client(&self) -> Client {
        self.client_for(Some(&WatchConnection {
            answer: Duration::from_mins(1),
            answers: WatchAnswers::default(),
        }))
    }

    fn client_for(&self, watches: Option<&WatchConnection>) -> Client {
        let network = self.clone();
        let connector = tower::service_fn(move |_: Uri| network.clone().connect().boxed());
        let config = kube::Config::new(Uri::from_static("http://api"));
        let client = over(connector, Identity::default(), &config, watches, &Metrics::default());
        client.unwrap()
    }

    /// How many connections were begun.
    pub fn opened(&self) -> usize {
        self.0.opened.load(Ordering::Relaxed)
    }

    /// Swallows what is under way, and whatever is sent over the connections that there are.
    pub fn swallow(&self) {
        self.0.swallowed.store(self.opened(), Ordering::Relaxed);
    }

    /// Lets the next attempt to connect hang.
    pub fn next_is_stuck(&self) {
        self.0.stuck.store(self.opened() + 1, Ordering::Relaxed);
    }

    /// Everything takes so long, in each direction.
    pub fn slow(&self, delay: Duration) {
        *self.0.delay.lock() = delay;
    }

    /// Holds everything back for so long.
    pub fn stall(&self, time: Duration) {
        *self.0.stalled_until.lock() = Instant::now() + time;
    }

    async fn connect(self) -> io::Result<Wire> {
        let number = self.0.opened.fetch_add(1, Ordering::Relaxed);
        if number < self.0.stuck.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let (client, near) = duplex(BUFFER);
        let (far, server) = duplex(BUFFER);
        let ((near_read, near_write), (far_read, far_write)) = (split(near), split(far));
        tokio::spawn(self.clone().carry(number, near_read, far_write));
        tokio::spawn(self.clone().carry(number, far_read, near_write));
        let handler = self.0.handler.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let handler = handler.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let request = Request::from_parts(head, Body::from(body));
                Ok::<_, hyper::Error>(handler(number, request).await)
            }
        });
        tokio::spawn(async move {
            let mut server_side = auto::Builder::new(TokioExecutor::new()).http2_only();
            server_side.http2().max_concurrent_streams(MAX_CONCURRENT_STREAMS);
            drop(server_side.serve_connection(TokioIo::new(server), service).await);
        });
        Ok(Wire(TokioIo::new(client)))
    }

    async fn carry(self, number: usize, mut from: ReadHalf<DuplexStream>, mut to: WriteHalf<DuplexStream>) {
        let mut bytes = vec![0; BUFFER];
        while let Ok(length @ 1..) = from.read(&mut bytes).await {
            let delay = *self.0.delay.lock();
            tokio::time::sleep(delay).await;
            let until = *self.0.stalled_until.lock();
            tokio::time::sleep_until(until).await;
            if number < self.0.swallowed.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if to.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
        // The other side is told of the end, unless that is swallowed too.
        if number >= self.0.swallowed.load(Ordering::Relaxed) {
            drop(to.shutdown().await);
        }
    }
}

/// The client's end.
pub(super) struct Wire(pub TokioIo<DuplexStream>);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new().negotiated_h2()
    }
}

impl Read for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
