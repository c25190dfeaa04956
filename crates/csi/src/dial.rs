//! Dialling: from an endpoint to a stream, with the reason when there is none.

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;
use tower::ServiceExt;

use super::diagnose::{self, AccessBarrier, FilePermissions};
use super::tls::{TlsConnectError, TlsTarget};
use crate::api::condition::ConditionReason;
use crate::api::validated::{Endpoint, LoopbackHost};
use crate::error_chain::chain;

/// The whole of a dial: name, connection and TLS. It is part of the deadline of the call that dials.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer over a network can vanish without a word, and a call that waits for it sends nothing. The kernel asks after this
/// much silence, and gives up after four questions: within a minute, which the default of two hours is far from. Pings of
/// HTTP/2 are no way: a driver on gRPC for Go hangs up on them. A process that hangs, or a proxy that lost the way to the driver,
/// has a kernel that answers: see [`Answers`](super::Answers).
const KEEPALIVE_AFTER: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 4;
/// The same for a peer that does not confirm what was sent.
const USER_TIMEOUT: Duration = Duration::from_mins(1);

/// Why a driver's endpoint cannot be dialled.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DialError {
    /// Nothing is there.
    #[error("{path}: no such socket; {hint}")]
    SocketMissing {
        /// The socket.
        path: String,
        /// What is missing, and what mends it.
        hint: String,
    },
    /// Something else is there.
    #[error("{path}: {found}")]
    NotASocket {
        /// The path.
        path: String,
        /// What it is, and what mends it.
        found: String,
    },
    /// The path is longer than the kernel takes.
    #[error("{path}: {} bytes are too long for the path of a socket, which may have 107; mount its directory at a shorter path", .path.len())]
    PathTooLong {
        /// The path.
        path: String,
    },
    /// Permissions forbid it.
    #[error("{path}: {barrier}")]
    PermissionDenied {
        /// The socket.
        path: String,
        /// What forbids it, and what mends it.
        barrier: Box<AccessBarrier>,
    },
    /// Nobody listens.
    #[error("{address}: connection refused; the driver is not listening (any more){}", in_brackets(.socket.as_ref()))]
    Refused {
        /// Socket path or host and port.
        address: String,
        /// Whom the socket belongs to.
        socket: Option<FilePermissions>,
    },
    /// The driver does not accept the connections that wait already.
    #[error("{address}: the listen queue is full; is the driver hanging?")]
    Busy {
        /// The socket.
        address: String,
    },
    /// No TLS connection.
    #[error("{address}: TLS failed: {fault}")]
    Tls {
        /// Host and port.
        address: String,
        /// Why.
        fault: TlsConnectError,
    },
    /// It took too long.
    #[error("{address}: no connection within {} s", .limit.as_secs())]
    TimedOut {
        /// Socket path or host and port.
        address: String,
        /// How long it was tried.
        limit: Duration,
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
    pub fn reason(&self) -> ConditionReason {
        match self {
            Self::SocketMissing { .. } => ConditionReason::SocketMissing,
            Self::NotASocket { .. } => ConditionReason::NotASocket,
            Self::PermissionDenied { .. } => ConditionReason::PermissionDenied,
            Self::Refused { .. } => ConditionReason::ConnectionRefused,
            Self::Tls { .. } => ConditionReason::TlsFailed,
            Self::TimedOut { .. } => ConditionReason::Timeout,
            Self::PathTooLong { .. } | Self::Busy { .. } | Self::Other { .. } => ConditionReason::DialFailed,
        }
    }
}

/// A connection that stands.
pub(super) enum DialedStream {
    Unix(UnixStream),
    Tcp(TcpStream),
    // As large as all the rest together.
    Tls(Box<TlsStream<TcpStream>>),
}

/// One end of a connection: a host or IP address and its port, or the path of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAddress {
    /// Host, IP address or path.
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
}

/// What is dialled, and how.
#[derive(Clone, Debug)]
pub(super) enum DialTarget {
    Unix(PathBuf),
    Loopback {
        host: LoopbackHost,
        port: u16,
    },
    Tls {
        address: String,
        tls: Box<TlsTarget>,
    },
    /// An https endpoint for which there are no certificates; settings that were checked have them.
    Bare {
        address: String,
    },
}

impl DialTarget {
    pub fn plain(endpoint: &Endpoint) -> Self {
        match endpoint {
            Endpoint::Unix(path) => Self::Unix(path.clone()),
            Endpoint::Http { host, port } => Self::Loopback {
                host: *host,
                port: *port,
            },
            Endpoint::Https { host, port } => Self::Bare {
                address: format!("{host}:{port}"),
            },
        }
    }

    /// In the words of `server.address`: the socket's path, or host and port.
    pub fn address(&self) -> String {
        match self {
            Self::Unix(path) => path.display().to_string(),
            Self::Loopback { host, port } => format!("{}:{port}", host.as_str()),
            Self::Tls { address, .. } | Self::Bare { address } => address.clone(),
        }
    }

    /// The same apart, as the OpenTelemetry conventions want it: an IPv6 address without its brackets, no port for a socket.
    pub fn server(&self) -> NetworkAddress {
        let (host, port) = match self {
            Self::Unix(path) => return NetworkAddress::socket(path),
            Self::Loopback { host, port } => (host.as_str(), Some(*port)),
            Self::Tls { address, .. } | Self::Bare { address } => match address.rsplit_once(':') {
                Some((host, port)) => (host, port.parse().ok()),
                None => (&**address, None),
            },
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        NetworkAddress {
            address: host.into(),
            port,
        }
    }

    /// Where a stream to this target ends in fact.
    pub fn peer(&self, stream: &DialedStream) -> Option<NetworkAddress> {
        let stream = match (self, stream) {
            (Self::Unix(path), _) => return Some(NetworkAddress::socket(path)),
            (_, DialedStream::Tcp(stream)) => stream,
            (_, DialedStream::Tls(stream)) => stream.get_ref().0,
            (_, DialedStream::Unix(_)) => return None,
        };
        let address = stream.peer_addr().ok()?;
        Some(NetworkAddress {
            address: address.ip().to_string().into(),
            port: Some(address.port()),
        })
    }

    pub async fn dial(&self) -> Result<DialedStream, DialError> {
        let limit = CONNECT_TIMEOUT;
        let dialled = tokio::time::timeout(limit, self.connect()).await;
        dialled.unwrap_or_else(|_| {
            let address = self.address();
            Err(DialError::TimedOut { address, limit })
        })
    }

    async fn connect(&self) -> Result<DialedStream, DialError> {
        match self {
            Self::Unix(path) => UnixStream::connect(path)
                .await
                .map(DialedStream::Unix)
                .map_err(|error| of_socket(path, &error)),
            Self::Loopback { .. } => over_tcp(&self.address()).await.map(DialedStream::Tcp),
            Self::Tls { address, tls } => {
                let stream = over_tcp(address).await?;
                let secured = tls.connect(stream).await;
                secured
                    .map(|stream| DialedStream::Tls(Box::new(stream)))
                    .map_err(|fault| self.tls_error(fault))
            }
            Self::Bare { address } => Err(DialError::Other {
                address: address.clone(),
                message: "https needs certificates; set spec.tls".to_owned(),
            }),
        }
    }

    /// What an error of a stream that stood means, if TLS is to blame: a server can refuse a client after the handshake.
    pub fn explain(&self, error: &io::Error) -> Option<DialError> {
        match self {
            Self::Tls { tls, .. } => tls.fault_of(error).map(|fault| self.tls_error(fault)),
            Self::Unix(_) | Self::Loopback { .. } | Self::Bare { .. } => None,
        }
    }

    fn tls_error(&self, fault: TlsConnectError) -> DialError {
        let address = self.address();
        DialError::Tls { address, fault }
    }
}

/// A connection to `address` (host and port), to the first of its IP addresses that answers.
async fn over_tcp(address: &str) -> Result<TcpStream, DialError> {
    let other = |message: String| DialError::Other {
        address: address.to_owned(),
        message,
    };
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE_AFTER));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    connector.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let uri: Uri = format!("http://{address}")
        .parse()
        .map_err(|error: http::uri::InvalidUri| other(error.to_string()))?;
    match connector.oneshot(uri).await {
        Ok(stream) => Ok(stream.into_inner()),
        Err(error) => Err(of_tcp(address.to_owned(), io_kind(&error), &error)),
    }
}

/// The kind of the system's error underneath.
fn io_kind(error: &(dyn std::error::Error + 'static)) -> io::ErrorKind {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let io_error = causes.filter_map(|error| error.downcast_ref::<io::Error>()).last();
    io_error.map_or(io::ErrorKind::Other, io::Error::kind)
}

fn of_tcp(address: String, kind: io::ErrorKind, error: &(dyn std::error::Error + 'static)) -> DialError {
    match kind {
        io::ErrorKind::ConnectionRefused => DialError::Refused { address, socket: None },
        _ => DialError::Other {
            address,
            message: chain(error),
        },
    }
}

fn of_socket(path: &Path, error: &io::Error) -> DialError {
    let address = path.display().to_string();
    match error.kind() {
        io::ErrorKind::NotFound => DialError::SocketMissing {
            path: address,
            hint: diagnose::missing(path),
        },
        io::ErrorKind::PermissionDenied => DialError::PermissionDenied {
            path: address,
            barrier: Box::new(AccessBarrier::find(path)),
        },
        // Whoever does not listen and what is no socket are one error to the kernel.
        kind => match (diagnose::something_else(path), kind) {
            (_, io::ErrorKind::InvalidInput) => DialError::PathTooLong { path: address },
            (Some(found), _) => DialError::NotASocket { path: address, found },
            (None, io::ErrorKind::ConnectionRefused) => DialError::Refused {
                address,
                socket: diagnose::facts(path),
            },
            (None, io::ErrorKind::WouldBlock) => DialError::Busy { address },
            (None, _) => DialError::Other {
                address,
                message: error.to_string(),
            },
        },
    }
}

fn in_brackets(facts: Option<&FilePermissions>) -> String {
    facts.map(|facts| format!(" (socket with {facts})")).unwrap_or_default()
}
