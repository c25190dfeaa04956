//! What Linux says of the operator's process.

use std::fs;
use std::time::Duration;

use super::support::{Error, Result};

/// CPU time is counted in ticks of a hundredth of a second on every Linux (`getconf CLK_TCK`).
const TICK: Duration = Duration::from_millis(10);

/// Memory of a process in KiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Resident now (`VmRSS`).
    pub now: u64,
    /// Resident at most so far (`VmHWM`).
    pub peak: u64,
}

/// Reads `/proc/<pid>/status`.
pub fn memory(pid: u32) -> Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).map_err(|error| Error::Other(format!("{path}: {error}")))?;
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
            .ok_or_else(|| Error::Other(format!("{path} has no {name}")))
    };
    Ok(Memory {
        now: field("VmRSS:")?,
        peak: field("VmHWM:")?,
    })
}

/// Lets the peak of the resident memory begin anew.
pub fn forget_peak(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    fs::write(&path, "5").map_err(|error| Error::Other(format!("{path}: {error}")))
}

/// CPU time of all threads so far, from `/proc/<pid>/stat`.
pub fn cpu(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(|error| Error::Other(format!("{path}: {error}")))?;
    Ok(Stat::read(&text).cpu)
}

/// CPU time so far of all processes of a group, such as a component with its watchdog.
pub fn group_cpu(group: u32) -> Result<Duration> {
    Ok(all()?
        .into_iter()
        .filter(|(_, stat)| stat.group == group)
        .map(|(_, stat)| stat.cpu)
        .sum())
}

/// The processes of a group.
pub fn of_group(group: u32) -> Result<Vec<u32>> {
    Ok(all()?
        .into_iter()
        .filter(|(_, stat)| stat.group == group)
        .map(|(pid, _)| pid)
        .collect())
}

fn all() -> Result<Vec<(u32, Stat)>> {
    let failed = |error: std::io::Error| Error::Other(format!("/proc: {error}"));
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // What is no process, or has just ended, has nothing to read.
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let (Some(pid), Ok(text)) = (pid, fs::read_to_string(entry.path().join("stat"))) {
            found.push((pid, Stat::read(&text)));
        }
    }
    Ok(found)
}

/// Fields of `/proc/<pid>/stat`.
struct Stat {
    group: u32,
    cpu: Duration,
}

impl Stat {
    fn read(text: &str) -> Self {
        // The name in parentheses may hold anything; field 3 follows it. The group is field 5, utime and stime are 14 and 15.
        let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
        let fields: Vec<u32> = fields
            .split_whitespace()
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or_default();
        Self {
            group: field(5),
            cpu: TICK * (field(14) + field(15)),
        }
    }
}
