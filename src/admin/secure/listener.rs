//! Connections: how many, for how long, and one request for each.
//!
//! HTTP/2 is not spoken: a scrape has no use for it, and its resets of streams made floods cheap (CVE-2023-44487).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::SecureState;
use super::certificate::Certificates;
use super::gatekeeper::Judge;
use crate::admin::DRAIN_TIME;

/// Connections at a time; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 64;
/// How long a handshake may take, and how long a request may take to come in: all that somebody without a token can cost.
const HANDSHAKE: Duration = Duration::from_secs(5);
const REQUEST: Duration = Duration::from_secs(5);
/// The whole of a connection, the answer included; more than a scrape may take by default (10 s).
const CONNECTION: Duration = Duration::from_secs(30);
/// A request has a line and a few headers, one of which is a token.
const LARGEST_REQUEST: usize = 32 << 10;
/// After a fault of `accept`, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves metrics by TLS until `shutdown` is cancelled, then lets open requests finish for two seconds.
pub async fn serve_secure<J: Judge>(
    listener: TcpListener,
    state: SecureState<J>,
    certificates: Certificates,
    shutdown: CancellationToken,
) {
    let state = Arc::new(state);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (place, listener.accept().await)
        };
        let Some((place, accepted)) = shutdown.run_until_cancelled(next).await else {
            break;
        };
        match (accepted, certificates.current()) {
            (Ok((stream, _)), Some(config)) => {
                let state = Arc::clone(&state);
                connections.spawn(async move {
                    let _place = place;
                    // Somebody who is too slow is hung up on.
                    let _ended = timeout(CONNECTION, one(stream, config, &state)).await;
                });
            }
            // The check of the certificate says why.
            (Ok(_), None) => {}
            (Err(error), _) => {
                warn!(%error, "cannot accept a connection for the metrics");
                sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    let _overdue = timeout(DRAIN_TIME, drained).await;
}

/// One connection with one request. Its faults are those of whoever dialled.
async fn one<J: Judge>(stream: TcpStream, config: Arc<ServerConfig>, state: &SecureState<J>) {
    let stream = match timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "TLS handshake for the metrics failed"),
        Err(_) => return debug!("TLS handshake for the metrics took too long"),
    };
    let service = service_fn(async |request: Request<Incoming>| {
        let (head, _) = request.into_parts();
        let answer = state.answer(&head.method, head.uri.path(), &head.headers).await;
        Ok::<Response, Infallible>(answer)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .max_buf_size(LARGEST_REQUEST)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!(%error, "a request for the metrics failed");
    }
}
