//! Connections that are swallowed: nothing more comes over them, and nobody says so. And those that lead to an API server which refuses
//! everything. The clock is paused.

use std::time::Duration;

use futures::{StreamExt, stream};
use http::{Request, Response, StatusCode};
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
/// does not end. A path that is a status, such as `/401`, is answered with it by the first connection.
fn network() -> Network {
    refusing(1)
}

/// The same, where the first connections, so many, answer with the status of the path.
fn refusing(connections: usize) -> Network {
    Network::new(move |number, request: Request<Body>| async move {
        let text = Bytes::from(number.to_string());
        let path = request.uri().path();
        match path {
            "/hang" if number == 0 => std::future::pending().await,
            "/watch" => {
                let first = stream::iter([Ok::<_, std::io::Error>(Frame::data(text))]);
                Response::new(StreamBody::new(first.chain(stream::pending())).boxed_unsync())
            }
            _ => {
                let status = StatusCode::from_bytes(path.trim_start_matches('/').as_bytes()).ok();
                let mut answer = Response::new(Full::new(text).map_err(|never| match never {}).boxed_unsync());
                *answer.status_mut() = status.filter(|_| number < connections).unwrap_or_default();
                answer
            }
        }
    })
}

async fn send(client: &Client, path: &str) -> Result<Response<Body>, kube::Error> {
    client.send(Request::get(path).body(Body::empty()).unwrap()).await
}

/// A watch that has told the first thing.
async fn watching(client: &Client) -> Body {
    let mut watch = send(client, "/watch").await.unwrap().into_body();
    assert!(watch.frame().await.unwrap().is_ok());
    watch
}

/// Begins one of several watches.
async fn watch(client: &Client, number: usize) -> Result<Response<Body>, kube::Error> {
    send(client, &format!("/watch?watch=true&fieldSelector={number}")).await
}

/// The number of the connection by which a request is answered.
async fn get(client: &Client, path: &str) -> Result<usize, String> {
    ask(client, path).await.map(|(_, number)| number)
}

/// The status of the answer to a request, and the number of its connection.
async fn ask(client: &Client, path: &str) -> Result<(u16, usize), String> {
    let response = send(client, path).await.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await;
    let body = body.map_err(|error| error.to_string())?;
    let number = String::from_utf8(body.to_bytes().to_vec()).unwrap();
    Ok((status, number.parse().unwrap()))
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
    let mut watch = watching(&client).await;
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
    for number in 0..250 {
        let watch = timeout(REPLACED, watch(&client, number)).await;
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
    for number in 0..60 {
        watches.push(watch(&client, number).await.unwrap());
    }
    sleep(Duration::from_secs(200)).await;
    watches.drain(..50);
    let again = futures::future::join_all((0..50).map(|number| watch(&client, number))).await;
    assert!(again.iter().all(Result::is_ok));
    assert_eq!(network.opened(), 2);
}

/// The API server, or the network, stands still. A watch that breaks lists everything again, when there is too much to do already.
#[tokio::test(start_paused = true)]
async fn a_stall_ends_no_watch_and_a_short_one_fails_no_request() {
    for tenths in 0..40 {
        let network = network();
        let (watches, requests) = (network.watch_client(), network.client());
        let mut watch = watching(&watches).await;
        assert!(get(&requests, "/").await.is_ok());
        sleep(Duration::from_millis(100) * tenths).await;
        network.stall(Duration::from_millis(2500));
        assert_eq!(get(&requests, "/").await, Ok(1), "after {tenths} tenths of a second");
        sleep(Duration::from_secs(20)).await;
        network.stall(Duration::from_secs(6));
        let goes_on = timeout(MINUTE, watch.frame()).await.is_err();
        assert!(goes_on, "after {tenths} tenths of a second");
        assert_eq!(get(&watches, "/").await, Ok(0), "after {tenths} tenths of a second");
    }
}

/// A round trip of 1.5 s is an API server, or a network, under heavy load.
#[tokio::test(start_paused = true)]
async fn a_slow_connection_is_kept() {
    let network = network();
    let client = network.client();
    let mut watch = watching(&client).await;
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
    let mut watch = watching(&client).await;
    assert!(timeout(Duration::from_secs(5), get(&client, "/hang")).await.is_err());
    assert_eq!(timeout(LONG, get(&client, "/hang")).await.unwrap(), Ok(1));
    // What runs over the old one goes on.
    assert!(timeout(MINUTE, watch.frame()).await.is_err());
    assert_eq!(get(&client, "/").await, Ok(1));
    assert_eq!(network.opened(), 2);
}

/// Its head is no sign of the rest. What is let go while it comes in, as it is too large, says nothing of the connection, nor does a watch.
#[tokio::test(start_paused = true)]
async fn an_answer_that_falls_silent_before_its_end_costs_the_connection() {
    let (network, client) = connected().await;
    let (answer, watch) = ("/watch", "/watch?watch=true");
    for (path, silence, next) in [(answer, 300, 0), (watch, 5_000, 0), (answer, 5_000, 1)] {
        let mut body = send(&client, path).await.unwrap().into_body();
        sleep(MINUTE).await;
        assert!(body.frame().await.unwrap().is_ok());
        assert!(timeout(Duration::from_millis(silence), body.frame()).await.is_err());
        drop(body);
        assert_eq!(get(&client, "/").await, Ok(next), "{path} {silence}");
    }
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
    let let_go = timeout(Duration::from_millis(300), get(&client, "/hang")).await;
    assert!(let_go.is_err());
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

/// One of several API servers behind an address, which answers pings. What runs over the connection goes on.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_everything_is_left() {
    let rows: [(&[u16], usize); 9] = [
        (&[401], 1),
        (&[500; 5], 1),
        (&[500, 502, 503, 504, 500], 1),
        (&[503, 503, 503, 503, 429, 503], 1),
        (&[500; 4], 0),
        (&[500, 500, 500, 500, 200, 500], 0),
        (&[500, 500, 500, 500, 404, 500], 0),
        (&[400, 403, 404, 405, 409, 410, 422], 0),
        (&[429; 20], 0),
    ];
    for (statuses, next) in rows {
        for is_of_watches in [false, true] {
            let network = network();
            let client = if is_of_watches {
                network.watch_client()
            } else {
                network.client()
            };
            let mut watch = watching(&client).await;
            for status in statuses {
                let answer = ask(&client, &format!("/{status}")).await;
                assert_eq!(answer, Ok((*status, 0)), "{statuses:?}");
            }
            assert_eq!(ask(&client, "/500").await.unwrap().1, next, "{statuses:?}");
            assert!(timeout(MINUTE, watch.frame()).await.is_err(), "{statuses:?}");
            assert_eq!(network.opened(), next + 1, "{statuses:?}");
        }
    }
}

/// Many that were sent together are refused together.
#[tokio::test(start_paused = true)]
async fn many_requests_that_are_refused_together_cost_one_connection() {
    for path in ["/401", "/503"] {
        let (network, client) = connected().await;
        let all = futures::future::join_all((0..20).map(|_| get(&client, path)));
        assert_eq!(all.await, vec![Ok(0); 20]);
        assert_eq!(ask(&client, path).await, Ok((200, 1)));
        assert_eq!(network.opened(), 2);
    }
}

/// The load balancer may choose another one that is out of order.
#[tokio::test(start_paused = true)]
async fn a_second_api_server_that_refuses_is_left_too() {
    let network = refusing(2);
    let client = network.client();
    assert_eq!(ask(&client, "/401").await, Ok((401, 0)));
    assert_eq!(ask(&client, "/401").await, Ok((401, 1)));
    assert_eq!(ask(&client, "/401").await, Ok((200, 2)));
}

/// The API server is down, a webhook cannot be called, or the token is wrong.
#[tokio::test(start_paused = true)]
async fn api_servers_that_all_refuse_cost_three_connections_in_a_minute_at_most() {
    for path in ["/401", "/503"] {
        let network = refusing(usize::MAX);
        let client = network.client();
        let begun = Instant::now();
        while begun.elapsed() < 3 * MINUTE {
            assert!(ask(&client, path).await.is_ok());
            sleep(Duration::from_millis(100)).await;
        }
        // The first one, and three in each minute.
        assert_eq!(network.opened(), 10, "{path}");
    }
}

/// Requests that take long fill a connection, and the others go over one to another API server meanwhile.
#[tokio::test(start_paused = true)]
async fn successes_over_another_connection_do_not_hide_an_api_server_that_refuses() {
    let (network, client) = connected().await;
    let hang = || {
        let client = client.clone();
        tokio::spawn(async move { get(&client, "/hang").await })
    };
    // Less than what counts as silence, all in all.
    let moment = || sleep(Duration::from_millis(10));
    let mut hanging: Vec<_> = (0..50).map(|_| hang()).collect();
    for _ in 0..5 {
        moment().await;
        assert_eq!(ask(&client, "/").await, Ok((200, 1)));
        hanging.swap_remove(0).abort();
        moment().await;
        assert_eq!(ask(&client, "/500").await, Ok((500, 0)));
        hanging.push(hang());
    }
    moment().await;
    assert_eq!(ask(&client, "/").await, Ok((200, 2)));
    assert_eq!(network.opened(), 3);
}
