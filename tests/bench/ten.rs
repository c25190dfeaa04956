//! Ten drivers in one process against one driver with as many volumes, ten processes of one driver each, and ten Go sidecars.
//!
//! Each column has a control plane of its own, so that none finds what another left behind.
//!
//! Environment: `VOLUMES` of each of the ten drivers (500), `COLUMNS` (`single,one,ten,sidecar`), `OPERATOR_BINARY`.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use csi_mock_driver::{Method, MockDriver, MockHandle};

use crate::attacher::{PHASE_LIMIT, options};
use crate::cluster::{Bench, no_volumes};
use crate::process::{self, Memory};
use crate::recorder::Stage;
use crate::requests::send_all;
use crate::stats::mib;
use crate::support::operator::{IDENTITY, apply_config, wait_condition};
use crate::support::{Error, Operator, Result, Sidecar};
use crate::table::{Row, Topic};
use crate::usage::Usage;
use crate::{progress, setting};

/// Number of drivers.
const DRIVERS: usize = 10;
/// What one replica watches: VolumeAttachments, PersistentVolumes, CSINodes and AttacherConfigs. It waits for no Lease here.
const WATCHES: f64 = 4.0;
const DROP_IN_RBAC: &str = include_str!("../../config/samples/drop-in-rbac.yaml");
/// Namespace and name of the ServiceAccount in it.
const DROP_IN: (&str, &str) = ("csi-driver", "csi-attacher");

/// Who serves the drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setup {
    /// One operator with one driver, which has the volumes of all.
    Single,
    /// One operator with ten AttacherConfigs.
    One,
    /// Ten operators by the flags of the sidecar.
    Ten,
    /// Ten Go sidecars.
    Sidecars,
}

/// What one setup took.
#[derive(Clone, Debug)]
struct Column {
    /// Memory of all processes before there was work, and with everything attached.
    idle: Memory,
    loaded: Memory,
    /// CPU time from the first volume to the end.
    cpu: Duration,
    /// Requests and watches, as the API server counted them.
    usage: Usage,
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
pub async fn measure() -> Result<Vec<Row>> {
    let volumes = setting("VOLUMES", 500)?;
    let wanted = std::env::var("COLUMNS").unwrap_or_else(|_| "single,one,ten,sidecar".to_owned());
    let asked = |word: &str| wanted.split(',').any(|asked| asked == word);
    let mut columns = [None, None, None, None];
    let setups = [
        ("single", Setup::Single),
        ("one", Setup::One),
        ("ten", Setup::Ten),
        ("sidecar", Setup::Sidecars),
    ];
    for (at, (word, setup)) in setups.into_iter().enumerate() {
        if asked(word) {
            progress(&format!("ten: {setup:?}"));
            let (drivers, each) = if setup == Setup::Single {
                (1, volumes * DRIVERS)
            } else {
                (DRIVERS, volumes)
            };
            columns[at] = Some(Box::pin(column(setup, drivers, each)).await?);
        }
    }
    Ok(rows(volumes, &columns))
}

async fn column(setup: Setup, count: usize, volumes: usize) -> Result<Column> {
    let names: Vec<String> = (0..count).map(driver).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let bench = Bench::start_for(volumes, &names).await?;
    let sockets = tempfile::tempdir()?;
    let mocks = drivers(&names, sockets.path()).await?;
    let before = Usage::read(&bench.client).await?;
    let servers = serve(&bench, setup, count, sockets.path()).await?;
    wait_known(&mocks).await?;
    let pids = servers.pids()?;
    let (idle, idle_cpu) = (memory(&pids)?, cpu(&pids)?);
    for (number, name) in names.iter().enumerate() {
        bench.create_volumes(&group(number), name, volumes).await?;
    }
    // In turns, as users come.
    let attachments = (0..volumes).flat_map(|at| (0..count).map(move |number| (number, at)));
    let attachments = attachments.map(|(number, at)| Bench::attachment(&group(number), &driver(number), at));
    send_all(&bench.client, attachments.collect()).await?;
    all(&bench, Stage::Attached, count, volumes).await?;
    let (loaded, open) = (memory(&pids)?, Usage::read(&bench.client).await?);
    for number in 0..count {
        bench.delete_attachments(&group(number), volumes).await?;
    }
    all(&bench, Stage::Gone, count, volumes).await?;
    for number in 0..count {
        bench.delete_volumes(&group(number), volumes).await?;
    }
    no_volumes(&bench).await?;
    Ok(Column {
        idle,
        loaded,
        cpu: cpu(&pids)?.saturating_sub(idle_cpu),
        usage: Usage::read(&bench.client).await?.since(&before, &open),
    })
}

async fn drivers(names: &[&str], sockets: &Path) -> Result<Vec<MockHandle>> {
    let mut mocks = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let mock = MockDriver::builder(*name).accept_any_volume();
        let mock = mock.start(sockets.join(format!("{number}.sock"))).await;
        mocks.push(mock?);
    }
    Ok(mocks)
}

/// The handshake is over when each driver was asked what it can do.
async fn wait_known(mocks: &[MockHandle]) -> Result<()> {
    for mock in mocks {
        let asked =
            mock.wait_for_call(|call| call.method == Method::ControllerGetCapabilities && call.finished.is_some());
        let asked = tokio::time::timeout(PHASE_LIMIT, asked).await;
        asked.map_err(|_| Error::Other("a driver was never asked what it can do".to_owned()))?;
    }
    Ok(())
}

async fn all(bench: &Bench, stage: Stage, drivers: usize, volumes: usize) -> Result<()> {
    for number in 0..drivers {
        bench.recorder.wait(&group(number), stage, volumes, PHASE_LIMIT).await?;
    }
    Ok(())
}

async fn serve(bench: &Bench, setup: Setup, drivers: usize, sockets: &Path) -> Result<Servers> {
    let socket = |number: usize| sockets.join(format!("{number}.sock"));
    let cluster = &bench.cluster;
    match setup {
        Setup::Single | Setup::One => {
            for number in 0..drivers {
                let spec = json!({"endpoint": format!("unix://{}", socket(number).display())});
                apply_config(&bench.client, &group(number), spec).await?;
            }
            let kubeconfig = cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
            let operator = Operator::start_with(&kubeconfig, options())?;
            operator.wait_ready().await?;
            for number in 0..drivers {
                wait_condition(&bench.client, &group(number), "Ready", "True", Some("Running")).await?;
            }
            Ok(Servers::Operators(vec![operator]))
        }
        Setup::Ten => {
            cluster.apply_yaml(DROP_IN_RBAC).await?;
            let mut operators = Vec::new();
            for number in 0..drivers {
                let kubeconfig = cluster.kubeconfig_for_service_account(DROP_IN.0, DROP_IN.1).await?;
                let mut options = options();
                let address = format!("--csi-address={}", socket(number).display());
                options.arguments = vec![address, "--worker-threads=100".to_owned()];
                let operator = Operator::start_with(&kubeconfig, options)?;
                operator.wait_ready().await?;
                operators.push(operator);
            }
            Ok(Servers::Operators(operators))
        }
        Setup::Sidecars => {
            let mut sidecars = Vec::new();
            for number in 0..drivers {
                sidecars.push(Sidecar::start(cluster, &socket(number), &crate::attacher::SIDECAR_FLAGS).await?);
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

fn rows(volumes: usize, [single, one, ten, sidecars]: &[Option<Column>; 4]) -> Vec<Row> {
    let Some(one) = one else { return Vec::new() };
    let what = format!("{DRIVERS} drivers x {volumes}");
    let value = |column: &Option<Column>, of: fn(&Column) -> f64| column.as_ref().map(of);
    let row = |topic, name: &str, unit: &str, of: fn(&Column) -> f64| {
        let row = Row::new(topic, format!("{what}: {name}"), of(one), unit).sidecar(value(sidecars, of));
        match value(ten, of) {
            Some(ten) => row.note(format!("ten operators in drop-in mode: {ten:.2}")),
            None => row,
        }
    };
    let watches = row(Topic::Requests, "watches, no Lease waited for", "", |column| {
        column.usage.watches() as f64
    });
    let attached = row(Topic::Memory, "RSS, all attached", "MiB", |column| {
        mib(column.loaded.now)
    })
    .headline();
    vec![
        watches.at_most(WATCHES).note(format!("{:?}", one.usage.watches)),
        row(Topic::Memory, "RSS idle", "MiB", |column| mib(column.idle.now)).headline(),
        match value(single, |column| mib(column.loaded.now)) {
            Some(single) => attached
                .against(&format!("one driver with {}", volumes * DRIVERS), single)
                .ratio_at_most(1.5),
            None => attached,
        },
        row(
            Topic::Cpu,
            "CPU for all volumes attached, detached, released",
            "s",
            |column| column.cpu.as_secs_f64(),
        ),
        row(Topic::Requests, "requests", "", |column| {
            column.usage.sum(|_, _| true) as f64
        }),
    ]
}
