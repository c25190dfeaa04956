//! One connection to a driver: dialled on demand, its loss seen at once, the reason of a failed dial kept.
//!
//! It is dialled successfully once and never again: whoever answers after a reconnect may be another driver, or the same
//! with other capabilities, and must be asked before it gets any work.

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint as TonicEndpoint, Uri};

use super::answers::{AnswerCounter, Answers};
use super::dial::{DialError, DialTarget, DialedStream, NetworkAddress};
use super::tls::TlsTarget;
use crate::api::validated::Endpoint;

/// A status message of the driver travels in a header; beyond this size its code would be lost with it.
const MAX_HEADER_BYTES: u32 = 1 << 20;

/// Whether the connection stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinkState {
    #[default]
    NotDialled,
    Up,
    Lost,
}

/// Whether bytes may go to the driver now.
type Permit = Arc<dyn Fn() -> bool + Send + Sync>;

/// A channel to one driver, with the state of the connection under it.
#[derive(Clone, Debug)]
pub struct DriverConnection {
    channel: Channel,
    address: Arc<str>,
    server: NetworkAddress,
    peer: Arc<OnceLock<NetworkAddress>>,
    link: Arc<watch::Sender<LinkState>>,
    dial_error: Arc<Mutex<Option<DialError>>>,
    permit: Gate,
    answers: AnswerCounter,
}

/// What is asked before each write, if anything is.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<Option<Permit>>>);

impl Gate {
    fn is_open(&self) -> bool {
        self.0.lock().as_ref().is_none_or(|permit| permit())
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Gate").field("open", &self.is_open()).finish()
    }
}

impl DriverConnection {
    /// Prepares a connection without TLS; it is dialled by the first call.
    pub fn new(endpoint: &Endpoint) -> Self {
        Self::to(DialTarget::plain(endpoint))
    }

    /// Prepares a connection to `host` (an IPv6 address in brackets) by TLS; it is dialled by the first call.
    pub fn secured(host: &str, port: u16, tls: TlsTarget) -> Self {
        let address = format!("{host}:{port}");
        let tls = Box::new(tls);
        Self::to(DialTarget::Tls { address, tls })
    }

    fn to(target: DialTarget) -> Self {
        let link = Arc::new(watch::Sender::new(LinkState::default()));
        let dial_error = Arc::new(Mutex::new(None));
        let address = target.address().into();
        let (server, peer, permit) = (target.server(), Arc::default(), Gate::default());
        let dialler = Dialer {
            target: Arc::new(target),
            peer: Arc::clone(&peer),
            link: link.clone(),
            error: dial_error.clone(),
            permit: permit.clone(),
        };
        // The URI only fills `:authority`; where to go is the dialler's business. gRPC for Go says "localhost" too.
        let channel = TonicEndpoint::from_static("http://localhost")
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let dialler = dialler.clone();
                async move { dialler.dial().await }
            }));
        Self {
            channel,
            address,
            server,
            peer,
            link,
            dial_error,
            permit,
            answers: AnswerCounter::default(),
        }
    }

    /// Asks this before each write from now on; where it says no, the connection ends. A call goes through queues on its way
    /// to the socket, and the process may stand still while it waits in one: only here is it known when it leaves.
    pub fn writes_only_while(&self, permit: impl Fn() -> bool + Send + Sync + 'static) {
        *self.permit.0.lock() = Some(Arc::new(permit));
    }

    /// The channel for calls.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Socket path or host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What is dialled, for `server.address` and `server.port`.
    pub fn server(&self) -> &NetworkAddress {
        &self.server
    }

    /// Where the connection goes in fact, once it was made.
    pub fn peer(&self) -> Option<&NetworkAddress> {
        self.peer.get()
    }

    /// Why the last dial failed, if it did.
    pub fn dial_error(&self) -> Option<DialError> {
        self.dial_error.lock().clone()
    }

    /// Follows what the driver answers over this connection.
    pub fn answers(&self) -> watch::Receiver<Answers> {
        self.answers.subscribe()
    }

    /// Since when calls are out and the driver answered nothing over this connection; none while nothing is out.
    pub fn silent_since(&self) -> Option<Instant> {
        self.answers.silent_since()
    }

    /// Counts the answers.
    pub(super) fn answer_counter(&self) -> &AnswerCounter {
        &self.answers
    }

    /// Whether the connection was made and lost.
    pub fn is_lost(&self) -> bool {
        *self.link.borrow() == LinkState::Lost
    }

    /// A call was turned away because the connection takes no more. A driver that says goodbye (GOAWAY) may still have calls
    /// to finish, so that nothing else shows it.
    pub(super) fn goaway_received(&self) {
        self.link.send_if_modified(|link| {
            let up = *link == LinkState::Up;
            if up {
                *link = LinkState::Lost;
            }
            up
        });
    }

    /// Makes the connection a lost one, as its end on the wire does.
    pub fn lose(&self) {
        self.link.send_replace(LinkState::Lost);
    }

    /// Resolves when the connection was lost; never while it was not made.
    ///
    /// A unix socket shows the end of the peer at once, so that no keep-alive is needed; a driver on gRPC for Go would
    /// even hang up on one.
    pub async fn lost(&self) {
        let mut link = self.link.subscribe();
        // The sender lives as long as `self`.
        let _lost = link.wait_for(|link| *link == LinkState::Lost).await;
    }
}

#[derive(Clone)]
struct Dialer {
    target: Arc<DialTarget>,
    peer: Arc<OnceLock<NetworkAddress>>,
    link: Arc<watch::Sender<LinkState>>,
    error: Arc<Mutex<Option<DialError>>>,
    permit: Gate,
}

impl Dialer {
    async fn dial(&self) -> io::Result<TokioIo<GuardedStream>> {
        if *self.link.borrow() != LinkState::NotDialled {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the connection to the driver was lost",
            ));
        }
        let stream = self.target.dial().await.map_err(|error| {
            *self.error.lock() = Some(error.clone());
            io::Error::other(error)
        })?;
        *self.error.lock() = None;
        if let Some(peer) = self.target.peer(&stream) {
            // A connection is made once, so that nothing is there yet.
            let _kept = self.peer.set(peer);
        }
        self.link.send_replace(LinkState::Up);
        Ok(TokioIo::new(GuardedStream {
            stream,
            dialler: self.clone(),
            _guard: LinkGuard(self.link.clone()),
        }))
    }
}

/// Reports the end of the connection when its stream is dropped.
struct LinkGuard(Arc<watch::Sender<LinkState>>);

impl Drop for LinkGuard {
    fn drop(&mut self) {
        self.0.send_replace(LinkState::Lost);
    }
}

struct GuardedStream {
    stream: DialedStream,
    dialler: Dialer,
    _guard: LinkGuard,
}

macro_rules! forward {
    ($io:expr, $method:ident $(, $argument:expr)*) => {
        match &mut $io.stream {
            DialedStream::Unix(stream) => Pin::new(stream).$method($($argument),*),
            DialedStream::Tcp(stream) => Pin::new(stream).$method($($argument),*),
            DialedStream::Tls(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for GuardedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let io = self.get_mut();
        let read = forward!(io, poll_read, cx, buffer);
        if let Poll::Ready(Err(error)) = &read
            && let Some(explained) = io.dialler.target.explain(error)
        {
            *io.dialler.error.lock() = Some(explained);
        }
        read
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let io = self.get_mut();
        if !io.dialler.permit.is_open() {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "nothing may be sent to the driver any more",
            )));
        }
        forward!(io, poll_write, cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self.get_mut(), poll_flush, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self.get_mut(), poll_shutdown, cx)
    }
}
