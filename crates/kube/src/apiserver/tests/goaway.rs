//! Requests that the API server refuses unprocessed, as when it ends a connection (`kube-apiserver --goaway-chance`). The server
//! is made of frames, so that it can say exactly what it has processed. The clock is paused.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use csi_attacher_testbed::http2::{ENHANCE_YOUR_CALM, FrameServer, INTERNAL_ERROR, NO_ERROR, OK, REFUSED_STREAM};
use futures::FutureExt;
use http::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::io::{DuplexStream, duplex};

use super::network::Wire;
use crate::apiserver::over;
use crate::apiserver::tls::Identity;
use crate::telemetry::Metrics;

/// What the server does when a request has come in as a whole.
#[derive(Clone, Copy, Debug)]
enum Act {
    Answer,
    Reset(u32),
    /// Ends the connection; streams with a greater number are not processed. Those that are, it answers if it says so.
    GoAway {
        last: u32,
        reason: u32,
        answers: bool,
    },
    Close,
}

const fn go_away(last: u32, reason: u32, answers: bool) -> Act {
    Act::GoAway { last, reason, answers }
}

/// A request as the server saw it.
type Seen = (usize, u32, Vec<u8>);

/// Connections get one act after the other, for each of their requests, and then answers.
#[derive(Clone)]
struct Server {
    acts: Arc<Vec<Vec<Act>>>,
    /// What connections beyond that do.
    others: Act,
    opened: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    fn new(acts: Vec<Vec<Act>>, others: Act) -> Self {
        Self {
            acts: Arc::new(acts),
            others,
            opened: Arc::default(),
            seen: Arc::default(),
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let server = server.clone();
            async move {
                let (client, end) = duplex(64 << 10);
                let number = server.opened.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(server.serve(number, end));
                Ok::<_, io::Error>(Wire(TokioIo::new(client)))
            }
            .boxed()
        });
        let config = kube::Config::new(Uri::from_static("http://api"));
        let client = over(connector, Identity::default(), &config, None, &Metrics::default());
        client.unwrap()
    }

    async fn serve(self, number: usize, end: DuplexStream) -> io::Result<()> {
        let none = Vec::new();
        let mut acts = self.acts.get(number).unwrap_or(&none).iter();
        let is_listed = number < self.acts.len();
        let fallback = if is_listed { Act::Answer } else { self.others };
        let mut frames = FrameServer::begin(end).await?;
        loop {
            let (stream, body) = frames.request().await?;
            self.seen.lock().push((number, stream, body));
            match *acts.next().unwrap_or(&fallback) {
                Act::Answer => frames.answer(stream, OK).await?,
                Act::Reset(reason) => frames.reset(stream, reason).await?,
                Act::GoAway { last, reason, answers } => {
                    frames.go_away(last, reason).await?;
                    if !answers {
                        return Ok(());
                    }
                    for processed in (1..=last).step_by(2) {
                        frames.answer(processed, OK).await?;
                    }
                }
                Act::Close => return Ok(()),
            }
        }
    }

    fn seen(&self) -> Vec<(usize, u32)> {
        let seen = self.seen.lock();
        seen.iter().map(|(number, stream, _)| (*number, *stream)).collect()
    }
}

async fn send(client: &Client, method: Method, body: &'static str) -> Result<u16, String> {
    let mut request = Request::new(Body::from(body.as_bytes().to_vec()));
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_static("/apis/storage.k8s.io/v1/volumeattachments/a");
    let sent = tokio::time::timeout(Duration::from_mins(1), client.send(request));
    let answer = sent.await.expect("it ends");
    let answer = answer.map_err(|error| crate::error_chain::chain(&error))?;
    Ok(answer.status().as_u16())
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_refused_unprocessed_is_sent_again_unseen() {
    for act in [
        go_away(0, NO_ERROR, true),
        go_away(0, NO_ERROR, false),
        go_away(0, ENHANCE_YOUR_CALM, false),
        Act::Reset(REFUSED_STREAM),
    ] {
        for method in [Method::PATCH, Method::GET, Method::POST, Method::PUT] {
            let body = if method == Method::GET { "" } else { "{\"a\": 1}" };
            let server = Server::new(vec![vec![act]], Act::Answer);
            let answer = send(&server.client(), method.clone(), body).await;
            assert_eq!(answer, Ok(200), "{act:?} {method}");
            let seen = server.seen.lock();
            let bodies: Vec<&[u8]> = seen.iter().map(|(_, _, sent)| &**sent).collect();
            assert_eq!(bodies, [body.as_bytes(); 2], "{act:?} {method}");
        }
    }
}

/// It may have been processed, and only the caller knows what that means.
#[tokio::test(start_paused = true)]
async fn a_request_that_may_have_been_processed_is_not_sent_again() {
    for act in [
        Act::Close,
        Act::Reset(INTERNAL_ERROR),
        go_away(1, NO_ERROR, false),
        go_away(u32::MAX >> 1, NO_ERROR, false),
        go_away(1, INTERNAL_ERROR, false),
    ] {
        let server = Server::new(vec![vec![act]], Act::Answer);
        let client = server.client();
        let outcome = send(&client, Method::PATCH, "{}").await;
        assert!(outcome.is_err(), "{act:?} {outcome:?}");
        assert_eq!(server.seen().len(), 1, "{act:?}");
        assert_eq!(send(&client, Method::PATCH, "{}").await, Ok(200), "{act:?}");
    }
}

/// As with a thousand attaches at once: one request in fifty ends the connection of all.
#[tokio::test(start_paused = true)]
async fn of_many_requests_those_that_were_not_processed_are_sent_again() {
    let last = go_away(3, NO_ERROR, true);
    let server = Server::new(vec![vec![Act::Answer, last]], Act::Answer);
    let client = server.client();
    let all = (0..10).map(|_| send(&client, Method::PATCH, "{}"));
    for outcome in futures::future::join_all(all).await {
        assert_eq!(outcome, Ok(200));
    }
    let again = server.seen().into_iter().filter(|(number, _)| *number == 1).count();
    assert_eq!(again, 8);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_everything_is_not_asked_for_ever() {
    let refuse = go_away(0, NO_ERROR, false);
    let server = Server::new(Vec::new(), refuse);
    let refused = send(&server.client(), Method::PATCH, "{}").await.unwrap_err();
    assert!(refused.contains("not a result of an error"), "{refused}");
    assert_eq!(server.seen().len(), 11);
}
