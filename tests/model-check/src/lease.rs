//! A world of the Lease: two processes that compete for it, and a spec that moves it to another namespace.
//!
//! Time is a part of it: a tick is two seconds, the Lease lasts three of them, its holder stops after two without a renewal. Nothing
//! says how soon a process does what it may do, so that each can stand still for as long as it likes. A history has no end: states
//! that differ only in what no rule looks at are one state (`key`), so that there are finitely many of them. The rules are those of
//! production: [`ElectionState`], [`Place`] and [`rest`]; which of them is asked when is what `lease::elector` and
//! `lease::place::change` say.

mod key;
mod steps;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;
use std::time::Duration;

use csi_attacher_kube::lease::{ElectionState, LeaseRules, LeaseTimings, Moment, Place, rest};
use csi_attacher_model::api::LeaderElectionStatus;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::explorer::{Next, World};
use crate::hash::fingerprint;
use values::Values;

/// One tick.
const TICK: Duration = Duration::from_secs(2);
/// A moment in ticks, and whatever else is counted.
type Tick = u16;
/// The namespaces in which the Lease may be.
const NAMESPACES: [&str; 2] = ["x", "y"];
/// Two processes begin calls at once, under one Lease or under two.
pub const ONE_AT_WORK: &str = "no call under a Lease before that of the former place is over";

/// What is left out of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseFlaw {
    /// Nothing.
    #[default]
    None,
    /// CLOCK_BOOTTIME is not looked at.
    OneClock,
    /// Nobody waits for the former place of the Lease.
    Hasty,
    /// A Lease that is gone counts as over at once.
    GoneIsOver,
    /// Who made a Lease and did not work under it counts it as its own when it comes back.
    MadeIsOurs,
    /// It works after the look at the AttacherConfig, and does not see first that the Lease is still its own.
    Unconfirmed,
    /// Who has not worked yet and finds its Lease gone makes it again and goes on as if it had held it.
    GoneIsHeld,
    /// Who makes a Lease counts from when it made a former one.
    MadeStays,
}

/// What the world is like.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSetting {
    /// What it is.
    pub name: &'static str,
    /// How many faults.
    pub faults: u8,
    /// How many of the faults may be that somebody deletes the Lease.
    pub deletes: u8,
    /// How often the namespace changes.
    pub changes: u8,
    /// Whether a Lease may be renewed at any time before that is due: all Leases of a process are renewed together.
    pub renews_early: bool,
    /// What is wrong with the operator.
    pub flaw: LeaseFlaw,
}

/// A stored Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stored {
    record: u32,
    version: Tick,
}

/// A write of a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct LeaseWrite {
    place: u8,
    record: u32,
    /// The version that it is written over; none makes the Lease.
    over: Option<Tick>,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseState {
    now: Tick,
    leases: [Option<Stored>; 2],
    versions: [Tick; 2],
    wanted: u8,
    /// The place that is recorded in the AttacherConfig.
    recorded: Option<u8>,
    config: Tick,
    /// How many records were written.
    written: Tick,
    changes: u8,
    faults: u8,
    deletes: u8,
    late: Vec<LeaseWrite>,
    processes: [Process; 2],
}

/// The renewal that begins after the look at the AttacherConfig.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Confirmation {
    /// Nobody asks for it.
    #[default]
    None,
    /// It is to be begun.
    Asked,
    /// The request that is not answered is it.
    Begun,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Process {
    place: u8,
    /// Ticks that its monotonic clock did not count.
    behind: Tick,
    election: u32,
    /// The Lease as it was last seen, once it was looked at.
    known: Option<Option<Tick>>,
    /// A write that is not answered, and when it was begun by both clocks.
    request: Option<(LeaseWrite, Tick, Tick)>,
    /// How far it is with the renewal that it works after.
    confirmation: Confirmation,
    /// When the Lease was renewed last, by both clocks.
    term: Option<(Tick, Tick)>,
    made: Option<Tick>,
    /// Whether the Lease counts as made when the request is answered.
    makes: bool,
    former_holder: bool,
    /// The version, record and wanted namespace of the AttacherConfig that was read.
    look: Option<(Tick, Option<u8>, u8)>,
    former: u32,
    seen: [bool; 2],
    leading: bool,
}

impl Process {
    fn end_term(&mut self) {
        (self.term, self.leading, self.look, self.former) = (None, false, None, 0);
        self.confirmation = Confirmation::None;
    }

    /// The request that was to confirm the Lease did not.
    fn ask_again(&mut self) {
        if self.confirmation == Confirmation::Begun {
            self.confirmation = Confirmation::Asked;
        }
    }
}

/// See above.
pub struct LeaseWorld {
    setting: LeaseSetting,
    base: Instant,
    values: Values,
    labels: Option<Vec<String>>,
}

/// The times of the election.
fn timings() -> LeaseTimings {
    LeaseTimings {
        lease_duration: TICK * 3,
        renew_deadline: TICK * 2,
        retry_period: TICK,
    }
}

impl LeaseWorld {
    /// A world.
    pub fn new(setting: LeaseSetting) -> Self {
        let base = Instant::now() + Duration::from_hours(1);
        Self {
            setting,
            base,
            values: Values::new(base),
            labels: None,
        }
    }

    /// The steps of a way from the first state on, one line each.
    pub fn story(&mut self, steps: &[u16]) -> Vec<String> {
        let (mut state, mut story, mut found) = (self.first(), Vec::new(), Vec::new());
        for step in steps {
            self.labels = Some(Vec::new());
            found.clear();
            self.next(&state, &mut found);
            let labels = self.labels.take().unwrap_or_default();
            story.push(labels[usize::from(*step)].clone());
            state = found.swap_remove(usize::from(*step)).state;
        }
        story
    }

    fn instant(&self, ticks: Tick) -> Instant {
        self.base + TICK * u32::from(ticks)
    }

    fn now_of(state: &LeaseState, process: usize) -> (Tick, Tick) {
        (state.now - state.processes[process].behind, state.now)
    }

    fn moment(&self, (monotonic, boot): (Tick, Tick)) -> Moment {
        let boot = if self.setting.flaw == LeaseFlaw::OneClock {
            monotonic
        } else {
            boot
        };
        Moment {
            monotonic: self.instant(monotonic),
            boot: TICK * u32::from(boot),
        }
    }

    /// The wall clock, which nobody believes. Each record has a time of its own: it has microseconds, and a request takes longer.
    fn wall(state: &LeaseState) -> Timestamp {
        Timestamp::UNIX_EPOCH + Duration::from_micros(state.written.into())
    }

    /// What is left of a time since the last renewal.
    fn left(&self, state: &LeaseState, process: usize, time: Duration) -> Duration {
        let renewed = state.processes[process].term;
        let now = self.moment(Self::now_of(state, process));
        renewed.map_or(Duration::ZERO, |renewed| rest(time, self.moment(renewed), now))
    }

    fn may_start(&self, state: &LeaseState, process: usize) -> bool {
        !self.left(state, process, timings().renew_deadline).is_zero()
    }

    fn place(process: usize, place: u8) -> Place {
        Place {
            namespace: Some(NAMESPACES[usize::from(place)].to_owned()),
            identity: format!("r{process}"),
            sidecar_namespaces: Vec::new(),
            runs_out_after: timings().lease_duration,
        }
    }

    fn status(recorded: Option<u8>) -> LeaderElectionStatus {
        let nothing = LeaderElectionStatus::default();
        recorded.map_or_else(|| nothing.clone(), |place| Self::place(0, place).recorded(&nothing))
    }

    fn seen(process: &Process) -> BTreeMap<String, Duration> {
        let seen = NAMESPACES.iter().zip(process.seen).filter(|(_, seen)| *seen);
        seen.map(|(namespace, _)| ((*namespace).to_owned(), timings().lease_duration))
            .collect()
    }

    /// A process that has just started and knows nothing.
    fn started(&mut self, number: usize, place: u8, behind: Tick) -> Process {
        let mut election = ElectionState::new(format!("r{number}"), timings().lease_duration, LeaseRules::default());
        election.stand();
        Process {
            place,
            behind,
            election: self.values.of_election(election),
            known: None,
            request: None,
            confirmation: Confirmation::None,
            term: None,
            made: None,
            makes: false,
            former_holder: false,
            look: None,
            former: 0,
            seen: [false; 2],
            leading: false,
        }
    }

    /// Two processes that may begin calls, or one that may while a call of the other may still last.
    fn violation(&self, state: &LeaseState) -> Option<&'static str> {
        let starts = |process: usize| state.processes[process].leading && self.may_start(state, process);
        let runs = |process: usize| {
            state.processes[process].leading && !self.left(state, process, timings().lease_duration).is_zero()
        };
        let both = (starts(0) && runs(1)) || (starts(1) && runs(0));
        both.then_some(ONE_AT_WORK)
    }
}

impl World for LeaseWorld {
    type State = LeaseState;

    fn first(&mut self) -> LeaseState {
        let processes = [self.started(0, 0, 0), self.started(1, 0, 0)];
        LeaseState {
            now: 0,
            leases: [None; 2],
            versions: [0; 2],
            wanted: 0,
            recorded: None,
            config: 1,
            written: 0,
            changes: self.setting.changes,
            faults: self.setting.faults,
            deletes: self.setting.deletes,
            late: Vec::new(),
            processes,
        }
    }

    fn fingerprint(&mut self, state: &LeaseState) -> u128 {
        fingerprint(&self.key(state))
    }

    fn next(&mut self, state: &LeaseState, found: &mut Vec<Next<LeaseState>>) {
        self.steps(state, found);
    }

    fn unrest(&mut self, _state: &LeaseState) -> Option<(&'static str, String)> {
        None
    }
}

/// The worlds of the Lease, small or large.
pub fn settings(large: bool) -> Vec<LeaseSetting> {
    let stays = LeaseSetting {
        name: "the Lease stays",
        faults: if large { 4 } else { 2 },
        deletes: 0,
        changes: 0,
        renews_early: true,
        flaw: LeaseFlaw::None,
    };
    let deleted = LeaseSetting {
        name: "a Lease that somebody deletes",
        deletes: 1,
        ..stays
    };
    let moves = LeaseSetting {
        name: "the Lease moves",
        // One fault alone takes too long for CI.
        faults: if large { 2 } else { 0 },
        changes: 1,
        // Or they are too many states.
        renews_early: !large,
        ..deleted
    };
    let deleted_twice = LeaseSetting {
        name: "a Lease that somebody deletes twice",
        // Two deletions, and a request that arrives late.
        faults: if large { 4 } else { 3 },
        deletes: 2,
        ..stays
    };
    vec![stays, deleted, deleted_twice, moves]
}

/// What is wrong, in the words of the simulation, and the world in which it is looked for.
pub fn mutants() -> Vec<(&'static str, LeaseSetting)> {
    let with = |flaw, changes, faults, deletes| LeaseSetting {
        name: "",
        faults,
        deletes,
        changes,
        renews_early: true,
        flaw,
    };
    vec![
        ("does not look at CLOCK_BOOTTIME", with(LeaseFlaw::OneClock, 0, 1, 0)),
        (
            "works under the new place of the Lease at once",
            with(LeaseFlaw::Hasty, 1, 0, 0),
        ),
        (
            "takes a Lease that somebody has deleted for one that is over",
            with(LeaseFlaw::GoneIsOver, 0, 1, 1),
        ),
        (
            "counts a Lease as its own that it made and did not work under",
            with(LeaseFlaw::MadeIsOurs, 0, 2, 1),
        ),
        (
            "works without a renewal begun after it has read the AttacherConfig",
            with(LeaseFlaw::Unconfirmed, 0, 1, 1),
        ),
        (
            "makes a Lease again that is gone before it has worked, and does not wait",
            with(LeaseFlaw::GoneIsHeld, 0, 2, 2),
        ),
        (
            "counts from when it made a former Lease when an older request of its own makes the Lease",
            with(LeaseFlaw::MadeStays, 0, 3, 2),
        ),
    ]
}
