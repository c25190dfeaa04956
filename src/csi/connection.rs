//! One connection to a driver: dialled on demand, its loss seen at once, the reason of a failed dial kept.
//!
//! It is dialled successfully once and never again: whoever answers after a reconnect may be another driver, or the same
//! with other capabilities, and must be asked before it gets any work.

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint as TonicEndpoint, Uri};

use crate::api::condition::Reason;
use crate::api::validated::{Endpoint, LoopbackHost};

/// A status message of the driver travels in a header; beyond this size its code would be lost with it.
const MAX_HEADER_BYTES: u32 = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a driver's endpoint cannot be dialled.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DialError {
    /// Nothing is there.
    #[error("{path}: no such socket; is the driver running and its socket directory mounted into this pod?")]
    SocketMissing {
        /// The socket.
        path: String,
    },
    /// Something else is there.
    #[error("{path} is no socket; mend spec.endpoint")]
    NotASocket {
        /// The path.
        path: String,
    },
    /// The file's permissions forbid it.
    #[error("{path}: permission denied (owner {uid}:{gid}, mode {mode:o}); the operator's user needs read and write")]
    PermissionDenied {
        /// The socket.
        path: String,
        /// Owner of the socket, or 0 if that cannot be read either.
        uid: u32,
        /// Group of the socket.
        gid: u32,
        /// Permission bits of the socket.
        mode: u32,
    },
    /// Nobody listens.
    #[error("{address}: connection refused; the driver is not listening (any more)")]
    Refused {
        /// Socket path or host and port.
        address: String,
    },
    /// Anything else.
    #[error("{address}: {message}")]
    Other {
        /// Socket path or host and port.
        address: String,
        /// The system's words.
        message: String,
    },
}

impl DialError {
    /// Reason for the condition DriverReachable.
    pub fn reason(&self) -> Reason {
        match self {
            Self::SocketMissing { .. } => Reason::SocketMissing,
            Self::NotASocket { .. } => Reason::NotASocket,
            Self::PermissionDenied { .. } => Reason::PermissionDenied,
            Self::Refused { .. } => Reason::ConnectionRefused,
            Self::Other { .. } => Reason::DialFailed,
        }
    }
}

/// Whether the connection stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Link {
    #[default]
    NotDialled,
    Up,
    Lost,
}

/// A channel to one driver, with the state of the connection under it.
#[derive(Clone, Debug)]
pub struct Connection {
    channel: Channel,
    address: Arc<str>,
    link: watch::Receiver<Link>,
    dial_error: Arc<Mutex<Option<DialError>>>,
}

impl Connection {
    /// Prepares a connection; it is dialled by the first call.
    pub fn new(endpoint: &Endpoint) -> Self {
        let (sender, link) = watch::channel(Link::default());
        let dial_error = Arc::new(Mutex::new(None));
        let dialler = Dialler {
            endpoint: endpoint.clone(),
            link: Arc::new(sender),
            error: dial_error.clone(),
        };
        // The URI only fills `:authority`; where to go is the dialler's business. gRPC for Go says "localhost" too.
        let channel = TonicEndpoint::from_static("http://localhost")
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let dialler = dialler.clone();
                async move { dialler.dial().await }
            }));
        Self {
            channel,
            address: address_of(endpoint).into(),
            link,
            dial_error,
        }
    }

    /// The channel for calls.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Socket path or host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Why the last dial failed, if it did.
    pub fn dial_error(&self) -> Option<DialError> {
        self.dial_error.lock().clone()
    }

    /// Whether the connection was made and lost.
    pub fn is_lost(&self) -> bool {
        *self.link.borrow() == Link::Lost
    }

    /// Resolves when the connection was lost; never while it was not made.
    ///
    /// A unix socket shows the end of the peer at once, so that no keep-alive is needed; a driver on gRPC for Go would
    /// even hang up on one.
    pub async fn lost(&self) {
        let mut link = self.link.clone();
        // The sender lives in the channel's dialler, which lives as long as `self`.
        let _lost = link.wait_for(|link| *link == Link::Lost).await;
    }
}

#[derive(Clone)]
struct Dialler {
    endpoint: Endpoint,
    link: Arc<watch::Sender<Link>>,
    error: Arc<Mutex<Option<DialError>>>,
}

impl Dialler {
    async fn dial(&self) -> io::Result<TokioIo<Io>> {
        if *self.link.borrow() != Link::NotDialled {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the connection to the driver was lost",
            ));
        }
        let stream = match &self.endpoint {
            Endpoint::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
            Endpoint::Http { host, port } => TcpStream::connect((dial_host(*host), *port)).await.map(Stream::Tcp),
            Endpoint::Https { .. } => Err(io::Error::new(io::ErrorKind::Unsupported, "https is not spoken yet")),
        };
        let stream = stream.inspect_err(|error| *self.error.lock() = Some(self.explain(error)))?;
        *self.error.lock() = None;
        self.link.send_replace(Link::Up);
        let guard = LinkGuard(self.link.clone());
        Ok(TokioIo::new(Io { stream, _guard: guard }))
    }

    fn explain(&self, error: &io::Error) -> DialError {
        let address = address_of(&self.endpoint);
        let Endpoint::Unix(path) = &self.endpoint else {
            return match error.kind() {
                io::ErrorKind::ConnectionRefused => DialError::Refused { address },
                _ => DialError::Other {
                    address,
                    message: error.to_string(),
                },
            };
        };
        match error.kind() {
            io::ErrorKind::NotFound => DialError::SocketMissing { path: address },
            io::ErrorKind::PermissionDenied => permission_denied(path, address),
            _ if !is_socket(path) => DialError::NotASocket { path: address },
            io::ErrorKind::ConnectionRefused => DialError::Refused { address },
            _ => DialError::Other {
                address,
                message: error.to_string(),
            },
        }
    }
}

/// What is dialled, in the words of `server.address`: the socket's path, or host and port.
fn address_of(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Unix(path) => path.display().to_string(),
        Endpoint::Http { host, port } => format!("{}:{port}", host.as_str()),
        Endpoint::Https { host, port } => format!("{host}:{port}"),
    }
}

fn dial_host(host: LoopbackHost) -> &'static str {
    match host {
        LoopbackHost::Ipv6 => "::1",
        LoopbackHost::Ipv4 | LoopbackHost::Localhost => host.as_str(),
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

fn permission_denied(path: &Path, address: String) -> DialError {
    use std::os::unix::fs::MetadataExt;
    let (uid, gid, mode) = std::fs::metadata(path).map_or((0, 0, 0), |meta| (meta.uid(), meta.gid(), meta.mode()));
    DialError::PermissionDenied {
        path: address,
        uid,
        gid,
        mode: mode & 0o777,
    }
}

/// Reports the end of the connection when its stream is dropped.
struct LinkGuard(Arc<watch::Sender<Link>>);

impl Drop for LinkGuard {
    fn drop(&mut self) {
        self.0.send_replace(Link::Lost);
    }
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

struct Io {
    stream: Stream,
    _guard: LinkGuard,
}

macro_rules! forward {
    ($self:ident, $method:ident $(, $argument:expr)*) => {
        match &mut $self.get_mut().stream {
            Stream::Unix(stream) => Pin::new(stream).$method($($argument),*),
            Stream::Tcp(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_read, cx, buffer)
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        forward!(self, poll_write, cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_flush, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_shutdown, cx)
    }
}
