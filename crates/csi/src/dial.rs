//! Dialling: from an endpoint to a stream, with the reason when there is none.

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tower::{Service, ServiceExt};

use super::diagnose::{self, AccessBarrier, FilePermissions};
use super::tls::{TlsConnectError, TlsTarget};
use crate::api::condition::ConditionReason;
use crate::api::validated::Endpoint;
use crate::error_chain::{causes, chain};

/// The whole of a dial: name, connection and TLS. It is part of the deadline of the call that dials.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The connection alone, shared by the addresses that the name has: one that swallows packets leaves time for the next. The rest of
/// [`CONNECT_TIMEOUT`] is for TLS.
const ADDRESSES_TIMEOUT: Duration = Duration::from_secs(9);
/// The origin of calls over a socket, as with gRPC for Go.
const SOCKET_ORIGIN: &str = "http://localhost";
/// A peer over a network can vanish without a word, and a call that waits for it sends nothing. The kernel asks after this
/// much silence, and gives up after four questions: within a minute, which the default of two hours is far from. Pings of
/// HTTP/2 are no way: a driver on gRPC for Go hangs up on them. A process that hangs, or a proxy that lost the way to the driver,
/// has a kernel that answers: see [`Answers`](super::Answers).
const KEEPALIVE_AFTER: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 4;
/// The same for a peer that does not confirm what was sent.
const USER_TIMEOUT: Duration = Duration::from_mins(1);

/// Why an endpoint cannot be dialled.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{address}: {fault}")]
pub struct DialError {
    /// Socket path, or host and port.
    pub address: String,
    /// What is wrong there, and how to fix it.
    pub fault: DialFault,
}

/// What is wrong with an endpoint.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DialFault {
    /// Nothing is at the path; with what is missing and how to fix it.
    #[error("no such socket; {0}")]
    SocketMissing(String),
    /// Something else is at the path; with what that is and how to fix it.
    #[error("{0}")]
    NotASocket(String),
    /// The path has this many bytes, more than the kernel takes.
    #[error(
        "{0} bytes are too long for the path of a socket, which may have 107; mount its directory at a shorter path"
    )]
    PathTooLong(usize),
    /// The permissions of the socket or of a directory on the way forbid it.
    #[error("{0}")]
    PermissionDenied(Box<AccessBarrier>),
    /// Nobody listens; with the permissions of a unix socket.
    #[error("connection refused; the driver is not listening (any more){}", in_brackets(.0.as_ref()))]
    Refused(Option<FilePermissions>),
    /// The driver does not accept the connections that wait already.
    #[error("the listen queue is full; is the driver hanging?")]
    Busy,
    /// The TCP connection was made, and the one of TLS was not.
    #[error("TLS failed: {0}")]
    Tls(TlsConnectError),
    /// There was no connection within this time.
    #[error("no connection within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// Another error of the system, in its words.
    #[error("{0}")]
    Other(String),
}

impl DialFault {
    /// What is wrong, without the endpoint and without paths of this machine.
    pub fn without_address(&self) -> String {
        match self {
            Self::SocketMissing(_) => "the driver's socket is missing".to_owned(),
            Self::NotASocket(_) => "there is no socket where the driver's should be".to_owned(),
            Self::PermissionDenied(_) => "the driver's socket may not be opened".to_owned(),
            Self::Refused(_) => Self::Refused(None).to_string(),
            Self::Other(_) => "the driver cannot be reached".to_owned(),
            Self::Tls(TlsConnectError::Certificate(_)) => {
                "TLS failed: the driver's certificate is not accepted".to_owned()
            }
            Self::Tls(TlsConnectError::Other(_)) => "TLS failed".to_owned(),
            Self::PathTooLong(_) | Self::Busy | Self::Tls(_) | Self::TimedOut(_) => self.to_string(),
        }
    }
}

impl DialError {
    /// Reason for the condition DriverReachable.
    pub fn reason(&self) -> ConditionReason {
        match self.fault {
            DialFault::SocketMissing(_) => ConditionReason::SocketMissing,
            DialFault::NotASocket(_) => ConditionReason::NotASocket,
            DialFault::PermissionDenied(_) => ConditionReason::PermissionDenied,
            DialFault::Refused(_) => ConditionReason::ConnectionRefused,
            DialFault::Tls(_) => ConditionReason::TlsFailed,
            DialFault::TimedOut(_) => ConditionReason::Timeout,
            DialFault::PathTooLong(_) | DialFault::Busy | DialFault::Other(_) => ConditionReason::DialFailed,
        }
    }
}

/// What goes over a connection that stands: that of a unix socket, of TCP or of TLS.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// A connection that stands, and where it ends in fact.
pub(super) type DialedStream = (Box<dyn ByteStream>, Option<NetworkAddress>);

/// One end of a connection: a host or IP address and its port, or the path of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NetworkAddress {
    pub address: Arc<str>,
    /// None for a unix socket.
    pub port: Option<u16>,
}

impl NetworkAddress {
    fn socket(path: &Path) -> Self {
        Self {
            address: path.display().to_string().into(),
            port: None,
        }
    }

    fn peer_of(stream: &TcpStream) -> Option<Self> {
        let address = stream.peer_addr().ok()?;
        Some(Self {
            address: address.ip().to_string().into(),
            port: Some(address.port()),
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct DialTarget {
    pub endpoint: Endpoint,
    /// For https: settings that were checked have certificates for it; without, it is not dialled.
    pub tls: Option<Box<TlsTarget>>,
}

impl DialTarget {
    /// The socket's path as messages show it; or host and port, which are dialled as well.
    pub fn address(&self) -> String {
        match &self.endpoint {
            Endpoint::Unix(path) => diagnose::shown(path),
            Endpoint::Http { host, port } => format!("{}:{port}", host.as_str()),
            Endpoint::Https { host, port } => format!("{host}:{port}"),
        }
    }

    /// Scheme and authority of the calls: a proxy at a network endpoint may choose the driver by them. The name in a certificate is another
    /// matter.
    pub fn origin(&self) -> Uri {
        let origin = match &self.endpoint {
            Endpoint::Unix(_) => SOCKET_ORIGIN.to_owned(),
            of_network => of_network.to_string(),
        };
        // One that is no URI cannot be dialled either, which is told then.
        origin.parse().unwrap_or_else(|_| Uri::from_static(SOCKET_ORIGIN))
    }

    /// The same apart, as the OpenTelemetry conventions want it: an IPv6 address without its brackets, no port for a socket.
    pub fn server(&self) -> NetworkAddress {
        let (host, port) = match &self.endpoint {
            Endpoint::Unix(path) => return NetworkAddress::socket(path),
            Endpoint::Http { host, port } => (host.as_str(), *port),
            Endpoint::Https { host, port } => (&**host, *port),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        NetworkAddress {
            address: host.into(),
            port: Some(port),
        }
    }

    pub async fn dial(&self) -> Result<DialedStream, DialError> {
        let dialled = tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await;
        let dialled = dialled.unwrap_or(Err(DialFault::TimedOut(CONNECT_TIMEOUT)));
        dialled.map_err(|fault| self.error(fault))
    }

    async fn connect(&self) -> Result<DialedStream, DialFault> {
        match (&self.endpoint, &self.tls) {
            (Endpoint::Unix(path), _) => {
                let stream = UnixStream::connect(path).await;
                let stream = stream.map_err(|error| of_socket(path, &error))?;
                Ok((Box::new(stream), Some(NetworkAddress::socket(path))))
            }
            (Endpoint::Http { .. }, _) => {
                let stream = over_tcp(&self.address()).await?;
                let peer = NetworkAddress::peer_of(&stream);
                Ok((Box::new(stream), peer))
            }
            (Endpoint::Https { .. }, None) => {
                Err(DialFault::Other("https needs certificates; set spec.tls".to_owned()))
            }
            (Endpoint::Https { .. }, Some(tls)) => {
                let stream = over_tcp(&self.address()).await?;
                let stream = tls.connect(stream).await.map_err(DialFault::Tls)?;
                let peer = NetworkAddress::peer_of(stream.get_ref().0);
                Ok((Box::new(stream), peer))
            }
        }
    }

    /// What an error of a stream that stood means, if TLS is to blame: a server can refuse a client after the handshake.
    pub fn explain(&self, error: &io::Error) -> Option<DialError> {
        let fault = self.tls.as_ref()?.fault_of(error)?;
        Some(self.error(DialFault::Tls(fault)))
    }

    fn error(&self, fault: DialFault) -> DialError {
        let address = self.address();
        DialError { address, fault }
    }
}

/// A connection to `address` (host and port), to the first of its IP addresses that answers.
async fn over_tcp(address: &str) -> Result<TcpStream, DialFault> {
    connect_by(HttpConnector::new(), address).await
}

/// As [`over_tcp`], with the connector's own way to look up names.
pub(super) async fn connect_by<R>(mut connector: HttpConnector<R>, address: &str) -> Result<TcpStream, DialFault>
where
    HttpConnector<R>: Service<Uri, Response = TokioIo<TcpStream>, Error: std::error::Error + 'static>,
{
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(ADDRESSES_TIMEOUT));
    connector.set_keepalive(Some(KEEPALIVE_AFTER));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    connector.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let uri: Uri = format!("http://{address}")
        .parse()
        .map_err(|error: http::uri::InvalidUri| DialFault::Other(error.to_string()))?;
    match connector.oneshot(uri).await {
        Ok(stream) => Ok(stream.into_inner()),
        Err(error) => Err(match io_kind(&error) {
            io::ErrorKind::ConnectionRefused => DialFault::Refused(None),
            io::ErrorKind::TimedOut => DialFault::TimedOut(ADDRESSES_TIMEOUT),
            _ => DialFault::Other(chain(&error)),
        }),
    }
}

fn io_kind(error: &(dyn std::error::Error + 'static)) -> io::ErrorKind {
    let io_errors = causes(error).filter_map(|error| error.downcast_ref::<io::Error>());
    let io_error = io_errors.last();
    io_error.map_or(io::ErrorKind::Other, io::Error::kind)
}

fn of_socket(path: &Path, error: &io::Error) -> DialFault {
    match error.kind() {
        io::ErrorKind::NotFound => DialFault::SocketMissing(diagnose::missing(path)),
        io::ErrorKind::PermissionDenied => DialFault::PermissionDenied(Box::new(AccessBarrier::find(path))),
        // To the kernel, a socket that nobody listens on and a file that is no socket are one error.
        kind => match (diagnose::something_else(path), kind) {
            (_, io::ErrorKind::InvalidInput) => DialFault::PathTooLong(path.display().to_string().len()),
            (Some(found), _) => DialFault::NotASocket(found),
            (None, io::ErrorKind::ConnectionRefused) => DialFault::Refused(diagnose::facts(path)),
            (None, io::ErrorKind::WouldBlock) => DialFault::Busy,
            (None, _) => DialFault::Other(error.to_string()),
        },
    }
}

fn in_brackets(facts: Option<&FilePermissions>) -> String {
    facts.map(|facts| format!(" (socket with {facts})")).unwrap_or_default()
}
