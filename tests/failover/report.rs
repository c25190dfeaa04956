//! The distribution of the times, and what was found.

use std::fmt;
use std::time::Duration;

use super::check::Found;
use super::scene::{Ended, Settled};
use super::{End, LEASE, Mode, Plan};
use crate::support::lease::Change;

/// The bar of the 99th percentile of a hand-over.
pub const TOLD_BAR: Duration = Duration::from_secs(1);

/// What came out.
pub struct Report {
    plan: Plan,
    /// From SIGTERM to the successor's first call.
    pub told: Vec<Duration>,
    /// From SIGKILL to the successor's first call.
    pub killed: Vec<Duration>,
    /// From the record of calls.
    pub found: Found,
    /// How the Lease went from one to the next.
    pub changes: Vec<Change>,
    /// The replicas that were replaced.
    pub ended: Vec<Ended>,
    /// How the volumes are at the end.
    pub settled: Settled,
}

impl Report {
    /// Nothing yet.
    pub fn new(plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            told: Vec::new(),
            killed: Vec::new(),
            found: Found::default(),
            changes: Vec::new(),
            ended: Vec::new(),
            settled: Settled::default(),
        }
    }

    /// The times of one kind of end.
    pub fn times(&mut self, end: End) -> &mut Vec<Duration> {
        match end {
            End::Told => &mut self.told,
            End::Killed => &mut self.killed,
        }
    }

    /// Whether nothing was lost and nothing done twice at a time; the times do not count.
    pub fn is_sound(&self) -> bool {
        let found = &self.found;
        found.calls > 0
            && found.overlaps.is_empty()
            && found.unknown == 0
            && self.early().is_empty()
            && self.kept().is_empty()
            && self.settled.wrong.is_empty()
    }

    /// Changes of the holder by which somebody worked before the former one's time was over.
    pub fn early(&self) -> Vec<&Change> {
        let early = self.changes.iter().filter(|change| change.is_early(LEASE.duration));
        early.collect()
    }

    /// All that is not sound, in words.
    fn complaints(&self) -> Vec<String> {
        let early = self.early().into_iter().map(|change| format!("{change:?}"));
        let kept = self.kept().into_iter();
        let kept = kept.map(|ended| format!("{ended:?} of {:?}", self.changes));
        let others = self.found.overlaps.iter().chain(&self.settled.wrong).cloned();
        early.chain(kept).chain(others).collect()
    }

    /// Replicas whose Lease went on in another way than their end asks for: told to stop they give it up, unless they have lost
    /// it before, and killed they leave it to run out.
    pub fn kept(&self) -> Vec<&Ended> {
        let as_asked = |ended: &&Ended| {
            let mut last = self.changes.iter().rev().filter(|change| change.from == ended.name);
            match (ended.end, last.next()) {
                (_, None) => false,
                (End::Told, Some(change)) => change.released || ended.lost_the_lease,
                (End::Killed, Some(change)) => !change.released,
            }
        };
        self.ended.iter().filter(|ended| !as_asked(ended)).collect()
    }
}

/// The bar of a kill: until the Lease runs out, and the next look at it.
pub fn killed_bar() -> Duration {
    LEASE.duration + LEASE.retry_period
}

fn row(formatter: &mut fmt::Formatter<'_>, what: &str, times: &[Duration], bar: &str) -> fmt::Result {
    let mut sorted = times.to_vec();
    sorted.sort();
    let at = |percent: usize| {
        let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(index).map_or(0.0, Duration::as_secs_f64)
    };
    write!(formatter, "{what:<32} {:>6}", sorted.len())?;
    for percent in [0, 50, 90, 99, 100] {
        write!(formatter, " {:>7.3}", at(percent))?;
    }
    writeln!(formatter, "  {bar}")
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan {
            mode,
            rounds,
            replicas,
            volumes,
            per_second,
            call,
            ..
        } = &self.plan;
        let mode = match mode {
            Mode::Flags => "flags of the sidecar",
            Mode::Config => "AttacherConfig",
        };
        writeln!(
            formatter,
            "{rounds} rounds, {replicas} replicas ({mode}), {volumes} volumes, {per_second} attaches and detaches a second, calls \
             of {} to {} ms; leaseDuration {} s, retryPeriod {} s",
            call[0].as_millis(),
            call[1].as_millis(),
            LEASE.duration.as_secs_f64(),
            LEASE.retry_period.as_secs_f64()
        )?;
        let titles = ["min", "p50", "p90", "p99", "max"].map(|title| format!("{title:>7}"));
        writeln!(
            formatter,
            "{:<32} {:>6} {}  bar",
            "seconds until the next's call",
            "rounds",
            titles.join(" ")
        )?;
        let bar = format!("p99 < {} s", TOLD_BAR.as_secs_f64());
        row(formatter, "from SIGTERM", &self.told, &bar)?;
        let bar = format!("max < {} s", killed_bar().as_secs_f64());
        row(formatter, "from SIGKILL", &self.killed, &bar)?;
        let found = &self.found;
        for (what, number, bar) in [
            ("calls that attach or detach", found.calls, ""),
            ("replicas that made them", found.replicas, ""),
            ("calls cut off by SIGKILL", found.cut_off, ""),
            ("calls that overlap", found.overlaps.len(), "0"),
            ("Leases taken too early", self.early().len(), "0"),
            ("Leases not handed on as asked", self.kept().len(), "0"),
            ("volumes not where wanted", self.settled.wrong.len(), "0"),
            ("volumes nobody can know of", self.settled.unknown.len(), ""),
        ] {
            let bar = if bar.is_empty() {
                String::new()
            } else {
                format!("  {bar}")
            };
            writeln!(formatter, "{what:<32} {number:>6}{bar}")?;
        }
        self.complaints()
            .iter()
            .take(20)
            .try_for_each(|text| writeln!(formatter, "{text}"))
    }
}
