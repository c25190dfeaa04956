//! What nine drivers that misbehave cost the tenth, in one operator and one run. Etcd and API server have cores of their own,
//! as in a cluster; operator, drivers and benchmark share the others.
//!
//! Rounds with the nine at rest and rounds with them in full swing take turns, so that a machine that gets slower or
//! busier meets both alike. Beside each attach of the tenth driver the benchmark makes the same writes itself, as another
//! user of the same API server: what these lose while the nine misbehave is lost to the API server and the machine's
//! cores, and no operator could do anything about it at that moment.
//!
//! Environment: `ROUNDS` (4), `COUNT` of attaches in a round (100), `RATE` a second (10), `HOSTILE` attachments of each of
//! the nine (300), `CHURN` attaches and detaches a second of the one that works (10), `OPERATOR_BINARY`.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use csi_mock_driver::{MockDriver, MockHandle};

use crate::cluster::{Bench, NOBODYS_DRIVER};
use crate::hostile::{self, Hostile, KINDS, Kind};
use crate::load::{self, Load, Sides};
use crate::stats::sum_of;
use crate::support::operator::{IDENTITY, apply_config, wait_condition};
use crate::support::{Error, Operator, Result};
use crate::table::{Row, Topic};
use crate::{machine, process, progress, setting};

/// The driver that behaves.
const TENTH: &str = "tenth.csi.test";

/// How long the nine are left to themselves before their effect is measured.
const SOAK: Duration = Duration::from_secs(15);

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rounds: usize,
    hostile: usize,
    churn: usize,
}

/// What rounds of one kind cost.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    /// CPU time of the operator.
    cpu: Duration,
    /// Requests that it sent, and calls that reached the nine.
    requests: u64,
    calls: u64,
    took: Duration,
}

/// Everything of a run.
struct Scene {
    // Ends before the API server that it works on.
    operator: Operator,
    nine: Vec<Hostile>,
    _tenth: MockHandle,
    bench: Bench,
    load: Load,
    sizes: Sizes,
    _sockets: tempfile::TempDir,
    // Drivers are other processes in a cluster: those that misbehave have threads of their own here.
    _threads: Threads,
}

/// A runtime that may be dropped inside another.
struct Threads(Option<tokio::runtime::Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let sizes = Sizes {
        rounds: setting("ROUNDS", 4)?,
        hostile: setting("HOSTILE", 300)?,
        churn: setting("CHURN", 10)?,
    };
    let scene = Scene::set(sizes).await?;
    let cores = machine::cores();
    let parted = machine::part(
        &scene.bench.component_groups()?,
        &[scene.operator.pid()?, std::process::id()],
    )?;
    let measured = scene.rounds().await;
    machine::unpart(cores);
    let (times, [rest, swing]) = measured?;
    let mut rows = times.rows("nine hostile drivers: the tenth", "nine at rest", 1.2);
    let note = if parted {
        "control plane on its own cores"
    } else {
        "cores shared: no taskset or one core"
    };
    rows[0] = rows[0].clone().note(note);
    let row = |topic, name: &str, unit: &str, value: fn(&Costs) -> f64| {
        let each = |costs: &Costs| value(costs) / costs.took.as_secs_f64();
        Row::new(topic, format!("nine hostile drivers: {name}"), each(&swing), unit)
            .against("nine at rest", each(&rest))
    };
    rows.push(row(Topic::Cpu, "CPU of the operator", "cores", |costs| {
        costs.cpu.as_secs_f64()
    }));
    rows.push(row(Topic::Requests, "requests of the operator", "/s", |costs| {
        costs.requests as f64
    }));
    rows.push(row(Topic::Requests, "calls to the nine", "/s", |costs| {
        costs.calls as f64
    }));
    Ok(rows)
}

impl Scene {
    /// Rounds of both kinds in turns: the times, and the costs of both kinds.
    async fn rounds(&self) -> Result<(Sides, [Costs; 2])> {
        progress("isolation: warming up, with the nine in full swing for the first time");
        self.load.run(&self.bench, "warm-up-0").await?;
        drop(self.swing().await?);
        self.rest().await?;
        let (mut sides, mut costs) = (Sides::default(), [Costs::default(); 2]);
        let rounds = self.sizes.rounds;
        for round in 0..rounds {
            progress(&format!("isolation: round {} of {rounds}, the nine at rest", round + 1));
            let group = format!("rest-{round}");
            self.round(&group, &mut costs[0]).await?;
            sides.add(&self.bench, &group, false);
            progress(&format!(
                "isolation: round {} of {rounds}, the nine in full swing",
                round + 1
            ));
            let churn = self.swing().await?;
            let group = format!("swing-{round}");
            self.round(&group, &mut costs[1]).await?;
            sides.add(&self.bench, &group, true);
            drop(churn);
            self.rest().await?;
        }
        Ok((sides, costs))
    }

    async fn set(sizes: Sizes) -> Result<Self> {
        let names: Vec<String> = (0..KINDS.len()).map(hostile::driver).collect();
        let mut drivers: Vec<&str> = names.iter().map(String::as_str).collect();
        drivers.extend([TENTH, NOBODYS_DRIVER]);
        let bench = Bench::start_for(sizes.hostile.max(load::count()?), &drivers).await?;
        let sockets = tempfile::tempdir()?;
        let tenth = MockDriver::builder(TENTH).accept_any_volume();
        let socket = sockets.path().join("tenth.sock");
        let tenth = tenth.start(&socket).await;
        let tenth = tenth?;
        let spec = json!({"endpoint": format!("unix://{}", socket.display())});
        apply_config(&bench.client, "tenth", spec).await?;
        progress("making the drivers and attachments that misbehave");
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let threads = Threads(Some(threads?));
        let mut nine = Vec::new();
        for number in 0..KINDS.len() {
            let _on = threads.0.as_ref().map(tokio::runtime::Runtime::enter);
            nine.push(Box::pin(Hostile::start(&bench, number, sockets.path())).await?);
        }
        for hostile in &nine {
            hostile.fill(&bench, sizes.hostile).await?;
        }
        progress("starting the operator");
        let kubeconfig = bench.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
        let operator = Operator::start_with(&kubeconfig, crate::attacher::options())?;
        operator.wait_ready().await?;
        wait_condition(&bench.client, "tenth", "Ready", "True", Some("Running")).await?;
        let load = Load::new(&bench, TENTH.to_owned()).await?;
        Ok(Self {
            operator,
            nine,
            _tenth: tenth,
            bench,
            load,
            sizes,
            _sockets: sockets,
            _threads: threads,
        })
    }

    /// Lets the nine loose; returns when all of them are at it. What somebody else asks of them ends with the handle.
    async fn swing(&self) -> Result<AbortOnDropHandle<()>> {
        let mut before = Vec::new();
        for hostile in &self.nine {
            before.push(hostile.calls());
            hostile.resume(&self.bench).await?;
        }
        let churns = self.nine.iter().find(|hostile| hostile.kind == Kind::Churns);
        let churns = churns.ok_or_else(|| Error::Other("nobody churns".to_owned()))?;
        let churn = AbortOnDropHandle::new(tokio::spawn(load::churn(
            self.bench.client.clone(),
            churns.group(),
            hostile::driver(churns.number),
            self.sizes.hostile,
            self.sizes.churn as f64,
        )));
        for (hostile, before) in self.nine.iter().zip(before) {
            hostile.wait_in_swing(before, self.sizes.hostile).await?;
        }
        // What may be written at once after a rest is written, and what is left is what goes on and on.
        tokio::time::sleep(SOAK).await;
        Ok(churn)
    }

    async fn rest(&self) -> Result<()> {
        for hostile in &self.nine {
            hostile.suspend(&self.bench).await?;
        }
        for hostile in &self.nine {
            hostile.wait_suspended(&self.bench).await?;
        }
        Ok(())
    }

    /// One load, with what it costs.
    async fn round(&self, group: &str, sum: &mut Costs) -> Result<()> {
        let (before, started) = (self.costs().await?, Instant::now());
        self.load.run(&self.bench, group).await?;
        let after = self.costs().await?;
        sum.cpu += after.cpu.saturating_sub(before.cpu);
        sum.requests += after.requests - before.requests;
        sum.calls += after.calls - before.calls;
        sum.took += started.elapsed();
        Ok(())
    }

    async fn costs(&self) -> Result<Costs> {
        let metrics = self.operator.metrics().await?;
        Ok(Costs {
            cpu: process::cpu(self.operator.pid()?)?,
            requests: sum_of(&metrics, "rest_client_requests_total{"),
            calls: self.nine.iter().map(Hostile::calls).sum(),
            took: Duration::ZERO,
        })
    }
}
