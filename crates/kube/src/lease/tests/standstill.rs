//! A candidate whose process or machine stood still. The clock is paused: it moves on when all wait.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::candidate::{World, leads, pass, state_of};
use super::seconds;
use crate::lease::{LeaderElectionHandle, Term};

async fn led() -> (World, LeaderElectionHandle, Term) {
    let (world, candidate) = World::led().await;
    let term = candidate.term().unwrap();
    (world, candidate, term)
}

/// The machine was suspended, nobody took the Lease, and the API server renews it: all is as before, but for the time that
/// has passed. What was known is not to be worked with.
#[tokio::test(start_paused = true)]
async fn one_that_was_suspended_begins_a_new_term_though_nobody_took_the_lease() {
    let (world, candidate, term) = led().await;
    pass(seconds(1)).await;
    world.clock.boot_jumps(seconds(11));
    assert!(!term.may_start() && term.may_run(), "at once, whoever runs");
    let noticed = Instant::now();
    timeout(seconds(5), candidate.loses(&term)).await.expect("it is lost");
    leads(&candidate).await;
    assert!(noticed.elapsed() < seconds(5), "{:?}", noticed.elapsed());
    let again = candidate.term().unwrap();
    assert!(again != term && again.may_start() && !term.may_start());
    assert_eq!(world.transitions(), Some(1));
    // The old term is not renewed by what renews the Lease.
    pass(seconds(60)).await;
    assert!(candidate.term() == Some(again.clone()) && !term.may_run());
    // Suspended for a moment, it keeps its term.
    for _ in 0..5 {
        pass(seconds(6)).await;
        world.clock.boot_jumps(seconds(4));
    }
    assert!(candidate.term() == Some(again.clone()) && again.may_start());
}

/// The request was sent, then the process stood still, and then the answer is read.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_taken_in_after_a_standstill_renews_nothing() {
    let (world, candidate, term) = led().await;
    world.server.0.lock().slow = seconds(2);
    // The renewal is sent after 5 s and answered after 7 s. The machine is suspended in between.
    pass(seconds(6)).await;
    world.clock.boot_jumps(seconds(5));
    let writes = world.server.writes();
    pass(Duration::from_millis(1_500)).await;
    // It was the renewal under way that was answered.
    assert_eq!(world.server.writes(), writes);
    assert!(candidate.term() != Some(term.clone()), "{:?}", state_of(&candidate));
    world.server.0.lock().slow = Duration::ZERO;
    leads(&candidate).await;
    assert!(candidate.term() != Some(term));
}
