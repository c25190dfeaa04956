//! Who writes a status when.

use std::time::Duration;

use tokio::time::Instant;

use crate::lease::{Clock, LeaderState, LeaseHolder, LeaseRules, LeaseTimings, Term};
use crate::runtime::DriverPhase;
use crate::supervisor::status_author::{DriverLeader, StatusAuthor};

const NEVER: [u64; 0] = [];

/// One replica, which is asked once a second.
struct Replica {
    author: StatusAuthor,
    /// Whether it holds the Lease for drivers that no replica leads.
    for_nobody: bool,
    now: Instant,
}

impl Replica {
    fn new(for_nobody: bool) -> Self {
        Self {
            author: StatusAuthor::default(),
            for_nobody,
            now: Instant::now(),
        }
    }

    /// What it is at: `waits` for the Lease, `ends`, or something else. Answers in which of the next `seconds` it may write.
    fn writes(&mut self, lead: DriverLeader, what: &str, seconds: u64) -> Vec<u64> {
        let phase = match what {
            "waits" => DriverPhase::Standby {
                holder: None,
                namespace: None,
            },
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
    for for_nobody in [false, true] {
        let mut replica = Replica::new(for_nobody);
        assert_eq!(replica.writes(DriverLeader::Ours, "runs", 3), [0, 1, 2]);
        assert_eq!(replica.writes(DriverLeader::Other, "waits", 9), NEVER);
        assert_eq!(replica.writes(DriverLeader::Other, "unreachable", 9), NEVER);
        assert_eq!(
            replica.writes(DriverLeader::Ours, "waits", 2),
            NEVER,
            "it is about to begin"
        );
    }
}

#[test]
fn when_nobody_leads_the_holder_of_the_lease_for_that_writes() {
    let (mut holder, mut other) = (Replica::new(true), Replica::new(false));
    assert_eq!(holder.writes(DriverLeader::Nobody, "unreachable", 3), [0, 1, 2]);
    assert_eq!(other.writes(DriverLeader::Nobody, "unreachable", 9), NEVER);
    // Somebody led meanwhile, and may do so again.
    assert_eq!(holder.writes(DriverLeader::Other, "unreachable", 1), NEVER);
    assert_eq!(holder.writes(DriverLeader::Nobody, "unreachable", 6), [4, 5]);
}

/// As it has to be said that a sidecar holds the Lease. The other one sees that a replica holds the own Lease, and says nothing.
#[test]
fn when_a_replica_waits_for_a_sidecar_it_alone_writes() {
    let (mut holder, mut other) = (Replica::new(false), Replica::new(true));
    assert_eq!(holder.writes(DriverLeader::Next, "waits", 8), [5, 6, 7]);
    assert_eq!(other.writes(DriverLeader::Other, "waits", 8), NEVER);
    // It has all Leases, and begins.
    assert_eq!(holder.writes(DriverLeader::Ours, "runs", 1), [0]);
    // The API server does not let it look at one of them.
    assert_eq!(Replica::new(false).writes(DriverLeader::Next, "forbidden", 2), [0, 1]);
}

#[test]
fn a_hand_over_is_over_before_a_third_one_writes() {
    let mut replica = Replica::new(true);
    assert_eq!(replica.writes(DriverLeader::Other, "waits", 1), NEVER);
    assert_eq!(replica.writes(DriverLeader::Nobody, "waits", 4), NEVER);
    assert_eq!(replica.writes(DriverLeader::Other, "waits", 9), NEVER);
    // Nobody takes the Lease, as when the permission to write it is missing.
    assert_eq!(replica.writes(DriverLeader::Nobody, "waits", 6), [4, 5]);
    // As it has to be said that a sidecar holds the Lease.
    assert_eq!(Replica::new(true).writes(DriverLeader::Nobody, "waits", 7), [5, 6]);
}

/// A driver that hangs up again and again, beside a sidecar: what is waited for is over when it is not waited for any more.
#[test]
fn a_wait_that_ends_holds_up_nobody() {
    let mut replica = Replica::new(true);
    for _ in 0..3 {
        assert_eq!(replica.writes(DriverLeader::Nobody, "waits", 3), NEVER);
        assert_eq!(replica.writes(DriverLeader::Nobody, "connecting", 2), [0, 1]);
    }
}

#[test]
fn the_last_leader_has_the_last_word() {
    let mut led = Replica::new(false);
    assert_eq!(led.writes(DriverLeader::Ours, "runs", 1), [0]);
    assert_eq!(led.writes(DriverLeader::Nobody, "suspended", 7), [0, 1, 2, 3]);
    assert_eq!(led.writes(DriverLeader::Nobody, "ends", 2), [0, 1]);
    assert_eq!(Replica::new(true).writes(DriverLeader::Nobody, "ends", 9), NEVER);
    // The successor was faster.
    assert_eq!(led.writes(DriverLeader::Ours, "runs", 1), [0]);
    assert_eq!(led.writes(DriverLeader::Other, "ends", 3), NEVER);
}

#[test]
fn what_is_not_known_yet_is_waited_for_but_not_for_ever() {
    assert_eq!(
        Replica::new(true).writes(DriverLeader::Unknown, "unreachable", 7),
        [5, 6]
    );
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
    let own_held = |reports| LeaderState::OwnHeld {
        namespace: "sidecars".to_owned(),
        holder: held(reports),
    };
    let clock = Clock::default();
    let term = Term::new(
        LeaseRules::default(),
        clock.clone(),
        LeaseTimings::default(),
        clock.now(),
    );
    let rows = [
        (LeaderState::Leading(term), DriverLeader::Ours),
        (LeaderState::Unknown, DriverLeader::Unknown),
        (LeaderState::Observing { holder: held(true) }, DriverLeader::Other),
        (LeaderState::Observing { holder: held(false) }, DriverLeader::Nobody),
        (LeaderState::Observing { holder: None }, DriverLeader::Nobody),
        // Of two AttacherConfigs of one driver, one is refused.
        (LeaderState::HeldForAnother, DriverLeader::Next),
        (LeaderState::Waiting { holder: held(true) }, DriverLeader::Other),
        (LeaderState::Waiting { holder: held(false) }, DriverLeader::Nobody),
        (LeaderState::Waiting { holder: None }, DriverLeader::Nobody),
        (own_held(false), DriverLeader::Next),
        // A former release, or one of another namespace, which may lead under that Lease.
        (own_held(true), DriverLeader::Other),
        (LeaderState::Lost { until: Instant::now() }, DriverLeader::Nobody),
    ];
    for (lease_state, lead) in rows {
        assert_eq!(DriverLeader::from(&lease_state), lead, "{lease_state:?}");
    }
}
