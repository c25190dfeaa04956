//! Proof by simulation: the store, the queue, the engine and the requests of production, in a world that is a model.
//!
//! The API server, the watches, the driver and everybody else are played; time is virtual, there is one thread for each
//! history, and all chance comes from one seed, so that a seed is a history. What must hold is checked at every write and
//! every call (`check`), and at the end (`settle`).

mod actors;
mod backend;
mod calls;
mod check;
mod cluster;
mod history;
mod journal;
mod mutants;
mod replica;
mod scenario;
mod service;
mod settle;
mod watches;
mod world;

use history::run;
use mutants::Mutant;
use scenario::Scenario;

#[test]
fn smoke() {
    let seed: u64 = std::env::var("SIMULATION_SEED").map_or(0, |text| text.parse().unwrap());
    let count: u64 = std::env::var("SIMULATION_HISTORIES").map_or(100, |text| text.parse().unwrap());
    let mut bad = 0;
    let mut kinds = std::collections::BTreeMap::<_, (usize, u64)>::new();
    let start = std::time::Instant::now();
    let (mut requests, mut calls, mut faults) = (0, 0, 0);
    for seed in seed..seed + count {
        let outcome = run(&Scenario::of(seed), Mutant::default(), false);
        requests += outcome.requests;
        calls += outcome.calls;
        faults += outcome.faults;
        if let Some(violation) = outcome.violation {
            bad += 1;
            kinds.entry(violation.invariant).or_insert((0, seed)).0 += 1;
        }
    }
    println!(
        "{bad} of {count} in {:?}: {kinds:?}; requests {requests} calls {calls} faults {faults}",
        start.elapsed()
    );
    if count == 1 || bad > 0 && std::env::var("SHOW").is_ok() {
        let seed = kinds.values().map(|(_, seed)| *seed).min().unwrap_or(seed);
        let scenario = Scenario::of(seed);
        println!("{scenario:?}");
        for line in run(&scenario, Mutant::default(), true).lines {
            println!("{line}");
        }
    }
    assert_eq!(bad, 0);
}
