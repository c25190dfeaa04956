//! The Lease when connections to the API server are swallowed. The clock is paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::{sleep, timeout};

use super::candidate::{LEASE, leads, not_leading};
use super::{seconds, usual};
use crate::apiserver::tests::network::Network;
use crate::lease::{HolderNote, LeaderElectionHandle, LeaderElections, LeaseTimings};
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
        elections.note = HolderNote::Reports;
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
