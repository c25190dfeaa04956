//! The attachers that take turns at the same driver: the operator, the Go sidecar, and the one of `ATTACHER_CMD`.

use std::path::{Path, PathBuf};

use super::cluster::Bench;
use super::process::{self, Memory};
use super::support::controlplane::watchdog::{Output, Watched};
use super::support::operator::IDENTITY;
use super::support::{Error, Operator, OperatorOptions, Result, Sidecar, sidecar};

/// How long a phase of one attacher may take; a phase that fails must end the scene before the scene's own limit does.
pub const PHASE_LIMIT: std::time::Duration = std::time::Duration::from_mins(15);

/// As many calls at a time as the operator has by default, and no limit of requests that it would notice.
pub const SIDECAR_FLAGS: [&str; 5] = [
    "--worker-threads=100",
    "--kube-api-qps=2000",
    "--kube-api-burst=2000",
    "--timeout=60s",
    "--v=1",
];

/// Which attacher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Operator,
    Sidecar,
    /// `ATTACHER_CMD`, a command with `{kubeconfig}` and `{socket}`.
    Command,
}

impl Kind {
    /// Those of a scene in which the attachers take turns. `SIDECAR=0` leaves the Go sidecar out.
    pub fn all() -> Vec<Self> {
        let mut kinds = vec![Self::Operator];
        if std::env::var("SIDECAR").as_deref() != Ok("0") {
            kinds.push(Self::Sidecar);
        }
        if std::env::var_os("ATTACHER_CMD").is_some() {
            kinds.push(Self::Command);
        }
        kinds
    }

    /// Those besides the operator.
    pub fn others() -> Vec<Self> {
        Self::all().into_iter().filter(|kind| *kind != Self::Operator).collect()
    }
}

/// What the attachers besides the operator came to.
pub type Others<T> = Vec<(Kind, T)>;

/// The value of one of them, for its column.
pub fn value_of<T>(others: &Others<T>, kind: Kind, value: impl Fn(&T) -> f64) -> Option<f64> {
    others.iter().find(|(other, _)| *other == kind).map(|(_, of)| value(of))
}

/// One of them as a running process; dropping it kills it.
pub enum Attacher {
    Operator(Operator),
    Sidecar(Sidecar),
    Command(Watched),
}

impl Attacher {
    /// Starts it for the driver behind this socket. The operator reads that from its AttacherConfig.
    pub async fn start(bench: &Bench, kind: Kind, socket: &Path) -> Result<Self> {
        match kind {
            Kind::Operator => {
                let kubeconfig = bench.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
                let operator = Operator::start_with(&kubeconfig, options())?;
                operator.wait_ready().await?;
                Ok(Self::Operator(operator))
            }
            Kind::Sidecar => Sidecar::start(&bench.cluster, socket, &SIDECAR_FLAGS)
                .await
                .map(Self::Sidecar),
            Kind::Command => command(bench, socket).await.map(Self::Command),
        }
    }

    /// Starts it as one that provisions: the operator, or with these further arguments external-provisioner.
    pub async fn start_provisioner(bench: &Bench, kind: Kind, socket: &Path, flags: &[&str]) -> Result<Self> {
        match kind {
            Kind::Sidecar => Sidecar::start_program(sidecar::PROVISIONER, &bench.cluster, socket, flags)
                .await
                .map(Self::Sidecar),
            kind => Self::start(bench, kind, socket).await,
        }
    }

    pub fn pid(&self) -> Result<u32> {
        match self {
            Self::Operator(operator) => operator.pid(),
            Self::Sidecar(sidecar) => sidecar.pid(),
            // The watchdog starts it before all else, so that it is the first of its children.
            Self::Command(process) => process.child(""),
        }
    }

    pub fn memory(&self) -> Result<Memory> {
        process::memory(self.pid()?)
    }

    pub fn cpu(&self) -> Result<std::time::Duration> {
        process::cpu(self.pid()?)
    }

    /// Ends it. The operator gives its Leases up before.
    pub async fn stop(self) -> Result<()> {
        match self {
            Self::Operator(operator) => stop(operator).await,
            Self::Sidecar(_) | Self::Command(_) => Ok(()),
        }
    }
}

/// Ends an operator as a cluster does, and waits for it.
pub async fn stop(mut operator: Operator) -> Result<()> {
    operator.signal("TERM")?;
    let status = operator.wait_ended(PHASE_LIMIT).await?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Other(format!(
        "the operator ended with {status}: {}",
        operator.log_text()
    )))
}

/// The operator that is measured.
pub fn options() -> OperatorOptions {
    OperatorOptions::new(binary())
}

/// Its program.
pub fn binary() -> PathBuf {
    let other = std::env::var_os("OPERATOR_BINARY");
    other.map_or_else(|| env!("CARGO_BIN_EXE_csi-attacher-operator").into(), PathBuf::from)
}

async fn command(bench: &Bench, socket: &Path) -> Result<Watched> {
    let kubeconfig = bench.service_account().await?;
    let command = std::env::var("ATTACHER_CMD").map_err(|error| Error::Other(format!("ATTACHER_CMD: {error}")))?;
    let command = command
        .replace("{kubeconfig}", &kubeconfig.display().to_string())
        .replace("{socket}", &socket.display().to_string());
    let log = kubeconfig.with_extension("attacher.log");
    // In place of the shell, which would be the process that is measured.
    let arguments = ["-c".to_owned(), format!("exec {command}")];
    Watched::spawn("attacher", Path::new("/bin/sh"), &arguments, &log, Output::Log)
}
