//! Collectors that do everything but take spans.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{arrives, sends_to};
use crate::rig::{World, within};
use crate::support::Result;
use crate::support::otlp::OtlpReceiver;
use crate::support::stage::stop;

/// How a collector behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Manner {
    /// Answers with an error that is worth another try.
    Unavailable,
    /// Answers with one that is not.
    Refuses,
    /// Answers a byte at a time, without end.
    Drips,
    /// Reads and never answers.
    Silent,
    /// Cuts each connection at once.
    Cuts,
    /// Cuts each connection in the middle of the answer.
    CutsLate,
    /// Answers with what is no HTTP.
    Garbage,
    /// Answers well over HTTP, with what is no OTLP and far too much of it.
    Floods,
    /// Passes on to a good one on this port.
    Passes(u16),
}

const MANNERS: [Manner; 8] = [
    Manner::Unavailable,
    Manner::Refuses,
    Manner::Drips,
    Manner::Silent,
    Manner::Cuts,
    Manner::CutsLate,
    Manner::Garbage,
    Manner::Floods,
];

/// Serves one connection. Errors of the connection are the other side's to notice.
async fn serve(manner: Manner, mut stream: TcpStream) -> std::io::Result<()> {
    match manner {
        Manner::Cuts => return Ok(()),
        Manner::Passes(port) => {
            let mut good = TcpStream::connect(("127.0.0.1", port)).await?;
            return copy_bidirectional(&mut stream, &mut good).await.map(drop);
        }
        _ => {}
    }
    let mut request = vec![0; 65536];
    loop {
        if stream.read(&mut request).await? == 0 {
            return Ok(());
        }
        match manner {
            Manner::Cuts | Manner::Passes(_) => return Ok(()),
            Manner::Silent => {}
            Manner::Unavailable => stream.write_all(&status("503 Service Unavailable")).await?,
            Manner::Refuses => stream.write_all(&status("400 Bad Request")).await?,
            Manner::Garbage => stream.write_all(&[0xff, 0x00, b'\n', 0x1b, 0x07].repeat(1000)).await?,
            Manner::CutsLate => {
                return stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
                    .await;
            }
            Manner::Drips => loop {
                stream.write_all(b"H").await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            },
            Manner::Floods => {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n")
                    .await?;
                loop {
                    stream.write_all(&request).await?;
                }
            }
        }
    }
}

fn status(line: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n").into_bytes()
}

/// A bad collector. It ends when it is dropped, and each of its connections when its manner changes.
struct Bad {
    endpoint: String,
    manner: watch::Sender<Manner>,
    /// The connections so far, by the manner of the time.
    met: watch::Receiver<BTreeMap<Manner, usize>>,
    _task: AbortOnDropHandle<()>,
}

impl Bad {
    async fn start(first: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (manner, now) = watch::channel(first);
        let (told, met) = watch::channel(BTreeMap::new());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (mut manner, told) = (now.clone(), told.clone());
                connections.spawn(async move {
                    let now = *manner.borrow_and_update();
                    told.send_modify(|met: &mut BTreeMap<_, _>| *met.entry(now).or_default() += 1);
                    tokio::select! {
                        _ended = serve(now, stream) => {}
                        _changed = manner.changed() => {}
                    }
                });
            }
        });
        Self {
            endpoint,
            manner,
            met,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Waits until the operator has connected while the manner was this one.
    async fn met(&self, manner: Manner) -> Result<()> {
        let mut met = self.met.clone();
        let connected = met.wait_for(|met| met.contains_key(&manner));
        within(&format!("a connection to one that {manner:?}"), connected)
            .await
            .map(drop)
    }
}

/// Attaches with each bad collector in turn, before and after it was met, and then with a good one, over each protocol. That none
/// waits for one that is silent, `hanging_collector` shows.
pub async fn no_attach_is_affected_by_what_a_collector_does(world: &World) -> Result<()> {
    let driver = world.unconfigured_driver("bad", |builder| builder).await?;
    driver.configure(&json!({})).await?;
    for (index, protocol) in ["grpc", "http/protobuf", "http/json"].into_iter().enumerate() {
        let collector = Bad::start(Manner::Silent).await;
        let options = sends_to(&collector.endpoint, protocol).variable("OTEL_EXPORTER_OTLP_TIMEOUT", "1000");
        let mut operator = world.operator(options).await?;
        driver.wait("Ready", "True", Some("Running")).await?;
        for bad in MANNERS {
            collector.manner.send_replace(bad);
            let name = format!("bad-{index}-{bad:?}").to_lowercase();
            driver.attach(&name).await?;
            collector.met(bad).await?;
            driver.attach(&format!("{name}-again")).await?;
        }
        let good = match protocol {
            "grpc" => OtlpReceiver::grpc().await,
            _ => OtlpReceiver::http().await,
        };
        collector.manner.send_replace(Manner::Passes(good.port()));
        let name = format!("bad-{index}-good");
        driver.attach(&name).await?;
        arrives(&good, &name).await;
        stop(&mut operator).await?;
    }
    world.fixtures.delete::<AttacherConfig>("bad").await
}
