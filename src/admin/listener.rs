//! Connections to the HTTP endpoints: how many, for how long, and one request for each.
//!
//! The number of connections is limited. When all are in use and another one comes, the oldest one without a request is
//! closed: idle peers keep nobody out, and a probe, which sends its request at once, is answered at once. HTTP/2 is not
//! spoken: a scrape has no use for it, and its resets of streams made floods cheap (CVE-2023-44487).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use super::answer::ScrapePlace;

/// Connections at a time, for each endpoint.
const MAX_CONNECTIONS: usize = 64;
/// How long a connection without a request is safe from being closed for another one. A request comes with the connection.
const GRACE: Duration = Duration::from_millis(20);
/// How long a request may take to come in.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The whole of a connection, the answer included; more than a scrape may take by default (10 s).
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// A request has a line and a few headers.
const MAX_REQUEST_BYTES: usize = 32 << 10;
/// After a fault of `accept`, such as too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// What connections get after the shutdown signal to finish their request.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// Serves what is routed until `shutdown` is cancelled, then lets open requests finish for two seconds.
pub(super) async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    let mut peers = Peers::default();
    loop {
        let next = async {
            let accepted = listener.accept().await;
            peers.make_room().await;
            accepted
        };
        let Some(accepted) = shutdown.run_until_cancelled(next).await else {
            break;
        };
        match accepted {
            Ok((stream, _)) => {
                let router = router.clone();
                peers.add(move |asked| async move {
                    // A peer that is too slow is disconnected.
                    let _ended = timeout(CONNECTION_TIMEOUT, serve_connection(stream, router, &asked)).await;
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection to the HTTP endpoint");
                sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
    drop(listener);
    peers.end().await;
}

#[derive(Default)]
struct Peers {
    connections: JoinSet<()>,
    /// Those that may have sent no request yet, the oldest first.
    silent: VecDeque<Silent>,
}

struct Silent {
    since: Instant,
    asked: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Silent {
    fn is_silent(&self) -> bool {
        !self.asked.load(Ordering::Relaxed) && !self.task.is_finished()
    }
}

impl Peers {
    /// Waits until there is a place: until a connection ends, or one without a request is older than [`GRACE`] and is closed.
    async fn make_room(&mut self) {
        while self.connections.try_join_next().is_some() {}
        while self.connections.len() >= MAX_CONNECTIONS {
            self.silent.retain(Silent::is_silent);
            let Some(longest) = self.silent.front() else {
                self.connections.join_next().await;
                continue;
            };
            tokio::select! {
                _ = self.connections.join_next() => {}
                () = sleep_until(longest.since + GRACE) => {
                    if longest.is_silent() {
                        longest.task.abort();
                    }
                    self.silent.pop_front();
                }
            }
        }
    }

    fn add<F: Future<Output = ()> + Send + 'static>(&mut self, serve: impl FnOnce(Arc<AtomicBool>) -> F) {
        let asked = Arc::new(AtomicBool::new(false));
        let task = self.connections.spawn(serve(Arc::clone(&asked)));
        self.silent.retain(Silent::is_silent);
        self.silent.push_back(Silent {
            since: Instant::now(),
            asked,
            task,
        });
    }

    /// Closes the connections without a request, and lets the others have their answers.
    async fn end(mut self) {
        for peer in self.silent.iter().filter(|peer| peer.is_silent()) {
            peer.task.abort();
        }
        let drained = async { while self.connections.join_next().await.is_some() {} };
        let _overdue = timeout(DRAIN_TIME, drained).await;
    }
}

/// Serves one request of one connection. Its errors are those of the client; a body is not read.
async fn serve_connection(stream: TcpStream, router: Router, asked: &AtomicBool) {
    // A place in a queue is kept until the answer is on its way as a whole.
    let kept = Mutex::new(None);
    let service = service_fn(async |request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let answer = router.clone().oneshot(request.map(|_| Body::empty())).await;
        answer.map(|mut response| {
            *kept.lock() = response.extensions_mut().remove::<ScrapePlace>();
            response
        })
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_REQUEST_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!(%error, "a request to the HTTP endpoint failed");
    }
}
