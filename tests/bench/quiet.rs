//! What the operator costs while nothing happens: with many volumes attached, and beside many AttacherConfigs whose drivers
//! are not there.
//!
//! Environment: `VOLUMES` (5000 and then 50000), `SECONDS` of watching (120), `ABSENT` (300), `OPERATOR_BINARY`.

use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

use crate::cluster::SMALL_BURST;
use crate::fleet::{Fleet, Plan};
use crate::process::Memory;
use crate::stats::{median, mib};
use crate::support::Result;
use crate::table::{Row, Topic};
use crate::usage::Usage;
use crate::{progress, setting};

const DRIVERS: usize = 10;
/// What a start or a burst leaves to do is done by then: status writes, the first listing, the first look for findings.
const REST: Duration = Duration::from_secs(70);
/// Each CSIDriver is read once in this time.
const READ_EVERY: u64 = 600;

/// What was seen of an operator at rest.
struct Rest {
    /// Of a core.
    percent: f64,
    memory: Memory,
    seconds: u64,
    usage: Usage,
}

/// Measures a quiet cluster.
pub async fn quiet() -> Result<Vec<Row>> {
    let sizes = match std::env::var_os("VOLUMES") {
        Some(_) => vec![setting("VOLUMES", 5_000)?],
        None => vec![5_000, 50_000],
    };
    let mut rows = Vec::new();
    let mut memory = Vec::new();
    for volumes in sizes {
        let each = volumes.div_ceil(DRIVERS);
        let fleet = Fleet::start(Plan::new("quiet", DRIVERS, each)).await?;
        progress(&format!("quiet: attaching {volumes}"));
        for number in 0..DRIVERS {
            fleet.attach(number, &fleet.config(number), each).await?;
        }
        let rest = at_rest(&fleet).await?;
        let what = format!("quiet cluster, {DRIVERS} drivers, {} attached", each * DRIVERS);
        let cpu = Row::new(Topic::Cpu, format!("{what}: CPU"), rest.percent, "% of a core");
        rows.push(
            cpu.at_most(if volumes <= 5_000 { 0.1 } else { 0.15 })
                .note(format!("{} s", rest.seconds)),
        );
        rows.push(Row::new(
            Topic::Memory,
            format!("{what}: RSS"),
            mib(rest.memory.now),
            "MiB",
        ));
        rows.extend(traffic(&what, &rest));
        memory.push((each * DRIVERS, mib(rest.memory.now)));
    }
    if let [(few, small), (many, large)] = memory[..] {
        let each = (large - small) / (many - few) as f64 * 1000.0;
        let what = format!("memory of 1,000 attachments more, from {few} to {many}");
        rows.push(Row::new(Topic::Memory, what, each, "MiB"));
    }
    Ok(rows)
}

/// Renewals of Leases and watches that begin again are allowed, with the list that such a watch begins with, and one read of
/// each CSIDriver in ten minutes.
fn traffic(what: &str, rest: &Rest) -> [Row; 2] {
    let reads = |verb: &str, resource: &str| resource == "csidrivers" && matches!(verb, "GET" | "LIST");
    let ended = |resource: &str| rest.usage.sum(|verb, other| verb == "WATCH" && other == resource) > 0;
    let others = |verb: &str, resource: &str| {
        let watching = verb == "WATCH" || verb == "LIST" && ended(resource);
        !(resource == "leases" || watching || reads(verb, resource))
    };
    let of_drivers = rest.usage.sum(reads);
    let allowed = DRIVERS as u64 * rest.seconds.div_ceil(READ_EVERY);
    let row = |name: &str, value: u64| Row::new(Topic::Requests, format!("{what}: {name}"), value as f64, "");
    [
        row(
            "requests that are no renewal, watch or read of a CSIDriver",
            rest.usage.sum(others),
        )
        .exactly(0.0)
        .note(rest.usage.to_string()),
        row("reads of CSIDrivers", of_drivers).at_most(allowed as f64),
    ]
}

/// Watches an operator that has nothing to do.
async fn at_rest(fleet: &Fleet) -> Result<Rest> {
    let seconds = u64::try_from(setting("SECONDS", 120)?).unwrap_or(u64::MAX);
    progress("coming to rest");
    tokio::time::sleep(REST).await;
    progress(&format!("watching for {seconds} s"));
    let (before, cpu) = (Usage::read(&fleet.bench.client).await?, fleet.cpu()?);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let used = fleet.cpu()?.saturating_sub(cpu);
    let after = Usage::read(&fleet.bench.client).await?;
    Ok(Rest {
        percent: used.as_secs_f64() / seconds as f64 * 100.0,
        memory: fleet.memory()?,
        seconds,
        usage: after.since(&before, &after),
    })
}

/// Measures a driver that is there beside many AttacherConfigs whose drivers are not.
pub async fn absent() -> Result<Vec<Row>> {
    let absent = setting("ABSENT", 300)?;
    let fleet = Fleet::start(Plan::new("absent", 1, SMALL_BURST)).await?;
    burst(&fleet, "warm").await?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..2 {
        alone.push(burst(&fleet, &format!("before{round}")).await?);
    }
    for number in 1..=absent {
        fleet.configure(number, &json!({})).await?;
    }
    let rest = at_rest(&fleet).await?;
    for round in 0..3 {
        beside.push(burst(&fleet, &format!("beside{round}")).await?);
    }
    for number in 1..=absent {
        let api: Api<AttacherConfig> = Api::all(fleet.bench.client.clone());
        let deleted = api.delete(&fleet.config(number), &DeleteParams::default()).await;
        deleted?;
    }
    for round in 0..2 {
        alone.push(burst(&fleet, &format!("after{round}")).await?);
    }
    let what = format!("{absent} AttacherConfigs whose drivers are not there");
    Ok(vec![
        Row::new(Topic::Cpu, format!("{what}: CPU"), rest.percent, "% of a core").at_most(1.0),
        Row::new(Topic::Memory, format!("{what}: RSS"), mib(rest.memory.now), "MiB").at_most(32.0),
        Row::new(
            Topic::Latency,
            format!("{what}: burst of {SMALL_BURST} of a driver that is there"),
            median(beside),
            "s",
        )
        .against("without them", median(alone))
        .ratio_at_most(1.1),
    ])
}

/// From the first creation of an attachment to the last attach of a burst.
async fn burst(fleet: &Fleet, group: &str) -> Result<f64> {
    progress(&format!("absent: burst {group}"));
    let took = fleet.attach(0, group, SMALL_BURST).await?.as_secs_f64();
    // So that each burst finds a cluster of the same size.
    fleet.remove_all(group, SMALL_BURST).await?;
    Ok(took)
}
