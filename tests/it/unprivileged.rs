//! The operator as the user of the chart's pods: sockets that this user may not open.

mod sockets;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use crate::rig::{World, operator_options, other};
use crate::support::operator::install;
use crate::support::rbac::{Account, Grants};
use crate::support::{Operator, OperatorOptions, Result, left_out};

/// User and group of the chart's pods.
const USER: u32 = 65532;

/// A cluster, and an operator of that user in it.
struct Rig {
    world: World,
    operator: Operator,
    /// Its binary and its kubeconfig.
    _folder: tempfile::TempDir,
    /// Whether it is another user than that of the test, as only root can have it.
    another: bool,
}

impl Rig {
    async fn start() -> Result<Self> {
        let world = World::own().await?;
        let folder = tempfile::tempdir()?;
        for open in [folder.path(), world.sockets.path()] {
            mode(open, 0o755)?;
        }
        let another = fs::metadata(folder.path())?.uid() == 0;
        if !another {
            left_out(
                "unprivileged: the user of the chart's pods; sockets of root and behind a directory",
                "only root can start the operator as another user",
            )?;
        }
        install(&world.cluster).await?;
        let kubeconfig = folder.path().join("kubeconfig");
        let account = Account::new("unprivileged");
        let Account { namespace, name } = &account;
        let given = world.cluster.kubeconfig_for_service_account(namespace, name).await?;
        Grants::defaults(&account)?.apply(&world.cluster).await?;
        fs::copy(given, &kubeconfig)?;
        if another {
            chown(&kubeconfig, Some(USER), Some(USER))?;
        }
        let options = OperatorOptions {
            binary: as_user(folder.path(), another)?,
            ..operator_options()
        };
        let operator = Operator::start_with(&kubeconfig, options.variable("POD_NAMESPACE", namespace))?;
        operator.wait_ready().await?;
        Ok(Self {
            world,
            operator,
            _folder: folder,
            another,
        })
    }
}

fn mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| other(format!("{}: {error}", path.display())))
}

/// A program that is the operator, run by that user; of the binary there is another name that this user can reach.
fn as_user(folder: &Path, another: bool) -> Result<PathBuf> {
    let binary = folder.join("csi-attacher-operator");
    let built = env!("CARGO_BIN_EXE_csi-attacher-operator");
    if fs::hard_link(built, &binary).is_err() {
        fs::copy(built, &binary)?;
    }
    if !another {
        return Ok(binary);
    }
    let script = folder.join("operator");
    let user = format!("setpriv --reuid={USER} --regid={USER} --groups={USER}");
    let text = format!("#!/bin/sh\nexec {user} {} \"$@\"\n", binary.display());
    fs::write(&script, text)?;
    mode(&script, 0o755)?;
    Ok(script)
}

#[tokio::test]
async fn closed_sockets_with_the_user_of_the_chart() -> Result<()> {
    let rig = Rig::start().await?;
    sockets::each_is_told_with_its_mend(&rig).await
}
