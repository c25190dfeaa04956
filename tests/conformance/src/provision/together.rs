//! Driver and API server go away and come back while claims are provisioned; and what several processes share.

use std::time::Duration;

use futures::future::{join_all, try_join_all};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt};

use csi_mock_driver::{Method, Rule};

use super::claims::Claim;
use crate::attacher::signal;
use crate::env::{LEASE, SLOW};
use crate::expect::LIMIT;
use crate::scenario::{Group, Outcome, Scenario, Stop, demand, offered, optional, same};
use crate::support::wait::wait_for;
use crate::test::Test;

/// An API server that has just started forbids what it allows later, and who is refused for that may wait for half a minute.
pub const AFTER_OUTAGE: Duration = Duration::from_secs(90);

pub fn scenarios() -> Vec<Scenario> {
    Group::new("provision-role")
        .demands("the Lease is called as the driver, with dashes")
        .scenario("lease", |t| async move {
            let leases: Api<Lease> = Api::namespaced(t.env.client.clone(), "default");
            let lease = leases.get(&t.env.driver_name.replace('.', "-")).await?;
            let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
            demand(!holder.is_empty(), || "nobody holds the Lease".to_owned())
        })
        .done()
}

/// These stop what the others need.
pub fn alone() -> Vec<Scenario> {
    Group::new("provision-together")
        .demands("a driver that goes and comes back in mid-burst: one volume for each claim")
        .safety("socket", |t| async move {
            let claims = t.burst().await?;
            t.env.driver.stop().await;
            demand(t.env.driver.start_again().await.is_ok(), || {
                "the driver does not start".to_owned()
            })?;
            t.all_bound(&claims).await.map(drop)
        })
        .demands("the process goes on when the driver goes and comes back")
        .recommended("socket-no-exit", |t| async move {
            let before = t.env.attacher.starts();
            let claims = t.burst().await?;
            t.env.driver.stop().await;
            demand(t.env.driver.start_again().await.is_ok(), || {
                "the driver does not start".to_owned()
            })?;
            t.all_bound(&claims).await?;
            same("number of starts", &t.env.attacher.starts(), &before)
        })
        .peer_fails("it exits when its connection is lost")
        .demands("an API server that goes and comes back in mid-burst: one volume for each claim")
        .safety("api-away", |t| async move {
            let claims = t.burst().await?;
            t.env.cluster.stop_apiserver();
            t.env.cluster.start_apiserver().await?;
            t.all_bound(&claims).await.map(drop)
        })
        .demands(
            "three replicas, of which the one that works is killed or stands still: one volume for each claim, one call at a time",
        )
        .unless(
            "not supported by an attacher without --identity=NAME, as replicas on one machine have no names of their own",
        )
        .extension("replicas", replicas)
        .done()
}

/// So many claims are made in each half: more than an attacher calls for at a time.
const HALF: usize = 250;
/// So long a replica stands still: until the Lease has run out, and another one has taken it and works.
const STANDSTILL: Duration = Duration::from_secs(LEASE.as_secs() + 6);
/// Replicas that all end more often than that are none.
const ENDS: usize = 3;
/// So many objects are watched at a time for what becomes of them.
const WATCHED: usize = 20;
/// Each call takes so long, so that some always run.
const CALL: Duration = Duration::from_millis(100);
/// So many calls are ended by whoever works before it is disturbed; others are left.
const DISTURBED_AFTER: usize = 50;

/// The first who works is killed among the first half of the claims, the second one stands still among the others, and so does
/// whoever works among the deletions.
async fn replicas(t: Test) -> Outcome {
    t.env.attacher.stop().await?;
    let served = served_by_replicas(&t).await;
    let left = t.driver_is_left().await;
    t.env.attacher.again()?;
    served.and(Ok(left?))
}

async fn served_by_replicas(t: &Test) -> Outcome {
    t.driver_is_left().await?;
    let replicas = ["one", "two", "three"].map(|name| t.env.replica(name));
    let replicas = replicas.into_iter().collect::<Result<Vec<_>, _>>()?;
    tokio::select! {
        held = lease_is_held(t) => held?,
        _ = join_all(replicas.iter().map(|it| it.started_more_than(ENDS))) => {
            offered(false, || "the replicas end as soon as they are started".to_owned())?;
        }
    }
    one_volume_each(t).await
}

async fn lease_is_held(t: &Test) -> Outcome {
    let leases: Api<Lease> = Api::namespaced(t.env.client.clone(), "default");
    let is_held = |lease: Option<&Lease>| {
        let holder = lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref());
        holder.is_some_and(|holder| ["one", "two", "three"].contains(&holder))
    };
    let name = t.env.driver_name.replace('.', "-");
    let held = wait_for(leases, &name, "held", LIMIT, is_held);
    optional(held.await.map(drop).map_err(Into::into), "no replica takes the Lease")
}

async fn one_volume_each(t: &Test) -> Outcome {
    let begun = t.env.driver.call_count();
    t.given_class(|_| {}).await?;
    for method in [Method::CreateVolume, Method::DeleteVolume] {
        t.script(Rule::on(method).delay(CALL));
    }
    let claims: Vec<Claim> = (0..2 * HALF).map(|number| t.claim(&number.to_string())).collect();
    let (first, second) = claims.split_at(HALF);
    try_join_all(first.iter().map(|claim| claim.create(|_| {}))).await?;
    let killed = t.busy(Method::CreateVolume, begun, None).await?;
    signal(&killed.to_string(), "KILL");
    try_join_all(second.iter().map(|claim| claim.create(|_| {}))).await?;
    let still = t.busy(Method::CreateVolume, begun, Some(killed)).await?;
    let (bound, ()) = tokio::join!(t.all_bound(&claims), stand_still(still));
    let volumes = bound?;

    let deleting = t.env.driver.call_count();
    try_join_all(claims.iter().map(Claim::delete)).await?;
    let still = t.busy(Method::DeleteVolume, deleting, None).await?;
    let gone = volumes
        .iter()
        .map(|name| t.persistent_volume_gone_within(name, AFTER_OUTAGE));
    let gone: Vec<_> = gone.collect();
    let gone = stream::iter(gone).buffered(WATCHED).try_collect::<()>();
    let (gone, ()) = tokio::join!(gone, stand_still(still));
    gone?;
    for claim in &claims {
        same("volumes after the deletion", &claim.handles().len(), &0)?;
    }
    let calls = t.env.driver.calls().into_iter();
    let calls = calls.filter(|call| call.id >= begun && call.overlap);
    let overlaps: Vec<_> = calls.map(|call| (call.method, call.volume)).collect();
    demand(overlaps.is_empty(), || {
        format!("calls for one volume ran at a time: {overlaps:?}")
    })
}

/// The process stands still (SIGSTOP) for longer than its Lease lasts, and goes on.
async fn stand_still(process: u32) {
    signal(&process.to_string(), "STOP");
    tokio::time::sleep(STANDSTILL).await;
    signal(&process.to_string(), "CONT");
}

impl Test {
    /// Waits until a process that is not `but` has ended some calls from this one on, and says which one it is.
    async fn busy(&self, method: Method, since: u64, but: Option<u32>) -> Outcome<u32> {
        let others = || {
            let calls = self.env.driver.calls_of(method).into_iter();
            let ended = calls.filter(|call| call.id >= since && call.finished.is_some() && call.caller_pid != but);
            ended.filter_map(|call| call.caller_pid).collect::<Vec<u32>>()
        };
        self.until_within(AFTER_OUTAGE, "another process works", || {
            others().len() >= DISTURBED_AFTER
        })
        .await?;
        let last = others().pop();
        last.ok_or_else(|| Stop::Failed("the driver cannot tell who calls".to_owned()))
    }

    /// Waits until no process is connected to the driver: what one that is gone sent last may still be on its way.
    async fn driver_is_left(&self) -> Outcome {
        let left = tokio::time::timeout(LIMIT, self.env.driver.wait_for_connections(0)).await;
        left.map_err(|_| Stop::Failed(format!("a process is still connected to the driver after {LIMIT:?}")))
    }

    /// Ten claims; some calls for them run and some are over.
    async fn burst(&self) -> Outcome<Vec<Claim>> {
        self.given_class(|_| {}).await?;
        let claims: Vec<Claim> = (0..10).map(|number| self.claim(&number.to_string())).collect();
        for (number, claim) in claims.iter().enumerate() {
            let delay = if number % 2 == 0 {
                Duration::from_millis(50)
            } else {
                SLOW
            };
            self.script(claim.on_create().times(1).delay(delay));
        }
        try_join_all(claims.iter().map(|claim| claim.create(|_| {}))).await?;
        let started = |claim: &Claim| claim.creates().len();
        self.until("all calls began", || claims.iter().all(|claim| started(claim) > 0))
            .await?;
        let running = self.env.driver.in_flight_of(Method::CreateVolume).now;
        demand(running > 0, || "no call runs any more; give them more time".to_owned())?;
        Ok(claims)
    }

    /// Waits until each claim has its volume, and says how the PersistentVolumes are called.
    async fn all_bound(&self, claims: &[Claim]) -> Outcome<Vec<String>> {
        let bound: Vec<_> = claims.iter().map(|it| it.bound_within(AFTER_OUTAGE)).collect();
        let volumes: Vec<_> = stream::iter(bound).buffered(WATCHED).try_collect().await?;
        for claim in claims {
            same("volumes", &claim.handles().len(), &1)?;
        }
        Ok(volumes.iter().map(ResourceExt::name_any).collect())
    }
}
