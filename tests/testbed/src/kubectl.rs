//! The real kubectl of the control plane's release, as people use it.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::ControlPlane;
use super::error::{Context, Error, Result};

/// Longer than any wait that a command is asked for.
const LIMIT: Duration = Duration::from_mins(2);

/// Runs kubectl for the administrator of a cluster.
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    /// The discovery cache of this cluster alone: its address may have been another one's.
    cache: tempfile::TempDir,
}

impl Kubectl {
    /// Builds kubectl if it was not yet.
    pub async fn of(cluster: &ControlPlane) -> Result<Self> {
        Ok(Self {
            program: cluster.kubectl_path().await?,
            kubeconfig: cluster.admin_kubeconfig(),
            cache: tempfile::tempdir()?,
        })
    }

    /// What a command prints; an error when it fails.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, "").await
    }

    /// `kubectl apply` of a manifest.
    pub async fn apply(&self, manifest: &str) -> Result<String> {
        self.run_with(&["apply", "-f", "-"], manifest).await
    }

    /// What a command prints on standard error that is to fail.
    pub async fn refused(&self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.output(arguments, input).await?;
        if output.status.success() {
            return Err(Error::Other(format!("kubectl {} succeeded", arguments.join(" "))));
        }
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    async fn run_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.output(arguments, input).await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let (status, said) = (output.status, String::from_utf8_lossy(&output.stderr));
        let what = arguments.join(" ");
        Err(Error::Other(format!("kubectl {what}: {status}\n{said}")))
    }

    async fn output(&self, arguments: &[&str], input: &str) -> Result<Output> {
        let what = || format!("run kubectl {}", arguments.join(" "));
        let mut child = Command::new(&self.program)
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg(format!("--cache-dir={}", self.cache.path().display()))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .while_trying(what)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that does not read its input may have ended already.
            drop(stdin.write_all(input.as_bytes()).await);
        }
        let output = tokio::time::timeout(LIMIT, child.wait_with_output()).await;
        let output = output.map_err(|_| Error::Other(format!("{}: not within {LIMIT:?}", what())))?;
        output.while_trying(what)
    }
}
