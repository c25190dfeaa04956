//! `make overhead`: what traces cost: attach rate, latency, CPU time and memory with tracing off, on, with a collector that
//! holds its connections and answers nothing, and with one that is gone. All in one run and in turns, so that a machine that
//! gets slower or busier meets all alike; each turn has an operator of its own.
//!
//! A turn: attaches at an even pace, for latency and CPU time; a burst, for the rate, the memory and the counters; all
//! detached again. Where the collector held its connections it then answers again, and spans have to arrive.
//!
//! Environment: `ROUNDS` (2), `COUNT` of attaches at the even pace (500), `RATE` of them a second (100), `VOLUMES` of the burst
//! (1000), `OPERATOR_BINARY`.

mod micro;
mod report;

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};

use csi_mock_driver::{MockDriver, MockHandle};

use crate::cluster::{Bench, DRIVER};
use crate::isolation::sum_of;
use crate::operator_run::{PHASE_LIMIT, no_volumes, options};
use crate::process::{self, Memory};
use crate::recorder::Stage;
use crate::support::operator::{IDENTITY, apply_config, wait_condition};
use crate::support::otlp::OtlpReceiver;
use crate::support::{Error, Operator, OperatorOptions, Result};
use crate::{progress, requests, setting};
pub use report::Report;

const CONFIG: &str = "overhead";

/// What spans meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// Tracing is off.
    Off,
    /// It takes them.
    Takes,
    /// It holds the connection and never answers.
    Holds,
    /// Nobody listens.
    Gone,
}

/// All of them, in the order of the table.
pub const COLLECTORS: [Collector; 4] = [Collector::Off, Collector::Takes, Collector::Holds, Collector::Gone];

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Turns of each kind.
    pub rounds: usize,
    /// Attaches at the even pace.
    pub count: usize,
    /// How many of them a second.
    pub rate: usize,
    /// Attaches of the burst.
    pub volumes: usize,
}

/// What one turn came to.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Times of the attaches at the even pace, sorted.
    pub paced: Vec<Duration>,
    /// How long that took, and the CPU time of the operator meanwhile.
    pub paced_took: Duration,
    /// CPU time of the operator meanwhile.
    pub paced_cpu: Duration,
    /// Attaches a second of the burst.
    pub rate: f64,
    /// CPU time of the operator from the burst to the end of the detaches.
    pub cycle_cpu: Duration,
    /// Memory when all of the burst is attached.
    pub memory: Memory,
    /// Spans exported, dropped because the queue was full, and not taken by the collector.
    pub spans: [u64; 3],
    /// Whether spans arrived after the collector came back; none where it was not away.
    pub recovered: Option<bool>,
}

/// Measures.
pub async fn measure() -> Result<Report> {
    let sizes = Sizes {
        rounds: setting("ROUNDS", 2)?,
        count: setting("COUNT", 500)?,
        rate: setting("RATE", 100)?,
        volumes: setting("VOLUMES", 1000)?,
    };
    progress("spans alone");
    let micro = micro::measure().await?;
    progress("starting etcd and kube-apiserver");
    let bench = Bench::start_for(sizes.volumes.max(sizes.count), &[DRIVER]).await?;
    let folder = tempfile::tempdir().map_err(|error| Error::Other(error.to_string()))?;
    let socket = folder.path().join("csi.sock");
    let _driver = start_driver(&socket).await?;
    let spec = json!({"endpoint": format!("unix://{}", socket.display()), "leaderElection": {"enabled": false}});
    apply_config(&bench.client, CONFIG, spec).await?;
    progress("warming up");
    turn(&bench, Collector::Off, "warm", sizes).await?;
    let mut turns = Vec::new();
    for round in 0..sizes.rounds {
        for collector in COLLECTORS {
            progress(&format!("round {} of {}: {collector:?}", round + 1, sizes.rounds));
            let group = format!("{collector:?}{round}").to_lowercase();
            turns.push((collector, turn(&bench, collector, &group, sizes).await?));
        }
    }
    Ok(Report { sizes, micro, turns })
}

async fn start_driver(socket: &std::path::Path) -> Result<MockHandle> {
    let driver = MockDriver::builder(DRIVER).accept_any_volume();
    let driver = driver.start(socket).await;
    driver.map_err(|error| Error::Other(error.to_string()))
}

/// A collector, and how the operator is told of it.
struct Place {
    options: OperatorOptions,
    receiver: Option<OtlpReceiver>,
    gate: Option<tokio::sync::watch::Sender<bool>>,
}

async fn place(collector: Collector) -> Result<Place> {
    let to = |endpoint: String| {
        options()
            .variable("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    };
    let (options, receiver, gate) = match collector {
        Collector::Off => (options(), None, None),
        Collector::Takes => {
            let receiver = OtlpReceiver::grpc().await;
            (to(receiver.endpoint()), Some(receiver), None)
        }
        Collector::Holds => {
            let (receiver, gate) = OtlpReceiver::gated().await;
            (to(receiver.endpoint()), Some(receiver), Some(gate))
        }
        Collector::Gone => {
            let free = TcpListener::bind("127.0.0.1:0").await;
            let address = free.and_then(|listener| listener.local_addr());
            let address = address.map_err(|error| Error::Other(error.to_string()))?;
            (to(format!("http://{address}")), None, None)
        }
    };
    Ok(Place {
        options,
        receiver,
        gate,
    })
}

async fn turn(bench: &Bench, collector: Collector, group: &str, sizes: Sizes) -> Result<Turn> {
    let place = place(collector).await?;
    let kubeconfig = bench.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let mut operator = Operator::start_with(&kubeconfig, place.options.clone())?;
    operator.wait_ready().await?;
    wait_condition(&bench.client, CONFIG, "Ready", "True", Some("Running")).await?;
    let pid = operator.pid()?;

    let (paced_group, burst_group) = (format!("paced{group}"), format!("burst{group}"));
    let (cpu, started) = (process::cpu(pid)?, Instant::now());
    pace(bench, &paced_group, sizes).await?;
    let (paced_took, paced_cpu) = (started.elapsed(), since(process::cpu(pid)?, cpu));
    remove(bench, &paced_group, sizes.count).await?;

    bench.create_volumes(&burst_group, DRIVER, sizes.volumes).await?;
    let cpu = process::cpu(pid)?;
    requests::send_all(&bench.client, Bench::attachments(&burst_group, DRIVER, sizes.volumes)).await?;
    bench
        .recorder
        .wait(&burst_group, Stage::Attached, sizes.volumes, PHASE_LIMIT)
        .await?;
    let memory = process::memory(pid)?;
    let span = bench.recorder.attach_span(&burst_group).unwrap_or_default();
    remove(bench, &burst_group, sizes.volumes).await?;
    let cycle_cpu = since(process::cpu(pid)?, cpu);
    let metrics = operator.metrics().await?;
    let spans = ["exported", "queue_full", "export_failed"].map(|result| {
        let begin = format!("csi_attacher_trace_spans_total{{result=\"{result}\"}} ");
        sum_of(&metrics, &begin)
    });
    let recovered = recover(bench, &place, group).await?;
    operator.signal("TERM")?;
    operator.wait_ended(PHASE_LIMIT).await?;
    Ok(Turn {
        paced: bench.recorder.latencies(&paced_group),
        paced_took,
        paced_cpu,
        rate: sizes.volumes as f64 / span.as_secs_f64(),
        cycle_cpu,
        memory,
        spans,
        recovered,
    })
}

fn since(now: Duration, then: Duration) -> Duration {
    now.saturating_sub(then)
}

/// Attaches at an even pace, whatever becomes of the ones before.
async fn pace(bench: &Bench, group: &str, sizes: Sizes) -> Result<()> {
    bench.create_volumes(group, DRIVER, sizes.count).await?;
    let mut pace = interval(Duration::from_secs_f64(1.0 / sizes.rate as f64));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut creations = tokio::task::JoinSet::new();
    for attachment in Bench::attachments(group, DRIVER, sizes.count) {
        pace.tick().await;
        let client = bench.client.clone();
        creations.spawn(async move { attachment.send(&client).await.map(drop) });
    }
    while let Some(created) = creations.join_next().await {
        created.map_err(|error| Error::Other(error.to_string()))??;
    }
    bench
        .recorder
        .wait(group, Stage::Attached, sizes.count, PHASE_LIMIT)
        .await
}

async fn remove(bench: &Bench, group: &str, count: usize) -> Result<()> {
    bench.delete_attachments(group, count).await?;
    bench.recorder.wait(group, Stage::Gone, count, PHASE_LIMIT).await?;
    bench.delete_volumes(group, count).await?;
    no_volumes(bench).await
}

/// Lets the collector answer, and attaches one more volume, whose spans have to arrive.
async fn recover(bench: &Bench, place: &Place, group: &str) -> Result<Option<bool>> {
    let (Some(gate), Some(receiver)) = (&place.gate, &place.receiver) else {
        return Ok(None);
    };
    gate.send_replace(true);
    let group = format!("after{group}");
    bench.create_volumes(&group, DRIVER, 1).await?;
    requests::send_all(&bench.client, Bench::attachments(&group, DRIVER, 1)).await?;
    bench.recorder.wait(&group, Stage::Attached, 1, PHASE_LIMIT).await?;
    let spans = receiver
        .wait_for_spans(Duration::from_mins(2), |spans| !spans.is_empty())
        .await;
    remove(bench, &group, 1).await?;
    Ok(Some(!spans.is_empty()))
}

/// How long a run may take: its attaches at their pace, and far longer than the slowest machine takes for the rest.
pub fn limit() -> Result<Duration> {
    let turns = setting("ROUNDS", 2)? * COLLECTORS.len() + 1;
    let attaches = setting("COUNT", 500)? + setting("VOLUMES", 1000)?;
    let each = Duration::from_mins(3) + Duration::from_millis(200) * u32::try_from(attaches).unwrap_or(u32::MAX);
    Ok(Duration::from_mins(5) + each * u32::try_from(turns).unwrap_or(u32::MAX))
}
