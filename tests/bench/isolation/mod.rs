//! `make isolation`: what nine drivers that misbehave cost the tenth, in one operator and one run.
//!
//! Rounds with the nine at rest and rounds with them in full swing take turns, so that a machine that gets slower or
//! busier meets both alike. Beside each attach of the tenth driver the benchmark makes the same writes itself, as another
//! user of the same API server: what these lose while the nine misbehave is lost to the API server and the machine's
//! cores, and no operator could do anything about it at that moment.
//!
//! Environment: `ROUNDS` (4), `COUNT` of attaches in a round (100), `RATE` a second (10), `HOSTILE` attachments of each of
//! the nine (300), `CHURN` attaches and detaches a second of the one that works (10), `OPERATOR_BINARY`.

mod hostile;
pub mod load;
mod report;

use std::time::{Duration, Instant};

use kube::Client;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use csi_attacher_operator::apiserver::connect;
use csi_mock_driver::{MockDriver, MockHandle};

use crate::cluster::{Bench, NOBODYS_DRIVER};
use crate::support::operator::{IDENTITY, apply_config, wait_condition};
use crate::support::{Error, Operator, Result};
use crate::{process, progress, setting};
use hostile::{Hostile, KINDS, Kind};
use load::Load;
pub use report::Report;
pub use report::percentile;
pub use report::sum_of;
use report::{Costs, Side};

/// The driver that behaves.
pub const TENTH: &str = "tenth.csi.test";

/// How long the nine are left to themselves before their effect is measured.
const SOAK: Duration = Duration::from_secs(15);

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    rounds: usize,
    count: usize,
    rate: usize,
    hostile: usize,
    churn: usize,
}

impl Sizes {
    fn read() -> Result<Self> {
        Ok(Self {
            rounds: setting("ROUNDS", 4)?,
            count: setting("COUNT", 100)?,
            rate: setting("RATE", 10)?,
            hostile: setting("HOSTILE", 300)?,
            churn: setting("CHURN", 10)?,
        })
    }
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
pub async fn measure() -> Result<Report> {
    let sizes = Sizes::read()?;
    let scene = Scene::set(sizes).await?;
    progress("warming up, with the nine in full swing for the first time");
    scene.load.run(&scene.bench, "warm-up-0").await?;
    drop(scene.swing().await?);
    scene.rest().await?;
    let (mut idle, mut hostile) = (Side::default(), Side::default());
    for round in 0..sizes.rounds {
        progress(&format!("round {} of {}, the nine at rest", round + 1, sizes.rounds));
        scene.round(&format!("rest-{round}"), &mut idle).await?;
        progress(&format!(
            "round {} of {}, the nine in full swing",
            round + 1,
            sizes.rounds
        ));
        let churn = scene.swing().await?;
        scene.round(&format!("swing-{round}"), &mut hostile).await?;
        drop(churn);
        scene.rest().await?;
    }
    Ok(Report { sizes, idle, hostile })
}

impl Scene {
    async fn set(sizes: Sizes) -> Result<Self> {
        progress("starting etcd and kube-apiserver");
        let names: Vec<String> = (0..KINDS.len()).map(hostile::driver).collect();
        let mut drivers: Vec<&str> = names.iter().map(String::as_str).collect();
        drivers.extend([TENTH, NOBODYS_DRIVER]);
        let bench = Bench::start_for(sizes.hostile.max(sizes.count), &drivers).await?;
        let other = |error: std::io::Error| Error::Other(error.to_string());
        let sockets = tempfile::tempdir().map_err(other)?;
        let tenth = MockDriver::builder(TENTH).accept_any_volume();
        let socket = sockets.path().join("tenth.sock");
        let tenth = tenth.start(&socket).await;
        let tenth = tenth.map_err(|error| Error::Other(error.to_string()))?;
        let spec = json!({"endpoint": format!("unix://{}", socket.display())});
        apply_config(&bench.client, "tenth", spec).await?;
        progress("making the drivers and attachments that misbehave");
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let threads = Threads(Some(threads.map_err(other)?));
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
        let operator = Operator::start_with(&kubeconfig, crate::operator_run::options())?;
        operator.wait_ready().await?;
        wait_condition(&bench.client, "tenth", "Ready", "True", Some("Running")).await?;
        let load = Load {
            count: sizes.count,
            per_second: sizes.rate as f64,
            writer: writer(&bench).await?,
        };
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
    async fn round(&self, group: &str, side: &mut Side) -> Result<()> {
        let (before, started) = (self.costs().await?, Instant::now());
        self.load.run(&self.bench, group).await?;
        let took = started.elapsed();
        let recorder = &self.bench.recorder;
        side.add(
            recorder.latencies(&load::operators(group)),
            recorder.latencies(&load::own(group)),
            self.costs().await?.since(&before),
            took,
        );
        Ok(())
    }

    async fn costs(&self) -> Result<Costs> {
        let [etcd, apiserver] = self.bench.component_groups()?;
        let metrics = self.operator.metrics().await?;
        Ok(Costs {
            cpu: [
                process::cpu(self.operator.pid()?)?,
                process::group_cpu(apiserver)?,
                process::group_cpu(etcd)?,
                process::cpu(std::process::id())?,
            ],
            requests: report::sum_of(&metrics, "rest_client_requests_total{"),
            calls: self.nine.iter().map(Hostile::calls).sum(),
        })
    }
}

/// A client of a service account, whose requests the API server ranks like those of the operator, but queues apart.
pub async fn writer(bench: &Bench) -> Result<Client> {
    const ACCOUNT: &str = "bench-writer";
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": ACCOUNT}],
    });
    bench.cluster.apply_yaml(&binding.to_string()).await?;
    let kubeconfig = bench.cluster.kubeconfig_for_service_account(ACCOUNT, ACCOUNT).await?;
    let config = csi_attacher_operator::apiserver::load_config(Some(&kubeconfig)).await;
    let config = config.map_err(|error| Error::Other(error.to_string()))?;
    connect(&config).map_err(|error| Error::Other(error.to_string()))
}

/// How long a run may take: rounds at their pace, and far more than the nine need to come into swing and to rest.
pub fn limit() -> Result<Duration> {
    let sizes = Sizes::read()?;
    let rounds = u32::try_from(sizes.rounds).unwrap_or(u32::MAX);
    let load = Duration::from_secs_f64(sizes.count as f64 / sizes.rate as f64);
    Ok(Duration::from_mins(10) + (load * 2 + Duration::from_mins(2)) * rounds)
}
