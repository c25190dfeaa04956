//! A world of the Lease: two processes that compete for it, and a spec that moves it to another namespace.
//!
//! Time is a part of it: a tick is two seconds, the Lease lasts three of them, its holder stops after two without a renewal. Nothing
//! says how soon a process does what it may do, so that each can stand still for as long as it likes. A history ends at the horizon;
//! what is called exhausted is all histories up to there. The rules are those of production: [`ElectionState`], [`Place`],
//! [`FormerLease`] and [`rest`]; which of them is asked when is what `lease::elector` and `lease::place::change` say.

mod steps;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use csi_attacher_model::api::LeaderElectionStatus;
use csi_attacher_operator::lease::{
    ElectionState, FormerLease, LeaderElectionRecord, LeaseTimings, Moment, Place, rest,
};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::explorer::{Next, World};

/// One tick.
const TICK: Duration = Duration::from_secs(2);
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
}

/// What the world is like.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSetting {
    /// What it is.
    pub name: &'static str,
    /// How many ticks there are.
    pub horizon: u8,
    /// How many faults.
    pub faults: u8,
    /// Whether somebody may delete the Lease, which is one of the faults.
    pub deletes: bool,
    /// How often the namespace changes.
    pub changes: u8,
    /// What is wrong with the operator.
    pub flaw: LeaseFlaw,
}

/// A stored Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stored {
    record: u32,
    version: u8,
}

/// A write of a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct LeaseWrite {
    place: u8,
    record: u32,
    /// The version that it is written over; none makes the Lease.
    over: Option<u8>,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseState {
    now: u8,
    leases: [Option<Stored>; 2],
    versions: [u8; 2],
    wanted: u8,
    recorded: u32,
    config: u8,
    changes: u8,
    faults: u8,
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
    behind: u8,
    election: u32,
    /// The Lease as it was last seen, once it was looked at.
    known: Option<Option<u8>>,
    /// A write that is not answered, and when it was begun by both clocks.
    request: Option<(LeaseWrite, u8, u8)>,
    /// How far it is with the renewal that it works after.
    confirmation: Confirmation,
    /// When the Lease was renewed last, by both clocks.
    term: Option<(u8, u8)>,
    made: Option<u8>,
    /// Whether the Lease counts as made when the request is answered.
    makes: bool,
    former_holder: bool,
    /// The version, record and wanted namespace of the AttacherConfig that was read.
    look: Option<(u8, u32, u8)>,
    former: u32,
    seen: [bool; 2],
    leading: bool,
}

/// See above.
pub struct LeaseWorld {
    setting: LeaseSetting,
    base: Instant,
    elections: Numbers<ElectionState>,
    formers: Numbers<FormerLease>,
    records: Numbers<LeaderElectionRecord>,
    statuses: Numbers<LeaderElectionStatus>,
    labels: Option<Vec<String>>,
}

/// Values by number; number 0 is none.
struct Numbers<V> {
    values: Vec<V>,
    known: HashMap<String, u32>,
}

impl<V: std::fmt::Debug> Numbers<V> {
    fn new() -> Self {
        Self {
            values: Vec::new(),
            known: HashMap::new(),
        }
    }

    fn of(&mut self, value: V) -> u32 {
        let values = &mut self.values;
        *self.known.entry(format!("{value:?}")).or_insert_with(|| {
            values.push(value);
            u32::try_from(values.len()).unwrap_or(u32::MAX)
        })
    }

    fn get(&self, number: u32) -> &V {
        &self.values[number as usize - 1]
    }
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
        Self {
            setting,
            base: Instant::now() + Duration::from_hours(1),
            elections: Numbers::new(),
            formers: Numbers::new(),
            records: Numbers::new(),
            statuses: Numbers::new(),
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

    fn instant(&self, ticks: u8) -> Instant {
        self.base + TICK * u32::from(ticks)
    }

    fn now_of(state: &LeaseState, process: usize) -> (u8, u8) {
        (state.now - state.processes[process].behind, state.now)
    }

    fn moment(&self, (monotonic, boot): (u8, u8)) -> Moment {
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

    /// The wall clock, which nobody believes.
    fn wall(state: &LeaseState) -> Timestamp {
        Timestamp::UNIX_EPOCH + Duration::from_secs(u64::from(state.now) * TICK.as_secs())
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

    fn seen(process: &Process) -> BTreeMap<String, Duration> {
        let seen = NAMESPACES.iter().zip(process.seen).filter(|(_, seen)| *seen);
        seen.map(|(namespace, _)| ((*namespace).to_owned(), timings().lease_duration))
            .collect()
    }

    /// A process that has just started and knows nothing.
    fn started(&mut self, number: usize, place: u8, behind: u8) -> Process {
        let mut election = ElectionState::new(format!("r{number}"), timings().lease_duration);
        election.stand();
        Process {
            place,
            behind,
            election: self.elections.of(election),
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
            recorded: self.statuses.of(LeaderElectionStatus::default()),
            config: 1,
            changes: self.setting.changes,
            faults: self.setting.faults,
            late: Vec::new(),
            processes,
        }
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
    let (horizon, faults) = if large { (4, 2) } else { (3, 1) };
    let moves = LeaseSetting {
        name: "the Lease moves",
        horizon,
        faults: faults - 1,
        deletes: false,
        changes: 1,
        flaw: LeaseFlaw::None,
    };
    let stays = LeaseSetting {
        name: "the Lease stays",
        changes: 0,
        faults,
        ..moves
    };
    let deleted = deleted(horizon);
    // That it moves takes too long for CI.
    if large {
        vec![stays, deleted, moves]
    } else {
        vec![stays, deleted]
    }
}

/// A Lease that somebody deletes, at least up to when what its maker noted of it has run out.
fn deleted(horizon: u8) -> LeaseSetting {
    LeaseSetting {
        name: "a Lease that somebody deletes",
        horizon,
        faults: 1,
        deletes: true,
        changes: 0,
        flaw: LeaseFlaw::None,
    }
}

/// What is wrong, in the words of the simulation, and the world in which it is looked for.
pub fn mutants() -> Vec<(&'static str, LeaseSetting)> {
    let with = |flaw, changes, faults, horizon| LeaseSetting {
        name: "",
        horizon,
        faults,
        // One fault more would leave a longer history out of reach of the limit of states.
        deletes: faults > 0 && horizon < 2,
        changes,
        flaw,
    };
    vec![
        ("does not look at CLOCK_BOOTTIME", with(LeaseFlaw::OneClock, 0, 2, 3)),
        (
            "works under the new place of the Lease at once",
            with(LeaseFlaw::Hasty, 1, 0, 1),
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
            LeaseSetting {
                flaw: LeaseFlaw::Unconfirmed,
                ..deleted(3)
            },
        ),
    ]
}
