//! A driver that takes long for each attach: with the default limit of calls, and without a limit.
//!
//! Environment: `VOLUMES` (1000), `DELAY` in seconds of a call (5), `OPERATOR_BINARY`.

use std::time::Duration;

use csi_mock_driver::Method;
use serde_json::json;

use crate::fleet::{Fleet, Plan};
use crate::requests::IN_FLIGHT;
use crate::stats::mib;
use crate::support::Result;
use crate::table::{Row, Topic};
use crate::{ceiling, process, progress, setting};

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
    progress("slow: default limits");
    let (limited, memory) = burst(&fleet, "limited", volumes).await?;
    progress("slow: limits off");
    fleet
        .configure(0, &json!({"concurrency": {"attach": 0, "detach": 0}}))
        .await?;
    let (unlimited, unlimited_memory) = burst(&fleet, "unlimited", volumes).await?;
    let (seconds, waves) = (delay.as_secs_f64(), volumes.div_ceil(IN_FLIGHT) as f64);
    let what = format!("slow driver ({seconds} s a call), {volumes} volumes");
    let row = |name: &str, took: Duration| Row::new(Topic::Rate, format!("{what}: {name}"), took.as_secs_f64(), "s");
    let flat = |name: &str, [peak, after]: [f64; 2]| {
        Row::new(Topic::Memory, format!("{what}: RSS peak, {name}"), peak, "MiB")
            .against("RSS afterwards", after)
            .ratio_at_most(1.3)
    };
    Ok(vec![
        // At 1,000 volumes these are 60 s: ten waves of 100 calls, and a fifth more.
        row("default concurrency", limited)
            .against("calls alone", seconds * waves)
            .at_most(1.2 * seconds * waves),
        row("limits off", unlimited)
            .against("one call and the ceiling", seconds + ceiling)
            .ratio_at_most(1.2),
        flat("default concurrency", memory),
        flat("limits off", unlimited_memory),
    ])
}

/// How long a burst took, and the peak of the memory meanwhile with what is left of it when all is attached.
async fn burst(fleet: &Fleet, group: &str, volumes: usize) -> Result<(Duration, [f64; 2])> {
    process::forget_peak(fleet.operator.pid()?)?;
    let took = fleet.attach(0, group, volumes).await?;
    let memory = fleet.memory()?;
    fleet.remove_all(group, volumes).await?;
    Ok((took, [mib(memory.peak), mib(memory.now)]))
}
