//! Values that are read when they are scraped: the process, and the counts of the trace pipeline.

use std::fmt::Error;
use std::fs;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::family::to_i64;
use crate::span_counts::SpanCounters;

/// Ticks a second in `/proc/<pid>/stat`; the kernel reports 100 to user space on every Linux architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// What became of the spans.
#[derive(Debug)]
pub(super) struct SpanCollector(pub(super) Arc<SpanCounters>);

impl Collector for SpanCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let counts = self.0.read();
        let help = "Spans by what became of them.";
        let mut family = encoder.encode_descriptor("csi_attacher_trace_spans", help, None, MetricType::Counter)?;
        let results = [
            ("exported", counts.exported),
            ("export_failed", counts.export_failed),
            ("queue_full", counts.queue_full),
            ("shutdown", counts.shutdown),
        ];
        for (result, spans) in results {
            ConstCounter::new(spans).encode(family.encode_family(&[("result", result)])?)?;
        }
        let (length, capacity) = (Some(counts.queue_length), Some(counts.queue_capacity));
        let name = "csi_attacher_trace_queue_length";
        gauge(&mut encoder, name, "Spans waiting for export.", length)?;
        let name = "csi_attacher_trace_queue_capacity";
        gauge(&mut encoder, name, "Spans that may wait for export.", capacity)
    }
}

/// Writes a gauge; nothing without a value.
fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: Option<impl EncodeGaugeValue>,
) -> Result<(), Error> {
    let Some(value) = value else { return Ok(()) };
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// This process, from `/proc/self`. A value that cannot be read is left out.
#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let times = ProcessTimes::parse(&read("/proc/self/stat"));
        if let Some(times) = &times {
            let help = "Total user and system CPU time spent in seconds.";
            let counter = ConstCounter::new(times.cpu_seconds);
            counter.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?)?;
        }
        let boot = times.as_ref().and_then(|_| boot_time(&read("/proc/stat")));
        let start = times.zip(boot).map(|(times, boot)| boot + times.start_after_boot);
        let help = "Start time of the process since unix epoch in seconds.";
        gauge(&mut encoder, "process_start_time_seconds", help, start)?;
        let status = read("/proc/self/status");
        // Reading the directory opens it, which is one more.
        let open = fs::read_dir("/proc/self/fd").map(|entries| to_i64(entries.count().saturating_sub(1)));
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                kib(&status, "VmRSS:"),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
                kib(&status, "VmSize:"),
            ),
            (
                "process_max_fds",
                "Maximum number of open file descriptors.",
                most_files(&read("/proc/self/limits")),
            ),
            ("process_open_fds", "Number of open file descriptors.", open.ok()),
        ] {
            gauge(&mut encoder, name, help, value)?;
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq)]
struct ProcessTimes {
    cpu_seconds: f64,
    start_after_boot: f64,
}

impl ProcessTimes {
    /// Reads utime, stime and starttime (fields 14, 15 and 22 of proc_pid_stat(5)). The command may hold spaces and
    /// parentheses, so that counting starts after the last one.
    fn parse(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        // The first of the rest is field 3.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
        Some(Self {
            cpu_seconds: (ticks(14)? + ticks(15)?) / TICKS_PER_SECOND,
            start_after_boot: ticks(22)? / TICKS_PER_SECOND,
        })
    }
}

/// What follows this key in its line.
fn after<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// The boot time in seconds since the epoch, from `/proc/stat`.
fn boot_time(stat: &str) -> Option<f64> {
    after(stat, "btime ")?.parse().ok()
}

/// A value of `/proc/self/status` in bytes; the kernel's kB are 1024 bytes.
fn kib(status: &str, key: &str) -> Option<i64> {
    let number = after(status, key)?.strip_suffix("kB")?.trim();
    number.parse::<i64>().ok()?.checked_mul(1024)
}

/// The soft limit of open files, from `/proc/self/limits`; none when there is no limit.
fn most_files(limits: &str) -> Option<i64> {
    after(limits, "Max open files")?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_times_survive_an_odd_command_name() {
        let stat =
            "42 (a) b (c)) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 12345 1000 200 18446744073709551615";
        let times = ProcessTimes {
            cpu_seconds: 3.0,
            start_after_boot: 123.45,
        };
        assert_eq!(ProcessTimes::parse(stat), Some(times));
        assert_eq!(ProcessTimes::parse("42 (short) S 1"), None);
        assert_eq!(ProcessTimes::parse(""), None);
    }

    #[test]
    fn proc_files_are_read_by_key() {
        assert_eq!(
            boot_time("cpu 1 2\nbtime 1700000000\nprocesses 5\n"),
            Some(1_700_000_000.0)
        );
        assert_eq!(kib("VmHWM:\t  20 kB\nVmRSS:\t    3 kB\n", "VmRSS:"), Some(3072));
        assert_eq!(kib("VmRSS:\t many kB\n", "VmRSS:"), None);
        let limits = "Max processes             100                  100                  processes\n\
            Max open files            1024                 4096                 files\n";
        assert_eq!(most_files(limits), Some(1024));
        assert_eq!(most_files("Max open files   unlimited   unlimited   files\n"), None);
    }
}
