//! How the Leases of many drivers spread over the replicas: after a rollout in which each replica is replaced, and after one
//! replica was away and came back. Printed only: no share is promised, and no Lease moves while its holder lives.
//!
//! Environment: `REPLICAS` (3), `DRIVERS` (30), `OPERATOR_BINARY`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::ListParams;

use crate::attacher::{self, PHASE_LIMIT, options};
use crate::fleet::{Fleet, Plan};
use crate::support::operator::IDENTITY;
use crate::support::{Error, Operator, Result};
use crate::table::{Row, Topic};
use crate::usage::Usage;
use crate::{progress, setting};

/// What each replica watches besides Leases.
const WATCHES: usize = 4;
const LEASES: &str = "external-attacher-leader-";
/// Two retry periods.
const SETTLED: Duration = Duration::from_secs(5);

/// Leases by the replica that holds them.
type Shares = BTreeMap<String, usize>;

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let (count, drivers) = (setting("REPLICAS", 3)?, setting("DRIVERS", 30)?);
    let mut plan = Plan::new("shares", drivers, 1);
    plan.options = named(0);
    let fleet = Fleet::start(plan).await?;
    let (fleet, first) = fleet.split();
    let mut replicas = vec![first];
    for number in 1..count {
        replicas.push(start(&fleet, number).await?);
    }
    // The last ones wait for all Leases that the first took.
    settled(&fleet, drivers).await?;
    let now = Usage::read(&fleet.bench.client).await?;
    let open = now.since(&fleet.before, &now);
    progress("replicas: rollout");
    // A surge of one, as a Deployment does it: the new replica is ready before an old one ends.
    let mut rollout = Shares::new();
    for number in count..2 * count {
        replicas.push(start(&fleet, number).await?);
        attacher::stop(replicas.remove(0)).await?;
        rollout = settled(&fleet, drivers).await?;
    }
    progress("replicas: one is away");
    attacher::stop(replicas.remove(0)).await?;
    let away = settled(&fleet, drivers).await?;
    replicas.push(start(&fleet, 2 * count).await?);
    let back = settled(&fleet, drivers).await?;
    let size = format!("{count} replicas, {drivers} drivers");
    let row = |what: &str, shares: &Shares, replicas: usize| {
        let largest = shares.values().max().copied().unwrap_or_default();
        let what = format!("{size}: largest share {what}");
        Row::new(Topic::Leases, what, largest as f64, "")
            .against("an even share", drivers as f64 / replicas as f64)
            .note(text(shares, replicas))
    };
    let expected = count * WATCHES + (count - 1) * drivers;
    let watches = format!("{size}: watches, 4 of each replica and one for each Lease waited for");
    Ok(vec![
        Row::new(Topic::Requests, watches, open.watches() as f64, "")
            .at_most(expected as f64)
            .note(format!("{:?}", open.watches)),
        row("after a full rollout", &rollout, count),
        row("while one replica is away", &away, count.saturating_sub(1).max(1)),
        row("after it came back", &back, count),
    ])
}

/// The operator as a pod of this name.
fn named(number: usize) -> crate::support::OperatorOptions {
    options().variable("POD_NAME", format!("replica-{number}"))
}

async fn start(fleet: &Fleet<()>, number: usize) -> Result<Operator> {
    let operator = Operator::start_with(&fleet.kubeconfig, named(number))?;
    operator.wait_ready().await?;
    Ok(operator)
}

/// Waits until each driver has a leader, and who waits has taken what it was going to take.
async fn settled(fleet: &Fleet<()>, drivers: usize) -> Result<Shares> {
    let api: Api<Lease> = Api::namespaced(fleet.bench.client.clone(), IDENTITY);
    let started = Instant::now();
    loop {
        tokio::time::sleep(SETTLED).await;
        let mut shares = Shares::new();
        for lease in api.list(&ListParams::default()).await? {
            let of_driver = lease.metadata.name.is_some_and(|name| name.starts_with(LEASES));
            let holder = lease.spec.and_then(|spec| spec.holder_identity);
            if let Some(holder) = holder.filter(|holder| of_driver && !holder.is_empty()) {
                *shares.entry(holder).or_default() += 1;
            }
        }
        if shares.values().sum::<usize>() == drivers {
            return Ok(shares);
        }
        if started.elapsed() > PHASE_LIMIT {
            return Err(Error::Other(format!("only {shares:?} of {drivers} Leases are held")));
        }
    }
}

/// The shares, the largest first, with a nought for each replica that has none.
fn text(shares: &Shares, replicas: usize) -> String {
    let mut all: Vec<usize> = shares.values().copied().collect();
    all.resize(replicas.max(all.len()), 0);
    all.sort_unstable();
    all.iter().rev().map(usize::to_string).collect::<Vec<_>>().join(" + ")
}
