//! Many histories on all cores, and what is left of one that failed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
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
    /// The first seed that failed.
    pub failed: Option<(u64, Violation)>,
}

/// Runs histories in this kind of world until one fails, by one of these invariants if some are named. Which one is found does
/// not depend on the number of cores.
pub fn search(seeds: Range<u64>, kind: KindOfWorld, mutant: Mutant, wanted: Option<&[&str]>) -> Summary {
    let started = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let end = AtomicU64::new(seeds.end);
    let summary = Mutex::new(Summary::default());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end.load(Ordering::Relaxed) {
                        break;
                    }
                    let mut outcome = run(&kind.of(seed), mutant, false);
                    outcome
                        .violation
                        .take_if(|found| wanted.is_some_and(|wanted| !wanted.contains(&found.invariant)));
                    if outcome.violation.is_some() {
                        end.fetch_min(seed, Ordering::Relaxed);
                    }
                    summary.lock().add(seed, outcome);
                }
            });
        }
    });
    let mut summary = summary.into_inner();
    summary.took = started.elapsed();
    summary
}

/// The seeds of the histories that violate something, and what.
pub fn survey(seeds: Range<u64>, mutant: Mutant) -> BTreeMap<u64, Violation> {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let outcome = run(&Scenario::of(seed), mutant, false);
                    if let Some(violation) = outcome.violation {
                        found.lock().insert(seed, violation);
                    }
                }
            });
        }
    });
    found.into_inner()
}

impl Summary {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.histories += 1;
        self.faults += outcome.faults;
        self.requests += outcome.requests;
        self.calls += outcome.calls;
        if let Some(violation) = outcome.violation
            && self.failed.as_ref().is_none_or(|(known, _)| seed < *known)
        {
            self.failed = Some((seed, violation));
        }
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
    writeln!(story, "keep it: add its events to src/driver/simulation/regressions.rs").ok();
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
