//! The Lease when connections to the API server are swallowed, or are full. The clock is paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::json;
use tokio::time::{sleep, timeout};
use tower::BoxError;

use super::candidate::{LEASE, leads, not_leading};
use super::{seconds, usual};
use crate::apiserver::tests::network::Network;
use crate::lease::{LeaderElectionHandle, LeaderElections, LeaseTimings};
use crate::telemetry::Metrics;
use csi_attacher_testbed::lease_server::{ApiServer, NAMESPACE};

/// With the default times of an AttacherConfig and those of the sidecar, whenever the connection is cut within the time between two
/// renewals. Or something in between answers the pings of the first connection and none of its requests any more.
#[tokio::test(start_paused = true)]
async fn a_swallowed_connection_costs_no_lease() {
    for round in 0..220 {
        let (pings, timing) = (round % 2 == 0, [LeaseTimings::default(), usual()][round / 2 % 2]);
        let tenths = u32::try_from(round / 4).unwrap();
        let server = ApiServer::default();
        let answers = server.client();
        let deaf = Arc::new(AtomicUsize::new(0));
        let deaf_below = deaf.clone();
        let network = Network::new(move |number, request| {
            let answers = (number >= deaf_below.load(Ordering::Relaxed)).then(|| answers.clone());
            async move {
                match answers {
                    Some(answers) => answers.send(request).await.unwrap(),
                    None => std::future::pending().await,
                }
            }
        });
        let mut elections = LeaderElections::new(network.watch_client(), "a".to_owned());
        elections.reports = true;
        let election = elections.config_for(NAMESPACE, timing);
        let candidate = LeaderElectionHandle::start(election, LEASE.to_owned(), Metrics::default());
        leads(&candidate).await;
        sleep(seconds(10) + seconds(1) / 10 * tenths).await;
        if pings {
            deaf.store(network.opened(), Ordering::Relaxed);
        } else {
            network.swallow();
        }
        assert!(
            timeout(seconds(60), not_leading(&candidate)).await.is_err(),
            "{timing:?}, pings are answered: {pings}, cut after {tenths} tenths of a second"
        );
    }
}

/// A replica watches each Lease that it waits for. An API server allows a connection 100 streams.
#[tokio::test(start_paused = true)]
async fn watches_of_many_leases_hold_up_no_request_about_another() {
    const WATCHED: usize = 120;
    let server = ApiServer::default();
    server.release_in(NAMESPACE);
    let leases = server.client();
    let watches = Arc::new(AtomicUsize::new(0));
    let begun = watches.clone();
    let network = Network::new(move |_, request: Request<Body>| {
        let (leases, begun) = (leases.clone(), begun.clone());
        async move {
            let query = request.uri().query().unwrap_or_default();
            if query.contains("watch=true") {
                begun.fetch_add(1, Ordering::Relaxed);
                let silent = stream::pending::<Result<Frame<Bytes>, BoxError>>();
                return Response::new(StreamBody::new(silent).boxed_unsync());
            }
            let answer = if query.contains("fieldSelector") {
                let none = json!({"kind": "LeaseList", "metadata": {"resourceVersion": "1"}, "items": []});
                Response::new(Body::from(none.to_string().into_bytes()))
            } else {
                leases.send(request).await.unwrap()
            };
            answer.map(|body| body.map_err(BoxError::from).boxed_unsync())
        }
    });
    let client = network.watch_client();
    let election = |identity: &str| {
        let elections = LeaderElections::new(client.clone(), identity.to_owned());
        elections.config_for(NAMESPACE, usual())
    };
    let names = (0..WATCHED).map(|number| format!("{LEASE}-{number}"));
    let observers = names.map(|lease| LeaderElectionHandle::observe(election("b"), lease, Metrics::default()));
    let _observers: Vec<_> = observers.collect();
    sleep(seconds(3)).await;
    let candidate = LeaderElectionHandle::start(election("a"), LEASE.to_owned(), Metrics::default());
    let led = timeout(seconds(1), leads(&candidate)).await;
    led.expect("no request waits for a watch to end");
    assert!(watches.load(Ordering::Relaxed) >= WATCHED);
}
