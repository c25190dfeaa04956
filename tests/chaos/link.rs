//! The way of one replica to the API server: a proxy that speaks TLS with HTTP/2 or HTTP/1.1, as the API server does, and can hold
//! bytes back, cut connections, and give answers that are not true.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use csi_attacher_kube::apiserver::load_config;
use futures::stream;
use http::{Method, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;
use tower::BoxError;

use super::history::Term;
use super::other;
use super::recorder::Recorder;
use crate::support::Result;
use crate::support::controlplane::kubeconfig;
use crate::support::controlplane::pki::Authority;
use crate::support::proxy::forward;

/// How late a late request is carried out.
const LATE_BY: Duration = Duration::from_secs(3);
/// How long the kernel of a replica waits for acknowledgements, as the operator asks it to.
const UNACKNOWLEDGED: Duration = Duration::from_secs(4);

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// An answer that is not true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untrue {
    /// 404 as text, as a proxy without a route has it.
    NotFoundText,
    /// 404 with a Status about another object.
    NotFoundOther,
    Forbidden,
    Conflict,
    Expired,
    ServerError,
    /// 200 with a page for people.
    Html,
    /// The true answer, cut off in the middle.
    Half,
    /// The answer that another request got.
    Another,
    /// The request is carried out, and its answer is lost.
    Lost,
    /// The request is carried out some seconds later, whoever still waits for it.
    Late,
}

/// All of them.
pub const UNTRUE: [Untrue; 11] = [
    Untrue::NotFoundText,
    Untrue::NotFoundOther,
    Untrue::Forbidden,
    Untrue::Conflict,
    Untrue::Expired,
    Untrue::ServerError,
    Untrue::Html,
    Untrue::Half,
    Untrue::Another,
    Untrue::Lost,
    Untrue::Late,
];

/// Which requests get an answer that is not true.
#[derive(Clone, Copy, Debug)]
pub struct Lie {
    pub untrue: Untrue,
    /// Every so manyth request.
    pub every: u64,
    /// Only writes.
    pub writes: bool,
}

/// What happens to bytes. Connections have numbers from 1 on.
#[derive(Clone, Copy, Debug, Default)]
struct Gate {
    /// Nothing passes.
    hole: bool,
    /// Nothing will ever pass on connections up to this one.
    swallowed: u64,
    /// Connections up to this one are reset.
    reset: u64,
    /// How long each piece takes.
    slow: Duration,
}

struct LinkInner {
    client: Client,
    tls: TlsAcceptor,
    http2: bool,
    gate: watch::Sender<Gate>,
    connections: AtomicU64,
    requests: AtomicU64,
    lie: Mutex<Option<Lie>>,
    recorder: Recorder,
    /// Names of Leases, and the drivers that they are for.
    leases: BTreeMap<String, String>,
    /// The last true answer about a single object, and its path.
    last: Mutex<Option<(String, Bytes)>>,
}

/// The proxy. It ends when it is dropped.
pub struct Link {
    inner: Arc<LinkInner>,
    kubeconfig: PathBuf,
    _server: AbortOnDropHandle<()>,
}

impl Link {
    /// A proxy for whom this kubeconfig is; `http2` says whether it offers HTTP/2.
    /// Who takes which Lease is written down.
    pub async fn start(
        original: &Path,
        name: &str,
        http2: bool,
        recorder: Recorder,
        leases: BTreeMap<String, String>,
    ) -> Result<Self> {
        let mut config = load_config(Some(original)).await.map_err(other)?;
        config.proxy_url = None;
        let authority = Authority::new()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let inner = Arc::new(LinkInner {
            // Not the operator's, which asks for lists in its own way: what is asked for here was asked by one already.
            client: Client::try_from(config).map_err(other)?,
            tls: acceptor(&authority, http2)?,
            http2,
            gate: watch::Sender::default(),
            connections: AtomicU64::default(),
            requests: AtomicU64::default(),
            lie: Mutex::default(),
            recorder,
            leases,
            last: Mutex::default(),
        });
        let cluster = json!({
            "server": format!("https://{address}"),
            "certificate-authority-data": ByteString(authority.certificate().as_bytes().to_vec()),
        });
        let kubeconfig = kubeconfig::elsewhere(original, name, cluster)?;
        let server = tokio::spawn(accept(listener, inner.clone()));
        Ok(Self {
            inner,
            kubeconfig,
            _server: AbortOnDropHandle::new(server),
        })
    }

    /// A kubeconfig that leads here.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Holds everything back, or lets it arrive.
    pub fn hold_back(&self, hole: bool) {
        self.inner.gate.send_modify(|gate| gate.hole = hole);
    }

    /// Makes the connections that are open dead for ever, without a word to either side.
    pub fn swallow(&self) {
        let open = self.inner.connections.load(Ordering::Relaxed);
        self.inner.gate.send_modify(|gate| gate.swallowed = open);
    }

    /// Resets the connections that are open.
    pub fn reset(&self) {
        let open = self.inner.connections.load(Ordering::Relaxed);
        self.inner.gate.send_modify(|gate| gate.reset = open);
    }

    /// Makes each piece take this long.
    pub fn slow(&self, by: Duration) {
        self.inner.gate.send_modify(|gate| gate.slow = by);
    }

    /// Gives such answers, or true ones.
    pub fn lie(&self, lie: Option<Lie>) {
        *self.inner.lie.lock() = lie;
    }

    /// Takes all faults back. What was swallowed stays so.
    pub fn heal(&self) {
        self.lie(None);
        self.hold_back(false);
        self.slow(Duration::ZERO);
    }
}

fn acceptor(authority: &Authority, http2: bool) -> Result<TlsAcceptor> {
    let identity = authority.server(&["127.0.0.1"])?;
    let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).map_err(other)?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(other)?;
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let mut config = config.with_single_cert(vec![certificate], key).map_err(other)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if http2 {
        config.alpn_protocols.insert(0, b"h2".to_vec());
    }
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, inner: Arc<LinkInner>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let number = inner.connections.fetch_add(1, Ordering::Relaxed) + 1;
        connections.spawn(connection(stream, number, inner.clone()));
        while connections.try_join_next().is_some() {}
    }
}

/// One connection: its bytes go through the gate to where TLS and HTTP are spoken.
async fn connection(mut stream: TcpStream, number: u64, inner: Arc<LinkInner>) {
    // It fails for a socket that is closed already.
    drop(stream.set_nodelay(true));
    let (ours, theirs) = duplex(1 << 16);
    let _served = AbortOnDropHandle::new(tokio::spawn(serve(theirs, inner.clone())));
    let mut gate = inner.gate.subscribe();
    let (from_replica, to_replica) = stream.split();
    let (from_server, to_server) = split(ours);
    let both = async {
        tokio::join!(
            pump(from_replica, to_server, inner.gate.subscribe(), number),
            pump(from_server, to_replica, inner.gate.subscribe(), number),
        )
    };
    // With HTTP/2 pings find out. Where there are none the kernel of the replica does, as nothing is acknowledged; a process in between
    // cannot withhold acknowledgements.
    let http2 = inner.http2;
    let mut swallowed = inner.gate.subscribe();
    let given_up = async {
        let is_dead = |gate: &Gate| !http2 && number <= gate.swallowed;
        // Nothing changes any more when the link is gone.
        if swallowed.wait_for(is_dead).await.map(drop).is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(UNACKNOWLEDGED).await;
    };
    tokio::select! {
        _ = both => {}
        () = given_up => drop(stream.set_zero_linger()),
        _ = gate.wait_for(|gate| number <= gate.reset) => drop(stream.set_zero_linger()),
    }
}

/// Passes bytes on until their source ends, as the gate allows.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut gate: watch::Receiver<Gate>,
    number: u64,
) {
    let mut buffer = vec![0; 1 << 14];
    let passes = |gate: &Gate| !gate.hole && number > gate.swallowed;
    loop {
        let Ok(slow) = gate.wait_for(passes).await.map(|gate| gate.slow) else {
            return;
        };
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            // Its value is looked at above.
            _ = gate.changed() => continue,
        };
        let Ok(length @ 1..) = read else { break };
        tokio::time::sleep(slow).await;
        // Those that were on their way when the gate closed wait too.
        if gate.wait_for(passes).await.is_err() || to.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
    // The other side may be gone already.
    drop(to.shutdown().await);
}

async fn serve(stream: DuplexStream, inner: Arc<LinkInner>) {
    let Ok(stream) = inner.tls.accept(stream).await else {
        return;
    };
    let service = service_fn(move |request| answer(inner.clone(), request));
    let server = auto::Builder::new(TokioExecutor::new());
    // That connections are cut is what this is for.
    drop(server.serve_connection(TokioIo::new(stream), service).await);
}

/// What an answer is about: the last two parts of the path name resource and object.
fn names(path: &str) -> (&str, &str) {
    let mut parts = path.rsplit('/').filter(|part| *part != "status");
    let name = parts.next().unwrap_or_default();
    (parts.next().unwrap_or_default(), name)
}

async fn answer(inner: Arc<LinkInner>, request: Request<Incoming>) -> io::Result<Answer> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    let is_watch = query.contains("watch=");
    let is_single = !is_watch && !query.contains("limit=");
    let untrue = inner.untrue(request.method());
    if let Some(made_up) = untrue.and_then(|untrue| made_up(untrue, &path)) {
        return made_up;
    }
    match untrue {
        Some(Untrue::Another) if is_single => {
            let last = inner.last.lock().clone().filter(|(of, _)| *of != path);
            if let Some((_, body)) = last {
                return own(200, "application/json", body);
            }
        }
        Some(Untrue::Lost) if !is_watch => {
            whole(&inner, request).await?;
            return Err(io::Error::other("cut"));
        }
        Some(Untrue::Late) if !is_watch => return late(inner, request).await,
        _ => {}
    }
    if !is_single {
        let answer = forward(&inner.client, request).await.map_err(io::Error::other)?;
        let (head, body) = answer.into_parts();
        let body = body.map_err(BoxError::from).boxed_unsync();
        return Ok(Response::from_parts(head, body));
    }
    let (head, whole) = whole(&inner, request).await?;
    if head.status.is_success() {
        *inner.last.lock() = Some((path, whole.clone()));
    }
    let body = if untrue == Some(Untrue::Half) {
        let frames = [
            Ok(Frame::data(whole.slice(..whole.len() / 2))),
            Err(BoxError::from("cut")),
        ];
        BodyExt::boxed_unsync(StreamBody::new(stream::iter(frames)))
    } else {
        Full::new(whole).map_err(BoxError::from).boxed_unsync()
    };
    Ok(Response::from_parts(head, body))
}

/// An answer for which the API server is not asked, if it is of that kind.
fn made_up(untrue: Untrue, path: &str) -> Option<io::Result<Answer>> {
    let (resource, name) = names(path);
    let status = |code: u16, reason: &str, about: &str| {
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
            "message": format!("{resource} \"{about}\": {reason}"), "details": {"name": about, "kind": resource},
        });
        own(code, "application/json", body.to_string().into())
    };
    let html = Bytes::from_static(b"<html><body>Sign in</body></html>");
    Some(match untrue {
        Untrue::NotFoundText => own(404, "text/plain", Bytes::from_static(b"404 page not found\n")),
        Untrue::NotFoundOther => status(404, "NotFound", "somebody-else"),
        Untrue::Forbidden => status(403, "Forbidden", name),
        Untrue::Conflict => status(409, "Conflict", name),
        Untrue::Expired => status(410, "Expired", name),
        Untrue::ServerError => status(500, "InternalError", name),
        Untrue::Html => own(200, "text/html", html),
        Untrue::Half | Untrue::Another | Untrue::Lost | Untrue::Late => return None,
    })
}

/// Carries a request out when some seconds have passed, whoever still waits for it.
async fn late(inner: Arc<LinkInner>, request: Request<Incoming>) -> io::Result<Answer> {
    // All of it first: who asked may be gone by then.
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let request = Request::from_parts(head, Full::new(body));
    let late = tokio::spawn(async move {
        tokio::time::sleep(LATE_BY).await;
        whole(&inner, request).await
    });
    let (head, body) = late.await.map_err(io::Error::other)??;
    let body = Full::new(body).map_err(BoxError::from).boxed_unsync();
    Ok(Response::from_parts(head, body))
}

/// Carries a request out, and reads the whole answer.
async fn whole<B>(inner: &LinkInner, request: Request<B>) -> io::Result<(http::response::Parts, Bytes)>
where
    B: hyper::body::Body,
    B::Error: Into<BoxError>,
{
    let about_lease = request.method() != Method::GET && request.uri().path().contains("/leases");
    let answer = forward(&inner.client, request).await.map_err(io::Error::other)?;
    let (head, body) = answer.into_parts();
    let whole = body.collect().await.map_err(io::Error::other)?.to_bytes();
    if about_lease && head.status.is_success() {
        inner.note_lease(&whole);
    }
    Ok((head, whole))
}

impl LinkInner {
    /// Writes down who holds a Lease that was written.
    fn note_lease(&self, body: &[u8]) {
        let Ok(lease) = serde_json::from_slice::<Lease>(body) else {
            return;
        };
        let Some(driver) = self.leases.get(&lease.name_any()) else {
            return;
        };
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.clone());
        let holder = holder.filter(|holder| !holder.is_empty());
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        if let (Some(holder), Some(renewed)) = (&holder, renewed) {
            self.recorder
                .renewed(driver, holder, renewed, super::world::RENEW_DEADLINE);
        }
        let acquired = spec.and_then(|spec| spec.acquire_time.as_ref()).map(|time| time.0);
        self.recorder.term(Term {
            driver: driver.clone(),
            namespace: lease.namespace().unwrap_or_default(),
            seen: Timestamp::now(),
            acquired: acquired.filter(|_| holder.is_some()).unwrap_or_else(Timestamp::now),
            holder,
        });
    }

    fn untrue(&self, method: &Method) -> Option<Untrue> {
        let lie = (*self.lie.lock())?;
        if lie.writes && method == Method::GET {
            return None;
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        number.is_multiple_of(lie.every).then_some(lie.untrue)
    }
}

fn own(status: u16, kind: &str, body: Bytes) -> io::Result<Answer> {
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, kind);
    let body = Full::new(body).map_err(BoxError::from).boxed_unsync();
    response.body(body).map_err(io::Error::other)
}
