//! Sidecars whose Leases are in other namespaces than the operator's: each is held as well. The clock is paused.

use std::time::Duration;

use tokio::time::Instant;

use super::candidate::{LEASE, World, leads, not_leading, pass};
use super::seconds;
use crate::api::names::NEW_LEASE_HOLDER;
use crate::lease::{LeaderElectionHandle, LeaderState, LeaseHolder};
use csi_attacher_testbed::lease_server::{ApiServer, NAMESPACE};

/// The namespace of the operator; that of the sidecar is [`NAMESPACE`].
const OWN: &str = "operator";

/// Leases that nobody holds.
fn world() -> World {
    let world = World::new();
    world.server.release_in(OWN);
    world
}

fn replica(world: &World, identity: &str) -> LeaderElectionHandle {
    let election = world.election(identity).in_namespace(OWN);
    let election = election.holding(&[NAMESPACE.to_owned(), OWN.to_owned(), NAMESPACE.to_owned()]);
    assert_eq!(election.others, [NAMESPACE]);
    LeaderElectionHandle::start(election, LEASE.to_owned(), world.metrics.clone())
}

#[tokio::test(start_paused = true)]
async fn nobody_serves_beside_a_sidecar_that_renews_its_lease() {
    let world = world();
    let sidecar = world.candidate("sidecar");
    leads(&sidecar).await;
    let replica = replica(&world, "a");
    for _ in 0..100 {
        pass(seconds(1)).await;
        assert!(!replica.is_leader() && sidecar.is_leader());
    }
    let holder = Some(LeaseHolder {
        identity: "sidecar".to_owned(),
        reports: false,
        namesake: false,
    });
    assert_eq!(replica.state(), LeaderState::Waiting { holder }, "and shows for whom");
    sidecar.release_and_stop().await;
    let released = Instant::now();
    leads(&replica).await;
    assert!(released.elapsed() <= seconds(6), "{:?}", released.elapsed());
    // The sidecar waits in its turn.
    let sidecar = world.candidate("sidecar");
    pass(seconds(60)).await;
    assert!(replica.is_leader() && !sidecar.is_leader());
    replica.release_and_stop().await;
    assert_eq!(
        (world.server.holder_in(OWN), world.server.holder_in(NAMESPACE)),
        (None, None)
    );
    leads(&sidecar).await;
}

#[tokio::test(start_paused = true)]
async fn where_no_sidecar_is_all_leases_are_waited_for_together() {
    let world = World::with(ApiServer::default());
    let began = Instant::now();
    let replica = replica(&world, "a");
    pass(seconds(2)).await;
    for namespace in [OWN, NAMESPACE] {
        assert_eq!(world.server.holder_in(namespace).as_deref(), Some(NEW_LEASE_HOLDER));
    }
    leads(&replica).await;
    assert!(began.elapsed() <= seconds(20), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn of_several_replicas_one_holds_all_leases() {
    let world = world();
    let first = replica(&world, "a");
    leads(&first).await;
    let second = replica(&world, "b");
    pass(seconds(30)).await;
    assert!(matches!(second.state(), LeaderState::Waiting { holder: Some(holder) } if holder.identity == "a"));
    // It is killed: both Leases run out at the same time.
    drop(first);
    let killed = Instant::now();
    leads(&second).await;
    assert!(killed.elapsed() <= seconds(25), "{:?}", killed.elapsed());
    assert_eq!(world.server.holder_in(NAMESPACE).as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn who_loses_one_lease_works_no_more() {
    for (lost, other) in [(OWN, NAMESPACE), (NAMESPACE, OWN)] {
        let world = world();
        let replica = replica(&world, "a");
        leads(&replica).await;
        let term = replica.term().unwrap();
        world.server.change_in(lost, |lease| {
            lease.spec.get_or_insert_default().holder_identity = Some("another".to_owned());
        });
        not_leading(&replica).await;
        assert!(!term.may_start() && !term.may_run(), "{lost}");
        pass(Duration::from_millis(100)).await;
        // The sidecar's is of no use without the own one.
        let kept = (other == OWN).then_some("a");
        assert_eq!(world.server.holder_in(other).as_deref(), kept, "{lost}");
        leads(&replica).await;
        assert!(replica.term() != Some(term));
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_sidecar_is_released_when_no_call_can_run_any_more() {
    let world = world();
    let replica = replica(&world, "a");
    leads(&replica).await;
    let term = replica.term().unwrap();
    world.server.0.lock().forbidden.insert(OWN.to_owned());
    not_leading(&replica).await;
    assert!(!term.may_start() && term.may_run());
    while term.may_run() {
        assert_eq!(world.server.holder_in(NAMESPACE).as_deref(), Some("a"));
        pass(Duration::from_millis(50)).await;
    }
    pass(seconds(1)).await;
    assert_eq!(world.server.holder_in(NAMESPACE), None);
    let error = replica.permission_error().unwrap();
    assert!(error.contains(&format!("Lease {OWN}/{LEASE}")), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_gone_has_no_sidecar() {
    let world = world();
    let first = replica(&world, "a");
    leads(&first).await;
    let term = first.term();
    // With the namespace goes the Lease.
    world.server.remove();
    world.server.0.lock().gone.insert(NAMESPACE.to_owned());
    pass(seconds(60)).await;
    assert!(first.is_leader() && first.term() == term);
    first.release_and_stop().await;
    // Who did not hold it waits for one duration.
    let began = Instant::now();
    let second = replica(&world, "b");
    leads(&second).await;
    let took = began.elapsed();
    assert!(took >= seconds(15) && took <= seconds(25), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_without_permission_is_said() {
    let world = world();
    world.server.0.lock().forbidden.insert(NAMESPACE.to_owned());
    let replica = replica(&world, "a");
    pass(seconds(30)).await;
    assert!(!replica.is_leader());
    let error = replica.permission_error().unwrap();
    assert!(error.contains(&format!("Lease {NAMESPACE}/{LEASE}")), "{error}");
}

/// A replica of this release, after one that worked under the Lease in [`NAMESPACE`].
fn after_a_former_release(world: &World, identity: &str) -> LeaderElectionHandle {
    let election = world.election(identity).in_namespace(OWN);
    assert_eq!(election.clone().after(Some(OWN.to_owned())).former, None);
    let election = election.after(Some(NAMESPACE.to_owned()));
    LeaderElectionHandle::start(election, LEASE.to_owned(), world.metrics.clone())
}

#[tokio::test(start_paused = true)]
async fn nobody_serves_beside_a_former_release_whose_lease_was_elsewhere() {
    let world = world();
    let former = world.candidate("former");
    leads(&former).await;
    let replica = after_a_former_release(&world, "a");
    for _ in 0..100 {
        pass(seconds(1)).await;
        assert!(!replica.is_leader() && former.is_leader());
    }
    former.release_and_stop().await;
    leads(&replica).await;
    assert_eq!(world.server.holder_in(NAMESPACE).as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn a_former_release_that_may_not_renew_its_lease_either_is_waited_for_once() {
    let world = world();
    let former = world.candidate("former");
    leads(&former).await;
    world.server.0.lock().forbidden.insert(NAMESPACE.to_owned());
    let began = Instant::now();
    let replica = after_a_former_release(&world, "a");
    while !replica.is_leader() {
        pass(Duration::from_millis(100)).await;
        assert!(began.elapsed() <= seconds(25), "it waits for ever");
    }
    assert!(began.elapsed() >= seconds(15) && !former.is_leader());
    assert_eq!(replica.permission_error(), None, "nothing is missing");
    let term = replica.term();
    pass(seconds(60)).await;
    assert_eq!(replica.term(), term);
}
