//! A Lease that is not there, or that somebody deletes: who held it works on until its next renewal. The clock is paused.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::candidate::{World, leads, not_leading, pass};
use super::seconds;
use crate::api::names::NEW_LEASE_HOLDER;
use crate::lease::LeaderState;
use csi_attacher_testbed::lease_server::{ApiServer, LateCreation};

#[tokio::test(start_paused = true)]
async fn who_creates_a_lease_waits_for_its_duration() {
    let world = World::with(ApiServer::default());
    let began = Instant::now();
    let first = world.candidate("a");
    pass(seconds(1)).await;
    assert_eq!(world.server.holder().as_deref(), Some(NEW_LEASE_HOLDER));
    assert_eq!(first.state(), LeaderState::Waiting { holder: None }, "nobody holds it");
    let second = world.candidate("b");
    pass(seconds(4)).await;
    // One that starts again has to wait once more.
    drop(first);
    let first = world.candidate("a");
    leads(&second).await;
    let took = began.elapsed();
    assert!(took >= seconds(16) && took <= seconds(19), "{took:?}");
    assert!(!first.is_leader());
    let spec = world.server.lease().unwrap().spec.unwrap();
    assert_eq!(spec.lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn who_creates_a_lease_again_in_its_term_works_on_and_has_it_back_when_it_starts_again() {
    let (world, candidate) = World::led().await;
    let term = candidate.term();
    world.server.remove();
    // The next renewal creates it, and the one after that counts.
    assert!(timeout(seconds(30), not_leading(&candidate)).await.is_err());
    assert_eq!(candidate.term(), term);
    assert_eq!(world.server.lease().unwrap().spec.unwrap().lease_transitions, Some(1));
    drop(candidate);
    let again = Instant::now();
    leads(&world.candidate("a")).await;
    assert!(again.elapsed() < seconds(1), "{:?}", again.elapsed());
}

/// The request was sent in a term, and is carried out when that is long over: another replica may have worked meanwhile.
#[tokio::test(start_paused = true)]
async fn who_finds_that_an_old_request_of_its_own_has_created_the_lease_waits() {
    let (world, first) = World::led().await;
    world.server.0.lock().late_creation = LateCreation::Awaited;
    world.server.remove();
    // Its renewal finds no Lease, and is under way when it ends.
    pass(seconds(6)).await;
    drop(first);
    let second = world.candidate("b");
    leads(&second).await;
    let term = second.term().unwrap();
    let first = world.candidate("a");
    world.server.make_late();
    assert_eq!(world.server.holder().as_deref(), Some("a"));
    let late = Instant::now();
    while term.may_run() {
        assert!(!first.is_leader());
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
    world.server.0.lock().proxy_lost_its_way = true;
    drop(first);
    pass(seconds(60)).await;
    assert!(!second.is_leader());
    world.server.0.lock().proxy_lost_its_way = false;
    leads(&second).await;
}
