//! The Lease when connections to the API server are swallowed. The clock is paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::Client;
use tokio::time::{sleep, timeout};

use super::{seconds, usual};
use crate::apiserver::tests::network::Network;
use crate::lease::{LeaderElectionHandle, LeaderElections, LeaseTimings};
use crate::telemetry::Metrics;
use csi_attacher_testbed::lease_server::ApiServer;

/// The default times of an AttacherConfig, and those of the sidecar.
fn timings() -> [LeaseTimings; 2] {
    [LeaseTimings::default(), usual()]
}

async fn leader(client: Client, timing: LeaseTimings) -> LeaderElectionHandle {
    let mut elections = LeaderElections::new(client, "a".to_owned());
    elections.reports = true;
    let election = elections.config_for("default", timing);
    let candidate = LeaderElectionHandle::start(election, "external-attacher-leader-d".to_owned(), Metrics::default());
    let leads = async {
        while !candidate.is_leader() {
            candidate.differs_from(&candidate.state()).await;
        }
    };
    timeout(seconds(60), leads).await.expect("it leads");
    candidate
}

/// Resolves when the Lease is not held any more, or held in another term.
async fn not_leading(candidate: &LeaderElectionHandle) {
    let lease_state = candidate.state();
    assert!(candidate.is_leader(), "{lease_state:?}");
    candidate.differs_from(&lease_state).await;
}

/// With the default times, whenever the connection is cut within the time between two renewals.
#[tokio::test(start_paused = true)]
async fn a_swallowed_connection_costs_no_lease() {
    for (timing, tenths) in timings()
        .into_iter()
        .flat_map(|timing| (0..55).map(move |tenths| (timing, tenths)))
    {
        let server = ApiServer::default();
        let answers = server.client();
        let network = Network::new(move |_, request| {
            let answers = answers.clone();
            async move { answers.send(request).await.unwrap() }
        });
        let candidate = leader(network.watch_client(), timing).await;
        sleep(seconds(10) + seconds(1) / 10 * tenths).await;
        network.swallow();
        assert!(
            timeout(seconds(60), not_leading(&candidate)).await.is_err(),
            "{timing:?}: cut after {tenths} tenths of a second"
        );
    }
}

/// Something in between answers the pings of the first connection and none of its requests any more.
#[tokio::test(start_paused = true)]
async fn requests_that_are_swallowed_cost_no_lease() {
    for (timing, tenths) in timings()
        .into_iter()
        .flat_map(|timing| (0..55).map(move |tenths| (timing, tenths)))
    {
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
        let candidate = leader(network.watch_client(), timing).await;
        sleep(seconds(10) + seconds(1) / 10 * tenths).await;
        deaf.store(network.opened(), Ordering::Relaxed);
        assert!(
            timeout(seconds(60), not_leading(&candidate)).await.is_err(),
            "{timing:?}: cut after {tenths} tenths of a second"
        );
    }
}
