//! The table that is printed.

use std::fmt;
use std::time::Duration;

use super::ceiling::Ceiling;
use super::operator_run::{Figures, SMALL_BURST};
use super::requests::IN_FLIGHT;

/// All figures of one run.
pub struct Report {
    /// How many volumes.
    pub volumes: usize,
    /// The API server's ceiling before the operator ran.
    pub before: Ceiling,
    /// The operator.
    pub operator: Figures,
    /// The API server's ceiling after it.
    pub after: Ceiling,
}

/// One line of the table: what, measured, ceiling, ratio, target.
struct Row(&'static str, String, String, String, &'static str);

impl Report {
    /// A rate beside its ceiling, which was measured twice.
    fn rate(&self, what: &'static str, rate: f64, of: impl Fn(&Ceiling) -> f64, target: &'static str) -> Row {
        let (before, after) = (of(&self.before), of(&self.after));
        let ceiling = f64::midpoint(before, after);
        Row(
            what,
            format!("{rate:.0} /s"),
            format!("{ceiling:.0} /s ({before:.0}, {after:.0})"),
            format!("{:.2}", rate / ceiling),
            target,
        )
    }

    fn rates(&self) -> Vec<Row> {
        let figures = &self.operator;
        vec![
            self.rate("attach, objects there", figures.attach_rate, |of| of.attach, ">= 0.95"),
            self.rate("attach, burst", figures.burst_rate, |of| of.burst, ""),
            self.rate("detach, objects there", figures.detach_rate, |of| of.detach, ""),
        ]
    }

    fn figures(&self) -> Vec<Row> {
        let figures = &self.operator;
        let (writes, start) = (&figures.writes, &figures.start);
        let row = |what, measured, target| Row(what, measured, String::new(), String::new(), target);
        let both = format!("{} of {}", writes.own_count, writes.api_count);
        let peak = start.memory.peak as f64 / start.memory.now as f64;
        vec![
            row("burst of all: p50", seconds(figures.burst.p50), ""),
            row("burst of all: p99", seconds(figures.burst.p99), ""),
            row("burst of 200: p50", seconds(figures.small_burst.p50), ""),
            row("burst of 200: p99", seconds(figures.small_burst.p99), "< 2 s"),
            row("writes for an attach", format!("{:.3}", writes.attach), "3"),
            row("writes for a detach", format!("{:.3}", writes.detach), "1"),
            row("writes for a release", format!("{:.3}", writes.release), "1"),
            row("writes refused", writes.refused.to_string(), "0"),
            row("reads of single objects", writes.reads.to_string(), "0"),
            row("writes counted by the operator", both, "all"),
            row("status writes meanwhile", writes.status.to_string(), ""),
            row("CPU for a cycle", milliseconds(figures.cycle_cpu), "< 0.8 ms"),
            row("RSS idle", mebibytes(figures.idle.now), "< 15 MiB"),
            row(
                "RSS, all attached",
                mebibytes(figures.attached.now),
                "< 32 MiB at 5,000",
            ),
            row("RSS peak until then", mebibytes(figures.attached.peak), ""),
            row("start, all attached: ready", seconds(start.ready), "< 10 s at 50,000"),
            row("start: a new volume attached", seconds(start.first_attach), ""),
            row("start: CPU", milliseconds(start.cpu), ""),
            row("start: CSI calls", start.calls.to_string(), "0"),
            row("start: writes", start.writes.to_string(), "0"),
            row("start: RSS after it", mebibytes(start.memory.now), "< 32 MiB at 5,000"),
            Row(
                "start: RSS peak",
                mebibytes(start.memory.peak),
                String::new(),
                format!("{peak:.2}"),
                "< 1.5",
            ),
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
        writeln!(
            formatter,
            "{} volumes, small burst {SMALL_BURST}, one driver without delay, {IN_FLIGHT} in flight, {cores} cores for all",
            self.volumes
        )?;
        line(
            formatter,
            ["", "measured", "ceiling (before, after)", "ratio", "target"],
        )?;
        for Row(what, measured, ceiling, ratio, target) in self.rates().into_iter().chain(self.figures()) {
            line(formatter, [what, &measured, &ceiling, &ratio, target])?;
        }
        Ok(())
    }
}

fn line(formatter: &mut fmt::Formatter<'_>, [what, measured, ceiling, ratio, target]: [&str; 5]) -> fmt::Result {
    let text = format!("{what:<31} {measured:>13}  {ceiling:<24} {ratio:>5}  {target}");
    writeln!(formatter, "{}", text.trim_end())
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

fn mebibytes(kibibytes: u64) -> String {
    format!("{:.1} MiB", kibibytes as f64 / 1024.0)
}
