//! Who writes a status when.

use std::time::Duration;

use tokio::time::Instant;

use super::status::standby;
use crate::lease::{Clock, LeaderState, LeaseHolder, LeaseRules, LeaseTimings, Term};
use crate::runtime::DriverPhase;
use crate::supervisor::status_author::DriverLeader::{self, Next, Nobody, Other, Ours, Unknown};
use crate::supervisor::status_author::StatusAuthor;

const NEVER: [u64; 0] = [];

/// One replica, which is asked once a second.
struct Replica {
    author: StatusAuthor,
    /// Whether it holds the Lease for drivers that no replica leads.
    for_nobody: bool,
    now: Instant,
}

impl Replica {
    /// One that holds that Lease, and one that does not.
    fn both() -> [Self; 2] {
        [true, false].map(|for_nobody| Self {
            author: StatusAuthor::default(),
            for_nobody,
            now: Instant::now(),
        })
    }

    /// What it is at: `waits` for the Lease, `ends`, or something else. Answers in which of the next `seconds` it may write.
    fn writes(&mut self, lead: DriverLeader, what: &str, seconds: u64) -> Vec<u64> {
        let phase = match what {
            "waits" => standby(None),
            "ends" => DriverPhase::Stopped,
            _ => DriverPhase::Running,
        };
        let mut may = Vec::new();
        for second in 0..seconds {
            if self.author.may_write(lead, Some(&phase), self.for_nobody, self.now) {
                may.push(second);
            }
            self.now += Duration::from_secs(1);
        }
        may
    }
}

#[test]
fn the_leader_always_and_the_others_never_while_one_leads() {
    for mut replica in Replica::both() {
        assert_eq!(replica.writes(Ours, "runs", 3), [0, 1, 2]);
        assert_eq!(replica.writes(Other, "waits", 9), NEVER);
        assert_eq!(replica.writes(Other, "unreachable", 9), NEVER);
        assert_eq!(replica.writes(Ours, "waits", 2), NEVER, "it is about to begin");
    }
}

#[test]
fn when_nobody_leads_the_holder_of_the_lease_for_that_writes() {
    let [mut holder, mut other] = Replica::both();
    assert_eq!(holder.writes(Nobody, "unreachable", 3), [0, 1, 2]);
    assert_eq!(other.writes(Nobody, "unreachable", 9), NEVER);
    // Somebody led meanwhile, and may do so again.
    assert_eq!(holder.writes(Other, "unreachable", 1), NEVER);
    assert_eq!(holder.writes(Nobody, "unreachable", 6), [4, 5]);
}

/// As it has to be said that a sidecar holds the Lease. The other one sees that a replica holds the own Lease, and says nothing.
#[test]
fn when_a_replica_waits_for_a_sidecar_it_alone_writes() {
    let [mut other, mut holder] = Replica::both();
    assert_eq!(holder.writes(Next, "waits", 8), [5, 6, 7]);
    assert_eq!(other.writes(Other, "waits", 8), NEVER);
    // It has all Leases, and begins.
    assert_eq!(holder.writes(Ours, "runs", 1), [0]);
    // The API server does not let it look at one of them.
    let [_, mut new] = Replica::both();
    assert_eq!(new.writes(Next, "forbidden", 2), [0, 1]);
}

#[test]
fn a_hand_over_is_over_before_a_third_one_writes() {
    let [mut replica, _] = Replica::both();
    assert_eq!(replica.writes(Other, "waits", 1), NEVER);
    assert_eq!(replica.writes(Nobody, "waits", 4), NEVER);
    assert_eq!(replica.writes(Other, "waits", 9), NEVER);
    // Nobody takes the Lease, as when the permission to write it is missing.
    assert_eq!(replica.writes(Nobody, "waits", 6), [4, 5]);
    // As it has to be said that a sidecar holds the Lease.
    let [mut new, _] = Replica::both();
    assert_eq!(new.writes(Nobody, "waits", 7), [5, 6]);
    // What is not known yet is waited for, but not for ever.
    let [mut new, _] = Replica::both();
    assert_eq!(new.writes(Unknown, "unreachable", 7), [5, 6]);
}

/// A driver that hangs up again and again, beside a sidecar: what is waited for is over when it is not waited for any more.
#[test]
fn a_wait_that_ends_holds_up_nobody() {
    let [mut replica, _] = Replica::both();
    for _ in 0..3 {
        assert_eq!(replica.writes(Nobody, "waits", 3), NEVER);
        assert_eq!(replica.writes(Nobody, "connecting", 2), [0, 1]);
    }
}

#[test]
fn the_last_leader_has_the_last_word() {
    let [mut holder, mut led] = Replica::both();
    assert_eq!(led.writes(Ours, "runs", 1), [0]);
    assert_eq!(led.writes(Nobody, "suspended", 7), [0, 1, 2, 3]);
    assert_eq!(led.writes(Nobody, "ends", 2), [0, 1]);
    assert_eq!(holder.writes(Nobody, "ends", 9), NEVER);
    // The successor was faster.
    assert_eq!(led.writes(Ours, "runs", 1), [0]);
    assert_eq!(led.writes(Other, "ends", 3), NEVER);
}

#[test]
fn only_a_holder_that_reports_is_another_leader() {
    let held = |reports| {
        Some(LeaseHolder {
            identity: "a".to_owned(),
            namespace: "operator".to_owned(),
            reports,
            namesake: false,
        })
    };
    let own_held = |reports| LeaderState::OwnHeld("sidecars".to_owned(), held(reports));
    let (rules, clock) = (LeaseRules::default(), Clock::default());
    let term = Term::new(rules, clock.clone(), LeaseTimings::default(), clock.now());
    let rows = [
        (LeaderState::Leading(term), Ours),
        (LeaderState::Unknown, Unknown),
        (LeaderState::Observing(held(true)), Other),
        (LeaderState::Observing(held(false)), Nobody),
        (LeaderState::Observing(None), Nobody),
        // Of two AttacherConfigs of one driver, one is refused.
        (LeaderState::HeldForAnother, Next),
        (LeaderState::Waiting(held(true)), Other),
        (LeaderState::Waiting(held(false)), Nobody),
        (LeaderState::Waiting(None), Nobody),
        (own_held(false), Next),
        // A former release, or one of another namespace, which may lead under that Lease.
        (own_held(true), Other),
        (LeaderState::Lost, Nobody),
    ];
    for (lease_state, lead) in rows {
        assert_eq!(DriverLeader::from(&lease_state), lead, "{lease_state:?}");
    }
}
