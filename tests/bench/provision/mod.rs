//! One driver without delay, provisioned for by the operator and by external-provisioner in turn, and the API server's own ceiling for the
//! same writes before and after the operator: rates, latency of a small burst, writes and CPU time.
//!
//! Rates are those between the first and the last PersistentVolume that a watch sees saved, or gone. All objects are there before the
//! provisioner starts.
//!
//! Environment: `VOLUMES` (1000), `ROUNDS` (3), `DEFAULTS` of claims for external-provisioner with its own limits (60), `SLOW` of volumes whose calls
//! take `DELAY` (300, 5 s), `COUNT` of claims beside a class that hangs (100), `SIDECAR=0`,
//! `OPERATOR_BINARY`.

mod ceiling;
pub mod many;
mod slow;
mod world;

use std::time::{Duration, Instant};

use serde_json::json;

use csi_mock_driver::Method;

use crate::attacher::{Attacher, Kind};
use crate::cluster::SMALL_BURST;
use crate::recorder::Stage;
use crate::stats::{median, ms, percentile};
use crate::support::Result;
use crate::table::{Row, Topic};
use crate::{progress, setting};
use ceiling::Ceiling;
use world::{CLASS, DRIVER, Requests, World};

/// As many calls at a time as the operator has by default, and no limit of requests that it would notice.
const FLAGS: [&str; 5] = [
    "--worker-threads=100",
    "--kube-api-qps=1000",
    "--kube-api-burst=1000",
    "--timeout=60s",
    "--v=1",
];
/// The limits that external-provisioner has when nothing is said.
const DEFAULT_FLAGS: [&str; 5] = [
    "--kube-api-qps=5",
    "--kube-api-burst=10",
    "--retry-interval-start=1s",
    "--retry-interval-max=5m",
    "--v=1",
];

/// What one provisioner came to in one round.
#[derive(Clone, Debug)]
struct Turn {
    made: f64,
    deleted: f64,
    /// Of the small burst: from the answer to the creation of the claim to the PersistentVolume.
    p99: Duration,
    /// CPU time of all claims made and deleted, with two starts.
    cpu: Duration,
    /// Writes for each claim and for each deletion, and calls of DeleteVolume.
    writes: [f64; 2],
    delete_calls: f64,
    requests: String,
}

/// What was measured beside a turn of the operator.
struct Around(Ceiling, Ceiling);

impl Around {
    fn of(&self, value: impl Fn(&Ceiling) -> f64) -> f64 {
        f64::midpoint(value(&self.0), value(&self.1))
    }
}

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let (count, rounds) = (setting("VOLUMES", 1000)?, setting("ROUNDS", 3)?);
    let world = World::start(json!({})).await?;
    progress("provisioning: warming up");
    ceiling::measure(&world, "warm", count.min(200)).await?;
    let (mut own, mut peer, mut around) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        progress(&format!("provisioning: round {} of {rounds}", round + 1));
        let before = ceiling::measure(&world, &format!("before{round}"), count).await?;
        own.push(turn(&world, Kind::Operator, &format!("operator{round}"), count).await?);
        let after = ceiling::measure(&world, &format!("after{round}"), count).await?;
        around.push(Around(before, after));
        if Kind::all().contains(&Kind::Sidecar) {
            peer.push(turn(&world, Kind::Sidecar, &format!("sidecar{round}"), count).await?);
        }
        progress(&format!("{:?}\n{before:?} {after:?}\n{:?}", own.last(), peer.last()));
    }
    let mut rows = rows(count, &own, &peer, &around);
    if !peer.is_empty() {
        let limited = setting("DEFAULTS", 60)?;
        progress("provisioning: external-provisioner with its own limits");
        rows.push(defaults(&world, &own, limited).await?);
    }
    rows.extend(slow::measure(&world).await?);
    Ok(rows)
}

async fn turn(world: &World, kind: Kind, group: &str, count: usize) -> Result<Turn> {
    let small = format!("small{group}");
    let p99 = {
        let provisioner = Attacher::start_provisioner(&world.bench, kind, &world.socket, &FLAGS).await?;
        // The first proves that it is at work.
        one(world, &format!("proof{group}")).await?;
        let p99 = burst(world, &small).await?;
        provisioner.stop().await?;
        p99
    };
    world.ask(group, CLASS, DRIVER, count).await?;
    let before = world.quiet().await?;
    let provisioner = Attacher::start_provisioner(&world.bench, kind, &world.socket, &FLAGS).await?;
    world.wait(group, Stage::Created, count).await?;
    let made = world.quiet().await?.since(&before).without_bindings(count);
    let cpu = provisioner.cpu()?;
    provisioner.stop().await?;

    world.release(group, count).await?;
    let (before, calls) = (world.quiet().await?, delete_calls(world));
    let provisioner = Attacher::start_provisioner(&world.bench, kind, &world.socket, &FLAGS).await?;
    world.wait(group, Stage::Gone, count).await?;
    let deleted = world.quiet().await?.since(&before);
    let cpu = cpu + provisioner.cpu()?;
    provisioner.stop().await?;
    let each = |requests: &Requests| requests.writes() as f64 / count as f64;
    Ok(Turn {
        made: world.volumes.rate(group, Stage::Created),
        deleted: world.volumes.rate(group, Stage::Gone),
        p99,
        cpu,
        writes: [each(&made), each(&deleted)],
        delete_calls: (delete_calls(world) - calls) as f64 / count as f64,
        requests: format!("{}; {}", made.text(), deleted.text()),
    })
}

fn delete_calls(world: &World) -> usize {
    world.driver.calls_of(Method::DeleteVolume).len()
}

async fn one(world: &World, group: &str) -> Result<()> {
    world.ask(group, CLASS, DRIVER, 1).await?;
    world.wait(group, Stage::Created, 1).await?;
    world.quiet().await?;
    remove(world, group, 1).await
}

async fn remove(world: &World, group: &str, count: usize) -> Result<()> {
    world.release(group, count).await?;
    world.wait(group, Stage::Gone, count).await
}

async fn burst(world: &World, group: &str) -> Result<Duration> {
    burst_of(world, group, SMALL_BURST, None).await
}

/// The 99th percentile of claims that come at once, or at this pace.
async fn burst_of(world: &World, group: &str, count: usize, pace: Option<Duration>) -> Result<Duration> {
    let made = match pace {
        None => world.ask(group, CLASS, DRIVER, count).await?,
        Some(pace) => world.ask_at_pace(group, CLASS, DRIVER, count, pace).await?,
    };
    world.wait(group, Stage::Created, count).await?;
    let saved = world.volumes.reached(group, Stage::Created);
    let took = |(claim, made): (&String, &Instant)| Some(saved.get(claim)?.saturating_duration_since(*made));
    let p99 = percentile(&made.iter().filter_map(took).collect::<Vec<_>>(), 99);
    world.quiet().await?;
    remove(world, group, count).await?;
    Ok(p99)
}

/// The rate of external-provisioner with the limits that it has when nothing is said: so has the operator in all its turns.
async fn defaults(world: &World, own: &[Turn], count: usize) -> Result<Row> {
    let group = "limited";
    world.ask(group, CLASS, DRIVER, count).await?;
    let peer = Attacher::start_provisioner(&world.bench, Kind::Sidecar, &world.socket, &DEFAULT_FLAGS).await?;
    world.wait(group, Stage::Created, count).await?;
    let rate = world.volumes.rate(group, Stage::Created);
    // So that none is deleted before it is bound.
    world.quiet().await?;
    remove(world, group, count).await?;
    drop(peer);
    Ok(Row::new(
        Topic::Rate,
        "volumes provisioned, default settings of both",
        median_of(own, |turn| turn.made),
        "/s",
    )
    .against("external-provisioner", rate)
    .ratio_at_least(20.0)
    .note(format!("{count} claims")))
}

fn median_of(turns: &[Turn], value: impl Fn(&Turn) -> f64) -> f64 {
    median(turns.iter().map(value))
}

fn rows(count: usize, own: &[Turn], peer: &[Turn], around: &[Around]) -> Vec<Row> {
    let row = |topic, what: &str, unit: &str, value: fn(&Turn) -> f64| {
        let sidecar = (!peer.is_empty()).then(|| median_of(peer, value));
        Row::new(topic, what, median_of(own, value), unit).sidecar(sidecar)
    };
    let rate = |what: &str, value: fn(&Turn) -> f64, ceiling: fn(&Ceiling) -> f64, least: f64| {
        let ratios: Vec<f64> = own
            .iter()
            .zip(around)
            .map(|(turn, of)| value(turn) / of.of(ceiling))
            .collect();
        row(Topic::Rate, what, "/s", value)
            .against("API server's ceiling", median(around.iter().map(|of| of.of(ceiling))))
            .with_ratio(median(ratios.clone()))
            .ratio_at_least(least)
            .note(format!("ratios {}", list(&ratios)))
    };
    let beside = |what: &str, value: fn(&Turn) -> f64, unit: &str, topic| {
        let ratios: Vec<f64> = own
            .iter()
            .zip(peer)
            .map(|(own, peer)| value(own) / value(peer))
            .collect();
        row(topic, what, unit, value)
            .against("external-provisioner", median_of(peer, value))
            .with_ratio(median(ratios.clone()))
            .note(format!("ratios {}", list(&ratios)))
    };
    let made = format!("volumes provisioned, {count} claims there");
    let deleted = format!("volumes deleted, {count} released there");
    let cpu = format!("CPU for {count} volumes provisioned and deleted, with two starts");
    let mut rows = vec![
        rate(&made, |turn| turn.made, |of| of.made, 0.90).headline(),
        rate(&deleted, |turn| turn.deleted, |of| of.deleted, 0.90).headline(),
        row(Topic::Latency, "burst of 200 claims: p99 until saved", "s", |turn| {
            turn.p99.as_secs_f64()
        })
        .at_most(2.0),
        row(Topic::Requests, "API writes for a volume provisioned", "", |turn| {
            turn.writes[0]
        })
        .exactly(3.0)
        .note(own.last().map(|turn| turn.requests.clone()).unwrap_or_default()),
        row(Topic::Requests, "API writes for a volume deleted", "", |turn| {
            turn.writes[1]
        })
        .exactly(2.0)
        .note(peer.last().map(|turn| turn.requests.clone()).unwrap_or_default()),
        row(Topic::Requests, "calls of DeleteVolume for a volume", "", |turn| {
            turn.delete_calls
        })
        .exactly(1.0),
    ];
    if !peer.is_empty() {
        rows.push(beside(&made, |turn| turn.made, "/s", Topic::Rate).ratio_at_least(0.85));
        rows.push(beside(&deleted, |turn| turn.deleted, "/s", Topic::Rate).ratio_at_least(1.3));
        rows.push(beside(&cpu, |turn| ms(turn.cpu) / 1000.0, "s", Topic::Cpu).ratio_at_most(0.4));
    }
    rows
}

fn list(ratios: &[f64]) -> String {
    let texts: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    texts.join(", ")
}
