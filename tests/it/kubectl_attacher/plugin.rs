//! `kubectl attacher ...`, as people run it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::rig::{LIMIT, World};
use crate::support::{ControlPlane, Error, Result, built_program};

/// Longer than any command waits by itself.
const COMMAND_LIMIT: Duration = Duration::from_mins(2);

/// kubectl with the plugin on PATH.
pub struct Plugin {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    path: OsString,
}

/// What a command came to.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub error: String,
}

impl Plugin {
    pub async fn of(world: &World) -> Result<Self> {
        Self::in_cluster(&world.cluster).await
    }

    pub async fn in_cluster(cluster: &ControlPlane) -> Result<Self> {
        let program = built_program("kubectl-attacher")?;
        let programs = program.parent().map(Path::to_path_buf).unwrap_or_default();
        Ok(Self {
            kubectl: cluster.kubectl_path().await?,
            kubeconfig: cluster.admin_kubeconfig(),
            path: programs.into_os_string(),
        })
    }

    /// With the kubeconfig of somebody else.
    pub fn with_kubeconfig(mut self, kubeconfig: PathBuf) -> Self {
        self.kubeconfig = kubeconfig;
        self
    }

    /// Starts `kubectl attacher` with arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.kubectl(&["attacher"], arguments, &self.path)
    }

    /// Asks kubectl as a shell does: how these words behind `kubectl attacher` go on, with a program of this folder.
    pub fn completion(&self, folder: &Path, words: &[&str]) -> Command {
        let own = std::env::split_paths(&self.path).chain([folder.to_path_buf()]);
        let others = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(own.chain(std::env::split_paths(&others)));
        self.kubectl(
            &["__complete", "attacher"],
            words,
            &path.expect("no folder has a colon"),
        )
    }

    fn kubectl(&self, verb: &[&str], arguments: &[&str], path: &OsStr) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .args(verb)
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs it to its end.
    pub async fn run(&self, arguments: &[&str]) -> Result<Ran> {
        let running = self.command(arguments).output();
        let output = tokio::time::timeout(COMMAND_LIMIT, running).await;
        let output = output.map_err(|_| Error::Other(format!("kubectl attacher {arguments:?} does not end")))?;
        let output = output?;
        Ok(Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            error: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Asks again until the answer has all these parts: controllers need a moment.
    pub async fn until(&self, arguments: &[&str], parts: &[&str]) -> Result<Ran> {
        let mut last = String::new();
        let asking = async {
            loop {
                let ran = self.run(arguments).await?;
                if parts.iter().all(|part| ran.out.contains(part)) {
                    return Ok(ran);
                }
                last = format!("{}\n{}", ran.out, ran.error);
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        };
        match tokio::time::timeout(LIMIT, asking).await {
            Ok(ran) => ran,
            Err(_) => Err(Error::Other(format!("{arguments:?} does not say {parts:?}:\n{last}"))),
        }
    }
}
