//! A proxy between the operator and the API server, which misbehaves as a test wants. It speaks HTTP/1.1 and h2 without TLS;
//! to the API server it is the operator's ServiceAccount.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream;
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tower::BoxError;

use super::controlplane::kubeconfig;
use super::error::{Error, Result};

const JSON: &str = "application/json";

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// A request as the proxy got it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    pub method: Method,
    pub path: String,
    pub query: String,
    /// Whether it got an answer from the API server, and not one of the proxy's own making or none.
    pub forwarded: bool,
}

impl Seen {
    pub fn is_watch(&self) -> bool {
        self.method == Method::GET && self.query.contains("watch=")
    }

    pub fn is_list(&self) -> bool {
        self.method == Method::GET && !self.is_watch() && self.query.contains("limit=")
    }

    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// A status of the proxy's own, perhaps with `Retry-After` in seconds.
    Status(u16, Option<u64>),
    /// A status and a text of the proxy's own, as one gives that has lost its way to the API server.
    Page(u16, &'static str),
    /// Neither an answer nor an end.
    Hang,
    /// The connection is cut.
    Reset,
    /// It is passed on, and the connection is cut in place of the answer.
    Unanswered,
    /// An answer after so long.
    Slow(Duration),
    /// A watch that ends at once.
    Ended,
}

/// How all watches are cut.
#[derive(Clone, Copy, Debug, Default)]
pub enum Cut {
    /// Their version has expired: an ERROR event with code 410.
    #[default]
    Gone,
    /// They end.
    End,
    /// Their connections are cut.
    Reset,
}

struct Rule {
    about: Box<dyn Fn(&Seen) -> bool + Send>,
    fault: Fault,
    times: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Control {
    cuts: u64,
    cut: Cut,
    /// What the paths of watches that say nothing end with.
    silent: Option<&'static str>,
    out: bool,
}

struct State {
    client: Client,
    rules: Mutex<Vec<Rule>>,
    log: Mutex<Vec<Seen>>,
    count: watch::Sender<usize>,
    control: watch::Sender<Control>,
    writes: Mutex<Writes>,
}

/// How many writes wait for their answer.
#[derive(Debug, Default)]
struct Writes {
    now: usize,
    most: usize,
}

/// One write that waits for its answer.
struct Write(Arc<State>);

impl Write {
    fn begins(state: &Arc<State>) -> Self {
        let mut writes = state.writes.lock();
        writes.now += 1;
        writes.most = writes.most.max(writes.now);
        Self(state.clone())
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        self.0.writes.lock().now -= 1;
    }
}

/// The proxy. It ends when it is dropped.
pub struct Proxy {
    address: String,
    state: Arc<State>,
    _server: AbortOnDropHandle<()>,
}

impl Proxy {
    /// A proxy for whom this kubeconfig is.
    pub async fn start(kubeconfig: &Path) -> Result<Self> {
        let state = Arc::new(State {
            client: kubeconfig::client(kubeconfig).await?,
            rules: Mutex::default(),
            log: Mutex::default(),
            count: watch::Sender::default(),
            control: watch::Sender::default(),
            writes: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        let server = tokio::spawn(serve(listener, state.clone()));
        Ok(Self {
            address,
            state,
            _server: AbortOnDropHandle::new(server),
        })
    }

    /// A kubeconfig that leads to the proxy, beside the one that leads to the API server.
    pub fn kubeconfig(&self, original: &Path) -> Result<PathBuf> {
        kubeconfig::elsewhere(original, "proxied", json!({ "server": self.address }))
    }

    pub fn url(&self) -> &str {
        &self.address
    }

    /// From now on, the next so many requests of this kind meet with a fault.
    pub fn fault(&self, fault: Fault, times: usize, about: impl Fn(&Seen) -> bool + Send + 'static) {
        let about = Box::new(about);
        self.state.rules.lock().push(Rule { about, fault, times });
    }

    /// Takes all faults back.
    pub fn heal(&self) {
        self.state.rules.lock().clear();
        self.state.control.send_modify(|control| {
            control.silent = None;
            control.out = false;
        });
    }

    /// Cuts all watches that run.
    pub fn cut(&self, cut: Cut) {
        self.state.control.send_modify(|control| {
            control.cut = cut;
            control.cuts += 1;
        });
    }

    /// Lets the watches of a resource, such as `persistentvolumeclaims`, or all with an empty text, say nothing until [`Proxy::heal`].
    pub fn silence(&self, of: &'static str) {
        self.state.control.send_modify(|control| control.silent = Some(of));
    }

    /// Cuts everything, and answers nothing until [`Proxy::heal`].
    pub fn outage(&self) {
        self.state.control.send_modify(|control| {
            control.out = true;
            control.cut = Cut::Reset;
            control.cuts += 1;
        });
    }

    /// The requests so far.
    pub fn log(&self) -> Vec<Seen> {
        self.seen(|_| true)
    }

    fn seen(&self, about: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let log = self.state.log.lock();
        log.iter().filter(|seen| about(seen)).cloned().collect()
    }

    /// The most writes that waited for their answers at the same time since this was asked last.
    pub fn most_writes_at_once(&self) -> usize {
        let mut writes = self.state.writes.lock();
        let now = writes.now;
        std::mem::replace(&mut writes.most, now)
    }

    /// Waits until there are so many requests of this kind.
    pub async fn wait_for(&self, what: &str, count: usize, about: impl Fn(&Seen) -> bool) -> Result<Vec<Seen>> {
        let mut changes = self.state.count.subscribe();
        let wait = async {
            loop {
                let found = self.seen(&about);
                if found.len() >= count || changes.changed().await.is_err() {
                    return found;
                }
            }
        };
        // The longest pauses of several watches in a row.
        let limit = Duration::from_secs(90);
        let found = tokio::time::timeout(limit, wait).await;
        found.map_err(|_| Error::Other(format!("{count} times {what}: not within {limit:?}")))
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        if state.control.borrow().out {
            continue;
        }
        let state = state.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| answer(state.clone(), request));
            let server = auto::Builder::new(TokioExecutor::new());
            // That a connection was cut is what tests want.
            drop(server.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> io::Result<Answer> {
    let cut = || io::Error::other("cut");
    let seen = Seen {
        at: Instant::now(),
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        forwarded: false,
    };
    if state.control.borrow().out {
        return Err(cut());
    }
    let fault = state.fault_of(&seen);
    let forwarded = matches!(fault, None | Some(Fault::Slow(_) | Fault::Unanswered));
    let watches = seen.is_watch().then(|| seen.path.clone());
    let _write = seen.is_write().then(|| Write::begins(&state));
    state.log.lock().push(Seen { forwarded, ..seen });
    state.count.send_modify(|count| *count += 1);
    match fault {
        None | Some(Fault::Unanswered) => {}
        Some(Fault::Slow(delay)) => tokio::time::sleep(delay).await,
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Reset) => return Err(cut()),
        Some(Fault::Ended) => return own(200, JSON, None, String::new()),
        Some(Fault::Page(status, text)) => return own(status, "text/plain; charset=utf-8", None, text.to_owned()),
        Some(Fault::Status(status, retry_after)) => {
            return own(status, JSON, retry_after, status_object(status).to_string());
        }
    }
    let response = forward(&state.client, request).await.map_err(io::Error::other)?;
    if matches!(fault, Some(Fault::Unanswered)) {
        return Err(cut());
    }
    let (head, body) = response.into_parts();
    let body = match watches {
        Some(path) => watched(body, path, state.control.subscribe()),
        None => body.map_err(BoxError::from).boxed_unsync(),
    };
    Ok(Response::from_parts(head, body))
}

impl State {
    fn fault_of(&self, seen: &Seen) -> Option<Fault> {
        let mut rules = self.rules.lock();
        let rule = rules.iter_mut().find(|rule| rule.times > 0 && (rule.about)(seen))?;
        rule.times -= 1;
        Some(rule.fault)
    }
}

fn status_object(status: u16) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": "as the test wants",
        "reason": match status { 410 => "Expired", 429 => "TooManyRequests", _ => "InternalError" },
    })
}

fn own(status: u16, content_type: &str, retry_after: Option<u64>, body: String) -> io::Result<Answer> {
    let mut response = Response::builder().status(status);
    response = response.header(header::CONTENT_TYPE, content_type);
    if let Some(seconds) = retry_after {
        response = response.header(header::RETRY_AFTER, seconds);
    }
    let body = Full::new(Bytes::from(body)).map_err(BoxError::from).boxed_unsync();
    response.body(body).map_err(io::Error::other)
}

/// Sends the API server what somebody asked, as whom the client is for.
pub async fn forward<B>(client: &Client, request: Request<B>) -> std::result::Result<Response<Body>, BoxError>
where
    B: hyper::body::Body,
    B::Error: Into<BoxError>,
{
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(Into::into)?.to_bytes();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut ours = Request::builder()
        .method(head.method)
        .uri(path)
        .body(Body::from(body))?;
    *ours.headers_mut() = passed_on(&head.headers);
    Ok(client.send(ours).await?)
}

/// The headers that are about the request, not the connection or who asks.
fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let kept = [header::CONTENT_TYPE, header::ACCEPT];
    let found = kept
        .into_iter()
        .filter_map(|name| Some((name.clone(), headers.get(&name)?.clone())));
    found.collect()
}

/// A watch that may be cut or silenced.
fn watched(body: Body, path: String, control: watch::Receiver<Control>) -> UnsyncBoxBody<Bytes, BoxError> {
    let cuts = control.borrow().cuts;
    let frames = stream::unfold(Some((body, path, control)), move |running| async move {
        let (mut body, path, mut control) = running?;
        loop {
            let now = *control.borrow_and_update();
            if now.cuts != cuts {
                let event = json!({"type": "ERROR", "object": status_object(410)}).to_string() + "\n";
                return match now.cut {
                    Cut::Gone => Some((Ok(Frame::data(Bytes::from(event))), None)),
                    Cut::End => None,
                    Cut::Reset => Some((Err(BoxError::from("cut")), None)),
                };
            }
            tokio::select! {
                changed = control.changed() => changed.ok()?,
                frame = body.frame(), if !now.silent.is_some_and(|of| path.ends_with(of)) => {
                    return Some((frame?.map_err(BoxError::from), Some((body, path, control))));
                }
            }
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}
