//! Finds the programs of the control plane by `tests/controlplane/build`, which builds what is missing.

use std::path::PathBuf;
use std::process::Stdio;

use super::super::error::{Context, Error, Result};
use super::watchdog::under_watchdog;

/// The paths of these components, in this order. The first call on a machine can take minutes; the script says on
/// stderr what it does, and its locks make parallel calls wait for each other.
pub async fn locate<const N: usize>(components: [&'static str; N]) -> Result<[PathBuf; N]> {
    tokio::task::spawn_blocking(move || run_build(&components)).await?
}

fn run_build<const N: usize>(components: &[&str; N]) -> Result<[PathBuf; N]> {
    let script = crate::of_repository("tests/controlplane/build");
    let mut child = under_watchdog(&script)
        .arg("--path")
        .args(components)
        .stdout(Stdio::piped())
        .spawn()
        .while_trying(|| format!("start {}", script.display()))?;
    // `wait_with_output` would close the pipe which tells the watchdog that this process lives.
    let alive = child.stdin.take();
    let output = child.wait_with_output()?;
    drop(alive);
    let paths = String::from_utf8_lossy(&output.stdout);
    let paths: Vec<PathBuf> = paths.lines().map(PathBuf::from).collect();
    match paths.try_into() {
        Ok(paths) if output.status.success() => Ok(paths),
        _ => Err(Error::Other(format!(
            "tests/controlplane/build could not provide {} ({}); its output above says why",
            components.join(", "),
            output.status
        ))),
    }
}
