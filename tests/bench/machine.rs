//! The machine that was measured on, and which of its cores who may use.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::support::controlplane::programs;
use super::support::{Error, Result};

/// What figures depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub memory_mib: u64,
    pub kernel: String,
    pub etcd: String,
    pub kube_apiserver: String,
}

impl Machine {
    /// Asks Linux and the programs.
    pub async fn read() -> Result<Self> {
        let [etcd, apiserver] = programs::locate(["etcd", "kube-apiserver"]).await?;
        let line = |path: &str, name: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
            line.unwrap_or_default().trim_start_matches([':', ' ', '\t']).to_owned()
        };
        let kibibytes = line("/proc/meminfo", "MemTotal:");
        let kibibytes: u64 = kibibytes
            .split_whitespace()
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            cores: cores(),
            cpu: line("/proc/cpuinfo", "model name").trim().to_owned(),
            memory_mib: kibibytes / 1024,
            kernel: kernel.trim().to_owned(),
            etcd: version(&etcd)?,
            kube_apiserver: version(&apiserver)?,
        })
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            cores,
            cpu,
            memory_mib,
            kernel,
            etcd,
            kube_apiserver,
        } = self;
        write!(
            formatter,
            "{cores} cores for all ({cpu}), {memory_mib} MiB, Linux {kernel}, etcd {etcd}, kube-apiserver {kube_apiserver}"
        )
    }
}

/// The last word of the first line of `--version`.
fn version(program: &std::path::Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.map_err(|error| Error::Other(format!("{}: {error}", program.display())))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let word = text.lines().next().and_then(|line| line.split_whitespace().last());
    Ok(word.unwrap_or_default().trim_start_matches('v').to_owned())
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

/// The load average of the last minute: who reads a figure has to know whether the machine was busy with something else.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Puts the processes of these groups on the first half of the cores, and these processes with all their threads on the
/// others. False where that cannot be: one core, or no `taskset`.
pub fn part(groups: &[u32], others: &[u32]) -> Result<bool> {
    let half = cores() / 2;
    if half == 0 {
        return Ok(false);
    }
    let mut first = Vec::new();
    for group in groups {
        first.extend(super::process::of_group(*group)?);
    }
    let (low, high) = (format!("0-{}", half - 1), format!("{half}-{}", cores() - 1));
    let pinned = first
        .iter()
        .map(|pid| (&low, pid))
        .chain(others.iter().map(|pid| (&high, pid)));
    for (list, pid) in pinned {
        let status = Command::new("taskset")
            .args(["-a", "-p", "-c", list, &pid.to_string()])
            .output();
        if !status.is_ok_and(|output| output.status.success()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Lets this process use all cores again.
pub fn unpart(cores: usize) {
    let (list, pid) = (format!("0-{}", cores.saturating_sub(1)), std::process::id().to_string());
    // Without `taskset` nothing was parted before.
    drop(Command::new("taskset").args(["-a", "-p", "-c", &list, &pid]).output());
}
