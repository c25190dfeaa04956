//! A node is drained: many pods with a volume each leave it at once, and others attach meanwhile, with the same driver.
//!
//! Rounds without a drain and with one take turns. The volumes are attached to another node when they are detached, as
//! their pods are scheduled again there.
//!
//! Environment: `PODS` (500), `ROUNDS` (3), `COUNT` of other attaches in each load (100), `RATE` of them a second (10),
//! `OPERATOR_BINARY`.

use std::time::{Duration, Instant};

use crate::attacher::{Attacher, Kind, Others};
use crate::cluster;
use crate::fleet::{Fleet, Plan};
use crate::load::{self, Load, Sides};
use crate::recorder::Stage;
use crate::requests::{Prepared, send_all};
use crate::stats::median;
use crate::support::Result;
use crate::table::{Row, Topic};
use crate::{progress, setting};

const VOLUMES: &str = "drained-volume";
/// The node that is drained first; the next round drains the other one.
const NODES: &str = "drained-node";
/// What the load does before the drain begins.
const LEAD: Duration = Duration::from_secs(1);

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let (pods, rounds) = (setting("PODS", 500)?, setting("ROUNDS", 3)?);
    let fleet = Fleet::start(Plan::new("drain", 1, load::count()?)).await?;
    let (bench, driver) = (&fleet.bench, fleet.driver(0));
    bench.create_nodes(NODES, 2, &[&driver]).await?;
    bench.create_volumes(VOLUMES, &driver, pods).await?;
    let load = Load::new(bench, driver.clone()).await?;
    let (sides, took) = rounds_of(&fleet, &load, "operator", pods, rounds).await?;
    let (fleet, mut others) = (fleet.stop().await?, Others::new());
    for kind in Kind::others() {
        let _attacher = Attacher::start(&fleet.bench, kind, &fleet.socket(0)).await?;
        let group = format!("{kind:?}").to_lowercase();
        others.push((kind, rounds_of(&fleet, &load, &group, pods, rounds).await?));
    }
    let what = format!("node drain, {pods} pods");
    let mut rows = sides.rows(&format!("{what}: others"), "no drain", 1.5);
    rows[0] = rows[0].clone().beside(&others, |(sides, _)| sides.p99_in_motion());
    let moved = format!("{what}: until all are attached to another node");
    rows.push(Row::new(Topic::Rate, moved, took, "s").beside(&others, |(_, took)| *took));
    Ok(rows)
}

/// The times of all rounds of one attacher, and the median of how long the drains took in s.
async fn rounds_of<O>(fleet: &Fleet<O>, load: &Load, who: &str, pods: usize, rounds: usize) -> Result<(Sides, f64)> {
    let (bench, driver) = (&fleet.bench, fleet.driver(0));
    progress(&format!("drain: {who}: filling the node, warming up"));
    let fill = (0..pods).map(|pod| attachment(&driver, who, 0, pod));
    send_all(&bench.client, fill.collect()).await?;
    fleet.wait(&group(who, 0), Stage::Attached, pods).await?;
    load.run(bench, &format!("warm{who}")).await?;
    let (mut sides, mut took) = (Sides::default(), Vec::new());
    for round in 0..rounds {
        progress(&format!(
            "drain: {who}: round {} of {rounds}, nothing drained",
            round + 1
        ));
        let rest = format!("rest{who}{round}");
        load.run(bench, &rest).await?;
        sides.add(bench, &rest, false);
        progress(&format!(
            "drain: {who}: round {} of {rounds}, {pods} pods leave a node",
            round + 1
        ));
        let motion = format!("drain{who}{round}");
        let (loaded, drained) = tokio::join!(load.run(bench, &motion), drain(fleet, who, round, pods));
        loaded?;
        took.push(drained?.as_secs_f64());
        sides.add(bench, &motion, true);
    }
    let last = group(who, rounds);
    bench.delete_attachments(&last, pods).await?;
    fleet.wait(&last, Stage::Gone, pods).await?;
    Ok((sides, median(took)))
}

fn group(who: &str, round: usize) -> String {
    format!("drained{who}{round}")
}

fn attachment(driver: &str, who: &str, round: usize, pod: usize) -> Prepared {
    let (name, volume) = (cluster::name(&group(who, round), pod), cluster::name(VOLUMES, pod));
    Prepared::create_attachment(&name, driver, &volume, &cluster::name(NODES, round % 2))
}

/// Detaches all volumes of a round, and attaches them to the other node when they are gone from the first.
async fn drain<O>(fleet: &Fleet<O>, who: &str, round: usize, pods: usize) -> Result<Duration> {
    tokio::time::sleep(LEAD).await;
    let started = Instant::now();
    let (driver, from, to) = (fleet.driver(0), group(who, round), group(who, round + 1));
    fleet.bench.delete_attachments(&from, pods).await?;
    fleet.wait(&from, Stage::Gone, pods).await?;
    let create = (0..pods).map(|pod| attachment(&driver, who, round + 1, pod));
    send_all(&fleet.bench.client, create.collect()).await?;
    fleet.wait(&to, Stage::Attached, pods).await?;
    Ok(started.elapsed())
}
