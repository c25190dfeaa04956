//! A Lease that is not there, or that somebody deletes: who held it works on until its next renewal. The clock is paused.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::candidate::{World, leads, pass, state_of, takes};
use super::seconds;
use crate::api::names::NEW_LEASE_HOLDER;
use crate::lease::LeaderState;
use csi_attacher_testbed::lease_server::{NAMESPACE, Trouble};

#[tokio::test(start_paused = true)]
async fn who_creates_a_lease_waits_for_its_duration() {
    let world = World::default();
    let led = async {
        let first = world.candidate("a");
        pass(seconds(1)).await;
        assert_eq!(world.server.holder(), NEW_LEASE_HOLDER);
        assert_eq!(state_of(&first), LeaderState::Waiting(None), "nobody holds it");
        let new = first.status().new_lease.expect("it is waited for");
        assert_eq!((&*new.namespace, new.duration), (NAMESPACE, seconds(15)));
        let second = world.candidate("b");
        pass(seconds(4)).await;
        // One that starts again has to wait once more.
        drop(first);
        let first = world.candidate("a");
        leads(&second).await;
        assert!(first.term().is_none());
        assert_eq!(second.status().new_lease, None);
    };
    takes(16_000..=19_000, led).await;
    assert_eq!(world.transitions(), Some(1));
}

/// As TROUBLESHOOTING has it, where the duration of its creator was a mistake.
#[tokio::test(start_paused = true)]
async fn a_new_lease_is_waited_for_as_long_as_it_says_by_now() {
    let world = World::default();
    let candidate = world.candidate("a");
    let says = |duration| {
        let set = |lease: &mut Lease| lease.spec.get_or_insert_default().lease_duration_seconds = Some(duration);
        world.server.change(set);
    };
    pass(seconds(1)).await;
    says(900);
    pass(seconds(60)).await;
    let waits = candidate.status().new_lease.expect("it is waited for").duration;
    assert_eq!((waits, candidate.term()), (seconds(900), None));
    says(15);
    takes(15_000..=24_000, leads(&candidate)).await;
}

/// The request was sent in a term, and is carried out when that is long over: another replica may have worked meanwhile.
#[tokio::test(start_paused = true)]
async fn who_finds_that_an_old_request_of_its_own_has_created_the_lease_waits() {
    let (world, first) = World::led().await;
    let mut created = world.spec();
    created.lease_transitions = Some(0);
    drop(first);
    let second = world.leader("b").await;
    let term = second.term().unwrap();
    let first = world.candidate("a");
    world.server.remove();
    world.server.change(|lease| lease.spec = Some(created));
    let late = Instant::now();
    while term.may_run() {
        assert!(first.term().is_none());
        pass(Duration::from_millis(100)).await;
    }
    leads(&first).await;
    assert!(late.elapsed() >= seconds(15), "{:?}", late.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_of_the_api_server_does_not_say_that_the_lease_is_gone() {
    let (world, first) = World::led().await;
    let second = world.candidate("b");
    pass(seconds(3)).await;
    world.server.trouble(NAMESPACE, Trouble::Proxy);
    drop(first);
    pass(seconds(60)).await;
    assert!(second.term().is_none());
    world.server.0.lock().troubles.clear();
    leads(&second).await;
}
