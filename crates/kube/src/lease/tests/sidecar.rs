//! Sidecars whose Leases are in other namespaces than the operator's: each is held as well. The clock is paused.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::candidate::{LEASE, World, held_by, leads, not_leading, pass};
use super::seconds;
use crate::api::names::NEW_LEASE_HOLDER;
use crate::lease::{LeaderElectionHandle, LeaderState};
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
    let others: Vec<_> = election.others.iter().map(|(namespace, _)| &**namespace).collect();
    assert_eq!(others, [NAMESPACE]);
    LeaderElectionHandle::start(election, LEASE.to_owned(), world.metrics.clone())
}

/// The same, and a replica that leads.
async fn led() -> (World, LeaderElectionHandle) {
    let world = world();
    let replica = replica(&world, "a");
    leads(&replica).await;
    (world, replica)
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
    let state = LeaderState::OwnHeld {
        namespace: NAMESPACE.to_owned(),
        holder: Some(held_by("sidecar", NAMESPACE, false)),
    };
    assert_eq!(replica.state(), state, "and shows for whom");
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
async fn of_two_replicas_that_wait_for_a_sidecar_the_other_one_shows_the_first() {
    let world = world();
    let sidecar = world.candidate("sidecar");
    leads(&sidecar).await;
    let first = replica(&world, "a");
    pass(seconds(1)).await;
    let second = replica(&world, "b");
    pass(seconds(60)).await;
    let held = |state: LeaderState| matches!(state, LeaderState::OwnHeld { namespace, .. } if namespace == NAMESPACE);
    assert!(held(first.state()), "{:?}", first.state());
    let holder = Some(held_by("a", OWN, true));
    assert_eq!(second.state(), LeaderState::Waiting { holder });
}

/// A former release takes what it finds in the namespace of a sidecar for the Lease of one, and waits for it: a standby of this release
/// leaves nothing there.
#[tokio::test(start_paused = true)]
async fn who_does_not_hold_the_own_lease_creates_no_other_one() {
    let world = World::with(ApiServer::default());
    world.server.release_in(OWN);
    let former = world.election("former").in_namespace(OWN);
    let former = LeaderElectionHandle::start(former, LEASE.to_owned(), world.metrics.clone());
    leads(&former).await;
    let replica = replica(&world, "a");
    pass(seconds(60)).await;
    assert!(world.server.lease().is_none());
    former.release_and_stop().await;
    // It is the creator of the other one, and waits for that.
    let began = Instant::now();
    pass(seconds(10)).await;
    assert_eq!(world.server.holder().as_deref(), Some(NEW_LEASE_HOLDER));
    leads(&replica).await;
    assert!(began.elapsed() <= seconds(28), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_leases_of_sidecars_do_not_slow_a_hand_over_down() {
    let world = world();
    let election = world.election("a").in_namespace(OWN);
    let election = election.holding(&[NAMESPACE.to_owned()]);
    election.shared.shares.observe_other();
    let shares = election.shared.shares.clone();
    let _another = shares.acquire(seconds(5), Instant::now());
    let began = Instant::now();
    let replica = LeaderElectionHandle::start(election, LEASE.to_owned(), world.metrics.clone());
    leads(&replica).await;
    // One pause, for the own Lease, of at most a fifth of the longest.
    assert!(began.elapsed() <= Duration::from_millis(102), "{:?}", began.elapsed());
    // They count as one.
    let longest = shares.acquire(seconds(5), began).pause_ends.duration_since(began);
    assert!(longest <= Duration::from_millis(167), "{longest:?}");
    // All are released at once.
    world.server.set_slow(seconds(4));
    let began = Instant::now();
    replica.release_and_stop().await;
    assert!(began.elapsed() <= seconds(5), "{:?}", began.elapsed());
    assert_eq!(
        (world.server.holder_in(OWN), world.server.holder_in(NAMESPACE)),
        (None, None)
    );
}

#[tokio::test(start_paused = true)]
async fn of_several_replicas_one_holds_all_leases() {
    let (world, first) = led().await;
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
        let (world, replica) = led().await;
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
    let (world, replica) = led().await;
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

const OF_WEBHOOK: &str = "admission webhook \"leases.example.com\" denied the request: no Leases here";
/// As a ValidatingAdmissionPolicy says it that has no reason of its own: with the status 422.
const OF_POLICY: &str = "leases.coordination.k8s.io \"d\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: \
                         failed expression: false";
const OF_QUOTA: &str = "leases.coordination.k8s.io \"d\" is forbidden: exceeded quota: few, requested: count/leases.coordination.k8s.io=1, \
                        used: 3, limited: 3";

/// Admission refuses each write of a Lease in a namespace.
fn deny(world: &World, namespace: &str, code: StatusCode, said: &'static str) {
    let denial = (code, said);
    world.server.0.lock().denied.insert(namespace.to_owned(), denial);
}

/// No permission is missing for what a webhook, a policy or a quota refuses, and none is asked for.
#[tokio::test(start_paused = true)]
async fn what_admission_says_of_the_lease_is_told() {
    for (code, said) in [
        (StatusCode::FORBIDDEN, OF_WEBHOOK),
        (StatusCode::BAD_REQUEST, OF_WEBHOOK),
        (StatusCode::FORBIDDEN, OF_POLICY),
        (StatusCode::UNPROCESSABLE_ENTITY, OF_POLICY),
        (StatusCode::FORBIDDEN, OF_QUOTA),
    ] {
        let world = world();
        deny(&world, OWN, code, said);
        let replica = replica(&world, "a");
        pass(seconds(60)).await;
        let error = replica.permission_error().unwrap_or_default();
        assert!(error.contains(said), "{code} {said}: {error}");
        assert!(!error.contains("ServiceAccount"), "{error}");
        world.server.0.lock().denied.clear();
        leads(&replica).await;
        assert_eq!(replica.permission_error(), None, "{code} {said}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_gone_has_no_sidecar() {
    let (world, first) = led().await;
    let term = first.term();
    // With the namespace goes the Lease.
    world.server.remove();
    world.server.0.lock().gone.insert(NAMESPACE.to_owned());
    pass(seconds(60)).await;
    assert!(first.is_leader() && first.term() == term);
    assert_eq!(world.health.check(Instant::now()), Ok(()), "there is nothing to renew");
    first.release_and_stop().await;
    // Who did not hold it waits for one duration.
    let began = Instant::now();
    let second = replica(&world, "b");
    leads(&second).await;
    let took = began.elapsed();
    assert!(took >= seconds(15) && took <= seconds(25), "{took:?}");
}

/// With a namespace goes the Role that permits to look at its Leases, so that the API server does not say that it is gone.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_gone_with_its_role_is_to_be_taken_off_the_list() {
    let (world, replica) = led().await;
    world.server.remove();
    world.server.0.lock().gone.insert(NAMESPACE.to_owned());
    world.server.0.lock().forbidden.insert(NAMESPACE.to_owned());
    not_leading(&replica).await;
    pass(seconds(60)).await;
    assert!(!replica.is_leader(), "a sidecar may be there as well");
    let error = replica.permission_error().unwrap();
    assert!(error.contains(&format!("Lease {NAMESPACE}/{LEASE}")), "{error}");
    let mend = format!("if namespace {NAMESPACE} was deleted, remove it from spec.leaderElection");
    assert!(error.ends_with(&mend), "{error}");
}

/// A replica of this release, after one that worked under the Lease in [`NAMESPACE`].
fn after_a_former_release(world: &World, identity: &str) -> LeaderElectionHandle {
    let election = world.election(identity).in_namespace(OWN);
    assert_eq!(election.clone().after(OWN).others, []);
    let election = election.after(NAMESPACE);
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

/// No sidecar and no former release renews such a Lease either. That it can still be read says nothing.
#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_can_write_is_waited_for_once_and_no_permission_is_missing() {
    type Prepare = fn(&World);
    type Start = fn(&World, &str) -> LeaderElectionHandle;
    let terminating: Prepare = |world| {
        world.server.remove();
        world.server.0.lock().terminating.insert(NAMESPACE.to_owned());
    };
    let forbidden: Prepare = |world| world.server.0.lock().forbidden.extend([NAMESPACE.to_owned()]);
    let read_only: Prepare = |world| world.server.0.lock().read_only.extend([NAMESPACE.to_owned()]);
    let of_policy: Prepare = |world| deny(world, NAMESPACE, StatusCode::UNPROCESSABLE_ENTITY, OF_POLICY);
    let of_webhook: Prepare = |world| deny(world, NAMESPACE, StatusCode::BAD_REQUEST, OF_WEBHOOK);
    let rows: [(&str, bool, Prepare, Start, u64); 5] = [
        // what, whether a former release holds it, how, who waits, for so many seconds at most
        ("terminating", false, terminating, replica, 25),
        ("forbidden", true, forbidden, after_a_former_release, 25),
        ("read only", false, read_only, after_a_former_release, 40),
        ("of a policy", false, of_policy, after_a_former_release, 40),
        ("of a webhook", false, of_webhook, after_a_former_release, 40),
    ];
    for (what, is_held, prepare, start, most) in rows {
        let world = world();
        let former = is_held.then(|| world.candidate("former"));
        if let Some(former) = &former {
            leads(former).await;
        }
        prepare(&world);
        let began = Instant::now();
        let replica = start(&world, "a");
        while !replica.is_leader() {
            assert_eq!(replica.permission_error(), None, "{what}");
            pass(Duration::from_millis(100)).await;
            assert!(began.elapsed() <= seconds(most), "{what}: it waits for ever");
        }
        assert!(began.elapsed() >= seconds(15), "{what}");
        assert!(!former.is_some_and(|former| former.is_leader()), "{what}");
        let term = replica.term();
        pass(seconds(60)).await;
        assert!(replica.is_leader(), "{what}");
        assert_eq!(replica.term(), term, "{what}");
        assert_eq!(world.health.check(Instant::now()), Ok(()), "{what}");
    }
}

/// Whoever leads under the former Lease writes the status, also while this one waits for its own Lease, which it has created.
#[tokio::test(start_paused = true)]
async fn the_replica_that_leads_is_shown_before_a_lease_that_nobody_holds() {
    let world = World::new();
    let former = world.candidate("former");
    leads(&former).await;
    let replica = after_a_former_release(&world, "a");
    for _ in 0..30 {
        pass(seconds(1)).await;
        let state = replica.state();
        let holder = state.holder().map(|holder| (&*holder.identity, &*holder.namespace));
        assert_eq!(holder, Some(("former", NAMESPACE)), "{state:?}");
    }
}
