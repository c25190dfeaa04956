//! A driver that takes long for each volume, and a class whose calls hang beside another one.

use std::time::{Duration, Instant};

use csi_mock_driver::{Method, Rule};
use serde_json::json;

use super::world::{CLASS, DRIVER, World};
use super::{FLAGS, burst_of, one, remove};
use crate::attacher::{Attacher, Kind};
use crate::recorder::Stage;
use crate::requests::IN_FLIGHT;
use crate::stats::ms;
use crate::support::Result;
use crate::table::{Row, Topic};
use crate::{progress, setting};

/// Calls of one class at a time; as many of another class hang.
const PER_CLASS: usize = 50;
const OTHER_CLASS: &str = "hangs";

/// Measures both.
pub async fn measure(world: &World) -> Result<Vec<Row>> {
    let (count, delay) = (setting("SLOW", 300)?, Duration::from_secs(setting("DELAY", 5)? as u64));
    let mut took = Vec::new();
    for kind in [Kind::Operator, Kind::Sidecar] {
        if Kind::all().contains(&kind) {
            progress(&format!("provisioning: {delay:?} a call, {kind:?}"));
            took.push(slowly(world, kind, count, delay).await?);
        }
    }
    let calls = delay.as_secs_f64() * count.div_ceil(IN_FLIGHT) as f64;
    let what = format!(
        "slow driver ({} s a call), {count} volumes provisioned",
        delay.as_secs()
    );
    let slow = Row::new(Topic::Rate, what, took[0], "s")
        .against("calls alone", calls)
        .ratio_at_most(1.2);
    let mut rows = vec![slow.sidecar(took.get(1).copied())];
    rows.push(beside_hanging(world).await?);
    Ok(rows)
}

async fn slowly(world: &World, kind: Kind, count: usize, delay: Duration) -> Result<f64> {
    let group = format!("slow{kind:?}").to_lowercase();
    let provisioner = Attacher::start_provisioner(&world.bench, kind, &world.socket, &FLAGS).await?;
    one(world, &format!("proof{group}")).await?;
    world.driver.settings(|settings| {
        settings.delays.insert(Method::CreateVolume, delay);
    });
    let started = Instant::now();
    world.ask(&group, CLASS, DRIVER, count).await?;
    world.wait(&group, Stage::Created, count).await?;
    let took = started.elapsed();
    world.driver.settings(|settings| {
        settings.delays.remove(&Method::CreateVolume);
    });
    world.quiet().await?;
    remove(world, &group, count).await?;
    provisioner.stop().await?;
    Ok(took.as_secs_f64())
}

/// The 99th percentile of claims that come at 20 a second, alone and while all calls that another class may have hang.
async fn beside_hanging(world: &World) -> Result<Row> {
    progress("provisioning: a class hangs");
    world.configure(json!({"concurrency": {"perClass": PER_CLASS}})).await?;
    world.add_class(OTHER_CLASS, DRIVER).await?;
    let provisioner = Attacher::start_provisioner(&world.bench, Kind::Operator, &world.socket, &FLAGS).await?;
    one(world, "proofhangs").await?;
    let count = setting("COUNT", 100)?;
    let pace = Some(Duration::from_millis(50));
    burst_of(world, "warmhangs", count, pace).await?;
    let alone = burst_of(world, "alone", count, pace).await?;
    let times = u32::try_from(PER_CLASS).unwrap_or(u32::MAX);
    world.driver.script(Rule::on(Method::CreateVolume).times(times).hang());
    world.ask("hang", OTHER_CLASS, DRIVER, 2 * PER_CLASS).await?;
    while world.driver.in_flight_of(Method::CreateVolume).now < PER_CLASS {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let beside = burst_of(world, "beside", count, pace).await?;
    drop(provisioner);
    let what = format!("claims of one class while {PER_CLASS} calls of another one hang: p99 until saved");
    Ok(Row::new(Topic::Latency, what, ms(beside), "ms")
        .against("nothing hangs", ms(alone))
        .ratio_at_most(1.5))
}
