//! Collectors that do everything but take spans.

use std::time::Duration;

use futures::future::try_join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::{arrives, configure, tracing};
use crate::rig::World;
use crate::support::Result;
use crate::support::otlp::OtlpReceiver;

/// How a collector behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    if manner == Manner::Cuts {
        return Ok(());
    }
    let mut request = vec![0; 65536];
    loop {
        if stream.read(&mut request).await? == 0 {
            return Ok(());
        }
        match manner {
            Manner::Cuts => return Ok(()),
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

/// Starts one; it ends with the handle.
async fn start(manner: Manner) -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(manner, stream));
        }
    });
    (endpoint, AbortOnDropHandle::new(task))
}

/// Attaches with one bad collector, over each protocol in turn, and then with a good one.
async fn endure(world: &World, manner: Manner) -> Result<()> {
    let (endpoint, _running) = start(manner).await;
    let short = format!("bad-{manner:?}").to_lowercase();
    let driver = world.driver(&short, tracing(&endpoint, "grpc", None)).await?;
    for (index, protocol) in ["grpc", "http/protobuf", "http/json"].into_iter().enumerate() {
        configure(&driver, tracing(&endpoint, protocol, None)).await?;
        driver.attach(&format!("{short}-{index}")).await?;
    }
    let good = OtlpReceiver::grpc().await;
    configure(&driver, tracing(&good.endpoint(), "grpc", None)).await?;
    driver.attach(&format!("{short}-good")).await?;
    arrives(&good, &format!("{short}-good")).await;
    Ok(())
}

/// All at once in the operator that other tests work with: none of them may notice.
#[tokio::test]
async fn no_attach_is_affected_by_what_a_collector_does() -> Result<()> {
    let world = World::shared().await?;
    try_join_all(MANNERS.map(|manner| endure(&world, manner))).await?;
    Ok(())
}
