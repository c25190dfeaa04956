//! How long a free Lease is left to replicas that hold fewer.

use std::time::Duration;

use tokio::time::Instant;

use super::seconds;
use crate::lease::LeaseShares;

const PERIOD: Duration = seconds(2);

/// Of a replica that knows that there are others.
fn of_several() -> LeaseShares {
    let shares = LeaseShares::default();
    shares.observe_other();
    shares
}

#[test]
fn a_single_replica_does_not_pause_and_one_of_several_does_the_more_it_holds() {
    let now = Instant::now();
    let milliseconds = |shares: &LeaseShares, period| {
        let guard = shares.acquire(period, now);
        let pause = guard.pause_ends.duration_since(now);
        (guard, pause.as_secs_f64() * 1000.0)
    };
    let single = LeaseShares::default();
    let guards: Vec<_> = (0..20).map(|_| milliseconds(&single, PERIOD)).collect();
    assert!(guards.iter().all(|(_, pause)| *pause == 0.0));

    let shares = of_several();
    let mut guards = Vec::new();
    for held in 0..20 {
        let (guard, pause) = milliseconds(&shares, PERIOD);
        guards.push(guard);
        let longest = 500.0 * f64::from(held) / f64::from(held + 4);
        assert!(longest < 500.0, "{held}");
        assert!((longest * 0.499..=longest).contains(&pause), "{held}: {pause}");
    }
    let (_, pause) = milliseconds(&shares, Duration::from_millis(100));
    assert!(pause > 20.0 && pause <= 50.0, "half a retry period: {pause}");
    // What is given up does not count.
    guards.clear();
    assert!(milliseconds(&shares, PERIOD).1.abs() < f64::EPSILON);
}

/// A replica ends and all its Leases get free at one moment: each goes to the replica whose pause is the shortest.
#[test]
fn leases_that_get_free_at_one_moment_go_to_all_replicas_and_more_to_those_that_hold_fewer() {
    fastrand::seed(1);
    let (mut idle, mut busy) = (0, 0);
    for _ in 0..200 {
        let now = Instant::now();
        let replicas = [of_several(), of_several(), of_several()];
        // The last one leads ten drivers already.
        let _held: Vec<_> = (0..10).map(|_| replicas[2].acquire(PERIOD, now)).collect();
        let all = |shares: LeaseShares| -> Vec<_> { (0..20).map(|_| shares.acquire(PERIOD, now)).collect() };
        let mut pauses = replicas.map(|shares| all(shares).into_iter());
        let mut taken = [0; 3];
        for _ in 0..20 {
            let ends = pauses.each_mut().map(|pauses| pauses.next().unwrap().pause_ends);
            let first = (0..3).min_by_key(|number| ends[*number]);
            taken[first.unwrap()] += 1;
        }
        assert!(taken[0] > 0 && taken[1] > 0, "{taken:?}");
        idle += taken[0] + taken[1];
        busy += taken[2];
    }
    // At least twice as many to each.
    assert!(idle > 2 * 2 * busy, "{idle} to two, {busy} to one");
}
