//! A sidecar whose Lease is in another namespace than the operator's. The clock is paused.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::candidate::{World, leads};
use super::change::{Replica, X, spec};
use super::seconds;
use csi_attacher_testbed::lease_server::NAMESPACE;

/// A replica that is told where the sidecar may have its Lease, and has its own elsewhere.
fn replica(world: &World) -> Replica {
    let mut replica = Replica::new(&world.server, "a");
    replica.beside = vec![NAMESPACE.to_owned(), "empty".to_owned()];
    world.server.configure(&spec(X));
    replica
}

#[tokio::test(start_paused = true)]
async fn nobody_serves_beside_a_sidecar_that_renews_its_lease() {
    let world = World::new();
    let sidecar = world.candidate("sidecar");
    leads(&sidecar).await;
    let mut a = replica(&world);
    a.start(X);
    for _ in 0..100 {
        sleep(seconds(1)).await;
        assert!(!a.works() && sidecar.is_leader());
    }
    assert_eq!(a.waits_for().as_deref(), Some("sidecar"), "and shows for whom");
    // It gives the Lease up.
    sidecar.release_and_stop().await;
    let released = Instant::now();
    a.comes_to_work().await;
    assert!(released.elapsed() <= seconds(3), "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_stands_still_stops_nobody() {
    let world = World::new();
    let sidecar = world.candidate("sidecar");
    leads(&sidecar).await;
    // It is killed, and leaves the Lease.
    drop(sidecar);
    let mut a = replica(&world);
    let began = Instant::now();
    a.start(X);
    a.comes_to_work().await;
    let took = began.elapsed();
    assert!(took >= seconds(15) && took <= seconds(18), "{took:?}");
    assert_eq!(
        world.server.holder().as_deref(),
        Some("sidecar"),
        "it is nobody else's to write"
    );
}

#[tokio::test(start_paused = true)]
async fn where_no_sidecar_is_nothing_is_waited_for() {
    let world = World::new();
    let mut a = replica(&world);
    let began = Instant::now();
    a.start(X);
    a.comes_to_work().await;
    assert!(began.elapsed() <= seconds(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_may_not_be_read_costs_one_duration_of_the_lease() {
    let world = World::new();
    world.server.0.lock().forbidden.insert(NAMESPACE.to_owned());
    let mut a = replica(&world);
    let began = Instant::now();
    a.start(X);
    sleep(Duration::from_secs(14)).await;
    assert!(!a.works());
    a.comes_to_work().await;
    assert!(began.elapsed() <= seconds(18), "{:?}", began.elapsed());
}
