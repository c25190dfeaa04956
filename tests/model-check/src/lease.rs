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

use std::time::Duration;

use csi_attacher_kube::lease::{ElectionState, LeaderElectionRecord as Record, LeaseRules, Moment, rest};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::explorer::{Next, Told, World, Wrong};
use crate::hash::Numbered;

/// A moment in ticks, and whatever else is counted.
type Tick = u16;
/// A moment by the monotonic clock of a replica, and by CLOCK_BOOTTIME.
type Clocks = (Tick, Tick);

/// One tick; no more often does a holder have to renew its Lease.
const TICK: Duration = Duration::from_secs(2);
/// So long does a Lease last.
const LASTS: Tick = 3;
/// So long does its holder work without a renewal.
const DEADLINE: Tick = 2;
/// The Lease of the operator, in its namespace.
const OWN: usize = 0;
/// The Lease of the sidecar, in another namespace.
const SIDECAR: usize = 1;
const LEASES: [&str; 2] = ["the own Lease", "the sidecar's Lease"];
const REPLICAS: [&str; 2] = ["r0", "r1"];

const ONE_AT_WORK: &str = "no call by a replica before the calls of another one are over";
const NOT_BESIDE_A_SIDECAR: &str = "no call by a replica beside a sidecar whose Lease it is to hold";

/// What an operator leaves out of the rules, in words; none does nothing wrong.
type LeaseFlaw = Option<&'static str>;

const ONE_CLOCK: LeaseFlaw = Some("does not look at CLOCK_BOOTTIME");
const CREATOR_WORKS: LeaseFlaw = Some("works at once when it creates a Lease");
const CREATOR_OF_IDLE: LeaseFlaw = Some("works at once when it creates a Lease and no object carries the finalizer");
const CREATED_IS_OURS: LeaseFlaw = Some("counts a Lease as its own that an old request of its own created");
const COUNTS_FROM_SENDING: LeaseFlaw = Some("counts the duration of a Lease that it creates from the request");
const OWN_ALONE: LeaseFlaw = Some("does not hold the Leases of sidecars");
const LIST_ALONE: LeaseFlaw = Some("does not hold its own Lease while its list names others");
const GOES_ON: LeaseFlaw = Some("goes on when it could not renew one Lease of several");
const GIVES_UP_EARLY: LeaseFlaw = Some("gives the sidecar's Lease up before its calls are over");

/// What can go wrong, besides that somebody deletes a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseFault {
    /// A replica dies, and starts again.
    Dies,
    /// The machine of a replica is suspended while time goes on.
    Suspended,
    /// The answer to a write is lost, and the write may arrive late.
    Unanswered,
}

/// Any two faults are of the kinds of one of these; so many of them are that somebody deletes a Lease.
const PAIRS: [(&[LeaseFault], u8); 7] = [
    (&[LeaseFault::Dies, LeaseFault::Suspended], 0),
    (&[LeaseFault::Dies, LeaseFault::Unanswered], 0),
    (&[LeaseFault::Dies], 1),
    (&[LeaseFault::Suspended, LeaseFault::Unanswered], 0),
    (&[LeaseFault::Suspended], 1),
    (&[LeaseFault::Unanswered], 1),
    (&[], 2),
];

/// What the world is like.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseSetting {
    /// What it is.
    pub name: &'static str,
    /// How many faults.
    pub faults: u8,
    /// Of which kinds.
    pub kinds: &'static [LeaseFault],
    /// How many of the faults may be that somebody deletes a Lease.
    pub deletes: u8,
    /// How many replicas act: one or two.
    pub replicas: usize,
    /// Whether there is a sidecar.
    pub sidecar: bool,
    /// What is wrong with the operator.
    pub flaw: LeaseFlaw,
    /// Whether the list names the namespace of the sidecar when the history begins.
    pub listed: bool,
    /// How often the list of namespaces changes.
    pub changes: u8,
    /// Whether requests about a Lease are under way for some time, by the number of the Lease. Else they are answered at once.
    pub slow: [bool; 2],
    /// Whether a Lease may be renewed at any time before that is due: all Leases of a process are renewed together.
    pub renews_early: bool,
}

impl LeaseSetting {
    /// Two replicas without a sidecar, whose requests take time, with so many faults, of which so many may be deletions.
    fn of_replicas(faults: u8, deletes: u8) -> Self {
        Self {
            faults,
            kinds: &[LeaseFault::Dies, LeaseFault::Suspended, LeaseFault::Unanswered],
            deletes,
            replicas: 2,
            slow: [true; 2],
            renews_early: true,
            ..Self::default()
        }
    }

    /// Two replicas and a sidecar, whose requests are answered at once.
    fn with_a_sidecar(faults: u8, deletes: u8) -> Self {
        Self {
            sidecar: true,
            listed: true,
            slow: [false; 2],
            renews_early: false,
            ..Self::of_replicas(faults, deletes)
        }
    }

    /// The same with a list that changes so often.
    fn changing(mut self, listed: bool, changes: u8) -> Self {
        (self.listed, self.changes) = (listed, changes);
        self
    }
}

/// A write of a Lease. No two writes are of one record, so that a record says which version of the Lease it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct LeaseWrite {
    lease: u8,
    record: u32,
    /// What it is written over; none creates the Lease.
    over: Option<u32>,
}

/// A state. Records and elections are in it by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseState {
    now: Tick,
    leases: [Option<u32>; 2],
    /// Whether the list names the namespace of the sidecar.
    listed: bool,
    /// How many records were written.
    written: Tick,
    changes: u8,
    faults: u8,
    deletes: u8,
    late: Vec<LeaseWrite>,
    replicas: [Replica; 2],
    sidecar: Option<Candidate>,
    /// Whether the sidecar took what somebody had deleted while a replica held it. It does not wait, as client-go does not.
    excused: bool,
    /// Whether somebody deleted the sidecar's Lease while a replica held it, and no replica has created it since; or deleted what another
    /// replica had created in its place.
    robbed: bool,
    /// Whether an object carries the driver's finalizer. Only the flaw that asks for it reads it.
    claimed: bool,
}

/// What somebody knows of one Lease. A sidecar looks and has its answer in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Candidate {
    election: u32,
    /// The Lease as it was last seen, once it was looked at.
    known: Option<Option<u32>>,
    /// A write that is not answered, and when it was begun.
    request: Option<(LeaseWrite, Clocks)>,
    /// When the Lease was renewed last.
    term: Option<Clocks>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Replica {
    /// Whether its list names the namespace of the sidecar.
    listed: bool,
    /// Ticks that its monotonic clock did not count.
    behind: Tick,
    candidates: [Candidate; 2],
}

impl LeaseState {
    /// Whether the sidecar works: it exits when it could not renew its Lease in time.
    fn sidecar_works(&self) -> bool {
        let renewed = self.sidecar.and_then(|sidecar| sidecar.term);
        renewed.is_some_and(|(_, renewed)| self.now - renewed < DEADLINE)
    }
}

/// See above.
pub struct LeaseWorld {
    setting: LeaseSetting,
    base: Instant,
    records: Numbered<Record>,
    elections: Numbered<ElectionState>,
    words: Option<Vec<String>>,
}

impl LeaseWorld {
    /// A world.
    pub fn new(setting: LeaseSetting) -> Self {
        Self {
            setting,
            base: Instant::now() + Duration::from_hours(1),
            records: Numbered::default(),
            elections: Numbered::default(),
            words: None,
        }
    }

    fn instant(&self, ticks: Tick) -> Instant {
        self.base + TICK * u32::from(ticks)
    }

    fn clocks(state: &LeaseState, number: usize) -> Clocks {
        (state.now - state.replicas[number].behind, state.now)
    }

    fn moment(&self, (monotonic, boot): Clocks) -> Moment {
        let is_blind = self.setting.flaw == ONE_CLOCK;
        Moment {
            monotonic: self.instant(monotonic),
            boot: TICK * u32::from(if is_blind { monotonic } else { boot }),
        }
    }

    /// The present by the clocks of a replica.
    fn now(&self, state: &LeaseState, number: usize) -> Moment {
        self.moment(Self::clocks(state, number))
    }

    /// The wall clock, which nobody believes. Each record has a time of its own: it has microseconds, and a request takes longer.
    fn wall(state: &LeaseState) -> Timestamp {
        Timestamp::UNIX_EPOCH + Duration::from_micros(state.written.into())
    }

    /// What is left of a time since a moment, by the clock of a replica that went further.
    fn rest(&self, state: &LeaseState, number: usize, since: Clocks, time: Tick) -> Tick {
        let left = rest(TICK * u32::from(time), self.moment(since), self.now(state, number));
        (left.as_secs() / TICK.as_secs()) as Tick
    }

    /// What is left of a time since the last renewal.
    fn left(&self, state: &LeaseState, number: usize, lease: usize, time: Tick) -> Tick {
        let renewed = state.replicas[number].candidates[lease].term;
        renewed.map_or(0, |renewed| self.rest(state, number, renewed, time))
    }

    /// Whether a replica holds a Lease, by its clocks.
    fn holds(&self, state: &LeaseState, number: usize, lease: usize) -> bool {
        self.left(state, number, lease, DEADLINE) > 0
    }

    /// Whether a replica works under a Lease.
    fn needs(&self, replica: &Replica, lease: usize) -> bool {
        match self.setting.flaw {
            OWN_ALONE => lease == OWN,
            LIST_ALONE => (lease == SIDECAR) == replica.listed,
            _ => lease == OWN || replica.listed,
        }
    }

    /// Whether something is left of a time that all Leases of a replica give together: it begins calls until the deadline, and calls that
    /// it has begun end before the Leases do.
    fn works(&self, state: &LeaseState, number: usize, time: Tick) -> bool {
        let replica = &state.replicas[number];
        let left = |lease: usize| {
            let left = self.left(state, number, lease, time);
            let has_lost_it = replica.candidates[lease].term.is_some() && left == 0;
            let goes_on = self.setting.flaw == GOES_ON && lease == SIDECAR && has_lost_it;
            (self.needs(replica, lease) && !goes_on).then_some(left)
        };
        (OWN..=SIDECAR).filter_map(left).min().is_some_and(|left| left > 0)
    }

    /// Somebody who has just started, competes, and knows nothing.
    fn started(&mut self, name: &str, creators_wait: bool) -> Candidate {
        let rules = LeaseRules {
            creators_wait,
            ..LeaseRules::default()
        };
        let mut election = ElectionState::new(name.to_owned(), TICK * u32::from(LASTS), rules);
        election.competes = true;
        Candidate {
            election: self.elections.of(election),
            ..Candidate::default()
        }
    }

    fn start(&mut self, state: &mut LeaseState, number: usize) {
        let creators_wait = ![CREATOR_WORKS, CREATOR_OF_IDLE].contains(&self.setting.flaw);
        state.replicas[number].candidates = [self.started(REPLICAS[number], creators_wait); 2];
        state.replicas[number].listed = state.listed;
    }

    /// Two that may begin calls, or one that may while a call of the other may still last.
    fn violation(&self, state: &LeaseState) -> Option<&'static str> {
        let starts = |number: usize| self.works(state, number, DEADLINE);
        let runs = |number: usize| self.works(state, number, LASTS);
        // Whether the flaw is one when nothing is ever attached is not asked.
        let counts = self.setting.flaw != CREATOR_OF_IDLE || state.claimed;
        if counts && ((starts(0) && runs(1)) || (starts(1) && runs(0))) {
            return Some(ONE_AT_WORK);
        }
        let beside = |number: usize| state.replicas[number].listed && runs(number);
        let is_wrong = state.sidecar_works() && !state.excused && (beside(0) || beside(1));
        is_wrong.then_some(NOT_BESIDE_A_SIDECAR)
    }
}

impl World for LeaseWorld {
    type State = LeaseState;

    fn first(&mut self) -> LeaseState {
        let mut state = LeaseState {
            listed: self.setting.listed,
            changes: self.setting.changes,
            faults: self.setting.faults,
            deletes: self.setting.deletes,
            sidecar: self.setting.sidecar.then(|| self.started("s", false)),
            ..LeaseState::default()
        };
        for number in 0..REPLICAS.len() {
            self.start(&mut state, number);
        }
        state
    }

    fn fingerprint(&mut self, state: &LeaseState) -> u128 {
        self.key(state)
    }

    fn next(&mut self, state: &LeaseState, found: &mut Vec<Next<LeaseState>>) {
        self.steps(state, found);
    }
}

impl Told for LeaseWorld {
    fn words(&mut self) -> &mut Option<Vec<String>> {
        &mut self.words
    }
}

/// The worlds of the Lease, small or large.
pub fn settings(large: bool) -> Vec<LeaseSetting> {
    let named = |name, world| LeaseSetting { name, ..world };
    let own = |name, faults, deletes| {
        let faults = if large { 4 } else { faults };
        named(name, LeaseSetting::of_replicas(faults, deletes))
    };
    // A replica that works holds its own Lease, so that the worlds of that say that two never work at once, whatever the list names.
    let one = LeaseSetting {
        replicas: 1,
        slow: [false, true],
        ..LeaseSetting::with_a_sidecar(u8::from(large) + 1, 2)
    };
    let two = LeaseSetting::with_a_sidecar(0, 1);
    let mut settings = vec![
        own("the own Lease stays", 2, 0),
        own("the own Lease is deleted", 2, 1),
        // Two deletions, and a request that arrives late.
        own("the own Lease is deleted twice", 3, 2),
        named("one replica and a sidecar", one.changing(true, 1)),
        named("one replica, the sidecar's namespace is added", one.changing(false, 2)),
    ];
    for world in [
        named("two replicas and a sidecar", two),
        named("two replicas, the list changes", two.changing(false, 1)),
    ] {
        let with_two_faults = |(kinds, deletes)| LeaseSetting {
            faults: 2,
            kinds,
            deletes,
            ..world
        };
        if large {
            settings.extend(PAIRS.map(with_two_faults));
        } else {
            settings.push(world);
        }
    }
    settings
}

/// The operators that lead wrongly.
pub fn mutants() -> Vec<Wrong<LeaseSetting>> {
    let wrong = |flaw: LeaseFlaw, world, violates| {
        Wrong::new(flaw.unwrap_or_default(), LeaseSetting { flaw, ..world }, violates)
    };
    let own = LeaseSetting::of_replicas;
    let beside = LeaseSetting::with_a_sidecar(0, 0);
    vec![
        wrong(ONE_CLOCK, own(1, 0), &[ONE_AT_WORK]),
        wrong(CREATOR_WORKS, own(1, 1), &[ONE_AT_WORK]),
        wrong(CREATOR_OF_IDLE, own(1, 1), &[ONE_AT_WORK]),
        wrong(CREATED_IS_OURS, own(3, 2), &[ONE_AT_WORK]),
        wrong(COUNTS_FROM_SENDING, own(1, 1), &[ONE_AT_WORK]),
        wrong(OWN_ALONE, beside, &[NOT_BESIDE_A_SIDECAR]),
        wrong(LIST_ALONE, beside.changing(false, 1), &[ONE_AT_WORK]),
        wrong(GOES_ON, beside, &[NOT_BESIDE_A_SIDECAR]),
        wrong(GIVES_UP_EARLY, beside, &[NOT_BESIDE_A_SIDECAR]),
    ]
}
