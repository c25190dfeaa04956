//! Who takes a Lease that is free, that vanished, or that another process of the same name holds.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::{Instant, timeout};

use super::candidate::{LEASE, World, held_by, leads, not_leading, pass};
use super::{seconds, usual};
use crate::lease::{LeaderElectionHandle, LeaderState, LeaseHolder};
use csi_attacher_testbed::lease_server::NAMESPACE;

#[tokio::test(start_paused = true)]
async fn a_free_lease_is_taken_after_a_short_pause_by_one_of_several_that_leads_others() {
    let (world, first) = World::led().await;
    // It leads another driver, and sees who leads this one.
    let elections = world.elections("b");
    let [election, another] = [usual(), usual()].map(|timing| elections.config_for(NAMESPACE, timing));
    let _another = another.shared.shares.acquire(seconds(5), Instant::now());
    let second = LeaderElectionHandle::start(election, LEASE.to_owned(), world.metrics.clone());
    pass(seconds(1)).await;
    first.release_and_stop().await;
    let reads = world.server.reads();
    while world.server.reads() == reads {
        pass(Duration::from_millis(1)).await;
    }
    let seen_free = Instant::now();
    leads(&second).await;
    let took = seen_free.elapsed();
    assert!(
        took >= Duration::from_millis(50) && took <= Duration::from_millis(102),
        "{took:?}"
    );
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
        let world = World::new();
        let election = world.election(identity);
        if identity == "sidecar" {
            election.shared.shares.observe_other();
        }
        let _another = election.shared.shares.acquire(seconds(5), Instant::now());
        let began = Instant::now();
        leads(&LeaderElectionHandle::start(
            election,
            LEASE.to_owned(),
            world.metrics.clone(),
        ))
        .await;
        assert_eq!(began.elapsed(), Duration::ZERO, "{identity}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_vanished_is_not_taken_from_its_holder() {
    let (world, first) = World::led().await;
    let second = world.candidate("b");
    pass(seconds(17)).await;
    world.server.remove();
    for _ in 0..200 {
        pass(Duration::from_millis(100)).await;
        assert!(
            first.is_leader() && !second.is_leader(),
            "it makes it again at its next renewal"
        );
    }
    // Unless it is gone too.
    drop(first);
    world.server.remove();
    let vanished = Instant::now();
    leads(&second).await;
    let took = vanished.elapsed();
    // It waits for the holder to create it again, and then for the Lease that it has created.
    assert!(took > seconds(20) && took <= seconds(40), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn of_two_processes_of_one_name_at_most_one_leads() {
    let (world, first) = World::led().await;
    pass(seconds(17)).await;
    let second = world.candidate("a");
    leads(&second).await;
    pass(seconds(5)).await;
    for _ in 0..300 {
        assert!(second.is_leader() && !first.is_leader());
        pass(seconds(1)).await;
    }
    let counted = format!("csi_attacher_lease_identity_conflicts_total{{name=\"{LEASE}\"}} 1");
    let metrics = world.metrics.encode_prometheus();
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
    let holder = Some(LeaseHolder {
        namesake: true,
        ..held_by("a", NAMESPACE, false)
    });
    assert_eq!(first.state(), LeaderState::Waiting { holder });
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
    let is_told = || candidate.state().holder().is_some_and(|holder| holder.namesake);
    renew_at(1_000_000);
    not_leading(&candidate).await;
    pass(seconds(12)).await;
    assert!(matches!(candidate.state(), LeaderState::Waiting { .. }) && !is_told());
    for second in [1_000_005, 1_000_010] {
        renew_at(second);
        pass(seconds(12)).await;
        assert!(is_told(), "{:?}", candidate.state());
    }
    let counted = format!("csi_attacher_lease_identity_conflicts_total{{name=\"{LEASE}\"}} 1");
    let metrics = world.metrics.encode_prometheus();
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
    // It is gone, and its Lease is taken as from anybody else.
    leads(&candidate).await;
    assert!(!is_told());
}
