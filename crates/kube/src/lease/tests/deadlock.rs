//! Replicas that wait for Leases of each other: those of two installations, and those of a former release. The clock is paused.

use std::time::Duration;

use super::candidate::{LEASE, World, leads, pass};
use super::seconds;
use crate::lease::{LeaderElectionHandle, LeaderState};

/// Namespaces of two installations.
const EAST: &str = "east";
const WEST: &str = "west";

/// With Leases in these namespaces that nobody holds.
fn world(namespaces: &[&str]) -> World {
    let world = World::new();
    for namespace in namespaces {
        world.server.release_in(namespace);
    }
    world
}

fn replica(world: &World, identity: &str, own: &str, others: &[&str]) -> LeaderElectionHandle {
    let others: Vec<String> = others.iter().map(|&namespace| namespace.to_owned()).collect();
    let election = world.election(identity).in_namespace(own).holding(&others);
    LeaderElectionHandle::start(election, LEASE.to_owned(), world.metrics.clone())
}

/// The number of the one that leads, at the latest after some rounds; never do two.
async fn one_leads(replicas: &[&LeaderElectionHandle]) -> usize {
    for _ in 0..6_000 {
        pass(Duration::from_millis(100)).await;
        let leaders: Vec<usize> = (0..replicas.len())
            .filter(|number| replicas[*number].is_leader())
            .collect();
        assert!(leaders.len() <= 1, "{leaders:?}");
        if let Some(leader) = leaders.first() {
            return *leader;
        }
    }
    let states: Vec<LeaderState> = replicas.iter().map(|replica| replica.state()).collect();
    panic!("nobody leads: {states:?}");
}

#[tokio::test(start_paused = true)]
async fn of_two_installations_that_list_each_other_one_leads() {
    for _ in 0..10 {
        let world = world(&[EAST, WEST]);
        let east = [
            replica(&world, "e1", EAST, &[WEST]),
            replica(&world, "e2", EAST, &[WEST]),
        ];
        let west = [
            replica(&world, "w1", WEST, &[EAST]),
            replica(&world, "w2", WEST, &[EAST]),
        ];
        let all = [&east[0], &east[1], &west[0], &west[1]];
        let leader = all[one_leads(&all).await];
        let term = leader.term();
        pass(seconds(200)).await;
        assert_eq!(leader.term(), term, "and keeps it");
        assert!(leader.release().await);
        let next = one_leads(&all).await;
        assert!(all[next].term() != term);
    }
}

/// Both are in the order of the spec, so that nobody has one of them and waits for the other's.
#[tokio::test(start_paused = true)]
async fn of_two_installations_with_one_list_one_leads_at_once() {
    let world = world(&[EAST, WEST, "x", "y"]);
    let east = replica(&world, "e", EAST, &["x", "y"]);
    let west = replica(&world, "w", WEST, &["x", "y"]);
    pass(seconds(1)).await;
    assert!(east.is_leader() != west.is_leader());
    // The other one waits for as long as that lasts, and keeps nothing that somebody may wait for.
    pass(seconds(100)).await;
    assert!(east.is_leader() != west.is_leader());
    let (leader, other, own) = if east.is_leader() {
        (east, west, WEST)
    } else {
        (west, east, EAST)
    };
    assert_eq!(world.server.holder_in(own), None);
    leader.release_and_stop().await;
    leads(&other).await;
}

/// The former release has its Lease where `namespace` says, and waits for what is held where it had it before, and where sidecars are.
#[tokio::test(start_paused = true)]
async fn a_former_release_that_waits_for_ours_gets_it() {
    let world = world(&[EAST, "x", "y"]);
    let former = replica(&world, "former", "x", &[]);
    leads(&former).await;
    let ours = [
        replica(&world, "a", EAST, &["x", "y"]),
        replica(&world, "b", EAST, &["x", "y"]),
    ];
    pass(seconds(5)).await;
    assert!(world.server.holder_in(EAST).is_some());
    for second in 5..200 {
        pass(seconds(1)).await;
        assert_eq!(
            world.server.holder_in("y"),
            None,
            "the second one is acquired when the first one is"
        );
        if second > 60 {
            assert_eq!(world.server.holder_in(EAST), None, "after {second} s");
            let is_former = |state: &LeaderState| state.holder().is_some_and(|holder| holder.identity == "former");
            assert!(ours.iter().all(|replica| is_former(&replica.state())));
        }
    }
    former.release_and_stop().await;
    one_leads(&[&ours[0], &ours[1]]).await;
}

/// A sidecar waits for nothing: the own Lease stays with one replica, which tells what is the matter.
#[tokio::test(start_paused = true)]
async fn nobody_yields_to_a_sidecar_nor_to_the_leader_of_its_own_kind() {
    let world = world(&[EAST, "x"]);
    let sidecar = world.election("sidecar").in_namespace("x");
    let sidecar = LeaderElectionHandle::start(sidecar, LEASE.to_owned(), world.metrics.clone());
    leads(&sidecar).await;
    let first = replica(&world, "a", EAST, &["x"]);
    pass(seconds(1)).await;
    let _second = replica(&world, "b", EAST, &["x"]);
    for _ in 0..2 {
        for _ in 0..100 {
            pass(seconds(1)).await;
            assert_eq!(world.server.holder_in(EAST).as_deref(), Some("a"));
        }
        if !first.is_leader() {
            sidecar.release().await;
            leads(&first).await;
        }
    }
}
