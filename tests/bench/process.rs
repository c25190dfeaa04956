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

/// CPU time of all threads so far, from `/proc/<pid>/stat`.
pub fn cpu(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(|error| Error::Other(format!("{path}: {error}")))?;
    // The name in parentheses may hold anything; utime and stime are fields 14 and 15, and field 3 follows the name.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u32 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u32>().ok())
        .sum();
    Ok(TICK * ticks)
}
