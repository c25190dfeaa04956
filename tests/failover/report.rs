//! The distribution of the times, and what was found.

use std::fmt;
use std::time::Duration;

use super::check::Found;
use super::scene::{Ended, Settled};
use super::{CALL, End, LEASE_DURATION, Mode, PER_SECOND, Plan, RETRY_PERIOD};
use crate::support::lease::Change;

/// The bar of the 99th percentile of a hand-over.
const TOLD_BAR: Duration = Duration::from_secs(1);

/// What came out.
pub struct Report {
    pub plan: Plan,
    pub found: Found,
    /// How the Lease went from one to the next.
    pub changes: Vec<Change>,
    /// The replicas that were replaced.
    pub ended: Vec<Ended>,
    pub settled: Settled,
}

impl Report {
    /// Whether nothing was lost and nothing done twice at a time; the times do not count.
    pub(super) fn is_sound(&self) -> bool {
        let is_known = self.found.calls > 0 && self.found.unknown == 0;
        is_known && self.complaints().iter().all(|(_, found)| found.is_empty())
    }

    /// All that is not sound, in words.
    fn complaints(&self) -> [(&'static str, Vec<String>); 4] {
        [
            ("calls that overlap", self.found.overlaps.clone()),
            ("Leases taken too early", self.early()),
            ("Leases not handed on as asked", self.kept()),
            ("volumes not where wanted", self.settled.wrong.clone()),
        ]
    }

    /// Changes of the holder by which somebody worked before the former one's time was over.
    fn early(&self) -> Vec<String> {
        let early = self.changes.iter().filter(|change| change.is_early(LEASE_DURATION));
        early.map(|change| format!("{change:?}")).collect()
    }

    /// Replicas whose Lease went on in another way than their end asks for: told to stop they give it up, unless they have lost
    /// it before, and killed they leave it to run out.
    fn kept(&self) -> Vec<String> {
        let as_asked = |ended: &&Ended| {
            let mut last = self.changes.iter().rev().filter(|change| change.from == ended.name);
            match (ended.end, last.next()) {
                (_, None) => false,
                (End::Told, Some(change)) => change.released || ended.lost_the_lease,
                (End::Killed, Some(change)) => !change.released,
            }
        };
        let kept = self.ended.iter().filter(|ended| !as_asked(ended));
        kept.map(|ended| format!("{ended:?} of {:?}", self.changes)).collect()
    }

    /// A row of the times from the signal to the successor's first call.
    fn row(&self, formatter: &mut fmt::Formatter<'_>, what: &str, end: End, bar: &str) -> fmt::Result {
        let of_end = self.ended.iter().filter(|ended| ended.end == end);
        let mut sorted: Vec<Duration> = of_end.map(|ended| ended.took).collect();
        sorted.sort();
        write!(formatter, "{what:<32} {:>6}", sorted.len())?;
        for percent in [0, 50, 90, 99, 100] {
            let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
            let seconds = sorted.get(index).map_or(0.0, Duration::as_secs_f64);
            write!(formatter, " {seconds:>7.3}")?;
        }
        writeln!(formatter, "  {bar}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plan, found) = (&self.plan, &self.found);
        let mode = match plan.mode {
            Mode::Flags => "flags of the sidecar",
            Mode::Config => "AttacherConfig",
        };
        let (rounds, replicas, volumes, [from, to]) = (plan.rounds, plan.replicas, plan.volumes, CALL);
        writeln!(
            formatter,
            "{rounds} rounds, {replicas} replicas ({mode}), {volumes} volumes, {PER_SECOND} attaches and detaches a second, calls \
             of {from:?} to {to:?}; leaseDuration {LEASE_DURATION:?}, retryPeriod {RETRY_PERIOD:?}"
        )?;
        let titles = "seconds until the next's call    rounds     min     p50     p90     p99     max  bar";
        writeln!(formatter, "{titles}")?;
        self.row(formatter, "from SIGTERM", End::Told, &format!("p99 < {TOLD_BAR:?}"))?;
        // Until the Lease runs out, and the next look at it.
        let bar = format!("max < {:?}", LEASE_DURATION + RETRY_PERIOD);
        self.row(formatter, "from SIGKILL", End::Killed, &bar)?;
        let complaints = self.complaints();
        let line = |what: &str, number: usize| format!("{what:<32} {number:>6}");
        writeln!(formatter, "{}", line("calls that attach or detach", found.calls))?;
        writeln!(formatter, "{}", line("replicas that made them", found.replicas))?;
        for (what, found) in &complaints {
            writeln!(formatter, "{}  0", line(what, found.len()))?;
        }
        let unknown = line("volumes nobody can know of", self.settled.unknown);
        writeln!(formatter, "{unknown}")?;
        let mut first = complaints.iter().flat_map(|(_, found)| found).take(20);
        first.try_for_each(|text| writeln!(formatter, "{text}"))
    }
}
