//! What traces cost: attach rate, latency, CPU time and memory with tracing off, with every attach traced, with a collector
//! that holds its connections and answers nothing, and with one that is gone. All in one run and in turns, so that a machine
//! that gets slower or busier meets all alike; each turn has an operator of its own.
//!
//! The collector takes cores that the others then lack: its CPU time is measured, and a turn without tracing follows in
//! which a process burns as much. What tracing itself costs is the difference to that.
//!
//! A turn: attaches at an even pace, for latency and CPU time; a burst, for the rate, the memory and the counters; all
//! detached again. Where the collector held its connections it then answers again, and spans have to arrive.
//!
//! Environment: `ROUNDS` (3), `COUNT` of attaches at the even pace (500), `RATE` of them a second (100), `VOLUMES` of the burst
//! (3000), `OPERATOR_BINARY`.

mod rows;

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};

use csi_mock_driver::{MockDriver, MockHandle};

use crate::attacher::{PHASE_LIMIT, options};
use crate::cluster::{Bench, DRIVER, no_volumes};
use crate::helper::Helper;
use crate::process::{self, Memory};
use crate::recorder::Stage;
use crate::requests::send_all;
use crate::stats::sum_of;
use crate::support::operator::{IDENTITY, apply_config, wait_condition};
use crate::support::otlp::OtlpReceiver;
use crate::support::{Error, Operator, OperatorOptions, Result};
use crate::table::Row;
use crate::{progress, setting};

const CONFIG: &str = "traces";

/// What spans meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collector {
    /// Tracing is off.
    Off,
    /// It takes them.
    Takes,
    /// Tracing is off, and a process burns what the collector took.
    Burns,
    /// It holds the connection and never answers.
    Holds,
    /// Nobody listens.
    Gone,
}

/// All of them; what burns comes just after what it stands for.
const COLLECTORS: [Collector; 5] = [
    Collector::Off,
    Collector::Takes,
    Collector::Burns,
    Collector::Holds,
    Collector::Gone,
];

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rounds: usize,
    /// Attaches at the even pace, and how many a second.
    count: usize,
    rate: usize,
    /// Attaches of the burst.
    volumes: usize,
}

/// What one turn came to.
#[derive(Clone, Debug)]
struct Turn {
    /// Times of the attaches at the even pace, and the share of a core that the operator took meanwhile.
    paced: Vec<Duration>,
    paced_share: f64,
    /// Attaches a second of the burst.
    rate: f64,
    /// CPU time of the operator from the burst to the end of the detaches.
    cycle_cpu: Duration,
    /// The share of a core that the collector took during the burst.
    collector_share: f64,
    /// Memory when all of the burst is attached.
    memory: Memory,
    /// Spans that did not reach the collector.
    lost: u64,
    /// Whether spans arrived after the collector came back; none where it was not away.
    recovered: Option<bool>,
}

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let sizes = Sizes {
        rounds: setting("ROUNDS", 3)?,
        count: setting("COUNT", 500)?,
        rate: setting("RATE", 100)?,
        volumes: setting("VOLUMES", 3000)?,
    };
    progress("traces: spans alone");
    let micro = Helper::spans()?;
    let bench = Bench::start_for(sizes.volumes.max(sizes.count), &[DRIVER]).await?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("csi.sock");
    let _driver = start_driver(&socket).await?;
    let spec = json!({"endpoint": format!("unix://{}", socket.display())});
    apply_config(&bench.client, CONFIG, spec).await?;
    progress("traces: warming up");
    turn(&bench, Collector::Off, 0.0, "warm", sizes).await?;
    let mut turns: Vec<(Collector, Turn)> = Vec::new();
    for round in 0..sizes.rounds {
        for collector in COLLECTORS {
            progress(&format!(
                "traces: round {} of {}: {collector:?}",
                round + 1,
                sizes.rounds
            ));
            let group = format!("{collector:?}{round}").to_lowercase();
            let share = turns.last().map_or(0.0, |(_, turn)| turn.collector_share);
            turns.push((collector, turn(&bench, collector, share, &group, sizes).await?));
        }
    }
    Ok(rows::rows(sizes, micro, &turns))
}

async fn start_driver(socket: &std::path::Path) -> Result<MockHandle> {
    let driver = MockDriver::builder(DRIVER).accept_any_volume();
    let driver = driver.start(socket).await;
    driver.map_err(Error::from)
}

/// A collector, and how the operator is told of it.
struct Place {
    options: OperatorOptions,
    helper: Option<Helper>,
    gated: Option<(OtlpReceiver, tokio::sync::watch::Sender<bool>)>,
}

async fn place(collector: Collector, share: f64) -> Result<Place> {
    let to = |endpoint: String| {
        options()
            .variable("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    };
    let (options, helper, gated) = match collector {
        Collector::Off => (options(), None, None),
        Collector::Takes => {
            let helper = Helper::collector()?;
            (to(helper.said.clone()), Some(helper), None)
        }
        Collector::Burns => (options(), Some(Helper::burn(share)?), None),
        Collector::Holds => {
            let (receiver, gate) = OtlpReceiver::gated().await;
            (to(receiver.endpoint()), None, Some((receiver, gate)))
        }
        Collector::Gone => {
            let free = TcpListener::bind("127.0.0.1:0").await;
            let address = free.and_then(|listener| listener.local_addr());
            let address = address?;
            (to(format!("http://{address}")), None, None)
        }
    };
    Ok(Place { options, helper, gated })
}

async fn turn(bench: &Bench, collector: Collector, share: f64, group: &str, sizes: Sizes) -> Result<Turn> {
    let place = place(collector, share).await?;
    let kubeconfig = bench.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let operator = Operator::start_with(&kubeconfig, place.options.clone())?;
    operator.wait_ready().await?;
    wait_condition(&bench.client, CONFIG, "Ready", "True", Some("Running")).await?;
    let pid = operator.pid()?;
    let of_helper = || place.helper.as_ref().map_or(Ok(Duration::ZERO), Helper::cpu);

    let (paced_group, burst_group) = (format!("paced{group}"), format!("burst{group}"));
    let (cpu, started) = (process::cpu(pid)?, Instant::now());
    pace(bench, &paced_group, sizes).await?;
    let paced_share = since(process::cpu(pid)?, cpu).as_secs_f64() / started.elapsed().as_secs_f64();
    remove(bench, &paced_group, sizes.count).await?;

    bench.create_volumes(&burst_group, DRIVER, sizes.volumes).await?;
    let (cpu, collector_cpu, started) = (process::cpu(pid)?, of_helper()?, Instant::now());
    send_all(&bench.client, Bench::attachments(&burst_group, DRIVER, sizes.volumes)).await?;
    let attached = bench
        .recorder
        .wait(&burst_group, Stage::Attached, sizes.volumes, PHASE_LIMIT);
    attached.await?;
    let collector_share = since(of_helper()?, collector_cpu).as_secs_f64() / started.elapsed().as_secs_f64();
    let memory = process::memory(pid)?;
    remove(bench, &burst_group, sizes.volumes).await?;
    let cycle_cpu = since(process::cpu(pid)?, cpu);
    let metrics = operator.metrics().await?;
    let lost = ["queue_full", "export_failed"].map(|result| {
        sum_of(
            &metrics,
            &format!("csi_attacher_trace_spans_total{{result=\"{result}\"}} "),
        )
    });
    let recovered = recover(bench, &place, group).await?;
    crate::attacher::stop(operator).await?;
    Ok(Turn {
        paced: bench.recorder.latencies(&paced_group),
        paced_share,
        rate: bench.recorder.attach_rate(&burst_group),
        cycle_cpu,
        collector_share,
        memory,
        lost: lost.iter().sum(),
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
        created??;
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
    let Some((receiver, gate)) = &place.gated else {
        return Ok(None);
    };
    gate.send_replace(true);
    let group = format!("after{group}");
    bench.create_volumes(&group, DRIVER, 1).await?;
    send_all(&bench.client, Bench::attachments(&group, DRIVER, 1)).await?;
    bench.recorder.wait(&group, Stage::Attached, 1, PHASE_LIMIT).await?;
    let spans = receiver
        .wait_for_spans(Duration::from_mins(2), |spans| !spans.is_empty())
        .await;
    remove(bench, &group, 1).await?;
    Ok(Some(!spans.is_empty()))
}
