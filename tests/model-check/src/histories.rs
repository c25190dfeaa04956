//! Plays random histories of both roles, and prints what they came to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::parallel::{all_good, cores};
use crate::provision::{BLOCK, Provisioner, mutants, world_of_block};
use crate::report::{Print, numbered};

/// So many histories a wrong operator may play until it is caught.
const OF_A_MUTANT: u64 = 50_000;
/// So many violations are told.
const TOLD: usize = 5;

/// Plays histories from a seed on, and then those of each wrong operator; true when nothing was violated and each of them was caught.
pub fn played(seed: u64, count: u64, print: Print<'_>) -> bool {
    let began = Instant::now();
    let (first, last) = (seed.saturating_sub(1), seed.saturating_sub(1).saturating_add(count));
    let blocks: Vec<u64> = (first / BLOCK..last.div_ceil(BLOCK)).collect();
    let (steps, violated) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let is_good = all_good(&blocks, cores(), |block| {
        let block = *block;
        let mut world = Provisioner::new(world_of_block(block));
        // What a state is made of has numbers in the order in which it came, and steps have an order by them: a history is played after
        // those before it in its block.
        for at in block * BLOCK..last.min((block + 1) * BLOCK) {
            let history = world.history(at + 1);
            if at < first {
                continue;
            }
            steps.fetch_add(history.steps.len(), Ordering::Relaxed);
            if let Some(property) = &history.violated
                && violated.fetch_add(1, Ordering::Relaxed) < TOLD
            {
                let story = numbered(&world.told(at + 1, &history), usize::MAX);
                let seed = at + 1;
                print(&format!(
                    "VIOLATED: {property}\n{story}    played by: make simulation SEED={seed} HISTORIES=1"
                ));
            }
        }
        violated.load(Ordering::Relaxed) == 0
    });
    let (steps, violated) = (steps.into_inner(), violated.into_inner());
    print(&format!(
        "{count} histories of both roles from seed {seed} on, {steps} steps: {violated} violate something; {:.0} s",
        began.elapsed().as_secs_f64()
    ));
    is_good && wrong_operators(print)
}

/// Random histories of each wrong operator, in the world in which the model checker looks for it.
fn wrong_operators(print: Print<'_>) -> bool {
    let all: Vec<_> = mutants().into_iter().filter(|wrong| !wrong.is_rare).collect();
    print(&format!("{:<84} {:>9}  caught by", "wrong operator", "histories"));
    all_good(&all, cores(), |wrong| {
        // With more faults than can be visited completely.
        let mut world = Provisioner::new(wrong.world.with_faults(3));
        let is_own = |property: &String| wrong.violates.contains(&&**property);
        let by = (1..=OF_A_MUTANT).find_map(|seed| {
            let property = world.history(seed).violated.filter(is_own)?;
            Some((seed, property))
        });
        match &by {
            Some((seed, property)) => print(&format!("{:<84} {seed:>9}  {property}", wrong.what)),
            None => print(&format!("{:<84} {OF_A_MUTANT:>9}  NOT CAUGHT", wrong.what)),
        }
        by.is_some()
    })
}
