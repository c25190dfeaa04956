//! One driver without delay, served by each attacher in turn, and the API server's own ceiling for the same writes before
//! and after each of them: rates, latency of a small burst, writes, CPU time and memory.
//!
//! Rates are those between the first and the last attach that a watch sees. All objects are there before the attacher
//! starts, and how long its start takes is measured in another scene.
//!
//! Environment: `VOLUMES` (5000), `ROUNDS` (3), `SIDECAR=0` without the Go sidecar, `ATTACHER_CMD`, `OPERATOR_BINARY`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use csi_mock_driver::{MockDriver, MockHandle};

use crate::attacher::{Attacher, Kind, PHASE_LIMIT};
use crate::ceiling::{self, Ceiling};
use crate::cluster::{Bench, Counts, DRIVER, NOBODYS_DRIVER, SMALL_BURST, VOLUMES_ON_A_NODE, name, no_volumes};
use crate::recorder::Stage;
use crate::requests::{Prepared, send_all};
use crate::stats::{each_of, median, mib, ms, percentile};
use crate::support::Result;
use crate::support::operator::apply_config;
use crate::table::{Row, Topic};
use crate::{progress, setting};

/// What one attacher came to in one round.
#[derive(Clone, Copy, Debug)]
struct Turn {
    attach_rate: f64,
    /// CPU time of etcd and kube-apiserver for each of these attaches, with what a start lists.
    control_plane: Duration,
    detach_rate: f64,
    /// 99th percentile of the small burst.
    small: Duration,
    writes: Writes,
    /// CPU time for each volume to be attached, detached and released.
    cpu: Duration,
    /// KiB resident, with one driver and nothing to do, and with all volumes attached.
    idle: u64,
    attached: u64,
}

/// Writes for each volume, as the API server counted them.
#[derive(Clone, Copy, Debug)]
struct Writes {
    attach: f64,
    attach_again: f64,
    detach: f64,
    release: f64,
    refused: i64,
}

/// What was measured next to a turn of the operator.
#[derive(Clone, Copy, Debug)]
struct Around {
    before: Ceiling,
    after: Ceiling,
    burst: Duration,
}

impl Around {
    fn of(&self, value: impl Fn(&Ceiling) -> f64) -> f64 {
        f64::midpoint(value(&self.before), value(&self.after))
    }
}

struct Scene {
    bench: Bench,
    volumes: usize,
    socket: PathBuf,
    _driver: MockHandle,
    _folder: tempfile::TempDir,
}

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let (volumes, rounds) = (setting("VOLUMES", 5000)?, setting("ROUNDS", 3)?);
    let scene = Scene::set(volumes).await?;
    progress("attach: warming up");
    ceiling::measure(&scene.bench, "warm", volumes.min(300)).await?;
    let (mut turns, mut around) = (Vec::new(), Vec::new());
    let mut before = ceiling::measure(&scene.bench, "ceiling", volumes).await?;
    for round in 0..rounds {
        for kind in Kind::all() {
            progress(&format!("attach: round {} of {rounds}: {kind:?}", round + 1));
            let group = format!("{kind:?}{round}").to_lowercase();
            turns.push((kind, scene.turn(kind, &group).await?));
            if kind == Kind::Operator {
                let burst = ceiling::burst(&scene.bench, &format!("burst{round}"), SMALL_BURST).await?;
                let after = ceiling::measure(&scene.bench, &format!("ceiling{round}"), volumes).await?;
                around.push(Around { before, after, burst });
                before = after;
            }
        }
        // The other attachers ran since the last ceiling.
        if Kind::all().len() > 1 && round + 1 < rounds {
            before = ceiling::measure(&scene.bench, &format!("again{round}"), volumes).await?;
        }
    }
    Ok(rows(volumes, &turns, &around))
}

impl Scene {
    async fn set(volumes: usize) -> Result<Self> {
        let bench = Bench::start_for(volumes, &[DRIVER, NOBODYS_DRIVER]).await?;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("csi.sock");
        let driver = MockDriver::builder(DRIVER).accept_any_volume().start(&socket).await;
        let spec = json!({"endpoint": format!("unix://{}", socket.display())});
        apply_config(&bench.client, "bench", spec).await?;
        Ok(Self {
            bench,
            volumes,
            socket,
            _driver: driver?,
            _folder: folder,
        })
    }

    /// One attacher, from its start to its end, twice.
    async fn turn(&self, kind: Kind, group: &str) -> Result<Turn> {
        let (bench, count) = (&self.bench, self.volumes);
        let process = Attacher::start(bench, kind, &self.socket).await?;
        let idle = self.prove(&process, group).await?;
        let small = self.small(group).await?;
        let burst = format!("cycle{group}");
        let (cpu, before) = (process.cpu()?, bench.counts().await?);
        self.burst(&burst, count).await?;
        let (resident, attached) = (process.memory()?.now, bench.counts().await?);
        let detach_rate = self.detach(&burst, count).await?;
        let detached = bench.counts().await?;
        bench.delete_volumes(&burst, count).await?;
        no_volumes(bench).await?;
        let (released, cpu) = (bench.counts().await?, process.cpu()?.saturating_sub(cpu));
        let each = |later: &Counts, earlier: &Counts| (later - earlier).writes() as f64 / count as f64;
        let writes = Writes {
            attach: each(&attached, &before),
            attach_again: small.1,
            detach: each(&detached, &attached),
            release: each(&released, &detached),
            refused: (&released - &before).refused(),
        };
        process.stop().await?;
        let (attach_rate, control_plane) = self.present(kind, group).await?;
        Ok(Turn {
            attach_rate,
            control_plane,
            detach_rate,
            small: small.0,
            writes,
            cpu: each_of(cpu, count),
            idle,
            attached: resident,
        })
    }

    /// A volume that is attached proves that the attacher is at work; returns its memory then.
    async fn prove(&self, attacher: &Attacher, group: &str) -> Result<u64> {
        let group = format!("proof{group}");
        self.burst(&group, 1).await?;
        let idle = attacher.memory()?.now;
        self.remove(&group, 1).await?;
        Ok(idle)
    }

    async fn burst(&self, group: &str, count: usize) -> Result<()> {
        self.bench.create_volumes(group, DRIVER, count).await?;
        send_all(&self.bench.client, Bench::attachments(group, DRIVER, count)).await?;
        self.bench
            .recorder
            .wait(group, Stage::Attached, count, PHASE_LIMIT)
            .await
    }

    /// Detaches a second, from the first deletion that is sent to the last object that is gone.
    async fn detach(&self, group: &str, count: usize) -> Result<f64> {
        let started = Instant::now();
        self.bench.delete_attachments(group, count).await?;
        self.bench.recorder.wait(group, Stage::Gone, count, PHASE_LIMIT).await?;
        Ok(count as f64 / started.elapsed().as_secs_f64())
    }

    async fn remove(&self, group: &str, count: usize) -> Result<()> {
        self.detach(group, count).await?;
        self.bench.delete_volumes(group, count).await?;
        no_volumes(&self.bench).await
    }

    /// The 99th percentile of a small burst, and the writes for each when the same volumes are attached again.
    async fn small(&self, group: &str) -> Result<(Duration, f64)> {
        let (bench, count) = (&self.bench, SMALL_BURST);
        let (first, again) = (format!("small{group}"), format!("again{group}"));
        self.burst(&first, count).await?;
        let latency = percentile(&bench.recorder.latencies(&first), 99);
        self.detach(&first, count).await?;
        let before = bench.counts().await?;
        let create = |number: usize| {
            let node = format!("node-{}", number / VOLUMES_ON_A_NODE);
            Prepared::create_attachment(&name(&again, number), DRIVER, &name(&first, number), &node)
        };
        send_all(&bench.client, (0..count).map(create).collect()).await?;
        bench.recorder.wait(&again, Stage::Attached, count, PHASE_LIMIT).await?;
        let writes = (&bench.counts().await? - &before).writes();
        self.detach(&again, count).await?;
        bench.delete_volumes(&first, count).await?;
        no_volumes(bench).await?;
        Ok((latency, writes as f64 / count as f64))
    }

    /// Attaches a second when all objects are there before the attacher starts, and the CPU time of the control plane for each.
    async fn present(&self, kind: Kind, group: &str) -> Result<(f64, Duration)> {
        let (bench, count) = (&self.bench, self.volumes);
        let group = format!("present{group}");
        bench.create_volumes(&group, DRIVER, count).await?;
        send_all(&bench.client, Bench::attachments(&group, DRIVER, count)).await?;
        bench.recorder.wait(&group, Stage::Created, count, PHASE_LIMIT).await?;
        let cpu = bench.control_plane_cpu()?;
        let attacher = Attacher::start(bench, kind, &self.socket).await?;
        bench.recorder.wait(&group, Stage::Attached, count, PHASE_LIMIT).await?;
        let cpu = bench.control_plane_cpu()?.saturating_sub(cpu);
        let rate = bench.recorder.attach_rate(&group);
        self.remove(&group, count).await?;
        attacher.stop().await?;
        Ok((rate, each_of(cpu, count)))
    }
}

/// The medians of each attacher.
struct Medians<'t>(BTreeMap<&'static str, Vec<&'t Turn>>);

impl Medians<'_> {
    /// A row with the operator's value and those of the others beside it.
    fn row(&self, topic: Topic, what: String, unit: &str, value: impl Fn(&Turn) -> f64) -> Row {
        let of = |kind: &str| {
            self.0
                .get(kind)
                .map(|turns| median(turns.iter().map(|turn| value(turn))))
        };
        Row::new(topic, what, of("operator").unwrap_or_default(), unit)
            .sidecar(of("sidecar"))
            .other(of("command"))
    }
}

fn rows(volumes: usize, turns: &[(Kind, Turn)], around: &[Around]) -> Vec<Row> {
    let mut by_kind = BTreeMap::new();
    for (kind, turn) in turns {
        let kind = match kind {
            Kind::Operator => "operator",
            Kind::Sidecar => "sidecar",
            Kind::Command => "command",
        };
        by_kind.entry(kind).or_insert_with(Vec::new).push(turn);
    }
    let all = Medians(by_kind);
    let mut rows = vec![
        rate(
            &all,
            around,
            format!("attach rate, {volumes} first attaches, objects there"),
            |turn| turn.attach_rate,
            |of| of.attach,
        )
        .headline(),
        rate(
            &all,
            around,
            format!("detach rate of {volumes}"),
            |turn| turn.detach_rate,
            |of| of.detach,
        )
        .headline(),
        burst(&all, around),
        control_plane(&all, around),
    ];
    rows.extend(writes(&all));
    let cpu = all
        .row(
            Topic::Cpu,
            "CPU for an attach, detach and release".to_owned(),
            "ms",
            |turn| ms(turn.cpu),
        )
        .headline();
    let sidecar = cpu.sidecar;
    rows.push(match sidecar {
        Some(sidecar) => cpu.against("Go sidecar", sidecar).ratio_at_most(0.33),
        None => cpu,
    });
    let idle = all.row(Topic::Memory, "RSS idle, one driver".to_owned(), "MiB", |turn| {
        mib(turn.idle)
    });
    rows.push(idle.at_most(14.0));
    let attached = all
        .row(Topic::Memory, format!("RSS, {volumes} attached"), "MiB", |turn| {
            mib(turn.attached)
        })
        .headline();
    rows.push(if volumes <= 5000 {
        attached.at_most(28.0)
    } else {
        attached
    });
    rows
}

fn rate(
    all: &Medians<'_>,
    around: &[Around],
    what: String,
    value: impl Fn(&Turn) -> f64 + Copy,
    ceiling: impl Fn(&Ceiling) -> f64 + Copy,
) -> Row {
    let own = all.0.get("operator").into_iter().flatten();
    let ratio = median(own.zip(around).map(|(turn, around)| value(turn) / around.of(ceiling)));
    let seen = around
        .iter()
        .flat_map(|around| [ceiling(&around.before), ceiling(&around.after)]);
    let (least, most) = seen.clone().fold((f64::MAX, 0.0_f64), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    all.row(Topic::Rate, what, "/s", value)
        .against("API server's ceiling", median(seen))
        .with_ratio(ratio)
        .ratio_at_least(0.95)
        .note(format!("ceilings {least:.0} to {most:.0}"))
}

/// What the watches of an attacher cost besides its writes: with shared cores it is lost for the rate.
fn control_plane(all: &Medians<'_>, around: &[Around]) -> Row {
    let alone = median(around.iter().map(|around| around.of(|of| ms(of.attach_cpu))));
    all.row(
        Topic::Cpu,
        "CPU of etcd and API server for a first attach".to_owned(),
        "ms",
        |turn| ms(turn.control_plane),
    )
    .against("API server's ceiling", alone)
}

/// Under 2 s, or where the API server itself takes longer than that, 1.1 times what it takes.
fn burst(all: &Medians<'_>, around: &[Around]) -> Row {
    let ceiling = median(around.iter().map(|around| around.burst.as_secs_f64()));
    all.row(
        Topic::Latency,
        format!("burst of {SMALL_BURST}, defaults: p99"),
        "s",
        |turn| turn.small.as_secs_f64(),
    )
    .against("ceiling's time for it", ceiling)
    .at_most((1.1 * ceiling).max(2.0))
}

fn writes(all: &Medians<'_>) -> Vec<Row> {
    let row = |what: &str, wanted: f64, value: fn(&Writes) -> f64| {
        all.row(Topic::Requests, what.to_owned(), "", |turn| value(&turn.writes))
            .exactly(wanted)
    };
    vec![
        row("API writes for a first attach", 3.0, |writes| writes.attach),
        row("API writes for a re-attach", 2.0, |writes| writes.attach_again),
        row("API writes for a detach", 1.0, |writes| writes.detach),
        row("API writes for a release", 1.0, |writes| writes.release),
        row("API writes refused", 0.0, |writes| writes.refused as f64),
    ]
}
