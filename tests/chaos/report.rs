//! What came out of a run: for people, and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::checker::{Violation, check, story};
use super::history::{History, Step};
use super::plan::Round;

/// Lines of a story.
const LINES: usize = 60;
/// Violations that are told at length.
const TOLD: usize = 6;

/// A part of a run.
#[derive(Default)]
pub struct Part {
    pub name: &'static str,
    pub took: Duration,
    pub rounds: usize,
    /// Faults by kind, or settings that were walked by what became of them.
    pub faults: BTreeMap<String, usize>,
    /// The longest time until everything was as wanted after a round.
    pub slowest: Duration,
    /// Attachments that came and went, claims that did, and claims that were bound.
    pub cycles: usize,
    pub claims: usize,
    pub bound: usize,
    /// All calls that change something, and those of them that create and delete volumes.
    pub calls: usize,
    pub creates: usize,
    pub deletes: usize,
    pub processes: usize,
    pub violations: Vec<Violation>,
    stories: Vec<String>,
}

impl Part {
    /// A part of this name, of which nothing is known yet.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    /// Counts the faults of a round.
    pub fn count(&mut self, round: &Round) {
        self.rounds += 1;
        for fault in &round.faults {
            *self.faults.entry(fault.kind.name().to_owned()).or_default() += 1;
        }
    }

    /// Looks at what happened; true when nothing is wrong with it.
    pub fn judge(&mut self, history: &History) -> bool {
        let count = |step: fn(&Step) -> bool, of_claims: bool| {
            let steps = history
                .observations
                .iter()
                .filter(|seen| seen.place.is_claim() == of_claims);
            steps.filter(|seen| step(&seen.step)).count()
        };
        let calls = |makes: bool| {
            let of_claims = history.calls.iter().filter(|call| call.place.is_claim());
            of_claims.filter(|call| call.makes == makes).count()
        };
        let gone: fn(&Step) -> bool = |step| *step == Step::Gone;
        (self.cycles, self.claims) = (count(gone, false), count(gone, true));
        self.bound = count(|step| matches!(step, Step::Attached { .. }), true);
        (self.creates, self.deletes) = (calls(true), calls(false));
        self.calls = history.calls.len();
        self.processes = history.processes.len();
        self.violations = check(history);
        // One of each kind and object: what is stuck is found again in each round.
        let mut known = std::collections::BTreeSet::new();
        self.violations
            .retain(|violation| known.insert((violation.kind, violation.object.clone())));
        let told = self.violations.iter().take(TOLD);
        self.stories = told.map(|violation| story(history, violation, LINES)).collect();
        self.violations.is_empty()
    }

    fn to_json(&self) -> Value {
        let violation = |violation: &Violation| {
            json!({
                "at": violation.at.to_string(), "kind": format!("{:?}", violation.kind), "object": violation.object,
                "text": violation.text,
            })
        };
        json!({
            "name": self.name, "seconds": self.took.as_secs_f64(), "rounds": self.rounds, "faults": self.faults,
            "cycles": self.cycles, "claims": self.claims, "claimsBound": self.bound, "calls": self.calls, "createCalls": self.creates,
            "deleteCalls": self.deletes, "processes": self.processes,
            "slowestSettleSeconds": self.slowest.as_secs_f64(),
            "violations": self.violations.iter().map(violation).collect::<Vec<_>>(),
        })
    }
}

/// Everything as JSON.
pub fn to_json(seed: u64, parts: &[Part]) -> Value {
    let count: usize = parts.iter().map(|part| part.violations.len()).sum();
    json!({"seed": seed, "violations": count, "parts": parts.iter().map(Part::to_json).collect::<Vec<_>>()})
}

/// Everything for people.
pub fn to_text(seed: u64, parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        for (index, violation) in part.violations.iter().enumerate() {
            // Writing into a String cannot fail.
            writeln!(text, "VIOLATION in {} at {}: {violation}", part.name, violation.at).ok();
            if let Some(story) = part.stories.get(index) {
                text.push_str(story);
            }
        }
    }
    let title = "part          seconds  rounds  cycles  claims    calls  processes  slowest rest  violations";
    writeln!(text, "\n{title}").ok();
    for part in parts {
        let (took, slowest) = (part.took.as_secs_f64(), part.slowest.as_secs_f64());
        let Part {
            name,
            rounds,
            cycles,
            claims,
            calls,
            processes,
            ..
        } = part;
        let violations = part.violations.len();
        let row = format!(
            "{name:<12}{took:>9.1}{rounds:>8}{cycles:>8}{claims:>8}{calls:>9}{processes:>11}{slowest:>12.1} s{violations:>12}"
        );
        writeln!(text, "{row}").ok();
    }
    let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
    for (kind, count) in parts.iter().flat_map(|part| &part.faults) {
        *faults.entry(kind).or_default() += count;
    }
    let faults: Vec<String> = faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    writeln!(text, "faults and settings: {}", faults.join(", ")).ok();
    let count: usize = parts.iter().map(|part| part.violations.len()).sum();
    writeln!(text, "seed {seed}: {count} violations").ok();
    text
}
