//! Worlds of the Lease: two replicas that compete for the operator's own Lease of a driver, and a sidecar that competes for its Lease in
//! another namespace. A replica works while it holds its own Lease and that of each namespace that its list names.
//!
//! Time is a part of it: a tick is two seconds, a Lease lasts three of them, its holder stops after two without a renewal. Nothing
//! says how soon a process does what it may do, so that each can stand still for as long as it likes. A history has no end: states
//! that differ only in what no rule looks at are one state (`key`), so that there are finitely many of them. The rules are those of
//! production: [`ElectionState`] and [`rest`]; which of them is asked when is what `lease::elector` and `lease::group` say.

mod key;
mod steps;
#[cfg(test)]
mod tests;
mod values;

use std::time::Duration;

use csi_attacher_kube::lease::{ElectionState, LeaseRules, LeaseTimings, Moment, rest};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::explorer::{Next, World};
use crate::hash::fingerprint;
use values::Values;

/// One tick.
const TICK: Duration = Duration::from_secs(2);
/// A moment in ticks, and whatever else is counted.
type Tick = u16;
/// The Lease of the operator, in its namespace.
const OWN: usize = 0;
/// The Lease of the sidecar, in another namespace.
const SIDECAR: usize = 1;
/// Both, by their number.
const LEASES: [&str; 2] = ["the own Lease", "the sidecar's Lease"];
/// The name of the sidecar.
const SIDECAR_NAME: &str = "s";
/// Two replicas call at once.
pub const ONE_AT_WORK: &str = "no call by a replica before the calls of another one are over";
/// A replica and a sidecar call at once.
pub const NOT_BESIDE_A_SIDECAR: &str = "no call by a replica beside a sidecar whose Lease it is to hold";

/// What is left out of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseFlaw {
    /// Nothing.
    #[default]
    None,
    /// CLOCK_BOOTTIME is not looked at.
    OneClock,
    /// Who creates a Lease works at once.
    CreatorWorks,
    /// Who creates a Lease works at once when no object carries the driver's finalizer.
    CreatorOfIdleWorks,
    /// A record that created a Lease counts as one's own outside of a term.
    CreatedIsOurs,
    /// Who creates a Lease counts its duration from when it sent the request.
    CountsFromSending,
    /// It works with its own Lease alone.
    OwnAlone,
    /// It works with the Leases that its list names, and with its own one only when the list is empty.
    ListAlone,
    /// It goes on when it could not renew the sidecar's Lease in time.
    GoesOn,
    /// It gives the sidecar's Lease up when its own one may not be renewed any more, before its calls are over.
    GivesUpEarly,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseFault {
    /// A replica dies, and starts again.
    Dies,
    /// The machine of a replica is suspended while time goes on.
    Suspended,
    /// The answer to a write is lost, and the write may arrive late.
    Unanswered,
    /// Somebody deletes a Lease.
    Deleted,
}

impl LeaseFault {
    /// All of them.
    const ALL: &'static [Self] = &[Self::Dies, Self::Suspended, Self::Unanswered, Self::Deleted];
    /// Any two faults are of the kinds of one of these.
    const PAIRS: [&'static [Self]; 6] = [
        &[Self::Dies, Self::Suspended],
        &[Self::Dies, Self::Unanswered],
        &[Self::Dies, Self::Deleted],
        &[Self::Suspended, Self::Unanswered],
        &[Self::Suspended, Self::Deleted],
        &[Self::Unanswered, Self::Deleted],
    ];
}

/// What the world is like.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSetting {
    /// What it is.
    pub name: &'static str,
    /// How many faults.
    pub faults: u8,
    /// Of which kinds.
    pub kinds: &'static [LeaseFault],
    /// How many of the faults may be that somebody deletes a Lease.
    pub deletes: u8,
    /// How often the list of namespaces changes.
    pub changes: u8,
    /// How many replicas act: one or two.
    pub replicas: usize,
    /// Whether the list names the namespace of the sidecar when the history begins.
    pub listed: bool,
    /// Whether there is a sidecar.
    pub sidecar: bool,
    /// Whether requests about a Lease are under way for some time, by the number of the Lease. Else they are answered at once.
    pub slow: [bool; 2],
    /// Whether a Lease may be renewed at any time before that is due: all Leases of a process are renewed together.
    pub renews_early: bool,
    /// What is wrong with the operator.
    pub flaw: LeaseFlaw,
}

impl LeaseSetting {
    /// So many of the faults may be that somebody deletes a Lease.
    fn deletions(&self) -> u8 {
        if self.kinds.contains(&LeaseFault::Deleted) {
            self.deletes
        } else {
            0
        }
    }

    /// So many faults a history has at most, and of how many kinds.
    pub fn faults(&self) -> (u8, usize) {
        let never = self.kinds.contains(&LeaseFault::Deleted) && self.deletes == 0;
        (self.faults, self.kinds.len() - usize::from(never))
    }

    /// Two replicas without a sidecar, whose requests take time, with so many faults, of which so many may be deletions.
    pub fn of_replicas(faults: u8, deletes: u8) -> Self {
        Self {
            name: "",
            faults,
            kinds: LeaseFault::ALL,
            deletes,
            changes: 0,
            replicas: 2,
            listed: false,
            sidecar: false,
            slow: [true; 2],
            renews_early: true,
            flaw: LeaseFlaw::None,
        }
    }
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
    lease: u8,
    record: u32,
    /// The version that it is written over; none creates the Lease.
    over: Option<Tick>,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseState {
    now: Tick,
    leases: [Option<Stored>; 2],
    versions: [Tick; 2],
    /// Whether the list names the namespace of the sidecar.
    listed: bool,
    /// How many records were written.
    written: Tick,
    changes: u8,
    faults: u8,
    deletes: u8,
    late: Vec<LeaseWrite>,
    replicas: [Replica; 2],
    sidecar: Option<Sidecar>,
    /// Whether somebody deleted the sidecar's Lease while a replica held it, and no replica has created it since.
    robbed: bool,
    /// Whether an object carries the driver's finalizer. Only the flaw that asks for it reads it.
    claimed: bool,
}

/// What a replica knows of one Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Candidate {
    election: u32,
    /// The Lease as it was last seen, once it was looked at.
    known: Option<Option<Tick>>,
    /// A write that is not answered, and when it was begun by both clocks.
    request: Option<(LeaseWrite, Tick, Tick)>,
    /// When the Lease was renewed last, by both clocks.
    term: Option<(Tick, Tick)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Replica {
    /// Whether its list names the namespace of the sidecar.
    listed: bool,
    /// Ticks that its monotonic clock did not count.
    behind: Tick,
    candidates: [Candidate; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sidecar {
    election: u32,
    /// When it renewed its Lease last.
    term: Option<Tick>,
    /// Whether it took what somebody had deleted while a replica held it. It does not wait, as client-go does not.
    excused: bool,
}

/// See above.
pub struct LeaseWorld {
    setting: LeaseSetting,
    base: Instant,
    values: Values,
    labels: Option<Vec<String>>,
}

/// A sidecar that starts, and knows nothing.
fn sidecar_election() -> ElectionState {
    let rules = LeaseRules {
        creators_wait: false,
        ..LeaseRules::default()
    };
    let mut election = ElectionState::new(SIDECAR_NAME.to_owned(), timings().lease_duration, rules);
    election.stand();
    election
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

    fn now_of(state: &LeaseState, number: usize) -> (Tick, Tick) {
        (state.now - state.replicas[number].behind, state.now)
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

    fn rules(&self) -> LeaseRules {
        let flaw = self.setting.flaw;
        LeaseRules {
            creators_wait: flaw != LeaseFlaw::CreatorWorks && flaw != LeaseFlaw::CreatorOfIdleWorks,
            ..LeaseRules::default()
        }
    }

    /// What is left of a time since the last renewal.
    fn left(&self, state: &LeaseState, number: usize, lease: usize, time: Duration) -> Duration {
        let renewed = state.replicas[number].candidates[lease].term;
        let now = self.moment(Self::now_of(state, number));
        renewed.map_or(Duration::ZERO, |renewed| rest(time, self.moment(renewed), now))
    }

    /// Whether a replica holds a Lease, by its clocks.
    fn holds(&self, state: &LeaseState, number: usize, lease: usize) -> bool {
        !self.left(state, number, lease, timings().renew_deadline).is_zero()
    }

    /// Whether a replica works under a Lease.
    fn needs(&self, replica: &Replica, lease: usize) -> bool {
        match self.setting.flaw {
            LeaseFlaw::OwnAlone => lease == OWN,
            LeaseFlaw::ListAlone => (lease == SIDECAR) == replica.listed,
            _ => lease == OWN || replica.listed,
        }
    }

    /// What is left of a time that all Leases of a replica give together.
    fn left_of_all(&self, state: &LeaseState, number: usize, time: Duration) -> Duration {
        let replica = &state.replicas[number];
        let goes_on = |lease: usize, left: Duration| {
            let has_lost_it = replica.candidates[lease].term.is_some() && left.is_zero();
            self.setting.flaw == LeaseFlaw::GoesOn && lease == SIDECAR && has_lost_it
        };
        let needed = (OWN..=SIDECAR).filter(|lease| self.needs(replica, *lease));
        let left = needed.map(|lease| (lease, self.left(state, number, lease, time)));
        let left = left.filter(|(lease, left)| !goes_on(*lease, *left));
        left.map(|(_, left)| left).min().unwrap_or_default()
    }

    fn may_start(&self, state: &LeaseState, number: usize) -> bool {
        !self.left_of_all(state, number, timings().renew_deadline).is_zero()
    }

    fn may_run(&self, state: &LeaseState, number: usize) -> bool {
        !self.left_of_all(state, number, timings().lease_duration).is_zero()
    }

    fn candidate(&mut self, number: usize) -> Candidate {
        let mut election = ElectionState::new(format!("r{number}"), timings().lease_duration, self.rules());
        election.stand();
        Candidate {
            election: self.values.of_election(election),
            known: None,
            request: None,
            term: None,
        }
    }

    /// A replica that has just started and knows nothing.
    fn started(&mut self, number: usize, listed: bool, behind: Tick) -> Replica {
        Replica {
            listed,
            behind,
            candidates: [self.candidate(number); 2],
        }
    }

    /// Whether the sidecar works: it exits when it could not renew its Lease in time.
    fn sidecar_works(state: &LeaseState) -> Option<Sidecar> {
        let deadline = Tick::try_from(timings().renew_deadline.as_secs() / TICK.as_secs()).unwrap_or(Tick::MAX);
        let works = |term: Tick| state.now - term < deadline;
        state.sidecar.filter(|sidecar| sidecar.term.is_some_and(works))
    }

    /// Two that may begin calls, or one that may while a call of the other may still last.
    fn violation(&self, state: &LeaseState) -> Option<&'static str> {
        let starts = |number: usize| self.may_start(state, number);
        let runs = |number: usize| self.may_run(state, number);
        // Whether the flaw is one when nothing is ever attached is not asked.
        let counts = self.setting.flaw != LeaseFlaw::CreatorOfIdleWorks || state.claimed;
        if counts && ((starts(0) && runs(1)) || (starts(1) && runs(0))) {
            return Some(ONE_AT_WORK);
        }
        let beside = |number: usize| state.replicas[number].listed && runs(number);
        let sidecar = Self::sidecar_works(state).is_some_and(|sidecar| !sidecar.excused);
        (sidecar && (beside(0) || beside(1))).then_some(NOT_BESIDE_A_SIDECAR)
    }
}

impl World for LeaseWorld {
    type State = LeaseState;

    fn first(&mut self) -> LeaseState {
        let listed = self.setting.listed;
        let replicas = [self.started(0, listed, 0), self.started(1, listed, 0)];
        let sidecar = self.setting.sidecar.then(|| Sidecar {
            election: self.values.of_election(sidecar_election()),
            term: None,
            excused: false,
        });
        LeaseState {
            now: 0,
            leases: [None; 2],
            versions: [0; 2],
            listed,
            written: 0,
            changes: self.setting.changes,
            faults: self.setting.faults,
            deletes: self.setting.deletions(),
            late: Vec::new(),
            replicas,
            sidecar,
            robbed: false,
            claimed: false,
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
        name: "the own Lease stays",
        ..LeaseSetting::of_replicas(if large { 4 } else { 2 }, 0)
    };
    let deleted = LeaseSetting {
        name: "the own Lease is deleted",
        deletes: 1,
        ..stays
    };
    let deleted_twice = LeaseSetting {
        name: "the own Lease is deleted twice",
        // Two deletions, and a request that arrives late.
        faults: if large { 4 } else { 3 },
        deletes: 2,
        ..stays
    };
    // A replica that works holds its own Lease, so that the worlds above say that two never work at once, whatever the list names.
    let sidecar = LeaseSetting {
        name: "one replica and a sidecar",
        faults: u8::from(large) + 1,
        deletes: 2,
        changes: 1,
        replicas: 1,
        listed: true,
        sidecar: true,
        slow: [false, true],
        renews_early: false,
        ..stays
    };
    let added = LeaseSetting {
        name: "one replica, the sidecar's namespace is added",
        changes: 2,
        listed: false,
        ..sidecar
    };
    let two = LeaseSetting {
        name: "two replicas and a sidecar",
        faults: 0,
        deletes: 1,
        changes: 0,
        replicas: 2,
        slow: [false; 2],
        ..sidecar
    };
    let two_and_a_change = LeaseSetting {
        name: "two replicas, the list changes",
        changes: 1,
        listed: false,
        ..two
    };
    let mut settings = vec![stays, deleted, deleted_twice, sidecar, added];
    for world in [two, two_and_a_change] {
        let of_kinds = |kinds| LeaseSetting {
            faults: 2,
            kinds,
            ..world
        };
        if large {
            settings.extend(LeaseFault::PAIRS.map(of_kinds));
        } else {
            settings.push(world);
        }
    }
    settings
}

/// A wrong leader.
pub struct WrongLeader {
    /// What is wrong, in words.
    pub what: &'static str,
    /// The world in which it is looked for.
    pub world: LeaseSetting,
    /// The property that is about what it does wrong.
    pub violates: &'static str,
}

/// The operators that lead wrongly.
pub fn mutants() -> Vec<WrongLeader> {
    let own = |what, flaw, faults, deletes| WrongLeader {
        what,
        world: LeaseSetting {
            flaw,
            ..LeaseSetting::of_replicas(faults, deletes)
        },
        violates: ONE_AT_WORK,
    };
    let beside = |what, flaw, faults, changes, violates| WrongLeader {
        what,
        world: LeaseSetting {
            changes,
            listed: changes == 0,
            sidecar: true,
            slow: [false; 2],
            renews_early: false,
            ..own(what, flaw, faults, 0).world
        },
        violates,
    };
    vec![
        own("does not look at CLOCK_BOOTTIME", LeaseFlaw::OneClock, 1, 0),
        own("works at once when it creates a Lease", LeaseFlaw::CreatorWorks, 1, 1),
        own(
            "works at once when it creates a Lease and no object carries the finalizer",
            LeaseFlaw::CreatorOfIdleWorks,
            1,
            1,
        ),
        own(
            "counts a Lease as its own that an old request of its own created",
            LeaseFlaw::CreatedIsOurs,
            3,
            2,
        ),
        own(
            "counts the duration of a Lease that it creates from the request",
            LeaseFlaw::CountsFromSending,
            1,
            1,
        ),
        beside(
            "does not hold the Leases of sidecars",
            LeaseFlaw::OwnAlone,
            0,
            0,
            NOT_BESIDE_A_SIDECAR,
        ),
        beside(
            "does not hold its own Lease while its list names others",
            LeaseFlaw::ListAlone,
            0,
            1,
            ONE_AT_WORK,
        ),
        beside(
            "goes on when it could not renew one Lease of several",
            LeaseFlaw::GoesOn,
            0,
            0,
            NOT_BESIDE_A_SIDECAR,
        ),
        beside(
            "gives the sidecar's Lease up before its calls are over",
            LeaseFlaw::GivesUpEarly,
            0,
            0,
            NOT_BESIDE_A_SIDECAR,
        ),
    ]
}
