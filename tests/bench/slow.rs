//! A driver that takes long for each attach: with the default limit of calls, and without a limit.
//!
//! Environment: `VOLUMES` (1000), `DELAY` in seconds of a call (5), `OPERATOR_BINARY`.

use std::time::Duration;

use csi_mock_driver::Method;
use serde_json::json;

use crate::attacher::{Attacher, Kind, Others};
use crate::fleet::{Fleet, Plan};
use crate::requests::IN_FLIGHT;
use crate::stats::mib;
use crate::support::Result;
use crate::table::{Row, Topic};
use crate::{ceiling, process, progress, setting};

/// How often the calls under way are counted.
const BETWEEN_SAMPLES: Duration = Duration::from_millis(20);

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let volumes = setting("VOLUMES", 1000)?;
    let delay = Duration::from_secs(setting("DELAY", 5)? as u64);
    let fleet = Fleet::start(Plan::new("slow", 1, volumes)).await?;
    fleet.mocks[0].settings(|settings| {
        settings.delays.insert(Method::ControllerPublishVolume, delay);
    });
    progress("slow: ceiling");
    let ceiling = ceiling::burst(&fleet.bench, "slow-ceiling", volumes)
        .await?
        .as_secs_f64();
    let pid = fleet.operator.pid()?;
    progress("slow: default limits");
    let (limited, memory) = burst(&fleet, pid, "limited", volumes).await?;
    progress("slow: limits off");
    fleet
        .configure(0, &json!({"concurrency": {"attach": 0, "detach": 0}}))
        .await?;
    let (unlimited, unlimited_memory) = burst(&fleet, pid, "unlimited", volumes).await?;
    let others = others(fleet, volumes).await?;
    let (seconds, waves) = (delay.as_secs_f64(), volumes.div_ceil(IN_FLIGHT) as f64);
    let what = format!("slow driver ({seconds} s a call), {volumes} volumes");
    let row = |name: &str, took: Duration| Row::new(Topic::Rate, format!("{what}: {name}"), took.as_secs_f64(), "s");
    let flat = |name: &str, [peak, under_way]: [f64; 2]| {
        Row::new(Topic::Memory, format!("{what}: RSS peak, {name}"), peak, "MiB")
            .against("RSS as soon as most calls are under way", under_way)
            .ratio_at_most(1.3)
    };
    Ok(vec![
        // At 1,000 volumes these are 60 s: ten waves of 100 calls, and a fifth more.
        row("default concurrency", limited)
            .against("calls alone", seconds * waves)
            .at_most(1.2 * seconds * waves)
            .beside(&others, |(took, _)| took.as_secs_f64()),
        row("limits off", unlimited)
            .against("one call and the ceiling", seconds + ceiling)
            .ratio_at_most(1.2),
        flat("default concurrency", memory).beside(&others, |(_, [peak, _])| *peak),
        flat("limits off", unlimited_memory),
    ])
}

/// The same by the other attachers, which have as many calls at a time as the operator by default.
async fn others(fleet: Fleet, volumes: usize) -> Result<Others<(Duration, [f64; 2])>> {
    let (fleet, mut others) = (fleet.stop().await?, Vec::new());
    for kind in Kind::others() {
        progress(&format!("slow: {kind:?}"));
        let attacher = Attacher::start(&fleet.bench, kind, &fleet.socket(0)).await?;
        others.push((
            kind,
            burst(&fleet, attacher.pid()?, &format!("{kind:?}").to_lowercase(), volumes).await?,
        ));
    }
    Ok(others)
}

/// How long a burst took, and the peak of the memory meanwhile with what it was as soon as most calls were under way: waiting costs
/// nothing more. What is left afterwards is no measure of that, as it depends on what the allocator keeps.
async fn burst<O>(fleet: &Fleet<O>, pid: u32, group: &str, volumes: usize) -> Result<(Duration, [f64; 2])> {
    // One that has just started is not at work yet.
    let proof = format!("proof{group}");
    fleet.attach(0, &proof, 1).await?;
    process::forget_peak(pid)?;
    let attach = fleet.attach(0, group, volumes);
    tokio::pin!(attach);
    let (mut most, mut under_way) = (0, process::memory(pid)?.now);
    let took = loop {
        tokio::select! {
            took = &mut attach => break took?,
            () = tokio::time::sleep(BETWEEN_SAMPLES) => {
                let calls = fleet.mocks[0].in_flight_of(Method::ControllerPublishVolume).now;
                if calls > most {
                    (most, under_way) = (calls, process::memory(pid)?.now);
                }
            }
        }
    };
    let peak = process::memory(pid)?.peak;
    fleet.remove(&proof, 1).await?;
    fleet.remove_all(group, volumes).await?;
    Ok((took, [mib(peak), mib(under_way)]))
}
