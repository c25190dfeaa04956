//! Which calls count as not sent. The server is made of frames, so that it can say exactly what it has processed.

use std::io;

use csi_attacher_testbed::http2::{CANCEL, FrameServer, INTERNAL_ERROR, NO_ERROR, OK, REFUSED_STREAM};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tonic::Code;

use super::client_tests::{LONG, ask, client_of, within};
use super::{CsiClient, Probe};
use crate::telemetry::Span;

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

async fn serve(end: UnixStream, acts: Vec<Act>, told: mpsc::UnboundedSender<u32>) -> io::Result<()> {
    let (mut server, mut acts) = (FrameServer::begin(end).await?, acts.into_iter());
    loop {
        let (stream, _) = server.request().await?;
        // Nobody may wait for it.
        let _gone = told.send(stream);
        match acts.next().unwrap_or(Act::Hang) {
            Act::Answer => server.answer(stream, &answer()).await?,
            Act::Hang => {}
            Act::Reset(reason) => server.reset(stream, reason).await?,
            Act::GoAway { last, reason } => server.go_away(last, reason).await?,
            Act::GoAwayAndClose => return server.go_away(1, NO_ERROR).await,
            Act::Close => return Ok(()),
        }
    }
}

/// The headers of an answer that has nothing but its status.
fn answer() -> Vec<u8> {
    let mut block = OK.to_vec();
    // Literals that are not indexed.
    for (name, value) in [("content-type", "application/grpc"), ("grpc-status", "9")] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
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
