//! Connections that are swallowed: nothing more comes over them, and nobody says so. The clock is paused.

use std::time::Duration;

use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, sleep, timeout};

use super::network::Network;

/// The rule: a dead connection is replaced within this time.
const REPLACED: Duration = Duration::from_secs(5);
/// That of a watch, which outlives a stall, later.
const WATCH_ENDED: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_mins(10);
/// Shorter than an idle connection is kept for.
const MINUTE: Duration = Duration::from_mins(1);

/// Answers with the number of the connection. `/hang` is not answered by the first connection; `/watch` says one thing and
/// goes on.
fn network() -> Network {
    Network::new(|number, request: Request<Body>| async move {
        let text = Bytes::from(number.to_string());
        match request.uri().path() {
            "/hang" if number == 0 => std::future::pending().await,
            "/watch" => {
                let first = stream::iter([Ok::<_, std::io::Error>(Frame::data(text))]);
                Response::new(StreamBody::new(first.chain(stream::pending())).boxed_unsync())
            }
            _ => Response::new(Full::new(text).map_err(|never| match never {}).boxed_unsync()),
        }
    })
}

async fn send(client: &Client, path: &str) -> Result<Response<Body>, kube::Error> {
    client.send(Request::get(path).body(Body::empty()).unwrap()).await
}

/// The number of the connection by which a request is answered.
async fn get(client: &Client, path: &str) -> Result<usize, String> {
    let response = send(client, path).await.map_err(|error| error.to_string())?;
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| error.to_string())?;
    Ok(String::from_utf8(body.to_bytes().to_vec()).unwrap().parse().unwrap())
}

/// A network, and a client that was answered over its first connection.
async fn connected() -> (Network, Client) {
    let network = network();
    let client = network.client();
    assert_eq!(get(&client, "/").await, Ok(0));
    (network, client)
}

#[tokio::test(start_paused = true)]
async fn a_request_over_a_swallowed_connection_fails_soon_and_the_next_one_is_answered() {
    let (network, client) = connected().await;
    network.swallow();
    let cut = Instant::now();
    let lost = timeout(LONG, get(&client, "/")).await.unwrap();
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(get(&client, "/").await, Ok(1));
    assert!(cut.elapsed() <= REPLACED, "{:?}", cut.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_that_is_swallowed_is_replaced_before_it_is_needed() {
    let (network, client) = connected().await;
    sleep(MINUTE).await;
    assert_eq!(get(&client, "/").await, Ok(0), "it is kept while it is good");
    network.swallow();
    sleep(REPLACED).await;
    let asked = Instant::now();
    assert_eq!(timeout(LONG, get(&client, "/")).await.unwrap(), Ok(1));
    assert_eq!(asked.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_watch_notices_that_its_connection_is_swallowed() {
    let network = network();
    let client = network.watch_client();
    let mut watch = send(&client, "/watch").await.unwrap().into_body();
    assert!(watch.frame().await.unwrap().is_ok());
    assert!(timeout(LONG, watch.frame()).await.is_err(), "a silent watch goes on");
    network.swallow();
    let cut = Instant::now();
    let end = timeout(LONG, watch.frame()).await.unwrap();
    assert!(end.unwrap().is_err());
    assert!(cut.elapsed() <= WATCH_ENDED, "{:?}", cut.elapsed());
}

/// A watch keeps its stream for minutes, and a connection has only so many.
#[tokio::test(start_paused = true)]
async fn watches_take_no_stream_that_a_request_needs() {
    let network = network();
    let client = network.watch_client();
    let mut watches = Vec::new();
    for _ in 0..250 {
        let watch = timeout(REPLACED, send(&client, "/watch")).await;
        watches.push(watch.expect("each has a stream").unwrap());
    }
    assert_eq!(timeout(REPLACED, get(&client, "/")).await.unwrap(), Ok(5));
    drop(watches.swap_remove(0));
    assert_eq!(get(&client, "/").await, Ok(0), "its stream is free");
    assert_eq!(network.opened(), 6);
}

/// Watches that began together end together, after minutes in which their connection took no request.
#[tokio::test(start_paused = true)]
async fn watches_that_begin_again_together_take_the_connections_that_there_are() {
    let network = network();
    let client = network.watch_client();
    let mut watches = Vec::new();
    for _ in 0..60 {
        watches.push(send(&client, "/watch").await.unwrap());
    }
    sleep(Duration::from_secs(200)).await;
    watches.drain(..50);
    let again = futures::future::join_all((0..50).map(|_| send(&client, "/watch"))).await;
    assert!(again.iter().all(Result::is_ok));
    assert_eq!(network.opened(), 2);
}

/// The API server, or the network, stands still. A watch that breaks lists everything again, when there is too much to do already.
#[tokio::test(start_paused = true)]
async fn a_stall_ends_no_watch_and_a_short_one_fails_no_request() {
    for tenths in 0..40 {
        let network = network();
        let (watches, requests) = (network.watch_client(), network.client());
        let mut watch = send(&watches, "/watch").await.unwrap().into_body();
        assert!(watch.frame().await.unwrap().is_ok());
        assert!(get(&requests, "/").await.is_ok());
        sleep(Duration::from_millis(100) * tenths).await;
        network.stall(Duration::from_millis(2500));
        assert_eq!(get(&requests, "/").await, Ok(1), "after {tenths} tenths of a second");
        sleep(Duration::from_secs(20)).await;
        network.stall(Duration::from_secs(6));
        assert!(
            timeout(MINUTE, watch.frame()).await.is_err(),
            "after {tenths} tenths of a second"
        );
        assert_eq!(get(&watches, "/").await, Ok(0), "after {tenths} tenths of a second");
    }
}

/// A round trip of 1.5 s is an API server, or a network, under heavy load.
#[tokio::test(start_paused = true)]
async fn a_slow_connection_is_kept() {
    let network = network();
    let client = network.client();
    let mut watch = send(&client, "/watch").await.unwrap().into_body();
    assert!(watch.frame().await.unwrap().is_ok());
    network.slow(Duration::from_millis(750));
    assert!(timeout(MINUTE, watch.frame()).await.is_err(), "the watch goes on");
    assert_eq!(get(&client, "/").await, Ok(0));
    assert_eq!(network.opened(), 1);
}

/// What a process finds when it was stopped, or its machine was suspended: much time is gone, nothing else.
#[tokio::test(start_paused = true)]
async fn a_connection_outlives_a_standstill_of_the_process() {
    let (_network, client) = connected().await;
    sleep(Duration::from_millis(1700)).await;
    tokio::time::advance(Duration::from_mins(1)).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(get(&client, "/").await, Ok(0));
}

/// Something between us and the API server answers pings and nothing else.
#[tokio::test(start_paused = true)]
async fn the_next_request_after_one_that_was_given_up_takes_a_new_connection() {
    let (network, client) = connected().await;
    let mut watch = send(&client, "/watch").await.unwrap().into_body();
    assert!(watch.frame().await.unwrap().is_ok());
    assert!(timeout(Duration::from_secs(5), get(&client, "/hang")).await.is_err());
    assert_eq!(timeout(LONG, get(&client, "/hang")).await.unwrap(), Ok(1));
    assert!(
        timeout(MINUTE, watch.frame()).await.is_err(),
        "what runs over the old one goes on"
    );
    assert_eq!(get(&client, "/").await, Ok(1));
    assert_eq!(network.opened(), 2);
}

#[tokio::test(start_paused = true)]
async fn many_requests_that_are_given_up_together_cost_one_connection() {
    let network = network();
    let client = network.client();
    let all = futures::future::join_all((0..20).map(|_| get(&client, "/hang")));
    assert!(timeout(Duration::from_secs(5), all).await.is_err());
    assert_eq!(timeout(LONG, get(&client, "/hang")).await.unwrap(), Ok(1));
    assert_eq!(network.opened(), 2);
}

/// One that is let go early, as its object is gone or its driver ends, says nothing about the connection.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_let_go_early_leaves_the_connection() {
    let (network, client) = connected().await;
    assert!(
        timeout(Duration::from_millis(300), get(&client, "/hang"))
            .await
            .is_err()
    );
    assert_eq!(get(&client, "/").await, Ok(0));
    assert_eq!(network.opened(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_to_connect_that_hangs_is_given_up() {
    let network = network();
    let client = network.client();
    network.next_is_stuck();
    let begun = Instant::now();
    let lost = timeout(LONG, get(&client, "/")).await.unwrap();
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(get(&client, "/").await, Ok(1));
    assert!(begun.elapsed() <= REPLACED, "{:?}", begun.elapsed());
}
