//! `make listing`: what the comparison with ListVolumes costs when a driver lists many volumes.
//!
//! The driver lists `LISTED` (50,000) volumes, of which `VOLUMES` (5,000) are attached, in pages of 1,000 and then all in
//! one answer. Each entry carries a volume context of 200 bytes, as many drivers send. Environment also: `PASSES` (5) of
//! each kind, `OPERATOR_BINARY`.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use csi_mock_driver::{Method, MockDriver, MockHandle};

use crate::cluster::{Bench, DRIVER};
use crate::process::{self, Memory};
use crate::recorder::Stage;
use crate::support::operator::{IDENTITY, apply_config, wait_condition};
use crate::support::{Error, Operator, Result};
use crate::{progress, requests, setting};

/// How long one phase may take.
const LIMIT: Duration = Duration::from_mins(15);
const CONFIG: &str = "listing";
/// Bytes of volume context in each entry.
const CONTEXT: usize = 200;

/// What passes of one kind cost.
#[derive(Clone, Copy, Debug)]
struct Passes {
    max_entries: usize,
    pages: usize,
    cpu: Duration,
    took: Duration,
    before: u64,
    memory: Memory,
}

/// All figures.
pub struct Report {
    listed: usize,
    attached: usize,
    passes: usize,
    kinds: Vec<Passes>,
    moves: usize,
}

/// Measures.
pub async fn measure() -> Result<Report> {
    let (listed, attached, passes) = (
        setting("LISTED", 50_000)?,
        setting("VOLUMES", 5000)?,
        setting("PASSES", 5)?,
    );
    progress("starting etcd and kube-apiserver");
    let bench = Bench::start(attached).await?;
    let sockets = tempfile::tempdir().map_err(|error| Error::Other(error.to_string()))?;
    let socket = sockets.path().join("csi.sock");
    let driver = MockDriver::builder(DRIVER)
        .accept_any_volume()
        .settings(|settings| settings.list_padding_bytes = CONTEXT);
    let driver = driver.start(&socket).await;
    let driver = driver.map_err(|error| Error::Other(error.to_string()))?;
    let spec = json!({"endpoint": format!("unix://{}", socket.display()), "reconcileSync": {"mode": "Disabled"}});
    apply_config(&bench.client, CONFIG, spec.clone()).await?;
    let kubeconfig = bench.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let operator = Operator::start_with(&kubeconfig, crate::operator_run::options())?;
    wait_condition(&bench.client, CONFIG, "Ready", "True", Some("Running")).await?;
    progress("attaching");
    bench.create_volumes("listing", DRIVER, attached).await?;
    requests::send_all(&bench.client, Bench::attachments("listing", DRIVER, attached)).await?;
    bench.recorder.wait("listing", Stage::Attached, attached, LIMIT).await?;
    for number in attached..listed {
        driver.create_volume(&format!("other-{number}"));
    }
    let moves_before = moves(&driver);
    let mut kinds = Vec::new();
    for max_entries in [1000, 0] {
        progress(&format!("comparing, {max_entries} entries in a page"));
        kinds.push(compare(&bench, &operator, &driver, &spec, max_entries, passes).await?);
    }
    Ok(Report {
        listed,
        attached,
        passes,
        kinds,
        moves: moves(&driver) - moves_before,
    })
}

fn moves(driver: &MockHandle) -> usize {
    let of = |method| driver.calls_of(method).len();
    of(Method::ControllerPublishVolume) + of(Method::ControllerUnpublishVolume)
}

async fn compare(
    bench: &Bench,
    operator: &Operator,
    driver: &MockHandle,
    spec: &Value,
    max_entries: usize,
    passes: usize,
) -> Result<Passes> {
    let pid = operator.pid()?;
    process::forget_peak(pid)?;
    let (cpu, memory, pages) = (
        process::cpu(pid)?,
        process::memory(pid)?,
        driver.calls_of(Method::ListVolumes).len(),
    );
    let done = finished(&operator.metrics().await?) + passes as u64;
    let started = Instant::now();
    let mut spec = spec.clone();
    spec["reconcileSync"] = json!({"interval": "100ms", "maxEntries": max_entries});
    apply_config(&bench.client, CONFIG, spec.clone()).await?;
    while finished(&operator.metrics().await?) < done {
        if started.elapsed() > LIMIT {
            return Err(Error::Other(format!("comparisons do not end: {}", operator.log_text())));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let took = started.elapsed();
    spec["reconcileSync"] = json!({"mode": "Disabled"});
    apply_config(&bench.client, CONFIG, spec).await?;
    let metrics = operator.metrics().await?;
    if let Some(line) = metrics
        .lines()
        .find(|line| line.contains("passes_total") && line.contains("\"failed\"") && !line.ends_with(" 0"))
    {
        return Err(Error::Other(format!("a comparison failed: {line}")));
    }
    // One pass more than was waited for may have begun; it is counted with them.
    let count = u32::try_from(finished(&metrics) + passes as u64 - done)
        .unwrap_or(u32::MAX)
        .max(1);
    Ok(Passes {
        max_entries,
        pages: driver.calls_of(Method::ListVolumes).len() - pages,
        cpu: (process::cpu(pid)?.saturating_sub(cpu)) / count,
        took: took / count,
        before: memory.now,
        memory: process::memory(pid)?,
    })
}

/// Comparisons that were made to their end.
fn finished(metrics: &str) -> u64 {
    crate::isolation::sum_of(metrics, "csi_attacher_reconcile_sync_passes_total{")
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{} volumes listed, {CONTEXT} bytes of context each, {} attached, {} comparisons of each kind",
            self.listed, self.attached, self.passes
        )?;
        let mebibytes = |kibibytes: u64| format!("{:.1} MiB", kibibytes as f64 / 1024.0);
        for kind in &self.kinds {
            let what = match kind.max_entries {
                0 => "all in one answer".to_owned(),
                entries => format!("pages of {entries}"),
            };
            writeln!(
                formatter,
                "{what:<20} CPU of a comparison {:.3} s (< 3 s), {:.2} s each, {} pages; RSS before {}, after {}, peak {} (+{})",
                kind.cpu.as_secs_f64(),
                kind.took.as_secs_f64(),
                kind.pages,
                mebibytes(kind.before),
                mebibytes(kind.memory.now),
                mebibytes(kind.memory.peak),
                mebibytes(kind.memory.peak.saturating_sub(kind.before)),
            )?;
        }
        writeln!(formatter, "calls that attach or detach meanwhile: {} (0)", self.moves)
    }
}

/// How long all may take.
pub fn limit() -> Duration {
    LIMIT * 4
}
