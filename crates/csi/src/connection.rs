//! One connection to a driver: dialled on demand, its loss seen at once, the reason of a failed dial kept.
//!
//! It is dialled successfully once and never again: whoever answers after a reconnect may be another driver, or the same
//! with other capabilities, and must be asked before it gets any work.

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::transport::{Endpoint as TonicEndpoint, Uri};
use tower::{BoxError, Service};

use super::answers::{AnswerCounter, Answers};
use super::dial::{ByteStream, DialError, DialTarget, NetworkAddress};
use super::grpc_status::{CallService, recording_status};
use super::tls::TlsTarget;
use crate::api::validated::Endpoint;

/// A status message of the driver travels in a header; beyond this size its code would be lost with it.
const MAX_HEADER_BYTES: u32 = 1 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinkState {
    #[default]
    NotDialled,
    Up,
    Lost,
}

/// What the client and the stream of a connection share.
struct Link {
    /// Socket path, or host and port.
    address: Box<str>,
    server: NetworkAddress,
    peer: OnceLock<NetworkAddress>,
    state: watch::Sender<LinkState>,
    dial_error: Mutex<Option<DialError>>,
    /// Whether bytes may go to the driver now; none while nothing forbids it.
    permit: Mutex<Option<Permit>>,
}

type Permit = Box<dyn Fn() -> bool + Send + Sync>;

impl Link {
    fn new(address: String, server: NetworkAddress) -> Arc<Self> {
        Arc::new(Self {
            address: address.into(),
            server,
            peer: OnceLock::new(),
            state: watch::Sender::default(),
            dial_error: Mutex::default(),
            permit: Mutex::default(),
        })
    }

    /// A connection that was made takes no more calls.
    fn takes_no_more(&self) {
        self.state.send_if_modified(|state| {
            let up = *state == LinkState::Up;
            if up {
                *state = LinkState::Lost;
            }
            up
        });
    }
}

/// The way of calls to one driver, with the state of the connection under it.
#[derive(Clone)]
pub struct DriverConnection {
    pub(super) service: CallService,
    link: Arc<Link>,
    /// Counts what the driver answers over this connection.
    pub(super) answers: AnswerCounter,
}

impl fmt::Debug for DriverConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("DriverConnection")
            .field("address", &self.link.address)
            .field("state", &*self.link.state.borrow())
            .finish_non_exhaustive()
    }
}

impl DriverConnection {
    /// Prepares a connection without TLS; it is dialled by the first call.
    pub fn new(endpoint: &Endpoint) -> Self {
        let endpoint = endpoint.clone();
        Self::to(DialTarget { endpoint, tls: None })
    }

    /// Prepares a connection to `host` (an IPv6 address in brackets) by TLS; it is dialled by the first call.
    pub fn secured(host: &str, port: u16, tls: TlsTarget) -> Self {
        let host = host.to_owned();
        Self::to(DialTarget {
            endpoint: Endpoint::Https { host, port },
            tls: Some(Box::new(tls)),
        })
    }

    /// A driver in this process, such as a model of one: nothing is dialled, and calls go to `service`.
    pub fn in_process<S>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Future: Send> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
    {
        let address = "in-process";
        let server = NetworkAddress {
            address: address.into(),
            port: None,
        };
        Self {
            service: recording_status(service),
            link: Link::new(address.to_owned(), server),
            answers: AnswerCounter::default(),
        }
    }

    fn to(target: DialTarget) -> Self {
        let link = Link::new(target.address(), target.server());
        let origin = target.origin();
        let dialer = Dialer {
            target: Arc::new(target),
            link: link.clone(),
        };
        // Where to go, and with which certificates, is decided by the dialer; a URI of https would make tonic ask for TLS of its own. What
        // calls name as their server is the origin.
        let channel = TonicEndpoint::from_static("http://localhost")
            .origin(origin)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let dialer = dialer.clone();
                async move { dialer.dial().await }
            }));
        Self {
            service: recording_status(channel),
            link,
            answers: AnswerCounter::default(),
        }
    }

    /// Asks this before each write from now on; where it says no, the connection ends. A call goes through queues on its way
    /// to the socket, and the process may stand still while it waits in one: only here is it known when it leaves.
    pub fn writes_only_while(&self, permit: impl Fn() -> bool + Send + Sync + 'static) {
        *self.link.permit.lock() = Some(Box::new(permit));
    }

    /// Socket path or host and port.
    pub fn address(&self) -> &str {
        &self.link.address
    }

    /// What is dialled, for `server.address` and `server.port`.
    pub(super) fn server(&self) -> &NetworkAddress {
        &self.link.server
    }

    /// Where the connection goes in fact, once it was made.
    pub(super) fn peer(&self) -> Option<&NetworkAddress> {
        self.link.peer.get()
    }

    /// Why the last dial failed, if it did.
    pub fn dial_error(&self) -> Option<DialError> {
        self.link.dial_error.lock().clone()
    }

    /// Follows what the driver answers over this connection.
    pub fn answers(&self) -> watch::Receiver<Answers> {
        self.answers.subscribe()
    }

    /// Since when calls are out and the driver answered nothing over this connection; none while nothing is out.
    pub fn silent_since(&self) -> Option<Instant> {
        self.answers.silent_since()
    }

    /// Whether the connection was made and lost.
    pub fn is_lost(&self) -> bool {
        *self.link.state.borrow() == LinkState::Lost
    }

    /// A call was turned away because the connection takes no more. A driver that sends GOAWAY may still have calls to finish, so
    /// that nothing else shows it.
    pub(super) fn goaway_received(&self) {
        self.link.takes_no_more();
    }

    /// Makes the connection a lost one, as its end on the wire does.
    pub fn lose(&self) {
        self.link.state.send_replace(LinkState::Lost);
    }

    /// Resolves when the connection was lost; never while it was not made.
    ///
    /// A unix socket shows the end of the peer at once, so that no keep-alive is needed; a driver on gRPC for Go would
    /// even hang up on one.
    pub async fn lost(&self) {
        let mut state = self.link.state.subscribe();
        // The sender lives as long as `self`.
        let _lost = state.wait_for(|state| *state == LinkState::Lost).await;
    }
}

#[derive(Clone)]
struct Dialer {
    target: Arc<DialTarget>,
    link: Arc<Link>,
}

impl Dialer {
    async fn dial(&self) -> io::Result<TokioIo<LinkStream>> {
        let Self { target, link } = self;
        if *link.state.borrow() != LinkState::NotDialled {
            // Its stream may still be there, for the calls that run.
            link.takes_no_more();
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the connection to the driver was lost",
            ));
        }
        let (stream, peer) = target.dial().await.map_err(|error| {
            *link.dial_error.lock() = Some(error.clone());
            io::Error::other(error)
        })?;
        *link.dial_error.lock() = None;
        if let Some(peer) = peer {
            // A connection is made once, so that nothing is there yet.
            let _kept = link.peer.set(peer);
        }
        link.state.send_replace(LinkState::Up);
        Ok(TokioIo::new(LinkStream {
            stream,
            dialer: self.clone(),
        }))
    }
}

/// The stream of a connection. The connection is lost when this is dropped.
struct LinkStream {
    stream: Box<dyn ByteStream>,
    dialer: Dialer,
}

impl Drop for LinkStream {
    fn drop(&mut self) {
        self.dialer.link.state.send_replace(LinkState::Lost);
    }
}

impl AsyncRead for LinkStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let io = self.get_mut();
        let read = Pin::new(&mut io.stream).poll_read(cx, buffer);
        if let Poll::Ready(Err(error)) = &read
            && let Some(explained) = io.dialer.target.explain(error)
        {
            *io.dialer.link.dial_error.lock() = Some(explained);
        }
        read
    }
}

impl AsyncWrite for LinkStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let io = self.get_mut();
        let permit = io.dialer.link.permit.lock();
        if permit.as_ref().is_some_and(|permit| !permit()) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "nothing may be sent to the driver any more",
            )));
        }
        drop(permit);
        Pin::new(&mut io.stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that takes no more calls is dialled again while those that run keep its stream.
    #[tokio::test]
    async fn a_connection_that_is_dialled_again_is_lost() {
        let target = DialTarget {
            endpoint: Endpoint::Unix("/csi/csi.sock".into()),
            tls: None,
        };
        let link = Link::new(target.address(), target.server());
        let dialer = Dialer {
            target: Arc::new(target),
            link: link.clone(),
        };
        link.state.send_replace(LinkState::Up);
        let Err(error) = dialer.dial().await else {
            panic!("a connection is used once")
        };
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert_eq!(*link.state.borrow(), LinkState::Lost);
    }
}
