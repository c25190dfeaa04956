//! `make ten`: ten drivers in one process against ten processes of one driver each, and against ten Go sidecars.
//!
//! Each column has a control plane of its own, so that none finds what another left behind. All have the same flags as far
//! as they have them: 100 calls at a time, no limit of requests (the sidecar: 1000 a second).
//!
//! Environment: `VOLUMES` of each driver (200), `COLUMNS` (`one,ten,sidecar`), `OPERATOR_BINARY`.

mod api;
mod report;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use csi_mock_driver::{Method, MockDriver, MockHandle};

use crate::cluster::Bench;
use crate::operator_run::options;
use crate::process::{self, Memory};
use crate::recorder::Stage;
use crate::support::operator::{IDENTITY, apply_config, wait_condition};
use crate::support::{Error, Operator, Result, Sidecar};
use crate::{progress, requests, setting};
pub use api::Usage;
pub use report::Report;

/// Number of drivers.
const DRIVERS: usize = 10;
/// How long one phase may take.
const LIMIT: Duration = Duration::from_mins(10);
const DROP_IN_RBAC: &str = include_str!("../../../config/samples/drop-in-rbac.yaml");
/// Namespace and name of the ServiceAccount in it.
const DROP_IN: (&str, &str) = ("csi-driver", "csi-attacher");

/// Who serves the drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// One operator with ten AttacherConfigs.
    One,
    /// Ten operators by the flags of the sidecar.
    Ten,
    /// Ten Go sidecars.
    Sidecars,
}

/// What one setup took.
#[derive(Clone, Debug)]
pub struct Column {
    /// Which.
    pub setup: Setup,
    /// Processes.
    pub processes: usize,
    /// Memory of all processes before there was work.
    pub idle: Memory,
    /// Memory with everything attached; the peak is the sum of the peaks of all.
    pub loaded: Memory,
    /// From the first creation to the last attach.
    pub attach: Duration,
    /// From the first deletion to the last detach.
    pub detach: Duration,
    /// CPU time from the start to the end.
    pub cpu: Duration,
    /// CPU time until there was work.
    pub idle_cpu: Duration,
    /// Requests and watches, as the API server counted them.
    pub usage: Usage,
}

/// Processes that serve the drivers; dropping them ends them.
enum Servers {
    Operators(Vec<Operator>),
    Sidecars(Vec<Sidecar>),
}

impl Servers {
    fn pids(&self) -> Result<Vec<u32>> {
        match self {
            Self::Operators(all) => all.iter().map(Operator::pid).collect(),
            Self::Sidecars(all) => all.iter().map(Sidecar::pid).collect(),
        }
    }
}

fn driver(number: usize) -> String {
    format!("ten-{number}.csi.test")
}

fn group(number: usize) -> String {
    format!("ten-{number}")
}

/// Measures all columns.
pub async fn measure() -> Result<Report> {
    let volumes = setting("VOLUMES", 200)?;
    let wanted = std::env::var("COLUMNS").unwrap_or_else(|_| "one,ten,sidecar".to_owned());
    let mut columns = Vec::new();
    for (word, setup) in [("one", Setup::One), ("ten", Setup::Ten), ("sidecar", Setup::Sidecars)] {
        if wanted.split(',').any(|asked| asked == word) {
            progress(&format!("{setup:?}: starting"));
            columns.push(Box::pin(column(setup, volumes)).await?);
        }
    }
    Ok(Report { volumes, columns })
}

async fn column(setup: Setup, volumes: usize) -> Result<Column> {
    let names: Vec<String> = (0..DRIVERS).map(driver).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let bench = Bench::start_for(volumes, &names).await?;
    let sockets = tempfile::tempdir().map_err(|error| Error::Other(error.to_string()))?;
    let mocks = drivers(&names, sockets.path()).await?;
    let before = Usage::read(&bench.client).await?;
    let servers = serve(&bench, setup, sockets.path()).await?;
    wait_known(&mocks).await?;
    let pids = servers.pids()?;
    let (idle, idle_cpu) = (memory(&pids)?, cpu(&pids)?);
    progress(&format!("{setup:?}: attaching"));
    for (number, name) in names.iter().enumerate() {
        bench.create_volumes(&group(number), name, volumes).await?;
    }
    let started = Instant::now();
    let attachments = (0..volumes).flat_map(|at| {
        // In turns, as users come.
        (0..DRIVERS).map(move |number| (number, at))
    });
    let attachments = attachments.map(|(number, at)| Bench::attachment(&group(number), &driver(number), at));
    requests::send_all(&bench.client, attachments.collect()).await?;
    all(&bench, Stage::Attached, volumes).await?;
    let attach = started.elapsed();
    let (loaded, open) = (memory(&pids)?, Usage::read(&bench.client).await?);
    progress(&format!("{setup:?}: detaching"));
    let started = Instant::now();
    for number in 0..DRIVERS {
        bench.delete_attachments(&group(number), volumes).await?;
    }
    all(&bench, Stage::Gone, volumes).await?;
    let detach = started.elapsed();
    for number in 0..DRIVERS {
        bench.delete_volumes(&group(number), volumes).await?;
    }
    crate::operator_run::no_volumes(&bench).await?;
    let cpu = cpu(&pids)?;
    let usage = Usage::read(&bench.client).await?.since(&before, &open);
    let peak = memory(&pids)?.peak;
    Ok(Column {
        setup,
        processes: pids.len(),
        idle,
        loaded: Memory { peak, ..loaded },
        attach,
        detach,
        cpu,
        idle_cpu,
        usage,
    })
}

async fn drivers(names: &[&str], sockets: &Path) -> Result<Vec<MockHandle>> {
    let mut mocks = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let mock = MockDriver::builder(*name).accept_any_volume();
        let mock = mock.start(sockets.join(format!("{number}.sock"))).await;
        mocks.push(mock.map_err(|error| Error::Other(error.to_string()))?);
    }
    Ok(mocks)
}

/// The handshake is over when each driver was asked what it can do.
async fn wait_known(mocks: &[MockHandle]) -> Result<()> {
    for mock in mocks {
        let asked =
            mock.wait_for_call(|call| call.method == Method::ControllerGetCapabilities && call.finished.is_some());
        let asked = tokio::time::timeout(LIMIT, asked).await;
        asked.map_err(|_| Error::Other("a driver was never asked what it can do".to_owned()))?;
    }
    Ok(())
}

async fn all(bench: &Bench, stage: Stage, volumes: usize) -> Result<()> {
    for number in 0..DRIVERS {
        bench.recorder.wait(&group(number), stage, volumes, LIMIT).await?;
    }
    Ok(())
}

async fn serve(bench: &Bench, setup: Setup, sockets: &Path) -> Result<Servers> {
    let socket = |number: usize| sockets.join(format!("{number}.sock"));
    let cluster = &bench.cluster;
    match setup {
        Setup::One => {
            for number in 0..DRIVERS {
                let spec = json!({
                    "endpoint": format!("unix://{}", socket(number).display()), "leaderElection": {"enabled": false},
                });
                apply_config(&bench.client, &group(number), spec).await?;
            }
            let kubeconfig = cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
            let operator = Operator::start_with(&kubeconfig, options())?;
            operator.wait_ready().await?;
            for number in 0..DRIVERS {
                wait_condition(&bench.client, &group(number), "Ready", "True", Some("Running")).await?;
            }
            Ok(Servers::Operators(vec![operator]))
        }
        Setup::Ten => {
            cluster.apply_yaml(DROP_IN_RBAC).await?;
            let mut operators = Vec::new();
            for number in 0..DRIVERS {
                let kubeconfig = cluster.kubeconfig_for_service_account(DROP_IN.0, DROP_IN.1).await?;
                let mut options = options();
                options.arguments = vec![
                    format!("--csi-address={}", socket(number).display()),
                    "--worker-threads=100".to_owned(),
                ];
                let operator = Operator::start_with(&kubeconfig, options)?;
                operator.wait_ready().await?;
                operators.push(operator);
            }
            Ok(Servers::Operators(operators))
        }
        Setup::Sidecars => {
            let flags = [
                "--worker-threads=100",
                "--kube-api-qps=1000",
                "--kube-api-burst=1000",
                "--timeout=60s",
                "--v=1",
            ];
            let mut sidecars = Vec::new();
            for number in 0..DRIVERS {
                sidecars.push(Sidecar::start(cluster, &socket(number), &flags).await?);
            }
            Ok(Servers::Sidecars(sidecars))
        }
    }
}

fn memory(pids: &[u32]) -> Result<Memory> {
    let mut sum = Memory::default();
    for pid in pids {
        let one = process::memory(*pid)?;
        sum.now += one.now;
        sum.peak += one.peak;
    }
    Ok(sum)
}

fn cpu(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| process::cpu(*pid)).sum()
}

/// How long all columns may take.
pub fn limit() -> Duration {
    LIMIT * 6
}
