//! `make one-volume`: what one ReadWriteMany volume on a thousand nodes costs another driver, when it is attached and
//! detached everywhere at once.
//!
//! Rounds with that volume at rest and rounds with it being attached and detached take turns. As in `make isolation` the
//! benchmark makes the writes of each measured attach itself, too, as another user of the API server: what these lose is
//! lost to the API server and the cores.
//!
//! Environment: `NODES` (1000), `ROUNDS` (3), `COUNT` of attaches of the other driver in each load (100), `RATE` of them a
//! second (10), `OPERATOR_BINARY`.

use std::fmt;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde_json::json;

use csi_mock_driver::{MockDriver, MockHandle};

use crate::cluster::{Bench, NOBODYS_DRIVER};
use crate::isolation::load::{self, Load};
use crate::isolation::{TENTH, percentile, writer};
use crate::operator_run::{PHASE_LIMIT, options};
use crate::recorder::Stage;
use crate::requests::{Prepared, send_all};
use crate::support::operator::{IDENTITY, apply_config, wait_condition};
use crate::support::{Error, Fixtures, Operator, Result, Volume};
use crate::{process, progress, setting};

/// The driver of the volume.
const WIDE: &str = "wide.csi.test";
/// The volume.
const VOLUME: &str = "wide-volume";
/// The bars.
const WANTED_RATIO: f64 = 1.5;
const WANTED_CPU_MS: f64 = 3.0;

/// What came out.
pub struct Report {
    nodes: usize,
    /// Times of the other driver's attaches and of the writes alone, with the volume at rest and in motion, sorted.
    rest: [Vec<Duration>; 2],
    motion: [Vec<Duration>; 2],
    /// How long each mass attach and detach took, and what CPU time of the operator for each attachment.
    attaches: Vec<(Duration, Duration)>,
    detaches: Vec<(Duration, Duration)>,
}

struct Scene {
    operator: Operator,
    _drivers: [MockHandle; 2],
    bench: Bench,
    load: Load,
    nodes: usize,
    sockets: tempfile::TempDir,
}

/// Measures.
pub async fn measure() -> Result<Report> {
    let (nodes, rounds) = (setting("NODES", 1000)?, setting("ROUNDS", 3)?);
    let scene = Scene::set(nodes).await?;
    progress("warming up");
    scene.load.run(&scene.bench, "warm-up").await?;
    let mut report = Report {
        nodes,
        rest: Default::default(),
        motion: Default::default(),
        attaches: Vec::new(),
        detaches: Vec::new(),
    };
    for round in 0..rounds {
        progress(&format!("round {} of {rounds}, the volume at rest", round + 1));
        let group = format!("rest-{round}");
        scene.load.run(&scene.bench, &group).await?;
        scene.add(&group, &mut report.rest);
        progress(&format!("round {} of {rounds}, attached to {nodes} nodes", round + 1));
        let (wide, group) = (format!("wide-{round}"), format!("attach-{round}"));
        scene.prepare(scene.create_all(&wide)).await?;
        let (loaded, mass) = tokio::join!(scene.load.run(&scene.bench, &group), scene.mass(&wide, Stage::Attached));
        loaded?;
        report.attaches.push(mass?);
        scene.add(&group, &mut report.motion);
        progress(&format!("round {} of {rounds}, detached from {nodes} nodes", round + 1));
        let group = format!("detach-{round}");
        scene.prepare(scene.delete_all(&wide)).await?;
        let (loaded, mass) = tokio::join!(scene.load.run(&scene.bench, &group), scene.mass(&wide, Stage::Gone));
        loaded?;
        report.detaches.push(mass?);
        scene.add(&group, &mut report.motion);
    }
    for times in report.rest.iter_mut().chain(&mut report.motion) {
        times.sort_unstable();
    }
    Ok(report)
}

/// How long a run may take.
pub fn limit() -> Result<Duration> {
    let load = Duration::from_secs_f64(setting("COUNT", 100)? as f64 / setting("RATE", 10)? as f64);
    let rounds = u32::try_from(setting("ROUNDS", 3)?).unwrap_or(u32::MAX);
    Ok(Duration::from_mins(10) + (load * 3 + Duration::from_mins(3)) * rounds)
}

impl Scene {
    async fn set(nodes: usize) -> Result<Self> {
        progress("starting etcd and kube-apiserver");
        let count = setting("COUNT", 100)?;
        let bench = Bench::start_for(count, &[TENTH, NOBODYS_DRIVER]).await?;
        let fixtures = Fixtures::new(bench.client.clone());
        for chunk in (0..nodes).collect::<Vec<_>>().chunks(50) {
            let made = chunk.iter().map(|node| {
                let (name, id) = (format!("wide-node-{node}"), format!("wide-id-{node}"));
                let fixtures = fixtures.clone();
                async move { fixtures.csi_node_with(&name, &[(WIDE, &id)]).await }
            });
            try_join_all(made).await?;
        }
        let volume = Volume::new(VOLUME, WIDE, VOLUME).access_modes(&["ReadWriteMany"]);
        fixtures.persistent_volume(&volume).await?;
        let other = |error: std::io::Error| Error::Other(error.to_string());
        let sockets = tempfile::tempdir().map_err(other)?;
        let start = async |name: &str, short: &str| {
            let socket = sockets.path().join(short);
            let driver = MockDriver::builder(name).accept_any_volume().start(&socket).await;
            let spec = json!({"endpoint": format!("unix://{}", socket.display())});
            apply_config(&bench.client, short, spec).await?;
            driver.map_err(|error| Error::Other(error.to_string()))
        };
        let drivers = [start(TENTH, "tenth").await?, start(WIDE, "wide").await?];
        progress("starting the operator");
        let kubeconfig = bench.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
        let operator = Operator::start_with(&kubeconfig, options())?;
        operator.wait_ready().await?;
        for short in ["tenth", "wide"] {
            wait_condition(&bench.client, short, "Ready", "True", Some("Running")).await?;
        }
        let load = Load {
            count,
            per_second: setting("RATE", 10)? as f64,
            writer: writer(&bench).await?,
        };
        Ok(Self {
            operator,
            _drivers: drivers,
            bench,
            load,
            nodes,
            sockets,
        })
    }

    fn add(&self, group: &str, times: &mut [Vec<Duration>; 2]) {
        let recorder = &self.bench.recorder;
        times[0].extend(recorder.latencies(&load::operators(group)));
        times[1].extend(recorder.latencies(&load::own(group)));
    }

    /// Makes the attachments, or deletes them, while the volume's driver is suspended: what asks for that many at once, such
    /// as kube-controller-manager, is no part of what is measured.
    async fn prepare(&self, requests: Vec<Prepared>) -> Result<()> {
        self.serve(false).await?;
        send_all(&self.bench.client, requests).await.map(drop)
    }

    fn create_all(&self, group: &str) -> Vec<Prepared> {
        let name = |node: usize| crate::cluster::name(group, node);
        let create = |node| Prepared::create_attachment(&name(node), WIDE, VOLUME, &format!("wide-node-{node}"));
        (0..self.nodes).map(create).collect()
    }

    fn delete_all(&self, group: &str) -> Vec<Prepared> {
        let delete = |node| Prepared::delete_attachment(&crate::cluster::name(group, node));
        (0..self.nodes).map(delete).collect()
    }

    /// Serves the volume's driver, or suspends it and waits until that is so.
    async fn serve(&self, serves: bool) -> Result<()> {
        let socket = self.sockets.path().join("wide");
        let spec = json!({"endpoint": format!("unix://{}", socket.display()), "suspend": !serves});
        apply_config(&self.bench.client, "wide", spec).await?;
        if serves {
            return Ok(());
        }
        wait_condition(&self.bench.client, "wide", "Ready", "True", Some("Suspended"))
            .await
            .map(drop)
    }

    /// How long it took, and the operator's CPU time for each attachment.
    async fn mass(&self, group: &str, stage: Stage) -> Result<(Duration, Duration)> {
        let (started, cpu) = (Instant::now(), process::cpu(self.operator.pid()?)?);
        self.serve(true).await?;
        self.bench.recorder.wait(group, stage, self.nodes, PHASE_LIMIT).await?;
        let cpu = process::cpu(self.operator.pid()?)?.saturating_sub(cpu);
        Ok((started.elapsed(), cpu / u32::try_from(self.nodes).unwrap_or(u32::MAX)))
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes;
        writeln!(formatter, "one ReadWriteMany volume, {nodes} nodes")?;
        for (what, which) in [("the other driver's attach", 0), ("the same writes alone", 1)] {
            for percent in [50, 99] {
                let (rest, motion) = (
                    percentile(&self.rest[which], percent),
                    percentile(&self.motion[which], percent),
                );
                let bar = if (which, percent) == (0, 99) {
                    format!("  wanted: <= {WANTED_RATIO}")
                } else {
                    String::new()
                };
                writeln!(
                    formatter,
                    "  {what}, p{percent}: {:.1} ms at rest, {:.1} ms beside it, ratio {:.2}{bar}",
                    ms(rest),
                    ms(motion),
                    ms(motion) / ms(rest)
                )?;
            }
        }
        for (what, all, bar) in [
            ("attach", &self.attaches, String::new()),
            ("detach", &self.detaches, format!("  wanted: <= {WANTED_CPU_MS} ms")),
        ] {
            for (took, cpu) in all {
                writeln!(
                    formatter,
                    "  mass {what}: {:.2} s, operator's CPU {:.2} ms an attachment{bar}",
                    took.as_secs_f64(),
                    ms(*cpu)
                )?;
            }
        }
        write!(formatter, "  (CPU with that of the other driver's attaches meanwhile)")
    }
}
