//! Replicas that wait for Leases of each other: those of two installations, and those of a former release. The clock is paused.

use std::time::Duration;

use super::candidate::{World, leads, pass, state_of};
use super::seconds;
use crate::lease::{LeaderElectionHandle, LeaderState};

/// Namespaces of two installations.
const EAST: &str = "east";
const WEST: &str = "west";

fn replica(world: &World, identity: &str, own: &str, others: &[&str]) -> LeaderElectionHandle {
    let others: Vec<String> = others.iter().map(|&namespace| namespace.to_owned()).collect();
    world.start(world.election(own, identity).holding(&others))
}

/// The number of the one that leads, at the latest after some rounds; never do two.
async fn one_leads(replicas: &[LeaderElectionHandle]) -> usize {
    for _ in 0..6_000 {
        pass(Duration::from_millis(100)).await;
        let numbers = 0..replicas.len();
        let leaders: Vec<usize> = numbers.filter(|number| replicas[*number].term().is_some()).collect();
        assert!(leaders.len() <= 1, "{leaders:?}");
        if let Some(leader) = leaders.first() {
            return *leader;
        }
    }
    let states: Vec<_> = replicas.iter().map(LeaderElectionHandle::status).collect();
    panic!("nobody leads: {states:?}");
}

#[tokio::test(start_paused = true)]
async fn of_two_installations_that_list_each_other_one_leads() {
    for _ in 0..10 {
        let world = World::of(&[EAST, WEST]);
        let all = [("e1", EAST), ("e2", EAST), ("w1", WEST), ("w2", WEST)];
        // What is in the own namespace is no other Lease.
        let all = all.map(|(identity, own)| replica(&world, identity, own, &[EAST, WEST]));
        let leader = &all[one_leads(&all).await];
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
    let world = World::of(&[EAST, WEST, "x", "y"]);
    let [east, west] = [EAST, WEST].map(|own| replica(&world, own, own, &["x", "y"]));
    pass(seconds(1)).await;
    assert!(east.term().is_some() != west.term().is_some());
    // The other one waits for as long as that lasts, and keeps nothing that somebody may wait for.
    pass(seconds(100)).await;
    assert!(east.term().is_some() != west.term().is_some());
    let (leader, other, own) = if east.term().is_some() {
        (east, west, WEST)
    } else {
        (west, east, EAST)
    };
    assert_eq!(world.server.holder_in(own), "");
    leader.release_and_stop().await;
    leads(&other).await;
}

/// The former release has its Lease where `namespace` says, and waits for what is held where it had it before, and where sidecars are.
#[tokio::test(start_paused = true)]
async fn a_former_release_that_waits_for_ours_gets_it() {
    let world = World::of(&[EAST, "x", "y"]);
    let former = replica(&world, "former", "x", &[]);
    leads(&former).await;
    let ours = ["a", "b"].map(|identity| replica(&world, identity, EAST, &["x", "y"]));
    pass(seconds(5)).await;
    assert_ne!(world.server.holder_in(EAST), "");
    for second in 5..200 {
        pass(seconds(1)).await;
        // The second one is acquired when the first one is.
        assert_eq!(world.server.holder_in("y"), "");
        if second > 60 {
            assert_eq!(world.server.holder_in(EAST), "", "after {second} s");
            let is_former = |state: &LeaderState| state.holder().is_some_and(|holder| holder.identity == "former");
            assert!(ours.iter().all(|replica| is_former(&state_of(replica))));
        }
    }
    former.release_and_stop().await;
    one_leads(&ours).await;
}

/// A sidecar waits for nothing: the own Lease stays with one replica, which tells what is the matter.
#[tokio::test(start_paused = true)]
async fn nobody_yields_to_a_sidecar_nor_to_the_leader_of_its_own_kind() {
    let world = World::of(&[EAST, "x"]);
    let sidecar = replica(&world, "sidecar", "x", &[]);
    leads(&sidecar).await;
    let first = replica(&world, "a", EAST, &["x"]);
    pass(seconds(1)).await;
    let _second = replica(&world, "b", EAST, &["x"]);
    for _ in 0..2 {
        for _ in 0..100 {
            pass(seconds(1)).await;
            assert_eq!(world.server.holder_in(EAST), "a");
        }
        if first.term().is_none() {
            sidecar.release().await;
            leads(&first).await;
        }
    }
}
