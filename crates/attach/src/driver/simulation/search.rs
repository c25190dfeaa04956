//! Many histories on all cores, and what is left of one that failed.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::history::{Outcome, run};
use super::journal::Violation;
use super::mutants::Mutant;
use super::scenario::{KindOfWorld, Scenario};
use super::shrink::shrink;

/// Lines of a failed history that are shown after faults have stopped, from each end.
const TAIL: usize = 25;

/// What many histories came to.
#[derive(Debug, Default)]
pub struct Summary {
    pub histories: u64,
    pub faults: usize,
    pub requests: usize,
    pub calls: usize,
    pub took: Duration,
    /// What was violated, by the seeds of the histories.
    pub violations: BTreeMap<u64, Violation>,
}

/// What histories are played for.
#[derive(Clone, Copy, Default)]
pub struct Sought<'a> {
    pub kind: KindOfWorld,
    pub mutant: Mutant,
    /// Violations of other invariants than these do not count, if some are named.
    pub invariants: Option<&'a [&'a str]>,
    /// Goes on after a violation.
    pub all: bool,
}

/// Plays histories until one violates something, or all of them. Which violation comes first does not depend on the number of
/// cores.
pub fn search(seeds: Range<u64>, sought: Sought<'_>) -> Summary {
    let started = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let end = AtomicU64::new(seeds.end);
    let summary = Mutex::new(Summary::default());
    let play = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end.load(Ordering::Relaxed) {
                break;
            }
            let mut outcome = run(&sought.kind.of(seed), sought.mutant, false);
            outcome.violation.take_if(|found| !sought.counts(found));
            if outcome.violation.is_some() && !sought.all {
                end.fetch_min(seed, Ordering::Relaxed);
            }
            summary.lock().add(seed, outcome);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(play);
        }
    });
    let mut summary = summary.into_inner();
    summary.took = started.elapsed();
    summary
}

impl Sought<'_> {
    fn counts(&self, found: &Violation) -> bool {
        self.invariants.is_none_or(|wanted| wanted.contains(&found.invariant))
    }
}

impl Summary {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.histories += 1;
        self.faults += outcome.faults;
        self.requests += outcome.requests;
        self.calls += outcome.calls;
        self.violations
            .extend(outcome.violation.map(|violation| (seed, violation)));
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} histories in {:.1} s: {} requests, {} calls, {} faults",
            self.histories,
            self.took.as_secs_f64(),
            self.requests,
            self.calls,
            self.faults
        )
    }
}

/// A failed history as people read it: what was violated, how to see it again, and what happened.
pub fn story(scenario: &Scenario, mutant: Mutant) -> String {
    let (seed, scenario) = (scenario.seed, shrink(scenario, mutant));
    let Outcome { violation, lines, .. } = run(&scenario, mutant, true);
    let mut story = String::new();
    let violated = violation.map(|violation| violation.to_string()).unwrap_or_default();
    // Writing to a String cannot fail.
    writeln!(story, "seed {seed} violates: {violated}").ok();
    writeln!(story, "see it again: make simulation SEED={seed} HISTORIES=1").ok();
    writeln!(
        story,
        "keep it: add its events to crates/attach/src/driver/simulation/regressions.rs"
    )
    .ok();
    writeln!(story, "what is left of it with {} events:", scenario.events.len()).ok();
    writeln!(story, "  {}", scenario.character()).ok();
    let last = lines
        .iter()
        .position(|line| line.contains("VIOLATION"))
        .map_or(lines.len(), |at| at + 1);
    let calm = lines
        .iter()
        .position(|line| line.contains("faults stop"))
        .unwrap_or(last)
        .min(last);
    let (events, tail) = lines[..last].split_at(calm);
    let cut = tail.len().saturating_sub(2 * TAIL);
    let shown = events.iter().chain(&tail[..tail.len().min(TAIL)]);
    for line in shown {
        writeln!(story, "{line}").ok();
    }
    if cut > 0 {
        writeln!(story, "           ... {cut} lines ...").ok();
    }
    for line in &tail[tail.len().min(TAIL).max(tail.len().saturating_sub(TAIL))..] {
        writeln!(story, "{line}").ok();
    }
    story
}
