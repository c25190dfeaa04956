//! A server on a unix socket that answers calls of CSI with whatever a test wants, also with what no library would send.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher_proto::v1;
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::support::Result;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What happens to a call.
pub enum Answer {
    /// This message, and OK.
    Bytes(Vec<u8>),
    /// An error; the message as it stands in the header.
    Status(u8, String),
    /// Anything.
    Http(Response<Body>),
    /// Nothing.
    Hang,
    /// The usual answer after a GOAWAY, with which the connection ends.
    GoAway,
}

/// A server that is stopped when it is dropped.
pub struct Server {
    calls: Arc<watch::Sender<BTreeMap<String, usize>>>,
    _task: AbortOnDropHandle<()>,
}

/// What decides about calls: the method's name and how often it was called before.
type Behaviour = Arc<dyn Fn(&str, usize) -> Option<Answer> + Send + Sync>;

impl Server {
    /// Listens as the driver `name`. `behave` answers calls; those for which it has nothing are answered as by a driver
    /// that can attach and list.
    pub fn start(
        socket: &Path,
        name: &str,
        behave: impl Fn(&str, usize) -> Option<Answer> + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let calls = Arc::new(watch::Sender::new(BTreeMap::new()));
        let (name, behave, seen) = (name.to_owned(), Arc::new(behave) as Behaviour, calls.clone());
        let task = tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                tokio::spawn(serve(io, name.clone(), behave.clone(), seen.clone()));
            }
        });
        Ok(Self {
            calls,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// How often a method was called.
    pub fn count(&self, method: &str) -> usize {
        self.calls.borrow().get(method).copied().unwrap_or_default()
    }

    /// Waits until a method was called so often.
    pub async fn called(&self, method: &str, times: usize) {
        let mut calls = self.calls.subscribe();
        let enough = |calls: &BTreeMap<String, usize>| calls.get(method).is_some_and(|count| *count >= times);
        calls.wait_for(enough).await.map(drop).expect("the sender lives");
    }
}

async fn serve(io: UnixStream, name: String, behave: Behaviour, calls: Arc<watch::Sender<BTreeMap<String, usize>>>) {
    let leave = Arc::new(Notify::new());
    let leaver = leave.clone();
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let before = calls.borrow().get(&method).copied().unwrap_or_default();
        calls.send_modify(|calls| *calls.entry(method.clone()).or_default() += 1);
        let answer = behave(&method, before);
        let usual = usual(&method, &name);
        let leaver = leaver.clone();
        async move {
            // Drivers read what they are asked.
            drop(request.into_body().collect().await);
            Ok::<_, Infallible>(match answer {
                None => message(&usual),
                Some(Answer::Bytes(bytes)) => message(&bytes),
                Some(Answer::Status(code, text)) => status(code, &text),
                Some(Answer::Http(response)) => response,
                Some(Answer::Hang) => std::future::pending().await,
                Some(Answer::GoAway) => {
                    leaver.notify_one();
                    message(&usual)
                }
            })
        }
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(1 << 20)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = leave.notified() => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(connection.await);
}

fn usual(method: &str, name: &str) -> Vec<u8> {
    use v1::controller_service_capability::rpc::Type;
    use v1::plugin_capability::service;
    let rpc = |kind: Type| v1::ControllerServiceCapability {
        r#type: Some(v1::controller_service_capability::Type::Rpc(
            v1::controller_service_capability::Rpc { r#type: kind.into() },
        )),
    };
    let plugin = v1::plugin_capability::Type::Service(v1::plugin_capability::Service {
        r#type: service::Type::ControllerService.into(),
    });
    match method {
        "GetPluginInfo" => v1::GetPluginInfoResponse {
            name: name.to_owned(),
            vendor_version: "1".to_owned(),
            ..Default::default()
        }
        .encode_to_vec(),
        "GetPluginCapabilities" => v1::GetPluginCapabilitiesResponse {
            capabilities: vec![v1::PluginCapability { r#type: Some(plugin) }],
        }
        .encode_to_vec(),
        "ControllerGetCapabilities" => v1::ControllerGetCapabilitiesResponse {
            capabilities: [
                Type::PublishUnpublishVolume,
                Type::ListVolumes,
                Type::ListVolumesPublishedNodes,
            ]
            .map(rpc)
            .to_vec(),
        }
        .encode_to_vec(),
        _ => Vec::new(),
    }
}

/// A message as gRPC frames it.
pub fn framed(bytes: &[u8]) -> Bytes {
    let length = u32::try_from(bytes.len()).expect("no test is that large");
    [&[0], &length.to_be_bytes()[..], bytes].concat().into()
}

fn trailers(code: u8, text: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(u16::from(code)));
    trailers.insert("grpc-message", HeaderValue::from_str(text).expect("a header"));
    trailers
}

fn message(bytes: &[u8]) -> Response<Body> {
    let frames = [Frame::data(framed(bytes)), Frame::trailers(trailers(0, ""))];
    grpc(stream::iter(frames))
}

fn status(code: u8, text: &str) -> Response<Body> {
    grpc(stream::iter([Frame::trailers(trailers(code, text))]))
}

/// An answer with these frames.
pub fn grpc(frames: impl Stream<Item = Frame<Bytes>> + Send + 'static) -> Response<Body> {
    answer("application/grpc", frames)
}

/// An answer of this content type.
pub fn answer(content_type: &'static str, frames: impl Stream<Item = Frame<Bytes>> + Send + 'static) -> Response<Body> {
    let body = StreamBody::new(frames.map(Ok)).boxed_unsync();
    let response = Response::builder().header(http::header::CONTENT_TYPE, content_type);
    response.body(body).expect("nothing in it is refused")
}

/// A message that says to be so large, whose bytes are made while they are sent, and OK.
pub fn large(bytes: usize) -> Response<Body> {
    const PART: usize = 1 << 16;
    let length = u32::try_from(bytes).expect("no test is that large");
    let head = Bytes::copy_from_slice(&[&[0], &length.to_be_bytes()[..]].concat());
    let part = Bytes::from(vec![0; PART]);
    let parts = stream::repeat(part).take(bytes / PART).map(Frame::data);
    grpc(
        stream::iter([Frame::data(head)])
            .chain(parts)
            .chain(stream::iter([Frame::trailers(trailers(0, ""))])),
    )
}

/// An answer that comes one byte at a time and never to an end.
pub fn dripping(pause: Duration) -> Response<Body> {
    let bytes = stream::unfold((), move |()| async move {
        tokio::time::sleep(pause).await;
        Some((Frame::data(Bytes::from_static(&[0])), ()))
    });
    let head = Bytes::from_static(&[0, 0, 0, 0xff, 0xff]);
    grpc(stream::iter([Frame::data(head)]).chain(bytes))
}

/// Answers each connection by hand.
pub fn by_hand<F>(socket: &Path, play: impl Fn(UnixStream) -> F + Send + 'static) -> Result<AbortOnDropHandle<()>>
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = UnixListener::bind(socket)?;
    let players = Mutex::new(Vec::new());
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            players.lock().push(AbortOnDropHandle::new(tokio::spawn(play(io))));
        }
    })))
}
