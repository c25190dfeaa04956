//! A Lease about which webhooks are asked that take their time. The clock is paused.

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use tokio::time::sleep;

use super::candidate::{LEASE, leads};
use super::{seconds, usual};
use crate::lease::{LeaderElectionHandle, LeaderElections};
use crate::telemetry::Metrics;
use csi_attacher_testbed::lease_server::{ApiServer, NAMESPACE};

/// A write that is given up before is never stored, however often it is sent.
#[tokio::test(start_paused = true)]
async fn a_lease_is_created_and_taken_though_webhooks_take_most_of_the_renew_deadline() {
    for is_there in [true, false] {
        let server = ApiServer::default();
        if is_there {
            server.release_in(NAMESPACE);
        }
        let leases = server.client();
        let slow = tower::service_fn(move |request: Request<Body>| {
            let leases = leases.clone();
            async move {
                if request.method() != Method::GET {
                    sleep(seconds(8)).await;
                }
                leases.send(request).await
            }
        });
        let elections = LeaderElections::new(Client::new(slow, "default"), "a".to_owned());
        let election = elections.config_for(NAMESPACE, usual());
        let candidate = LeaderElectionHandle::start(election, LEASE.to_owned(), Metrics::default());
        leads(&candidate).await;
        assert_eq!(server.holder(), "a", "it was there: {is_there}");
    }
}
