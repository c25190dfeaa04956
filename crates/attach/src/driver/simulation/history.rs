//! Running one history.

use tokio::runtime::Builder;

use super::actors::{Replicas, act, calm_down};
use super::journal::Violation;
use super::mutants::Mutant;
use super::process::WallClock;
use super::scenario::Scenario;
use super::settle::{QUIET, everything_is_settled, patience, quiet_enough};
use super::stage::set_the_stage;
use super::world::World;

/// How a history went.
pub struct Outcome {
    pub violation: Option<Violation>,
    /// What happened, if it was to be kept.
    pub lines: Vec<String>,
    pub faults: usize,
    pub requests: usize,
    pub calls: usize,
}

/// Runs a history in a runtime of its own, in virtual time. The same scenario takes the same course.
pub fn run(scenario: &Scenario, mutant: Mutant, kept: bool) -> Outcome {
    fastrand::seed(scenario.seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime
        .expect("a runtime needs nothing")
        .block_on(live(scenario.clone(), mutant, kept))
}

async fn live(scenario: Scenario, mutant: Mutant, kept: bool) -> Outcome {
    let (_clock, _flaws) = (WallClock::start(), mutant.take_effect());
    let world = World::new(scenario.clone(), kept);
    world.with(set_the_stage);
    let mut replicas = Replicas::start(&world, mutant);
    for (pause, event) in &scenario.events {
        tokio::time::sleep(*pause).await;
        if world.is_over() {
            break;
        }
        act(&world, &mut replicas, *event).await;
    }
    calm_down(&world, &mut replicas).await;
    if !world.is_over() {
        tokio::time::sleep(patience(&scenario)).await;
    }
    if !world.is_over() {
        world.with(everything_is_settled);
    }
    if !world.is_over() {
        let steps = || world.with(|state| (state.requests + state.calls, state.secret_looks));
        let before = steps();
        tokio::time::sleep(QUIET).await;
        let after = steps();
        world.with(|state| quiet_enough(state, after.0 - before.0, after.1 - before.1));
        world.with(everything_is_settled);
    }
    world.with(|state| Outcome {
        violation: state.journal.violation.clone(),
        lines: state.journal.take_lines(),
        faults: state.faults(),
        requests: state.requests,
        calls: state.calls,
    })
}
