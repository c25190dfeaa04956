//! Who speaks when.

use std::time::Duration;

use tokio::time::Instant;

use crate::api::AttacherConfigStatus;
use crate::lease::{Clock, LeaderState, LeaseHolder, LeaseTimings, Term};
use crate::supervisor::status_author::{DriverLeader, StatusAuthor, StatusProposal};

const NEVER: [u64; 0] = [];

/// A status that tells this.
fn telling(text: &str) -> AttacherConfigStatus {
    AttacherConfigStatus {
        holder: Some(text.to_owned()),
        ..AttacherConfigStatus::default()
    }
}

/// One replica, which is asked once a second.
struct Replica {
    author: StatusAuthor,
    now: Instant,
}

impl Replica {
    fn new() -> Self {
        Self {
            author: StatusAuthor::default(),
            now: Instant::now(),
        }
    }

    /// What it is at: `waits` for the Lease, `ends`, or something else to tell. Answers in which of the next `seconds` it
    /// would write.
    fn writes(&mut self, lead: DriverLeader, text: &str, seconds: u64) -> Vec<u64> {
        let essence = telling(text);
        let word = StatusProposal {
            waits: text == "waits",
            ends: text == "ends",
        };
        let mut written = Vec::new();
        for second in 0..seconds {
            if self.author.may_write(lead, word, self.now) && !self.author.has_written(&essence) {
                written.push(second);
                self.author.set_written(essence.clone());
            }
            self.now += Duration::from_secs(1);
        }
        written
    }
}

#[test]
fn the_leader_always_and_the_others_never_while_one_leads() {
    let mut replica = Replica::new();
    assert_eq!(replica.writes(DriverLeader::Ours, "runs", 3), [0, 1, 2]);
    assert_eq!(replica.writes(DriverLeader::Other, "waits", 9), NEVER);
    assert_eq!(replica.writes(DriverLeader::Other, "unreachable", 9), NEVER);
    assert_eq!(
        replica.writes(DriverLeader::Ours, "waits", 2),
        NEVER,
        "it is about to begin"
    );
}

#[test]
fn when_nobody_leads_each_says_a_thing_once() {
    let mut replica = Replica::new();
    assert_eq!(replica.writes(DriverLeader::Nobody, "unreachable", 9), [0]);
    assert_eq!(replica.writes(DriverLeader::Nobody, "stalled", 9), [0]);
    assert_eq!(replica.writes(DriverLeader::Nobody, "unreachable", 9), [0]);
    assert_eq!(replica.writes(DriverLeader::Other, "unreachable", 1), NEVER);
    // Somebody led meanwhile, and what stands there is that one's.
    assert_eq!(replica.writes(DriverLeader::Nobody, "unreachable", 9), [4]);
}

#[test]
fn a_hand_over_is_over_before_a_third_one_speaks() {
    let mut replica = Replica::new();
    assert_eq!(replica.writes(DriverLeader::Other, "waits", 1), NEVER);
    assert_eq!(replica.writes(DriverLeader::Nobody, "waits", 4), NEVER);
    assert_eq!(replica.writes(DriverLeader::Other, "waits", 9), NEVER);
    // Nobody takes the Lease, as when the right to write it is missing: that has to be told, once.
    assert_eq!(replica.writes(DriverLeader::Nobody, "waits", 20), [4]);
    // As it has to that a sidecar holds the Lease.
    assert_eq!(Replica::new().writes(DriverLeader::Nobody, "waits", 20), [5]);
}

#[test]
fn the_last_leader_tells_its_end_and_others_do_not() {
    let mut led = Replica::new();
    assert_eq!(led.writes(DriverLeader::Ours, "runs", 1), [0]);
    assert_eq!(led.writes(DriverLeader::Nobody, "suspended", 3), [0]);
    assert_eq!(led.writes(DriverLeader::Nobody, "ends", 3), [0]);
    assert_eq!(Replica::new().writes(DriverLeader::Nobody, "ends", 9), NEVER);
    // The successor was faster.
    assert_eq!(led.writes(DriverLeader::Ours, "runs", 1), [0]);
    assert_eq!(led.writes(DriverLeader::Other, "ends", 3), NEVER);
}

#[test]
fn what_is_not_known_yet_is_waited_for_but_not_for_ever() {
    assert_eq!(Replica::new().writes(DriverLeader::Unknown, "unreachable", 20), [5]);
    let mut replica = Replica::new();
    assert_eq!(replica.writes(DriverLeader::Unknown, "unreachable", 2), NEVER);
    assert_eq!(replica.writes(DriverLeader::Nobody, "unreachable", 3), [0]);
}

#[test]
fn only_a_holder_that_reports_is_another_leader() {
    let held = |reports| {
        Some(LeaseHolder {
            identity: "a".to_owned(),
            reports,
            namesake: false,
        })
    };
    let clock = Clock::default();
    let term = Term::new(clock.clone(), LeaseTimings::default(), clock.now());
    let rows = [
        (LeaderState::Leading(term), DriverLeader::Ours),
        (LeaderState::Unknown, DriverLeader::Unknown),
        (LeaderState::Observing { holder: held(true) }, DriverLeader::Other),
        (LeaderState::Observing { holder: held(false) }, DriverLeader::Nobody),
        (LeaderState::Observing { holder: None }, DriverLeader::Nobody),
        (LeaderState::Waiting { holder: held(true) }, DriverLeader::Other),
        (LeaderState::Waiting { holder: held(false) }, DriverLeader::Nobody),
        (LeaderState::Waiting { holder: None }, DriverLeader::Nobody),
        (LeaderState::Lost { until: Instant::now() }, DriverLeader::Nobody),
    ];
    for (lease_state, lead) in rows {
        assert_eq!(DriverLeader::from(&lease_state), lead, "{lease_state:?}");
    }
}
