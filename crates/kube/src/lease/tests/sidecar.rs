//! Sidecars whose Leases are in other namespaces than the operator's: each is held as well. The clock is paused.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use tracing::Level;

use super::candidate::{GIVEN_UP, LEASE, World, held_by, leads, not_leading, pass, state_of, takes};
use super::seconds;
use crate::api::names::NEW_LEASE_HOLDER;
use crate::lease::{LeaderElectionHandle, LeaderState};
use csi_attacher_testbed::Logged;
use csi_attacher_testbed::lease_server::{NAMESPACE, Trouble};

/// The namespace of the operator; that of the sidecar is [`NAMESPACE`].
const OWN: &str = "operator";

const BOTH: &[&str] = &[NAMESPACE, OWN];

fn replica(world: &World, identity: &str) -> LeaderElectionHandle {
    let named = [NAMESPACE, OWN, NAMESPACE].map(str::to_owned);
    let election = world.election(OWN, identity).holding(&named);
    let others: Vec<_> = election.others.iter().map(|(namespace, _)| &**namespace).collect();
    assert_eq!(others, [NAMESPACE]);
    world.start(election)
}

/// A replica of this release, after one that worked under the Lease in [`NAMESPACE`].
fn after_a_former_release(world: &World, identity: &str) -> LeaderElectionHandle {
    let election = world.election(OWN, identity).after(None);
    assert_eq!(election.clone().after(Some(OWN)).others, []);
    world.start(election.after(Some(NAMESPACE)))
}

/// Leases, and a replica that leads.
async fn led() -> (World, LeaderElectionHandle) {
    let world = World::of(BOTH);
    let replica = replica(&world, "a");
    leads(&replica).await;
    (world, replica)
}

/// Leases in these namespaces, and one that leads under that in [`NAMESPACE`] alone: a sidecar, or a former release.
async fn led_by(identity: &str, namespaces: &[&str]) -> (World, LeaderElectionHandle) {
    let world = World::of(namespaces);
    let other = world.leader(identity).await;
    (world, other)
}

fn holders(world: &World) -> [String; 2] {
    [OWN, NAMESPACE].map(|namespace| world.server.holder_in(namespace))
}

#[tokio::test(start_paused = true)]
async fn nobody_serves_beside_a_sidecar_that_renews_its_lease() {
    let (world, sidecar) = led_by("sidecar", BOTH).await;
    let first = replica(&world, "a");
    for _ in 0..100 {
        pass(seconds(1)).await;
        assert!(first.term().is_none() && sidecar.term().is_some());
    }
    let state = LeaderState::OwnHeld(NAMESPACE.to_owned(), Some(held_by("sidecar", NAMESPACE, false)));
    assert_eq!(state_of(&first), state, "and shows for whom");
    let second = replica(&world, "b");
    pass(seconds(60)).await;
    assert_eq!(state_of(&first), state, "and the other one shows the first");
    let holder = Some(held_by("a", OWN, true));
    assert_eq!(state_of(&second), LeaderState::Waiting(holder));
    drop(second);
    sidecar.release_and_stop().await;
    takes(0..=6_000, leads(&first)).await;
    // The sidecar waits in its turn.
    let sidecar = world.candidate("sidecar");
    pass(seconds(60)).await;
    assert!(first.term().is_some() && sidecar.term().is_none());
    first.release_and_stop().await;
    assert_eq!(holders(&world), ["", ""]);
    leads(&sidecar).await;
}

/// It leads and writes the status, and is shown, also while this one waits for its own Lease, which it has created.
#[tokio::test(start_paused = true)]
async fn nobody_serves_beside_a_former_release_whose_lease_was_elsewhere() {
    let (world, former) = led_by("former", &[NAMESPACE]).await;
    let replica = after_a_former_release(&world, "a");
    for second in 0..100 {
        pass(seconds(1)).await;
        assert!(replica.term().is_none() && former.term().is_some());
        if second < 30 {
            assert_eq!(state_of(&replica).holder(), Some(&held_by("former", NAMESPACE, true)));
        }
    }
    former.release_and_stop().await;
    leads(&replica).await;
    assert_eq!(world.server.holder(), "a");
}

/// A former release takes what it finds in the namespace of a sidecar for the Lease of one, and waits for it: a standby of this release
/// leaves nothing there.
#[tokio::test(start_paused = true)]
async fn who_does_not_hold_the_own_lease_creates_no_other_one() {
    let world = World::of(&[OWN]);
    let former = world.start(world.election(OWN, "former"));
    leads(&former).await;
    let replica = replica(&world, "a");
    pass(seconds(60)).await;
    assert!(world.server.lease().is_none());
    former.release_and_stop().await;
    // It is the creator of the other one, and waits for that.
    let led = async {
        pass(seconds(10)).await;
        assert_eq!(world.server.holder(), NEW_LEASE_HOLDER);
        leads(&replica).await;
    };
    takes(0..=28_000, led).await;
}

#[tokio::test(start_paused = true)]
async fn the_leases_of_sidecars_do_not_slow_a_hand_over_down() {
    let world = World::of(BOTH);
    let election = world.election(OWN, "a").holding(&[NAMESPACE.to_owned()]);
    let shares = election.shared.shares.clone();
    shares.observe_other();
    let _another = shares.acquire(seconds(5), Instant::now());
    let replica = world.start(election);
    // One pause, for the own Lease, of at most a fifth of the longest.
    takes(0..=102, leads(&replica)).await;
    // They count as one.
    let now = Instant::now();
    let longest = shares.acquire(seconds(5), now).pause_ends.duration_since(now);
    assert!(longest <= Duration::from_millis(167), "{longest:?}");
    // All are released at once.
    world.server.0.lock().slow = seconds(4);
    takes(0..=5_000, replica.release_and_stop()).await;
    assert_eq!(holders(&world), ["", ""]);
}

#[tokio::test(start_paused = true)]
async fn one_that_vanishes_is_succeeded_when_its_time_is_over_and_not_before() {
    type Start = fn(&World, &str) -> LeaderElectionHandle;
    let (alone, with_others): (Start, Start) = (World::candidate, replica);
    // The last renewal was seen up to a retry period and its spread late, and renewed up to a retry period before. All Leases run out at
    // the same time.
    for (start, most) in [(alone, 22_000), (with_others, 25_000)] {
        let world = World::of(BOTH);
        let first = start(&world, "a");
        leads(&first).await;
        let second = start(&world, "b");
        pass(seconds(33)).await;
        assert!(state_of(&second).holder().is_some_and(|holder| holder.identity == "a"));
        drop(first);
        takes(10_001..=most, leads(&second)).await;
        assert_eq!(world.server.holder(), "b");
    }
}

#[tokio::test(start_paused = true)]
async fn who_loses_one_lease_works_no_more() {
    // The sidecar's is of no use without the own one.
    for (lost, other, kept) in [(OWN, NAMESPACE, ""), (NAMESPACE, OWN, "a")] {
        let (world, replica) = led().await;
        let term = replica.term().unwrap();
        world.server.change_in(lost, |lease| {
            lease.spec.get_or_insert_default().holder_identity = Some("another".to_owned());
        });
        // At the next renewal.
        takes(0..=5_000, not_leading(&replica)).await;
        assert!(!term.may_start() && !term.may_run(), "{lost}");
        pass(Duration::from_millis(100)).await;
        assert_eq!(world.server.holder_in(other), kept, "{lost}");
        leads(&replica).await;
        assert!(replica.term() != Some(term));
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_sidecar_is_released_when_no_call_can_run_any_more() {
    let (world, replica) = led().await;
    let term = replica.term().unwrap();
    world.server.trouble(OWN, Trouble::Forbidden);
    not_leading(&replica).await;
    assert!(!term.may_start() && term.may_run());
    while term.may_run() {
        assert_eq!(world.server.holder(), "a");
        pass(Duration::from_millis(50)).await;
    }
    pass(seconds(1)).await;
    assert_eq!(world.server.holder(), "");
    let error = replica.status().permission_error.unwrap();
    assert!(error.contains(&format!("Lease {OWN}/{LEASE}")), "{error}");
}

/// Nobody waits for it any longer by then, and it is to be competed for again.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_sidecar_is_tried_to_be_released_until_it_has_run_out() {
    let logged = Logged::start();
    let given_up = || logged.count(Level::WARN, GIVEN_UP);
    let (world, replica) = led().await;
    let term = replica.term().unwrap();
    for namespace in BOTH {
        world.server.trouble(namespace, Trouble::Unavailable);
    }
    term.over().await;
    let told = async {
        while given_up() == 0 {
            pass(Duration::from_millis(50)).await;
        }
    };
    takes(15_000..=16_100, told).await;
    world.server.0.lock().troubles.clear();
    leads(&replica).await;
    assert_eq!(given_up(), 1);
}

const OF_WEBHOOK: &str = "admission webhook \"leases.example.com\" denied the request: no Leases here";
/// As a ValidatingAdmissionPolicy says it that has no reason of its own: with the status 422.
const OF_POLICY: &str = "leases.coordination.k8s.io \"d\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: \
                         failed expression: false";
const OF_QUOTA: &str = "leases.coordination.k8s.io \"d\" is forbidden: exceeded quota: few, requested: count/leases.coordination.k8s.io=1, \
                        used: 3, limited: 3";

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
        let world = World::of(BOTH);
        world.server.trouble(OWN, Trouble::Denied(code, said));
        let replica = replica(&world, "a");
        pass(seconds(60)).await;
        let error = replica.status().permission_error.unwrap_or_default();
        assert!(error.contains(said), "{code} {said}: {error}");
        assert!(!error.contains("ServiceAccount"), "{error}");
        world.server.0.lock().troubles.clear();
        leads(&replica).await;
        assert_eq!(replica.status().permission_error, None, "{code} {said}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_gone_has_no_sidecar() {
    let (world, first) = led().await;
    let term = first.term();
    world.server.trouble(NAMESPACE, Trouble::Gone);
    pass(seconds(60)).await;
    assert!(first.term().is_some() && first.term() == term);
    assert_eq!(world.health.check(Instant::now()), Ok(()), "there is nothing to renew");
}

/// The name may be misspelt, and the sidecar at work: whoever leads without that Lease says so, until the namespace is there.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_does_not_exist_is_told_also_while_nothing_waits_for_it() {
    let world = World::of(&[OWN]);
    world.server.trouble(NAMESPACE, Trouble::Gone);
    let replica = replica(&world, "a");
    let told = || replica.status().warning.unwrap_or_default();
    pass(seconds(1)).await;
    let said = format!("namespace {NAMESPACE} of spec.leaderElection does not exist");
    assert!(replica.term().is_none() && told().starts_with(&said), "{}", told());
    leads(&replica).await;
    for _ in 0..60 {
        pass(seconds(1)).await;
        assert!(replica.term().is_some() && told().starts_with(&said), "{}", told());
    }
    world.server.0.lock().troubles.clear();
    pass(seconds(10)).await;
    assert_eq!((told(), world.server.holder()), (String::new(), "a".to_owned()));
    // One of a former release is not in the spec.
    let world = World::of(&[OWN]);
    world.server.trouble(NAMESPACE, Trouble::Gone);
    let replica = after_a_former_release(&world, "a");
    leads(&replica).await;
    assert_eq!(replica.status().warning, None);
}

/// With a namespace goes the Role that permits to look at its Leases, so that the API server does not say that it is gone.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_gone_with_its_role_is_to_be_taken_off_the_list() {
    let (world, replica) = led().await;
    world.server.remove();
    world.server.trouble(NAMESPACE, Trouble::Forbidden);
    not_leading(&replica).await;
    pass(seconds(60)).await;
    assert!(replica.term().is_none(), "a sidecar may be there as well");
    let error = replica.status().permission_error.unwrap();
    assert!(error.contains(&format!("Lease {NAMESPACE}/{LEASE}")), "{error}");
    let mend = format!("if namespace {NAMESPACE} was deleted, remove it from spec.leaderElection");
    assert!(error.ends_with(&mend), "{error}");
}

/// No sidecar and no former release renews such a Lease either. That it can still be read says nothing.
#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_can_write_is_waited_for_once_and_no_permission_is_missing() {
    type Start = fn(&World, &str) -> LeaderElectionHandle;
    let (listed, after): (Start, Start) = (replica, after_a_former_release);
    let of_policy = Trouble::Denied(StatusCode::UNPROCESSABLE_ENTITY, OF_POLICY);
    let of_webhook = Trouble::Denied(StatusCode::BAD_REQUEST, OF_WEBHOOK);
    let rows = [
        // what, whether a former release holds it, how, who waits, for so many seconds at most
        ("gone", false, Trouble::Gone, listed, 25),
        ("terminating", false, Trouble::Terminating, listed, 25),
        ("forbidden", true, Trouble::Forbidden, after, 25),
        ("read only", false, Trouble::ReadOnly, after, 40),
        ("of a policy", false, of_policy, after, 40),
        ("of a webhook", false, of_webhook, after, 40),
    ];
    for (what, is_held, trouble, start, most) in rows {
        let world = World::of(BOTH);
        let former = is_held.then(|| world.candidate("former"));
        if let Some(former) = &former {
            leads(former).await;
        }
        world.server.trouble(NAMESPACE, trouble);
        let began = Instant::now();
        let replica = start(&world, "a");
        while replica.term().is_none() {
            assert_eq!(replica.status().permission_error, None, "{what}");
            pass(Duration::from_millis(100)).await;
            assert!(began.elapsed() <= seconds(most), "{what}: it waits for ever");
        }
        assert!(began.elapsed() >= seconds(15), "{what}");
        assert!(former.is_none_or(|former| former.term().is_none()), "{what}");
        let term = replica.term();
        pass(seconds(60)).await;
        assert!(replica.term().is_some(), "{what}");
        assert_eq!(replica.term(), term, "{what}");
        assert_eq!(world.health.check(Instant::now()), Ok(()), "{what}");
    }
}
