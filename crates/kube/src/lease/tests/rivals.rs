//! Who takes a Lease that is free, that vanished, or that another process of the same name holds.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::{Instant, timeout};

use super::candidate::{World, held_by, leads, not_leading, pass, state_of, takes};
use super::seconds;
use crate::lease::{LeaderState, LeaseHolder};
use csi_attacher_testbed::lease_server::NAMESPACE;

const CONFLICTS: &str = "csi_attacher_lease_identity_conflicts_total";

#[tokio::test(start_paused = true)]
async fn a_free_lease_is_taken_after_a_short_pause_by_one_of_several_that_leads_others() {
    let (world, first) = World::led().await;
    // It leads another driver, and sees who leads this one.
    let election = world.election(NAMESPACE, "b");
    let _another = election.shared.shares.acquire(seconds(5), Instant::now());
    let second = world.start(election);
    pass(seconds(1)).await;
    first.release_and_stop().await;
    let reads = world.server.reads();
    while world.server.reads() == reads {
        pass(Duration::from_millis(1)).await;
    }
    takes(50..=102, leads(&second)).await;
    assert_eq!(world.server.reads(), reads + 1, "no second look");
    // Nobody asks it for what it leads: its peer writes nothing.
    let _third = world.candidate("c");
    let writes = world.server.writes();
    assert!(timeout(seconds(600), not_leading(&second)).await.is_err());
    assert_eq!(world.server.writes() - writes, 120, "renewals and nothing else");
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_and_a_single_replica_do_not_pause() {
    for identity in ["sidecar", "single"] {
        let world = World::of(&[NAMESPACE]);
        let election = world.election(NAMESPACE, identity);
        if identity == "sidecar" {
            election.shared.shares.observe_other();
        }
        let _another = election.shared.shares.acquire(seconds(5), Instant::now());
        let began = Instant::now();
        leads(&world.start(election)).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "{identity}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_vanished_is_not_taken_from_its_holder() {
    let (world, first) = World::led().await;
    let (term, second) = (first.term(), world.candidate("b"));
    pass(seconds(17)).await;
    world.server.remove();
    // Its holder makes it again at its next renewal, and works on; the renewal after that counts.
    for _ in 0..300 {
        pass(Duration::from_millis(100)).await;
        assert!(first.term().is_some() && second.term().is_none());
    }
    assert_eq!((first.term(), world.transitions()), (term, Some(1)));
    // One that starts again under its name has it back at once.
    drop(first);
    let first = world.candidate("a");
    takes(0..=999, leads(&first)).await;
    assert_eq!(world.transitions(), Some(1));
    // When it is gone too, the second waits for the holder to create it again, and then for the Lease that it has created.
    drop(first);
    world.server.remove();
    takes(20_001..=40_000, leads(&second)).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_processes_of_one_name_at_most_one_leads() {
    let (world, first) = World::led().await;
    pass(seconds(17)).await;
    let second = world.leader("a").await;
    pass(seconds(5)).await;
    for _ in 0..300 {
        assert!(second.term().is_some() && first.term().is_none());
        pass(seconds(1)).await;
    }
    assert_eq!(world.metric(CONFLICTS), "1");
    let holder = Some(LeaseHolder {
        namesake: true,
        ..held_by("a", NAMESPACE, false)
    });
    assert_eq!(state_of(&first), LeaderState::Waiting(holder));
    // It takes over as from anybody else.
    second.release_and_stop().await;
    leads(&first).await;
}

/// The clock of the other process is behind. What tells it from a record of before, to which the API server went back, is that it is renewed.
#[tokio::test(start_paused = true)]
async fn a_namesake_is_told_when_it_renews_whatever_its_clock_says() {
    let (world, candidate) = World::led().await;
    let renew_at = |second: i64| {
        let renewed = Timestamp::from_second(second).unwrap();
        world.server.change(|lease| {
            lease.spec.get_or_insert_default().renew_time = Some(MicroTime(renewed));
        });
    };
    let is_told = || state_of(&candidate).holder().is_some_and(|holder| holder.namesake);
    renew_at(1_000_000);
    not_leading(&candidate).await;
    pass(seconds(12)).await;
    assert!(matches!(state_of(&candidate), LeaderState::Waiting(_)) && !is_told());
    for second in [1_000_005, 1_000_010] {
        renew_at(second);
        pass(seconds(12)).await;
        assert!(is_told(), "{:?}", state_of(&candidate));
    }
    assert_eq!(world.metric(CONFLICTS), "1");
    // It is gone, and its Lease is taken as from anybody else.
    leads(&candidate).await;
    assert!(!is_told());
}
