//! What the comparison with ListVolumes costs when a driver lists many volumes.
//!
//! The driver lists `LISTED` (50,000) volumes, of which `VOLUMES` (5,000) are attached, in pages of 1,000 and then all in
//! one answer. Each entry carries a volume context of 200 bytes, as many drivers send. Environment also: `PASSES` (5) of
//! each kind, `OPERATOR_BINARY`.

use std::time::{Duration, Instant};

use serde_json::json;

use csi_mock_driver::{Method, MockHandle};

use crate::attacher::PHASE_LIMIT;
use crate::fleet::{Fleet, Plan};
use crate::process::{self, Memory};
use crate::stats::{mib, sum_of};
use crate::support::{Error, Result};
use crate::table::{Row, Topic};
use crate::{progress, setting};

/// Bytes of volume context in each entry.
const CONTEXT: usize = 200;

/// What passes of one kind cost.
#[derive(Clone, Copy, Debug)]
struct Passes {
    cpu: Duration,
    before: u64,
    memory: Memory,
}

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let (listed, attached) = (setting("LISTED", 50_000)?, setting("VOLUMES", 5000)?);
    let passes = setting("PASSES", 5)?;
    let plan = Plan::new("listing", 1, attached)
        .mock(|mock| mock.settings(|settings| settings.list_padding_bytes = CONTEXT))
        .spec(json!({"reconcileSync": {"mode": "Disabled"}}));
    let fleet = Fleet::start(plan).await?;
    progress("reconcile-sync: attaching");
    fleet.attach(0, "listing", attached).await?;
    for number in attached..listed {
        fleet.mocks[0].create_volume(&format!("other-{number}"));
    }
    let before = moves(&fleet.mocks[0]);
    let mut rows = Vec::new();
    for (max_entries, how) in [(1000, "in pages of 1,000"), (0, "in one answer")] {
        progress(&format!("reconcile-sync: comparing {how}"));
        let kind = compare(&fleet, max_entries, passes).await?;
        let what = format!("reconcile-sync over {listed} {how}");
        rows.push(Row::new(Topic::Cpu, format!("{what}: CPU"), kind.cpu.as_secs_f64(), "s").at_most(2.0));
        let memory = Row::new(Topic::Memory, format!("{what}: RSS peak"), mib(kind.memory.peak), "MiB");
        let memory = memory.against("RSS before", mib(kind.before));
        // A driver that answers all at once sends one message, which has to be in memory as a whole.
        rows.push(if max_entries > 0 {
            memory.ratio_at_most(1.3)
        } else {
            memory
        });
    }
    let calls = moves(&fleet.mocks[0]) - before;
    rows.push(
        Row::new(
            Topic::Requests,
            "reconcile-sync: calls that attach or detach",
            calls as f64,
            "",
        )
        .exactly(0.0),
    );
    Ok(rows)
}

fn moves(driver: &MockHandle) -> usize {
    let of = |method| driver.calls_of(method).len();
    of(Method::ControllerPublishVolume) + of(Method::ControllerUnpublishVolume)
}

async fn compare(fleet: &Fleet, max_entries: usize, passes: usize) -> Result<Passes> {
    let (operator, passes) = (&fleet.operator, passes as u64);
    process::forget_peak(operator.pid()?)?;
    let (cpu, memory) = (fleet.cpu()?, fleet.memory()?);
    let done = finished(&operator.metrics().await?) + passes;
    let started = Instant::now();
    let on = json!({"reconcileSync": {"interval": "100ms", "maxEntries": max_entries}});
    fleet.configure(0, &on).await?;
    while finished(&operator.metrics().await?) < done {
        if started.elapsed() > PHASE_LIMIT {
            return Err(Error::Other(format!("comparisons do not end: {}", operator.log_text())));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    fleet.configure(0, &json!({})).await?;
    let metrics = operator.metrics().await?;
    let failed = |line: &&str| line.contains("passes_total") && line.contains("\"failed\"") && !line.ends_with(" 0");
    if let Some(line) = metrics.lines().find(failed) {
        return Err(Error::Other(format!("a comparison failed: {line}")));
    }
    // One pass more than was waited for may have begun; it is counted with them.
    let count = u32::try_from(finished(&metrics) + passes - done)
        .unwrap_or(u32::MAX)
        .max(1);
    Ok(Passes {
        cpu: fleet.cpu()?.saturating_sub(cpu) / count,
        before: memory.now,
        memory: fleet.memory()?,
    })
}

/// Comparisons that were made to their end.
fn finished(metrics: &str) -> u64 {
    sum_of(metrics, "csi_attacher_reconcile_sync_passes_total{")
}
