//! Single calls: their deadline covers everything, and what cannot be read is not taken for a refusal. No cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_attacher_csi::{
    Call, CallError, ControllerPublishVolume, ControllerUnpublishVolume, CsiClient, DriverConnection, GetPluginInfo,
    Probe,
};
use csi_attacher_model::api::validated::Endpoint;
use csi_attacher_model::decide::{AccessMode, Capability, PublishRequest, VolumeAccessType, VolumeOnNode, is_final};
use csi_attacher_model::objects::StringMap;
use csi_attacher_proto::v1;
use csi_attacher_telemetry::{Metrics, Span};
use futures::stream;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Frame};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use super::server::{Answer, Server, answer, by_hand, dripping, framed, grpc, large};
use crate::rig::within;
use crate::support::{Result, http2};

const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(20);

/// Where a driver may listen, in a folder of its own.
struct Scratch {
    _folder: tempfile::TempDir,
    socket: PathBuf,
}

impl Scratch {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("csi.sock");
        Self {
            _folder: folder,
            socket,
        }
    }

    fn client(&self) -> CsiClient {
        let connection = DriverConnection::new(&Endpoint::Unix(self.socket.clone()));
        CsiClient::new(connection, Metrics::default())
    }
}

/// What a call comes to, which ends in time.
async fn ask<C: Call>(
    client: &CsiClient,
    call: &C,
    deadline: Duration,
) -> Result<std::result::Result<C::Answer, CallError>> {
    within(C::PATH, client.call(call, deadline, &Span::disabled())).await
}

async fn publish(client: &CsiClient, deadline: Duration) -> std::result::Result<StringMap, CallError> {
    let context = StringMap::from(BTreeMap::new());
    let plan = PublishRequest {
        place: VolumeOnNode::new("v", "n").unwrap(),
        capability: Capability {
            access: VolumeAccessType::Block,
            mode: AccessMode::SingleNodeWriter,
        },
        read_only: false,
        volume_context: &context,
        former: Vec::new(),
    };
    let call = ControllerPublishVolume {
        request: &plan,
        secrets: None,
    };
    client.call(&call, deadline, &Span::disabled()).await
}

/// That the deadline passed, at its time.
fn assert_deadline(started: Instant, error: &CallError) {
    assert_eq!(
        (error.code, error.transport),
        (Code::DeadlineExceeded, false),
        "{error}"
    );
    let took = started.elapsed();
    assert!(took >= SHORT && took < LONG, "{took:?}");
}

#[tokio::test]
async fn the_deadline_covers_an_answer_that_drips() -> Result<()> {
    let scratch = Scratch::new();
    let drip = |method: &str, _| (method == "Probe").then(|| Answer::Http(dripping(Duration::from_millis(20))));
    let _server = Server::start(&scratch.socket, "drip", drip)?;
    let client = scratch.client();
    let started = Instant::now();
    let error = ask(&client, &Probe, SHORT).await?.unwrap_err();
    assert_deadline(started, &error);
    // The call is over; the connection is not.
    let info = ask(&client, &GetPluginInfo, LONG).await?;
    assert_eq!(info.unwrap().name, "drip");
    Ok(())
}

/// SETTINGS, then the beginning of an answer's headers, then their continuation without end.
async fn headers_without_end(mut io: UnixStream, pause: Duration) {
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let (settings, headers, continuation) = (4, 1, 9);
    // A header without an entry in the table: length of the name, name, length of the value, value.
    let header = [&[0, 1, b'x', 100], &[b'y'; 100][..]].concat();
    let mut buffer = [0; 4096];
    let answer = async {
        io.write_all(&frame(settings, 0, 0, &[])).await?;
        // The preface and the request; what is in them does not matter.
        while io.read(&mut buffer).await? < 60 {}
        io.write_all(&frame(headers, 0, 1, &[0x88])).await?;
        loop {
            io.write_all(&frame(continuation, 0, 1, &header)).await?;
            tokio::time::sleep(pause).await;
        }
        #[allow(unreachable_code, reason = "it tells the type of the block")]
        Ok::<_, std::io::Error>(())
    };
    drop(answer.await);
}

#[tokio::test]
async fn the_deadline_covers_headers_that_do_not_end() -> Result<()> {
    let scratch = Scratch::new();
    let _server = by_hand(&scratch.socket, |io| headers_without_end(io, Duration::from_millis(50)))?;
    let client = scratch.client();
    let started = Instant::now();
    let error = ask(&client, &Probe, SHORT).await?.unwrap_err();
    assert_deadline(started, &error);
    Ok(())
}

#[tokio::test]
async fn headers_that_flood_end_the_connection() -> Result<()> {
    let scratch = Scratch::new();
    let _server = by_hand(&scratch.socket, |io| headers_without_end(io, Duration::ZERO))?;
    let client = scratch.client();
    let error = ask(&client, &Probe, LONG).await?.unwrap_err();
    assert_eq!((error.code, error.transport), (Code::Unavailable, true), "{error}");
    Ok(())
}

/// A driver with one call at a time makes the others queue; their time runs.
#[tokio::test]
async fn the_deadline_covers_waiting_for_ones_turn() -> Result<()> {
    let scratch = Scratch::new();
    // SETTINGS with MAX_CONCURRENT_STREAMS = 1, and never an answer.
    let one_at_a_time = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1];
    let _server = by_hand(&scratch.socket, move |mut io| async move {
        drop(io.write_all(&one_at_a_time).await);
        let mut sink = tokio::io::sink();
        drop(tokio::io::copy(&mut io, &mut sink).await);
    })?;
    let client = scratch.client();
    let started = Instant::now();
    let calls = (0..3).map(|_| ask(&client, &Probe, SHORT));
    for answer in futures::future::join_all(calls).await {
        assert_deadline(started, &answer?.unwrap_err());
    }
    Ok(())
}

fn many_elements() -> Answer {
    let context = (0..70_000).map(|key| (key.to_string(), String::new()));
    let publish_context = context.collect();
    Answer::Bytes(v1::ControllerPublishVolumeResponse { publish_context }.encode_to_vec())
}

fn page() -> Answer {
    let page = Frame::data(Bytes::from_static(b"<html>"));
    Answer::Http(answer("text/html", stream::iter([page])))
}

fn unpublish() -> ControllerUnpublishVolume<'static> {
    let place = VolumeOnNode::new("v", "n").unwrap();
    ControllerUnpublishVolume { place, secrets: None }
}

#[tokio::test]
async fn what_cannot_be_read_leaves_the_outcome_open() -> Result<()> {
    type Make = fn() -> Answer;
    let cases: [(&str, Make, bool); 7] = [
        ("garbage", || Answer::Bytes(vec![0xff; 64]), false),
        ("larger than what is read", || Answer::Http(large(5 << 20)), false),
        ("more elements than are decoded", many_elements, false),
        ("no message", || Answer::Status(0, String::new()), false),
        (
            "no status",
            || Answer::Http(grpc(stream::iter([Frame::data(framed(&[]))]))),
            false,
        ),
        (
            "half a message",
            || Answer::Http(grpc(stream::iter([Frame::data(framed(&[1; 9]).slice(..8))]))),
            false,
        ),
        ("does not speak gRPC", page, true),
    ];
    for (name, make, transport) in cases {
        let scratch = Scratch::new();
        let publishes = move |method: &str, _| method.starts_with("ControllerPublish").then(make);
        let _server = Server::start(&scratch.socket, "unreadable", publishes)?;
        let client = scratch.client();
        let error = within(name, publish(&client, LONG)).await?.unwrap_err();
        assert_eq!(
            (error.code, error.transport),
            (Code::Unavailable, transport),
            "{name}: {error}"
        );
        assert!(!is_final(error.code.into()), "{name}: the volume may be at the node");
        let info = ask(&client, &GetPluginInfo, LONG).await?;
        assert_eq!(info.unwrap().name, "unreadable", "{name}: the connection stands");
        ask(&client, &unpublish(), LONG).await?.unwrap();
    }
    Ok(())
}

/// An answer that says nothing may be small only, whatever is in it.
#[tokio::test]
async fn an_answer_that_says_nothing_is_small() -> Result<()> {
    let scratch = Scratch::new();
    // One text in a field that no answer has.
    let padded = |bytes: usize| v1::DeleteVolumeRequest {
        volume_id: "x".repeat(bytes),
        ..Default::default()
    };
    let unpublishes = move |method: &str, before| {
        let bytes = if before == 0 { 1 << 10 } else { 100 << 10 };
        (method == "ControllerUnpublishVolume").then(|| Answer::Bytes(padded(bytes).encode_to_vec()))
    };
    let _server = Server::start(&scratch.socket, "padded", unpublishes)?;
    let client = scratch.client();
    ask(&client, &unpublish(), LONG).await?.expect("it is small");
    let error = ask(&client, &unpublish(), LONG).await?.unwrap_err();
    assert!(error.message.contains("too large"), "{error}");
    assert!(!is_final(error.code.into()), "{error}");
    Ok(())
}

/// Details that are no Base64, and a message in Latin-1: both are nothing that the library reads.
#[tokio::test]
async fn a_status_that_is_not_well_encoded_keeps_its_code_and_words() -> Result<()> {
    let wrong = || {
        let mut headers = http::HeaderMap::new();
        headers.insert("grpc-status", http::HeaderValue::from_static("9"));
        headers.insert(
            "grpc-message",
            http::HeaderValue::from_static("d%E9tach%E9: volume busy"),
        );
        headers.insert("grpc-status-details-bin", http::HeaderValue::from_static("!"));
        headers
    };
    for with_headers in [false, true] {
        let scratch = Scratch::new();
        let refuse = move |method: &str, _| {
            let is_refused = method.starts_with("ControllerPublish") || method == "Probe";
            is_refused.then(|| {
                let frames = (!with_headers).then(|| Frame::trailers(wrong()));
                let mut response = grpc(stream::iter(frames));
                if with_headers {
                    response.headers_mut().extend(wrong());
                    // The answer ends with them.
                    *response.body_mut() = Empty::<Bytes>::new().boxed_unsync();
                }
                Answer::Http(response)
            })
        };
        let _server = Server::start(&scratch.socket, "wrong", refuse)?;
        let client = scratch.client();
        let error = within("Publish", publish(&client, LONG)).await?.unwrap_err();
        assert_eq!((error.code, error.transport), (Code::FailedPrecondition, false));
        assert!(error.message.contains("d\u{FFFD}tach\u{FFFD}: volume busy"), "{error}");
        let probe = ask(&client, &Probe, LONG).await?;
        assert_eq!(probe.unwrap_err().code, Code::FailedPrecondition);
    }
    Ok(())
}

/// A driver that says goodbye is left, and what it answers before it goes counts.
#[tokio::test]
async fn a_goodbye_is_a_loss() -> Result<()> {
    let scratch = Scratch::new();
    let leave = |method: &str, _| (method == "Probe").then_some(Answer::GoAway);
    let _server = Server::start(&scratch.socket, "goodbye", leave)?;
    let client = scratch.client();
    assert!(ask(&client, &Probe, LONG).await?.unwrap());
    within("the end", client.connection().lost()).await
}

/// Type and flags of each frame of HTTP/2 that a client has sent.
type Frames = Arc<Mutex<Vec<(u8, u8)>>>;

/// Passes one connection on to a driver, and keeps what kinds of frames the client sends.
async fn relay(listener: UnixListener, driver: PathBuf, frames: Frames) -> std::io::Result<()> {
    let (client, _) = listener.accept().await?;
    let driver = UnixStream::connect(driver).await?;
    let ((mut from_client, mut to_client), (mut from_driver, mut to_driver)) =
        (client.into_split(), driver.into_split());
    let answers = tokio::spawn(async move { tokio::io::copy(&mut from_driver, &mut to_client).await });
    let mut head = [0; http2::PREFACE];
    from_client.read_exact(&mut head).await?;
    to_driver.write_all(&head).await?;
    loop {
        let Ok(frame) = http2::Frame::read(&mut from_client).await else {
            answers.abort();
            return Ok(());
        };
        frames.lock().push((frame.kind(), frame.flags()));
        to_driver.write_all(&[&frame.head[..], &frame.payload].concat()).await?;
    }
}

/// Nothing is sent over a connection on which nothing happens, and it stays; whoever was silent for long is called at once.
#[tokio::test]
async fn an_idle_connection_stays() -> Result<()> {
    use csi_mock_driver::MockDriver;
    let scratch = Scratch::new();
    let own = scratch.socket.with_extension("driver");
    let driver = MockDriver::builder("idle").start(&own).await.unwrap();
    let frames = Frames::default();
    let listener = UnixListener::bind(&scratch.socket).unwrap();
    let _relay = AbortOnDropHandle::new(tokio::spawn(relay(listener, own, frames.clone())));
    let client = scratch.client();
    assert!(ask(&client, &Probe, LONG).await?.unwrap());
    let first = std::mem::take(&mut *frames.lock());
    assert!(
        first.iter().any(|(kind, _)| *kind == http2::HEADERS),
        "the relay sees calls: {first:?}"
    );
    // Two hours for all timers of the process, of which neither side has one for this.
    tokio::time::pause();
    tokio::time::advance(Duration::from_hours(2)).await;
    tokio::time::resume();
    // What was sent for the time before the call comes before it.
    assert!(ask(&client, &Probe, LONG).await?.unwrap());
    let since = frames.lock().clone();
    let pings = since
        .iter()
        .filter(|(kind, flags)| *kind == http2::PING && flags & http2::ACK == 0);
    assert_eq!(pings.count(), 0, "{since:?}");
    let calls = since.iter().filter(|(kind, _)| *kind == http2::HEADERS);
    assert_eq!(calls.count(), 1, "{since:?}");
    assert!(!client.connection().is_lost());
    drop(driver);
    Ok(())
}
