//! Who speaks when.

use std::time::Duration;

use tokio::time::Instant;

use crate::api::AttacherConfigStatus;
use crate::lease::{Clock, Holder, Standing, Term, Timing};
use crate::supervisor::voice::{Lead, Voice, Word};

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
    voice: Voice,
    now: Instant,
}

impl Replica {
    fn new() -> Self {
        Self {
            voice: Voice::default(),
            now: Instant::now(),
        }
    }

    /// What it is at: `waits` for the Lease, `ends`, or something else to tell. Answers in which of the next `seconds` it
    /// would write.
    fn writes(&mut self, lead: Lead, text: &str, seconds: u64) -> Vec<u64> {
        let essence = telling(text);
        let word = Word {
            essence: &essence,
            waits: text == "waits",
            ends: text == "ends",
        };
        let mut written = Vec::new();
        for second in 0..seconds {
            if self.voice.may_speak(lead, word, self.now) {
                written.push(second);
                self.voice.spoke(essence.clone());
            }
            self.now += Duration::from_secs(1);
        }
        written
    }
}

#[test]
fn the_leader_always_and_the_others_never_while_one_leads() {
    let mut replica = Replica::new();
    assert_eq!(replica.writes(Lead::Ours, "runs", 3), [0, 1, 2]);
    assert_eq!(replica.writes(Lead::Other, "waits", 9), NEVER);
    assert_eq!(replica.writes(Lead::Other, "unreachable", 9), NEVER);
    assert_eq!(replica.writes(Lead::Ours, "waits", 2), NEVER, "it is about to begin");
}

#[test]
fn when_nobody_leads_each_says_a_thing_once() {
    let mut replica = Replica::new();
    assert_eq!(replica.writes(Lead::Nobody, "unreachable", 9), [0]);
    assert_eq!(replica.writes(Lead::Nobody, "stalled", 9), [0]);
    assert_eq!(replica.writes(Lead::Nobody, "unreachable", 9), [0]);
    assert_eq!(replica.writes(Lead::Other, "unreachable", 1), NEVER);
    // Somebody led meanwhile, and what stands there is that one's.
    assert_eq!(replica.writes(Lead::Nobody, "unreachable", 9), [4]);
}

#[test]
fn a_hand_over_is_over_before_a_third_one_speaks() {
    let mut replica = Replica::new();
    assert_eq!(replica.writes(Lead::Other, "waits", 1), NEVER);
    assert_eq!(replica.writes(Lead::Nobody, "waits", 4), NEVER);
    assert_eq!(replica.writes(Lead::Other, "waits", 9), NEVER);
    // Nobody takes the Lease, as when the right to write it is missing: that has to be told, once.
    assert_eq!(replica.writes(Lead::Nobody, "waits", 20), [4]);
    // As it has to that a sidecar holds the Lease.
    assert_eq!(Replica::new().writes(Lead::Nobody, "waits", 20), [5]);
}

#[test]
fn the_last_leader_tells_its_end_and_others_do_not() {
    let mut led = Replica::new();
    assert_eq!(led.writes(Lead::Ours, "runs", 1), [0]);
    assert_eq!(led.writes(Lead::Nobody, "suspended", 3), [0]);
    assert_eq!(led.writes(Lead::Nobody, "ends", 3), [0]);
    assert_eq!(Replica::new().writes(Lead::Nobody, "ends", 9), NEVER);
    // The successor was faster.
    assert_eq!(led.writes(Lead::Ours, "runs", 1), [0]);
    assert_eq!(led.writes(Lead::Other, "ends", 3), NEVER);
}

#[test]
fn what_is_not_known_yet_is_waited_for_but_not_for_ever() {
    assert_eq!(Replica::new().writes(Lead::Unknown, "unreachable", 20), [5]);
    let mut replica = Replica::new();
    assert_eq!(replica.writes(Lead::Unknown, "unreachable", 2), NEVER);
    assert_eq!(replica.writes(Lead::Nobody, "unreachable", 3), [0]);
}

#[test]
fn only_a_holder_that_reports_is_another_leader() {
    let held = |reports| {
        Some(Holder {
            identity: "a".to_owned(),
            reports,
            namesake: false,
        })
    };
    let clock = Clock::default();
    let term = Term::new(clock.clone(), Timing::default(), clock.now());
    let rows = [
        (Standing::Leading(term), Lead::Ours),
        (Standing::Unknown, Lead::Unknown),
        (Standing::Observing { holder: held(true) }, Lead::Other),
        (Standing::Observing { holder: held(false) }, Lead::Nobody),
        (Standing::Observing { holder: None }, Lead::Nobody),
        (Standing::Waiting { holder: held(true) }, Lead::Other),
        (Standing::Waiting { holder: held(false) }, Lead::Nobody),
        (Standing::Waiting { holder: None }, Lead::Nobody),
        (Standing::Lost { until: Instant::now() }, Lead::Nobody),
    ];
    for (standing, lead) in rows {
        assert_eq!(Lead::from(&standing), lead, "{standing:?}");
    }
}
