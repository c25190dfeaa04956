//! A Lease that somebody deletes: who held it works on until its next renewal. The clock is paused.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::change::{Replica, X, Y, Z, spec, two};
use super::seconds;
use csi_attacher_testbed::lease_server::{ApiServer, LateCreation};

#[tokio::test(start_paused = true)]
async fn a_former_lease_that_somebody_deleted_may_be_worked_under_still() {
    for has_seen_it in [true, false] {
        let (server, a, mut b) = two(X).await;
        let mut c = Replica::new(&server, "c");
        b.end().await;
        server.0.lock().leases.remove("x");
        server.configure(&spec(Y));
        let began = Instant::now();
        let newcomer = if has_seen_it { &mut b } else { &mut c };
        newcomer.start(Y);
        sleep(Duration::from_millis(10)).await;
        assert!(a.works() && !newcomer.works(), "its holder did not look yet");
        // a makes it again at its next renewal, and works on.
        sleep(seconds(60)).await;
        assert!(a.works() && !newcomer.works());
        drop(a);
        newcomer.comes_to_work().await;
        assert!(began.elapsed() < seconds(60 + 19), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn who_makes_a_lease_that_somebody_deleted_waits_for_who_held_it() {
    let (server, mut a, mut b) = two(X).await;
    b.end().await;
    // The replica that starts has never seen the Lease; only the status says that it was there.
    server.0.lock().leases.remove("x");
    let deleted = Instant::now();
    let mut c = Replica::new(&server, "c");
    c.start(X);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(server.holder_in("x").as_deref(), Some("c"));
    assert!(a.works() && !c.works(), "its holder did not look yet");
    sleep(seconds(5)).await;
    assert!(!a.works() && !c.works(), "its call may run still");
    c.comes_to_work().await;
    let took = deleted.elapsed();
    assert!(took >= seconds(15) && took <= seconds(16), "{took:?}");
    a.kill();
    // A usual failover costs nothing more, nor does the first Lease of all.
    c.end().await;
    let began = Instant::now();
    b.start(X);
    b.comes_to_work().await;
    assert!(began.elapsed() <= seconds(1), "{:?}", began.elapsed());
    let server = ApiServer::default();
    server.configure(&spec(X));
    let mut first = Replica::new(&server, "first");
    let began = Instant::now();
    first.start(X);
    first.comes_to_work().await;
    assert!(began.elapsed() <= seconds(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_made_a_lease_and_did_not_work_yet_leaves_it_to_nobody() {
    let (server, mut a, mut b) = two(X).await;
    b.end().await;
    server.0.lock().leases.remove("x");
    let deleted = Instant::now();
    let mut c = Replica::new(&server, "c");
    c.start(X);
    sleep(Duration::from_millis(10)).await;
    c.end().await;
    b.start(X);
    sleep(Duration::from_millis(100)).await;
    assert!(a.works() && !b.works(), "its holder did not look yet");
    a.candidate.as_ref().unwrap().term().unwrap().over().await;
    a.kill();
    b.comes_to_work().await;
    let took = deleted.elapsed();
    assert!(took >= seconds(15) && took <= seconds(18), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn who_made_a_lease_and_did_not_work_yet_waits_at_a_new_place_too() {
    for goes_by_an_older_spec in [false, true] {
        let (server, mut a, mut b) = two(X).await;
        b.end().await;
        server.0.lock().leases.remove("x");
        let deleted = Instant::now();
        if goes_by_an_older_spec {
            server.configure(&spec(Y));
        }
        let mut c = Replica::new(&server, "c");
        c.start(X);
        sleep(Duration::from_millis(10)).await;
        server.configure(&spec(Y));
        c.end().await;
        assert_eq!(server.holder_in("x").as_deref(), Some("c"), "it is left to run out");
        c.start(Y);
        sleep(Duration::from_millis(10)).await;
        assert!(a.works() && !c.works(), "its holder did not look yet");
        a.candidate.as_ref().unwrap().term().unwrap().over().await;
        a.kill();
        c.comes_to_work().await;
        let took = deleted.elapsed();
        assert!(took >= seconds(15) && took <= seconds(18), "{took:?}");
    }
}

/// Another place and back, or a process that dies and starts again under its name.
#[derive(Clone, Copy, Debug)]
enum Absence {
    ChangeOfPlace,
    Restart,
}

#[tokio::test(start_paused = true)]
async fn who_made_a_lease_and_did_not_work_yet_waits_when_it_comes_back_to_it() {
    for absence in [Absence::ChangeOfPlace, Absence::Restart] {
        for waited in [Duration::from_millis(10), seconds(7)] {
            let (server, mut a, mut b) = two(X).await;
            b.end().await;
            server.0.lock().leases.remove("x");
            let mut c = Replica::new(&server, "c");
            c.start(X);
            sleep(waited).await;
            match absence {
                Absence::ChangeOfPlace => {
                    server.configure(&spec(Y));
                    c.end().await;
                    c.start(Y);
                    sleep(Duration::from_millis(10)).await;
                    server.configure(&spec(X));
                    c.end().await;
                }
                Absence::Restart => {
                    c.kill();
                    c = Replica::new(&server, "c");
                }
            }
            let came_back = Instant::now();
            c.start(X);
            sleep(Duration::from_millis(10)).await;
            assert_eq!(server.holder_in("x").as_deref(), Some("c"));
            assert!(
                !c.works(),
                "{absence:?} after {waited:?}: who held the former Lease may work"
            );
            c.comes_to_work().await;
            let took = came_back.elapsed();
            assert!(
                took >= seconds(15) && took <= seconds(16),
                "{absence:?} after {waited:?}: {took:?}"
            );
            a.kill();
            // It has worked under it since: from its next renewal on it need not wait again.
            sleep(seconds(3)).await;
            c.kill();
            c = Replica::new(&server, "c");
            let came_back = Instant::now();
            c.start(X);
            c.comes_to_work().await;
            assert!(came_back.elapsed() <= seconds(1), "{:?}", came_back.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn several_former_leases_that_are_gone_are_waited_for_at_the_same_time() {
    let (server, mut a, mut b) = two(X).await;
    for place in [Y, X] {
        server.0.lock().config = None;
        a.end().await;
        server.configure(&spec(place));
        a.start(place);
        b.end().await;
        b.start(place);
        sleep(seconds(40)).await;
        assert!(a.works() && !b.works());
    }
    a.end().await;
    b.end().await;
    // b has seen a hold the Lease at both places.
    server.0.lock().config = None;
    server.0.lock().leases.clear();
    server.configure(&spec(Z));
    let began = Instant::now();
    b.start(Z);
    b.comes_to_work().await;
    let took = began.elapsed();
    assert!(took >= seconds(15) && took <= seconds(17), "{took:?}");
}

/// The Lease of `a` is deleted while `a` cannot read the AttacherConfig and so does not work yet. `b` was not started.
async fn deleted_before_it_works(server: &ApiServer, offset: u64) -> (Replica, Replica) {
    server.configure(&spec(X));
    let (mut a, b) = (Replica::new(server, "a"), Replica::new(server, "b"));
    server.0.lock().config_unread_after = Some(Duration::from_millis(700));
    a.start(X);
    sleep(seconds(20) + Duration::from_millis(offset * 100)).await;
    assert_eq!(server.holder_in("x").as_deref(), Some("a"));
    server.0.lock().leases.remove("x");
    server.0.lock().config_unread_after = None;
    (a, b)
}

/// The model checker found it. What a replica reads in the AttacherConfig says who may have worked before its Lease, and nothing
/// of who has taken its place since.
#[tokio::test(start_paused = true)]
async fn who_looked_at_the_attacherconfig_late_holds_the_lease_still_when_it_works() {
    for offset in 0..30 {
        let (mut a, mut b) = deleted_before_it_works(&ApiServer::default(), offset).await;
        b.start(X);
        for _ in 0..1_000 {
            sleep(Duration::from_millis(10)).await;
            assert!(!(a.works() && b.works()), "deleted after {offset} tenths of a second");
        }
        a.end().await;
        b.comes_to_work().await;
    }
}

/// The model checker found it. Who starts again may be stopped before it writes.
#[tokio::test(start_paused = true)]
async fn who_finds_that_it_made_a_lease_and_did_not_work_yet_leaves_it_to_nobody() {
    let (server, a, mut b) = two(X).await;
    b.end().await;
    server.0.lock().leases.remove("x");
    let mut c = Replica::new(&server, "c");
    c.start(X);
    sleep(Duration::from_millis(10)).await;
    c.kill();
    let mut c = Replica::new(&server, "c");
    c.watch(X);
    sleep(Duration::from_millis(10)).await;
    server.set_slow(Duration::from_millis(50));
    c.candidate.as_ref().unwrap().start_acquiring();
    sleep(Duration::from_millis(10)).await;
    c.end().await;
    assert!(a.works(), "its holder did not look yet");
    assert_eq!(server.holder_in("x").as_deref(), Some("c"), "it is left to run out");
}

/// The model checker found it. Who waits for a Lease that is gone may not see that its holder makes it again, and that it is
/// deleted again.
#[tokio::test(start_paused = true)]
async fn who_makes_a_lease_that_was_deleted_several_times_waits_for_who_made_it_before() {
    let (server, a, b) = two(X).await;
    while server.holder_in("x").as_deref() != Some("b") {
        server.0.lock().leases.remove("x");
        sleep(Duration::from_millis(10)).await;
        assert!(!(a.works() && b.works()), "b does not wait");
    }
    for _ in 0..3_000 {
        sleep(Duration::from_millis(10)).await;
        assert!(!(a.works() && b.works()), "b does not wait long enough");
    }
    assert!(b.works());
}

/// The model checker found it. Who made a Lease and did not work yet may find that it is another one, and that this one is gone
/// as well: its holder works.
#[tokio::test(start_paused = true)]
async fn who_did_not_work_yet_and_finds_its_lease_gone_waits_for_who_made_it_meanwhile() {
    let mut deleted_twice = 0;
    for offset in 0..30 {
        let server = ApiServer::default();
        let (a, mut b) = deleted_before_it_works(&server, offset).await;
        server.0.lock().deleted_after_conflict = true;
        b.start(X);
        for _ in 0..3_000 {
            sleep(Duration::from_millis(10)).await;
            assert!(!(a.works() && b.works()), "after {offset} tenths of a second");
        }
        assert!(a.works() || b.works());
        deleted_twice += usize::from(!server.0.lock().deleted_after_conflict);
    }
    assert!(deleted_twice > 0);
}

/// The model checker found it. A request that makes the Lease again, and arrives when another replica works and the Lease is deleted
/// once more, makes it for a process that made a Lease long ago and worked under it.
#[tokio::test(start_paused = true)]
async fn who_made_a_lease_long_ago_waits_when_a_late_request_of_its_own_makes_it_again() {
    for offset in 0..30 {
        let (server, a, mut b) = two(X).await;
        b.end().await;
        server.0.lock().late_creation = LateCreation::Awaited;
        server.0.lock().leases.remove("x");
        while !matches!(server.0.lock().late_creation, LateCreation::Kept(..)) {
            sleep(Duration::from_millis(10)).await;
        }
        let mut c = Replica::new(&server, "c");
        c.start(X);
        c.comes_to_work().await;
        assert!(!a.works());
        sleep(Duration::from_millis(offset * 100)).await;
        server.make_late();
        assert_eq!(server.holder_in("x").as_deref(), Some("a"));
        for _ in 0..2_000 {
            sleep(Duration::from_millis(10)).await;
            assert!(!(a.works() && c.works()), "after {offset} tenths of a second");
        }
        assert!(a.works());
    }
}
