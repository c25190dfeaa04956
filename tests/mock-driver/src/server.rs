//! The socket: listens, serves connections, closes them on demand.
//!
//! Serves HTTP/2 itself instead of with the transport's ready-made server, which answers a call by itself when its deadline passes: a
//! driver that hangs must stay silent. It also allows one connection to be closed in the middle of a call.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::service::MockService;
use super::shared::{CallerPid, ConnectionCloser};
use super::tls::{Acceptor, TlsError};
use csi_attacher_proto::v1::controller_server::ControllerServer;
use csi_attacher_proto::v1::identity_server::IdentityServer;
use csi_attacher_proto::v1::node_server::NodeServer;

/// Why the mock driver could not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The path of the socket is taken by something that is no socket.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// Another process listens on the socket.
    #[error("another process listens on {}", .0.display())]
    InUse(PathBuf),
    /// The address can be reached from other machines; the mock driver has no authentication.
    #[error("{0} is not a loopback address")]
    NotLoopback(SocketAddr),
    /// The certificates or the key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The operating system said no.
    #[error("cannot listen on {endpoint}")]
    Io {
        /// Where the mock driver should have listened.
        endpoint: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Where a mock driver listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenEndpoint {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP port of the loopback interface; port 0 lets the system choose.
    Tcp(SocketAddr),
}

impl std::fmt::Display for ListenEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// Text that names no endpoint.
#[derive(Debug, thiserror::Error)]
#[error("want unix:///path or tcp://127.0.0.1:port")]
pub struct EndpointError;

impl std::str::FromStr for ListenEndpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix://").filter(|path| path.starts_with('/')) {
            Ok(Self::Unix(PathBuf::from(path)))
        } else if let Some(address) = text.strip_prefix("tcp://") {
            address.parse().map(Self::Tcp).map_err(|_| EndpointError)
        } else if text.starts_with('/') {
            Ok(Self::Unix(PathBuf::from(text)))
        } else {
            Err(EndpointError)
        }
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A socket that is served. Dropped without [`Server::stop`], it stops listening and closes its connections too, but may leave the file.
pub(super) struct Server {
    pub endpoint: ListenEndpoint,
    stop: CancellationToken,
    hangs: CancellationToken,
    connections: Arc<Mutex<CancellationToken>>,
    open: OpenConnections,
    tasks: TaskTracker,
}

/// What is served: the three services of CSI.
#[derive(Clone)]
struct Services {
    identity: IdentityServer<MockService>,
    controller: ControllerServer<MockService>,
    node: NodeServer<MockService>,
    /// Once it is cancelled, nothing is answered any more.
    hangs: CancellationToken,
}

impl Services {
    async fn answer(self, request: http::Request<Incoming>) -> Result<http::Response<tonic::body::Body>, Infallible> {
        let hangs = self.hangs.clone();
        match hangs.run_until_cancelled(self.serve(request)).await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    async fn serve(self, request: http::Request<Incoming>) -> Result<http::Response<tonic::body::Body>, Infallible> {
        let service = request.uri().path().split('/').nth(1).unwrap_or_default().to_owned();
        match service.as_str() {
            "csi.v1.Identity" => self.identity.oneshot(request).await,
            "csi.v1.Controller" => self.controller.oneshot(request).await,
            "csi.v1.Node" => self.node.oneshot(request).await,
            _ => Ok(tonic::Status::unimplemented("").into_http()),
        }
    }
}

/// How many connections are open.
#[derive(Clone)]
struct OpenConnections(Arc<watch::Sender<usize>>);

impl OpenConnections {
    /// One more, until it is dropped.
    fn count(&self) -> CountedConnection {
        self.0.send_modify(|open| *open += 1);
        CountedConnection(self.clone())
    }
}

struct CountedConnection(OpenConnections);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}

impl Server {
    /// Listens and serves from now on. Of the TCP connections each new one is met with what `tls` holds at the time.
    pub async fn start(service: MockService, endpoint: &ListenEndpoint, tls: Acceptor) -> Result<Self, ListenError> {
        let (listener, endpoint) = listen(endpoint).await?;
        let stop = CancellationToken::new();
        let server = Self {
            endpoint,
            connections: Arc::new(Mutex::new(stop.child_token())),
            hangs: stop.child_token(),
            stop,
            open: OpenConnections(Arc::new(watch::Sender::new(0))),
            tasks: TaskTracker::new(),
        };
        let services = Services {
            identity: IdentityServer::new(service.clone()),
            controller: ControllerServer::new(service.clone()),
            node: NodeServer::new(service),
            hangs: server.hangs.clone(),
        };
        let (tasks, connections) = (server.tasks.clone(), Arc::clone(&server.connections));
        let (hangs, open) = (server.hangs.clone(), server.open.clone());
        server.tasks.spawn(async move {
            // A cancelled token ends the loop between two connections, and with it the listener.
            hangs
                .run_until_cancelled(accept(listener, services, tasks, connections, tls, open))
                .await;
        });
        Ok(server)
    }

    /// Follows the number of open connections.
    pub fn open(&self) -> watch::Receiver<usize> {
        self.open.0.subscribe()
    }

    /// Hangs from now on: calls that run are left as they are, nothing is answered, and connections stay open. It does not listen
    /// any more, so that another one can at its endpoint.
    pub fn hang(&self) -> Result<(), ListenError> {
        self.hangs.cancel();
        match &self.endpoint {
            ListenEndpoint::Unix(path) => std::fs::remove_file(path).map_err(|source| ListenError::Io {
                endpoint: self.endpoint.to_string(),
                source,
            }),
            ListenEndpoint::Tcp(_) => Ok(()),
        }
    }

    /// Ends one that hangs: closes its connections. The socket file is that of another one.
    pub async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Closes all connections that are open now; new ones are accepted.
    pub fn drop_connections(&self) {
        let fresh = self.stop.child_token();
        std::mem::replace(&mut *self.connections.lock(), fresh).cancel();
    }

    /// Stops listening, closes all connections and removes the socket file. Calls that run are cut off, as when a driver dies.
    pub async fn stop(self) {
        let endpoint = self.endpoint.clone();
        self.end().await;
        if let ListenEndpoint::Unix(path) = &endpoint
            && let Err(error) = std::fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove the socket");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(
    listener: Listener,
    services: Services,
    tasks: TaskTracker,
    connections: Arc<Mutex<CancellationToken>>,
    tls: Acceptor,
    open: OpenConnections,
) {
    loop {
        let closer = || connections.lock().child_token();
        let accepted = match &listener {
            Listener::Unix(listener) => {
                let accepted = listener.accept().await;
                accepted.map(|(io, _)| drop(tasks.spawn(counted(&open, serve_unix(io, services.clone(), closer())))))
            }
            Listener::Tcp(listener) => {
                let accepted = listener.accept().await;
                let tls = tls.read().clone();
                accepted
                    .map(|(io, _)| drop(tasks.spawn(counted(&open, serve_tcp(io, tls, services.clone(), closer())))))
            }
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "cannot accept a connection");
            // Out of file descriptors, most likely: let others make progress instead of turning at full speed.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

/// Serves a connection that counts as open meanwhile.
fn counted<F: Future<Output = ()>>(open: &OpenConnections, served: F) -> impl Future<Output = ()> + use<F> {
    let counted = open.count();
    async move {
        served.await;
        drop(counted);
    }
}

async fn serve_tcp(io: TcpStream, tls: Option<TlsAcceptor>, services: Services, closer: CancellationToken) {
    let Some(tls) = tls else {
        return serve(io, services, closer).await;
    };
    match closer.run_until_cancelled(tls.accept(io)).await {
        Some(Ok(io)) => serve(io, services, closer.clone()).await,
        Some(Err(error)) => tracing::debug!(%error, "no TLS connection"),
        None => {}
    }
}

/// Serves a process of this machine, which the kernel names.
async fn serve_unix(io: UnixStream, services: Services, closer: CancellationToken) {
    let peer = io.peer_cred().ok().and_then(|peer| peer.pid());
    let caller = peer.and_then(|pid| u32::try_from(pid).ok()).map(CallerPid);
    serve_caller(io, services, closer, caller).await;
}

/// Serves one connection until it ends or is closed.
async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    services: Services,
    closer: CancellationToken,
) {
    serve_caller(io, services, closer, None).await;
}

async fn serve_caller(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    services: Services,
    closer: CancellationToken,
    caller: Option<CallerPid>,
) {
    let mark = ConnectionCloser(closer.clone());
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(mark.clone());
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        services.clone().answer(request)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    // A caller with many calls in flight is normal for an attacher; the default of 200 would queue them unseen.
    builder.http2().max_concurrent_streams(None);
    let connection = builder.serve_connection(TokioIo::new(io), service);
    if let Some(Err(error)) = closer.run_until_cancelled(connection).await {
        tracing::debug!(error, "connection ended");
    }
}

async fn listen(endpoint: &ListenEndpoint) -> Result<(Listener, ListenEndpoint), ListenError> {
    let failed = |source| ListenError::Io {
        endpoint: endpoint.to_string(),
        source,
    };
    match endpoint {
        ListenEndpoint::Unix(path) => {
            remove_stale_socket(path)?;
            Ok((
                Listener::Unix(UnixListener::bind(path).map_err(failed)?),
                endpoint.clone(),
            ))
        }
        ListenEndpoint::Tcp(address) if !address.ip().is_loopback() => Err(ListenError::NotLoopback(*address)),
        ListenEndpoint::Tcp(address) => {
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let endpoint = ListenEndpoint::Tcp(listener.local_addr().map_err(failed)?);
            Ok((Listener::Tcp(listener), endpoint))
        }
    }
}

/// Removes the socket file of a process that is gone. Anything else that has the path stays, and is an error.
pub(super) fn remove_stale_socket(path: &Path) -> Result<(), ListenError> {
    use std::os::unix::fs::FileTypeExt as _;
    let failed = |source| ListenError::Io {
        endpoint: path.display().to_string(),
        source,
    };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => Err(ListenError::NotASocket(path.to_owned())),
        // Nobody accepts on the socket of a process that is gone, so connecting fails at once.
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => Err(ListenError::InUse(path.to_owned())),
        Ok(_) => std::fs::remove_file(path).map_err(failed),
    }
}
