//! Driver and API server go away and come back while claims are provisioned; and what several processes share.

use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use csi_mock_driver::Method;

use super::claims::Claim;
use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::Test;

/// An API server that has just started forbids what it allows later, and who is refused for that may wait for half a minute.
pub const AFTER_OUTAGE: Duration = Duration::from_secs(90);

pub fn scenarios() -> Vec<Scenario> {
    Group::new("provision-role")
        .scenario(
            "lease",
            "the Lease is called as the driver, with dashes",
            |t| async move {
                let leases: Api<Lease> = Api::namespaced(t.env.client.clone(), "default");
                let lease = leases.get(&t.env.driver_name.replace('.', "-")).await?;
                let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
                demand(!holder.is_empty(), || "nobody holds the Lease".to_owned())
            },
        )
        .done()
}

/// These stop what the others need.
pub fn alone() -> Vec<Scenario> {
    Group::new("provision-together")
        .safety(
            "socket",
            "a driver that goes and comes back in mid-burst: one volume for each claim",
            |t| async move {
                let claims = t.burst().await?;
                t.env.driver.stop().await;
                demand(t.env.driver.start_again().await.is_ok(), || {
                    "the driver does not start".to_owned()
                })?;
                t.all_bound(&claims).await
            },
        )
        .recommended(
            "socket-no-exit",
            "the process goes on when the driver goes and comes back",
            |t| async move {
                let before = t.env.attacher.starts();
                let claims = t.burst().await?;
                t.env.driver.stop().await;
                demand(t.env.driver.start_again().await.is_ok(), || {
                    "the driver does not start".to_owned()
                })?;
                t.all_bound(&claims).await?;
                same("number of starts", &t.env.attacher.starts(), &before)
            },
        )
        .peer_fails("it exits when its connection is lost")
        .safety(
            "api-away",
            "an API server that goes and comes back in mid-burst: one volume for each claim",
            |t| async move {
                let claims = t.burst().await?;
                t.env.cluster.stop_apiserver();
                t.env.cluster.start_apiserver().await?;
                t.all_bound(&claims).await
            },
        )
        .done()
}

impl Test {
    /// Ten claims; some calls for them run and some are over.
    async fn burst(&self) -> Outcome<Vec<Claim>> {
        self.given_class(|_| {}).await?;
        let claims: Vec<Claim> = (0..10).map(|number| self.claim(&number.to_string())).collect();
        for (number, claim) in claims.iter().enumerate() {
            let delay = if number % 2 == 0 { 50 } else { 1500 };
            self.script(claim.on_create().times(1).delay(Duration::from_millis(delay)));
        }
        try_join_all(claims.iter().map(|claim| claim.create(|_| {}))).await?;
        let started = |claim: &Claim| claim.creates().len();
        self.until("all calls began", || claims.iter().all(|claim| started(claim) > 0))
            .await?;
        let running = self.env.driver.in_flight_of(Method::CreateVolume).now;
        demand(running > 0, || "no call runs any more; give them more time".to_owned())?;
        Ok(claims)
    }

    async fn all_bound(&self, claims: &[Claim]) -> Outcome {
        try_join_all(claims.iter().map(|claim| claim.bound_within(AFTER_OUTAGE))).await?;
        for claim in claims {
            same("volumes", &claim.handles().len(), &1)?;
        }
        Ok(())
    }
}
