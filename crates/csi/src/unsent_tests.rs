//! Which calls count as not sent. The server is made of frames, so that it can say exactly what it has processed.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tonic::Code;

use super::client_tests::{LONG, ask, client_of, within};
use super::{CsiClient, Probe};
use crate::telemetry::Span;

const PREFACE: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;

/// What the server does when a request has come in as a whole.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Answers FAILED_PRECONDITION.
    Answer,
    Hang,
    Reset(u32),
    /// Processes no stream with a greater number.
    GoAway {
        last: u32,
        reason: u32,
    },
    /// The same with the first stream processed, and hangs up.
    GoAwayAndClose,
    Close,
}

/// A client of a server that does this with the first requests and answers no other. The stream of each is told.
fn served(acts: &[Act]) -> (CsiClient, mpsc::UnboundedReceiver<u32>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (told, seen) = mpsc::unbounded_channel();
    let acts = acts.to_vec();
    tokio::spawn(async move {
        let (end, _) = listener.accept().await?;
        serve(end, acts, told).await
    });
    (client_of(&socket), seen, folder)
}

async fn serve(mut end: UnixStream, acts: Vec<Act>, told: mpsc::UnboundedSender<u32>) -> io::Result<()> {
    let mut acts = acts.into_iter();
    end.read_exact(&mut [0; PREFACE]).await?;
    write(&mut end, SETTINGS, 0, 0, &[]).await?;
    loop {
        let mut head = [0; 9];
        end.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        end.read_exact(&mut payload).await?;
        match kind {
            SETTINGS if flags & ACK == 0 => write(&mut end, SETTINGS, ACK, 0, &[]).await?,
            PING if flags & ACK == 0 => write(&mut end, PING, ACK, 0, &payload).await?,
            _ => {}
        }
        if !matches!(kind, HEADERS | DATA) || flags & END_STREAM == 0 {
            continue;
        }
        // Nobody may wait for it.
        let _gone = told.send(stream);
        match acts.next().unwrap_or(Act::Hang) {
            Act::Answer => write(&mut end, HEADERS, END_HEADERS | END_STREAM, stream, &answer()).await?,
            Act::Hang => {}
            Act::Reset(reason) => write(&mut end, RST_STREAM, 0, stream, &reason.to_be_bytes()).await?,
            Act::GoAway { last, reason } => go_away(&mut end, last, reason).await?,
            Act::GoAwayAndClose => return go_away(&mut end, 1, NO_ERROR).await,
            Act::Close => return Ok(()),
        }
    }
}

async fn go_away(end: &mut UnixStream, last: u32, reason: u32) -> io::Result<()> {
    let payload = [last.to_be_bytes(), reason.to_be_bytes()].concat();
    write(end, GOAWAY, 0, 0, &payload).await
}

/// The headers of an answer that has nothing but its status.
fn answer() -> Vec<u8> {
    // `:status: 200` by its number in the table of HPACK, and literals that are not indexed.
    let mut block = vec![0x88];
    for (name, value) in [("content-type", "application/grpc"), ("grpc-status", "9")] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

async fn write(end: &mut UnixStream, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    end.write_all(&[&head, payload].concat()).await
}

/// When in doubt, it was sent.
#[tokio::test]
async fn a_call_was_not_sent_only_if_the_server_says_so() {
    let go_away = |reason| Act::GoAway { last: 0, reason };
    for (act, unsent) in [
        (Act::Reset(REFUSED_STREAM), true),
        (Act::Reset(CANCEL), false),
        (Act::Reset(INTERNAL_ERROR), false),
        (go_away(NO_ERROR), true),
        (go_away(INTERNAL_ERROR), true),
        (Act::GoAwayAndClose, false),
        (Act::Close, false),
    ] {
        let (client, _seen, _folder) = served(&[act]);
        let error = ask(&client, &Probe).await.unwrap_err();
        let found = (error.code, error.transport, error.unsent);
        assert_eq!(found, (Code::Unavailable, true, unsent), "{act:?}: {error}");
    }
}

#[tokio::test]
async fn an_answer_of_the_driver_was_sent_for_and_a_refused_stream_ends_no_connection() {
    let (client, _seen, _folder) = served(&[Act::Reset(REFUSED_STREAM), Act::Answer]);
    assert!(ask(&client, &Probe).await.unwrap_err().unsent);
    assert!(!client.connection().is_lost());
    let error = ask(&client, &Probe).await.unwrap_err();
    let found = (error.code, error.transport, error.unsent);
    assert_eq!(found, (Code::FailedPrecondition, false, false), "{error}");
}

/// Each way that a call can be turned away: above the last stream that the driver processes, as the goodbye was still
/// on its way; by the connection that takes no more; and by the new one that is not made.
#[tokio::test]
async fn calls_after_a_goodbye_with_a_call_in_flight_are_not_sent() {
    let goodbye = Act::GoAway {
        last: 1,
        reason: NO_ERROR,
    };
    let (client, mut seen, _folder) = served(&[goodbye]);
    let first = client.clone();
    let running = tokio::spawn(async move { first.call(&Probe, LONG, &Span::disabled()).await });
    assert_eq!(within(seen.recv()).await, Some(1));
    for number in 2..=4 {
        let error = ask(&client, &Probe).await.unwrap_err();
        let found = (error.code, error.transport, error.unsent);
        assert_eq!(found, (Code::Unavailable, true, true), "call {number}: {error}");
    }
    within(client.connection().lost()).await;
    assert!(!running.is_finished(), "what runs is not cut off");
}
