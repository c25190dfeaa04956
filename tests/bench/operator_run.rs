//! The operator at work: its release build as a process of its own, under the identity and rights that the product ships,
//! with the default settings of an AttacherConfig.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use csi_mock_driver::{Method, MockDriver, MockHandle};

use super::cluster::{Bench, Counts, DRIVER};
use super::process::{self, Memory};
use super::progress;
use super::recorder::Stage;
use super::requests::{self, Prepared};
use super::support::operator::{IDENTITY, apply_config, wait_condition};
use super::support::{Error, Operator, OperatorOptions, Result};

/// How long one phase may take; a phase that fails must end the benchmark before the benchmark's own limit does.
pub const PHASE_LIMIT: Duration = Duration::from_mins(10);
/// Size of the small burst.
pub const SMALL_BURST: usize = 200;

const CONFIG: &str = "bench";

/// Everything that was measured with an operator.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Latencies of a burst of [`SMALL_BURST`].
    pub small_burst: Latency,
    /// Latencies of a burst of all volumes.
    pub burst: Latency,
    /// Attaches a second in that burst, while the objects are still made by others.
    pub burst_rate: f64,
    /// Attaches a second when all objects are there and the driver starts.
    pub attach_rate: f64,
    /// Detaches a second when all objects are being deleted and the driver starts.
    pub detach_rate: f64,
    /// Writes of the operator.
    pub writes: Writes,
    /// CPU time for each volume to be attached, detached and released.
    pub cycle_cpu: Duration,
    /// Memory with one driver and nothing to do.
    pub idle: Memory,
    /// Memory with all volumes attached, and the peak until then.
    pub attached: Memory,
    /// Start with all volumes attached.
    pub start: Start,
}

/// From the creation of a VolumeAttachment to the sight of `attached: true`.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

/// Writes for each volume, as the API server counted them.
#[derive(Clone, Copy, Debug)]
pub struct Writes {
    /// For an attach.
    pub attach: f64,
    /// For a detach.
    pub detach: f64,
    /// For the release of a PersistentVolume.
    pub release: f64,
    /// All that were refused.
    pub refused: i64,
    /// Status writes of the AttacherConfig meanwhile.
    pub status: i64,
    /// Reads of single objects by the operator meanwhile, as it counted them itself.
    pub reads: u64,
    /// Patches by the operator's own count, which must be the same as the API server's.
    pub own_count: u64,
    /// Patches by the API server's count.
    pub api_count: i64,
}

/// What a start with all volumes attached takes.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// From the start of the process to `/readyz`.
    pub ready: Duration,
    /// From the start of the process to a new volume attached.
    pub first_attach: Duration,
    /// CPU time until then.
    pub cpu: Duration,
    /// ControllerPublishVolume and ControllerUnpublishVolume calls for the attached volumes.
    pub calls: usize,
    /// Writes for the attached volumes.
    pub writes: i64,
    /// Memory after that, and the peak until then.
    pub memory: Memory,
}

/// An operator with its driver.
struct Run {
    operator: Operator,
    kubeconfig: PathBuf,
    spec: Value,
    driver: MockHandle,
    _folder: tempfile::TempDir,
}

/// Measures everything.
pub async fn measure(bench: &mut Bench) -> Result<Figures> {
    progress("starting the operator");
    let mut run = Run::start(bench).await?;
    let idle = process::memory(run.operator.pid()?)?;
    progress("burst of 200");
    let (small_burst, _) = run.burst(bench, "small", SMALL_BURST).await?;
    run.remove(bench, "small", SMALL_BURST).await?;
    progress("burst of all volumes, detach and release");
    let (burst, burst_rate, writes, cycle_cpu) = run.cycle(bench).await?;
    progress("attaching what waits");
    let attach_rate = run.attach_waiting(bench, "waiting").await?;
    let attached = process::memory(run.operator.pid()?)?;
    progress("starting with all volumes attached");
    let start = run.restart(bench).await?;
    progress("detaching what waits");
    let detach_rate = run.detach_waiting(bench, "waiting").await?;
    bench.delete_volumes("waiting", bench.volumes).await?;
    no_volumes(bench).await?;
    run.stop().await?;
    Ok(Figures {
        small_burst,
        burst,
        burst_rate,
        attach_rate,
        detach_rate,
        writes,
        cycle_cpu,
        idle,
        attached,
        start,
    })
}

/// The operator that is measured.
pub fn options() -> OperatorOptions {
    let binary = std::env::var_os("OPERATOR_BINARY");
    OperatorOptions::new(binary.map_or_else(|| env!("CARGO_BIN_EXE_csi-attacher-operator").into(), PathBuf::from))
}

impl Run {
    async fn start(bench: &Bench) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(|error| Error::Other(error.to_string()))?;
        let socket = folder.path().join("csi.sock");
        // Twice the calls of all phases, so that none is forgotten before it is counted.
        let keep = 20 * (bench.volumes + SMALL_BURST);
        let driver = MockDriver::builder(DRIVER).accept_any_volume().keep_calls(keep);
        let driver = driver
            .start(&socket)
            .await
            .map_err(|error| Error::Other(error.to_string()))?;
        let kubeconfig = bench.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
        let operator = start_operator(&kubeconfig)?;
        operator.wait_ready().await?;
        let run = Self {
            operator,
            kubeconfig,
            // Taking the Lease would count as part of each round that begins with a resume.
            spec: json!({
                "endpoint": format!("unix://{}", socket.display()), "leaderElection": {"enabled": false},
            }),
            driver,
            _folder: folder,
        };
        run.resume(bench).await?;
        wait_condition(&bench.client, CONFIG, "Ready", "True", Some("Running")).await?;
        Ok(run)
    }

    /// Makes all attachments of a group as fast as the API server takes them, and waits until they are attached.
    async fn burst(&self, bench: &Bench, group: &str, count: usize) -> Result<(Latency, f64)> {
        bench.create_volumes(group, DRIVER, count).await?;
        requests::send_all(&bench.client, Bench::attachments(group, DRIVER, count)).await?;
        bench.recorder.wait(group, Stage::Attached, count, PHASE_LIMIT).await?;
        let latencies = bench.recorder.latencies(group);
        let at =
            |percent: usize| latencies.get((latencies.len() * percent / 100).min(latencies.len().saturating_sub(1)));
        let latency = Latency {
            p50: at(50).copied().unwrap_or_default(),
            p99: at(99).copied().unwrap_or_default(),
        };
        let span = bench.recorder.attach_span(group).unwrap_or_default();
        Ok((latency, count as f64 / span.as_secs_f64()))
    }

    /// Detaches and removes a group.
    async fn remove(&self, bench: &Bench, group: &str, count: usize) -> Result<()> {
        bench.delete_attachments(group, count).await?;
        bench.recorder.wait(group, Stage::Gone, count, PHASE_LIMIT).await?;
        bench.delete_volumes(group, count).await?;
        no_volumes(bench).await
    }

    /// Attaches, detaches and releases all volumes in bursts, and counts writes and CPU time.
    async fn cycle(&self, bench: &Bench) -> Result<(Latency, f64, Writes, Duration)> {
        let (group, count) = ("burst", bench.volumes);
        let pid = self.operator.pid()?;
        let (cpu, own) = (process::cpu(pid)?, self.own_requests().await?);
        let before = bench.counts().await?;
        let (latency, rate) = self.burst(bench, group, count).await?;
        let attached = bench.counts().await?;
        bench.delete_attachments(group, count).await?;
        bench.recorder.wait(group, Stage::Gone, count, PHASE_LIMIT).await?;
        let detached = bench.counts().await?;
        bench.delete_volumes(group, count).await?;
        no_volumes(bench).await?;
        let released = bench.counts().await?;
        let cpu = process::cpu(pid)?.checked_sub(cpu).unwrap_or_default();
        let own_after = self.own_requests().await?;
        let each = |later: &Counts, earlier: &Counts| (later - earlier).writes() as f64 / count as f64;
        let all = &released - &before;
        let writes = Writes {
            attach: each(&attached, &before),
            detach: each(&detached, &attached),
            release: each(&released, &detached),
            refused: all.refused(),
            status: all.config_writes(),
            reads: own_after.reads - own.reads,
            own_count: own_after.patches - own.patches,
            api_count: all.writes(),
        };
        Ok((latency, rate, writes, cpu / u32::try_from(count).unwrap_or(u32::MAX)))
    }

    /// Attaches a second when everything is there before the driver starts, so that nobody else writes meanwhile.
    async fn attach_waiting(&self, bench: &Bench, group: &str) -> Result<f64> {
        let count = bench.volumes;
        bench.create_volumes(group, DRIVER, count).await?;
        self.suspend(bench).await?;
        requests::send_all(&bench.client, Bench::attachments(group, DRIVER, count)).await?;
        bench.recorder.wait(group, Stage::Created, count, PHASE_LIMIT).await?;
        let started = Instant::now();
        self.resume(bench).await?;
        bench.recorder.wait(group, Stage::Attached, count, PHASE_LIMIT).await?;
        Ok(count as f64 / started.elapsed().as_secs_f64())
    }

    /// Detaches a second when all is being deleted before the driver starts.
    async fn detach_waiting(&self, bench: &Bench, group: &str) -> Result<f64> {
        let count = bench.volumes;
        self.suspend(bench).await?;
        bench.delete_attachments(group, count).await?;
        let started = Instant::now();
        self.resume(bench).await?;
        bench.recorder.wait(group, Stage::Gone, count, PHASE_LIMIT).await?;
        Ok(count as f64 / started.elapsed().as_secs_f64())
    }

    /// Stops the operator and starts it again, with all volumes attached. A volume that is attached last proves that the
    /// queue was worked off, so that all calls and writes were seen.
    async fn restart(&mut self, bench: &Bench) -> Result<Start> {
        self.stop().await?;
        let (calls, counts) = (self.calls(), bench.counts().await?);
        let started = Instant::now();
        self.operator = start_operator(&self.kubeconfig)?;
        let ready = loop {
            if matches!(self.operator.get("/readyz").await, Ok((200, _))) {
                break started.elapsed();
            }
            if started.elapsed() > PHASE_LIMIT {
                return Err(Error::Other(format!("not ready: {}", self.operator.log_text())));
            }
            // The answer of the probe is what is measured; there is nothing else to wait for.
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        bench.create_volumes("last", DRIVER, 1).await?;
        requests::send_all(&bench.client, Bench::attachments("last", DRIVER, 1)).await?;
        bench.recorder.wait("last", Stage::Attached, 1, PHASE_LIMIT).await?;
        let first_attach = started.elapsed();
        let pid = self.operator.pid()?;
        let (cpu, memory) = (process::cpu(pid)?, process::memory(pid)?);
        let start = Start {
            ready,
            first_attach,
            cpu,
            memory,
            calls: self.calls() - calls - 1,
            writes: (&bench.counts().await? - &counts).writes() - 3,
        };
        bench.delete_attachments("last", 1).await?;
        bench.recorder.wait("last", Stage::Gone, 1, PHASE_LIMIT).await?;
        bench.delete_volumes("last", 1).await?;
        Ok(start)
    }

    async fn suspend(&self, bench: &Bench) -> Result<()> {
        let mut spec = self.spec.clone();
        spec["suspend"] = json!(true);
        apply_config(&bench.client, CONFIG, spec).await?;
        wait_condition(&bench.client, CONFIG, "Ready", "True", Some("Suspended")).await?;
        Ok(())
    }

    async fn resume(&self, bench: &Bench) -> Result<()> {
        apply_config(&bench.client, CONFIG, self.spec.clone()).await.map(drop)
    }

    async fn stop(&mut self) -> Result<()> {
        self.operator.signal("TERM")?;
        let status = self.operator.wait_ended(PHASE_LIMIT).await?;
        if status.success() {
            return Ok(());
        }
        Err(Error::Other(format!(
            "the operator ended with {status}: {}",
            self.operator.log_text()
        )))
    }

    /// Calls that attach or detach, so far.
    fn calls(&self) -> usize {
        let of = |method| self.driver.calls_of(method).len();
        of(Method::ControllerPublishVolume) + of(Method::ControllerUnpublishVolume)
    }

    async fn own_requests(&self) -> Result<OwnRequests> {
        let text = self.operator.metrics().await?;
        let of = |method: &str| {
            let mine = text.lines().filter(|line| {
                line.starts_with("rest_client_requests_total{") && line.contains(&format!("method=\"{method}\""))
            });
            mine.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
                .sum()
        };
        Ok(OwnRequests {
            reads: of("GET"),
            patches: of("PATCH"),
        })
    }
}

/// The operator's own count of its requests (`rest_client_requests_total`).
struct OwnRequests {
    reads: u64,
    patches: u64,
}

fn start_operator(kubeconfig: &Path) -> Result<Operator> {
    Operator::start_with(kubeconfig, options())
}

/// Waits until all PersistentVolumes are gone. A list of one object costs nothing; a watch of all would cost the API
/// server during all phases.
pub async fn no_volumes(bench: &Bench) -> Result<()> {
    let list = Prepared::list_one_volume();
    let started = Instant::now();
    loop {
        let answer: Value = list.send_for(&bench.client).await?;
        if answer["items"].as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        if started.elapsed() > PHASE_LIMIT {
            return Err(Error::Other("PersistentVolumes are not released".to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
