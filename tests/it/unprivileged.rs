//! The operator as the user of the chart's pods: its metrics behind TLS, and sockets that this user may not open.

mod metrics;
mod sockets;

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::rig::{World, operator_options};
use crate::support::controlplane::pki::Authority;
use crate::support::controlplane::ports;
use crate::support::operator::install;
use crate::support::otlp::OtlpReceiver;
use crate::support::rbac::{Account, Grants};
use crate::support::{Error, Operator, OperatorOptions, Result, left_out};

/// User and group of the chart's pods.
const USER: u32 = 65532;

/// The operator's account: another than that of most tests, as it is seen without some of its rights.
fn account() -> Account {
    Account::new("unprivileged")
}

fn other(error: impl std::fmt::Display) -> Error {
    Error::Other(error.to_string())
}

/// A cluster, and an operator of that user in it.
struct Rig {
    world: World,
    operator: Operator,
    /// Where it serves the metrics.
    secure: SocketAddr,
    /// Whose certificate it shows.
    authority: Authority,
    /// Where its spans go.
    receiver: OtlpReceiver,
    /// Its binary, its kubeconfig and its certificate.
    folder: tempfile::TempDir,
    /// Whether it is another user than that of the test, as only root can have it.
    another: bool,
}

impl Rig {
    async fn start() -> Result<Self> {
        let world = World::own().await?;
        let folder = tempfile::tempdir().map_err(other)?;
        for open in [folder.path(), world.sockets.path()] {
            mode(open, 0o755)?;
        }
        let another = fs::metadata(folder.path()).map_err(other)?.uid() == 0;
        if !another {
            left_out(
                "unprivileged: the user of the chart's pods; sockets of root, of a group and behind a directory",
                "only root can start the operator as another user",
            )?;
        }
        install(&world.cluster).await?;
        let kubeconfig = folder.path().join("kubeconfig");
        let Account { namespace, name } = account();
        let given = world.cluster.kubeconfig_for_service_account(&namespace, &name).await?;
        Grants::defaults(&account())?.apply(&world.cluster).await?;
        fs::copy(given, &kubeconfig).map_err(other)?;
        let authority = Authority::new()?;
        certify(folder.path(), &authority)?;
        if another {
            chown(&kubeconfig, Some(USER), Some(USER)).map_err(other)?;
        }
        let secure = SocketAddr::from(([127, 0, 0, 1], ports::free_port()?));
        let receiver = OtlpReceiver::grpc().await;
        let options = OperatorOptions {
            binary: as_user(folder.path(), another)?,
            ..operator_options()
        };
        let options = options
            .argument(format!("--metrics-secure-endpoint={secure}"))
            .argument(format!("--metrics-tls-cert-file={}/tls.crt", folder.path().display()))
            .argument(format!("--metrics-tls-key-file={}/tls.key", folder.path().display()))
            .argument("--metrics-authorization-ttl=1s")
            .argument(format!("--log-level={}", metrics::LOG_LEVEL))
            .variable("POD_NAMESPACE", &namespace)
            .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
            .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
            .variable("OTEL_BSP_SCHEDULE_DELAY", "20");
        let operator = Operator::start_with(&kubeconfig, options)?;
        operator.wait_ready().await?;
        Ok(Self {
            world,
            operator,
            secure,
            authority,
            receiver,
            folder,
            another,
        })
    }
}

fn mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| other(format!("{}: {error}", path.display())))
}

/// Puts a certificate of this authority where the operator finds it.
fn certify(folder: &Path, authority: &Authority) -> Result<()> {
    let identity = authority.server(&["localhost"])?;
    for (name, text) in [("tls.key", identity.key), ("tls.crt", identity.certificate)] {
        fs::write(folder.join(name), text).map_err(other)?;
        mode(&folder.join(name), 0o644)?;
    }
    Ok(())
}

/// A program that is the operator, run by that user; of the binary there is another name that this user can reach.
fn as_user(folder: &Path, another: bool) -> Result<PathBuf> {
    let binary = folder.join("csi-attacher-operator");
    let built = env!("CARGO_BIN_EXE_csi-attacher-operator");
    if fs::hard_link(built, &binary).is_err() {
        fs::copy(built, &binary).map_err(other)?;
    }
    if !another {
        return Ok(binary);
    }
    let script = folder.join("operator");
    let user = format!("setpriv --reuid={USER} --regid={USER} --groups={USER}");
    let text = format!("#!/bin/sh\nexec {user} {} \"$@\"\n", binary.display());
    fs::write(&script, text).map_err(other)?;
    mode(&script, 0o755)?;
    Ok(script)
}

/// Both at once, in one cluster.
#[tokio::test]
async fn metrics_behind_tls_and_closed_sockets_with_the_user_of_the_chart() -> Result<()> {
    let rig = Box::pin(Rig::start()).await?;
    tokio::try_join!(
        Box::pin(metrics::only_who_may_read_the_metrics_does(&rig)),
        Box::pin(sockets::each_is_told_with_its_mend(&rig))
    )
    .map(drop)
}
