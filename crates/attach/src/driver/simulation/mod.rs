//! Proof by simulation: the store, the queue, the engine and the requests of production, in a world that is a model.
//!
//! The API server, the watches, the driver and everybody else are played; time is virtual, each history has a thread to
//! itself, and all chance comes from one seed, so that a seed is a history. What must hold is checked at every write and
//! every call ([`check`]), and at the end ([`settle`]). Wrong operators ([`mutants`]) show that the checks find something.
//!
//! `SIMULATION_HISTORIES` histories are run, from `SIMULATION_SEED` on; docs/contribute/TESTING.md tells more.

#![allow(
    clippy::assigning_clones,
    clippy::format_collect,
    clippy::map_unwrap_or,
    clippy::match_bool,
    clippy::needless_continue,
    clippy::semicolon_if_nothing_returned,
    clippy::similar_names,
    clippy::struct_excessive_bools,
    clippy::too_many_lines,
    reason = "a model of the world, with tables of what happens in it"
)]

mod actors;
mod answers;
mod backend;
mod calls;
mod check;
mod cluster;
mod connector;
mod draw;
mod history;
mod invariants;
mod journal;
mod leases;
mod mutants;
mod objects;
mod process;
mod regressions;
mod replica;
mod scenario;
mod search;
mod secrets;
mod service;
mod settle;
mod shrink;
mod sidecar;
mod stage;
mod watches;
mod world;
mod writes;
mod wrong_rules;

use std::ops::Range;

pub use calls::listed_entry;
use history::run;
use mutants::Mutant;
use regressions::Regression;
use scenario::{KindOfWorld, Scenario};
use search::{Sought, search, story};

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is no number")),
        Err(_) => default,
    }
}

/// So many. Without optimisation each takes five times as long: `make simulation`, which plays the same tests, plays more.
fn histories() -> u64 {
    number("SIMULATION_HISTORIES", 20)
}

#[test]
fn what_went_wrong_once_does_not_again() {
    for regression in regressions::all() {
        for scenario in ways(&regression, regressions::WAYS.min(histories().div_ceil(10))) {
            let (what, right) = (regression.what, Mutant::default());
            let outcome = run(&scenario, right, false);
            assert!(outcome.violation.is_none(), "{what}\n{}", story(&scenario, right));
        }
    }
}

/// With the defect of the time, the events still lead to its own violation: they have not become harmless.
#[test]
#[ignore = "takes minutes without optimisation; make simulation runs it"]
fn what_went_wrong_once_would_be_noticed() {
    let mut harmless = Vec::new();
    for regression in regressions::all() {
        let Some((mutant, invariants)) = regression.defect else {
            continue;
        };
        let is_noticed = |scenario| {
            let violation = run(&scenario, mutant, false).violation;
            violation.is_some_and(|violation| invariants.contains(&violation.invariant))
        };
        if !ways(&regression, regressions::MANY_WAYS).any(is_noticed) {
            harmless.push(regression.what);
        }
    }
    assert!(harmless.is_empty(), "not noticed: {harmless:#?}");
}

/// The same events with other pauses, latencies and faults; the first way has the pauses that are written down.
fn ways(regression: &Regression, count: u64) -> impl Iterator<Item = Scenario> {
    let scenario = regression.scenario.clone();
    (0..count).map(move |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut scenario = Scenario {
            seed,
            ..scenario.clone()
        };
        for (pause, _) in scenario.events.iter_mut().filter(|_| seed > 0) {
            *pause = pause.mul_f64(0.5 + rng.f64());
        }
        scenario
    })
}

#[test]
fn no_history_violates_anything() {
    violates_nothing(number("SIMULATION_SEED", 1), KindOfWorld::Any);
}

/// A twentieth of the histories are played in the world in which a mutant is sought.
#[test]
fn no_history_with_late_successors_violates_anything() {
    violates_nothing(number("SIMULATION_SEED", 1), KindOfWorld::LateSuccessors);
}

/// As many are played in the world in which identities change.
#[test]
fn no_history_with_other_identities_violates_anything() {
    violates_nothing(number("SIMULATION_SEED", 1), KindOfWorld::OtherIdentities);
}

/// As many in the world in which one driver's requests are slow.
#[test]
fn no_history_with_slow_requests_violates_anything() {
    violates_nothing(number("SIMULATION_SEED", 1), KindOfWorld::SlowRequests);
}

/// As many in the world in which the API server stalls.
#[test]
fn no_history_with_stalls_violates_anything() {
    violates_nothing(number("SIMULATION_SEED", 1), KindOfWorld::Stalls);
}

fn violates_nothing(start: u64, kind: KindOfWorld) {
    let sought = Sought {
        kind,
        ..Sought::default()
    };
    let summary = search(seeds(start, kind), sought);
    println!("{kind:?}, from seed {start} on: {summary}");
    if let Some(seed) = summary.violations.keys().next() {
        let play = format!("to play it: make simulation HISTORIES=1 SEED={seed}");
        panic!("{}\n{play}", story(&kind.of(*seed), Mutant::default()));
    }
}

/// Those that are played in such a world, from this one on.
fn seeds(start: u64, kind: KindOfWorld) -> Range<u64> {
    let count = histories();
    match kind {
        KindOfWorld::Any => start..start + count,
        _ => start..start + count.div_ceil(20),
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    let lines = |seed| run(&Scenario::of(seed), Mutant::default(), true).lines;
    for seed in 0..histories().min(200) {
        let (one, other) = (lines(seed), lines(seed));
        assert!(one.len() > 5, "seed {seed} is no history");
        for (number, (one, other)) in one.iter().zip(&other).enumerate() {
            assert_eq!(one, other, "seed {seed} takes two courses from line {number} on");
        }
        assert_eq!(one.len(), other.len(), "seed {seed} has two lengths");
    }
}

/// For whoever works at the operator or the model: the seeds that violate something, and what.
#[test]
#[ignore = "proves nothing; needs SIMULATION_SURVEY"]
fn survey() {
    if number("SIMULATION_SURVEY", 0) == 0 {
        return;
    }
    let start = number("SIMULATION_SEED", 1);
    // Of a wrong operator, if words from its description are given.
    let words = std::env::var("SIMULATION_MUTANT").unwrap_or_default();
    let mut wrong = mutants::all().into_iter().filter(|wrong| wrong.what.contains(&words));
    let mutant = match words.as_str() {
        "" => Mutant::default(),
        _ => wrong.next().expect("SIMULATION_MUTANT is in no description").mutant,
    };
    for kind in KindOfWorld::ALL {
        let sought = Sought {
            kind,
            mutant,
            all: true,
            ..Sought::default()
        };
        let summary = search(seeds(start, kind), sought);
        println!("{kind:?}, from seed {start} on: {summary}");
        for (seed, violation) in summary.violations {
            println!("{seed:>9}: {violation}");
        }
    }
}

/// The proof of the proof, by `make simulation`: each wrong operator is found, by the invariant that is about what it does
/// wrong, and soon enough for a test.
#[test]
#[ignore = "takes minutes"]
fn every_mutant_is_caught() {
    let mut missed = Vec::new();
    println!("{:<58} | {:>9} | violated", "mutant", "histories");
    for wrong in mutants::all() {
        let sought = Sought {
            kind: wrong.world,
            mutant: wrong.mutant,
            invariants: Some(wrong.violates),
            all: false,
        };
        let mut summary = search(wrong.from..wrong.from + wrong.budget, sought);
        match summary.violations.pop_first() {
            Some((seed, violation)) => println!("{:<58} | {seed:>9} | {}", wrong.what, violation.invariant),
            None => missed.push(wrong.what),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
