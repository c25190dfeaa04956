//! What is left of a history that failed: fewer kinds of trouble, fewer faults, fewer events.

use super::history::run;
use super::mutants::Mutant;
use super::scenario::Scenario;

/// Makes a failing scenario smaller: fewer faults, fewer events.
pub fn shrink(scenario: &Scenario, mutant: Mutant) -> Scenario {
    let mut best = scenario.clone();
    let Some(violation) = run(&best, mutant, false).violation else {
        return best;
    };
    let fails = |candidate: &Scenario| {
        let found = run(candidate, mutant, false).violation;
        found.is_some_and(|found| found.invariant == violation.invariant)
    };
    loop {
        let before = (best.events.len(), best.max_faults, best.character());
        while let Some(simpler) = best.simpler().into_iter().find(&fails) {
            best = simpler;
        }
        shrink_faults(&mut best, mutant, &fails);
        let mut at = best.events.len();
        while at > 0 {
            at -= 1;
            let mut candidate = best.clone();
            candidate.events.remove(at);
            if fails(&candidate) {
                best = candidate;
            }
        }
        if (best.events.len(), best.max_faults, best.character()) == before {
            return best;
        }
    }
}

fn shrink_faults(best: &mut Scenario, mutant: Mutant, fails: &impl Fn(&Scenario) -> bool) {
    let mut faults = run(best, mutant, false).faults;
    best.max_faults = best.max_faults.min(faults);
    for candidate in [0, 1, 2, 4, 8, 16, 32] {
        let candidate = Scenario {
            max_faults: candidate,
            ..best.clone()
        };
        if candidate.max_faults < faults && fails(&candidate) {
            *best = candidate;
            return;
        }
    }
    while faults > 0 {
        faults -= 1;
        let candidate = Scenario {
            max_faults: faults,
            ..best.clone()
        };
        if !fails(&candidate) {
            return;
        }
        *best = candidate;
    }
}
