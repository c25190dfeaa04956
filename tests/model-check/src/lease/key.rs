//! What of a state decides what can follow. States with the same key are one state for the explorer.
//!
//! The key leaves out what no rule looks at, and says the rest in a way that does not depend on the history:
//!
//! * A time by a clock of a process is how long ago it was, up to the duration of the Lease: beyond that no rule tells times apart.
//! * Each write of a Lease has a time of its own in its record, so that two records are the same when they are of one write. A record is
//!   who holds the Lease, and whether its holder has worked under it (which LeaseTransitions and the two times say together); and for each
//!   record that can still be read, who has seen it.
//! * Of a resource version, what matters is whether it is the present one: a former one never comes back. So it is with the version of
//!   the AttacherConfig.
//! * What is set again before a rule reads it is left out. So is a write that cannot succeed any more.
//! * The names of the two processes are exchanged when that gives the smaller key.

use csi_attacher_kube::lease::rest;

use super::{LeaseFlaw, LeaseState, LeaseWorld, LeaseWrite, TICK, Tick, timings};

/// Writes the key of a state.
struct Encoder<'a> {
    world: &'a LeaseWorld,
    state: &'a LeaseState,
    /// The first process of the key, and the second one.
    order: [usize; 2],
    bytes: Vec<u8>,
}

impl LeaseWorld {
    /// The key of a state.
    pub(super) fn key(&self, state: &LeaseState) -> Vec<u8> {
        let key = |order| {
            let encoder = Encoder {
                world: self,
                state,
                order,
                bytes: Vec::with_capacity(80),
            };
            encoder.encode()
        };
        key([0, 1]).min(key([1, 0]))
    }

    /// Whether a write can still be carried out at some moment.
    pub(super) fn can_succeed(state: &LeaseState, write: &LeaseWrite) -> bool {
        let stored = state.leases[usize::from(write.place)].map(|stored| stored.version);
        stored == write.over || (write.over.is_none() && Self::may_vanish(state))
    }

    fn may_vanish(state: &LeaseState) -> bool {
        state.deletes > 0 && state.faults > 0
    }

    /// How many ticks ago something was begun, by the clock that went further, as far as it matters.
    fn age(&self, state: &LeaseState, process: usize, (monotonic, boot): (Tick, Tick)) -> u8 {
        let now = self.moment(Self::now_of(state, process));
        let left = rest(timings().lease_duration, self.moment((monotonic, boot)), now);
        most_ticks() - ticks(left.as_secs())
    }

    /// As [`LeaseWorld::age`], by the monotonic clock.
    fn monotonic_age(state: &LeaseState, process: usize, since: Tick) -> u8 {
        let age = Self::now_of(state, process).0.saturating_sub(since);
        u8::try_from(age).unwrap_or(u8::MAX).min(most_ticks())
    }

    /// Whether a reader of a Lease can still come upon this record.
    fn can_be_read(&self, state: &LeaseState, place: u8, record: u32) -> bool {
        let is_it = |write: &LeaseWrite| write.place == place && write.record == record;
        let requests = state.processes.iter().filter_map(|process| process.request.as_ref());
        let mut requests = requests.map(|(write, ..)| write);
        state.leases[usize::from(place)].is_some_and(|stored| stored.record == record)
            || state.late.iter().any(is_it)
            || requests.any(|write| is_it(write) && Self::can_succeed(state, write))
    }
}

fn ticks(seconds: u64) -> u8 {
    u8::try_from(seconds / TICK.as_secs()).unwrap_or(u8::MAX)
}

fn most_ticks() -> u8 {
    ticks(timings().lease_duration.as_secs())
}

impl Encoder<'_> {
    fn encode(mut self) -> Vec<u8> {
        let state = self.state;
        let recorded = state.recorded.unwrap_or(2);
        let deletes = state.deletes.min(state.faults);
        self.bytes
            .extend([state.wanted, recorded, state.changes, state.faults, deletes]);
        for (place, stored) in (0..).zip(&state.leases) {
            let stored = stored.map_or([0; 3], |stored| self.record(place, stored.record));
            self.bytes.extend(stored);
        }
        let late = |write: &LeaseWrite| (write.place, write.over, self.record(write.place, write.record));
        let mut late: Vec<_> = state.late.iter().map(late).collect();
        late.sort_unstable();
        // Of two over the same Lease, the one that arrives first is the last one that does.
        late.dedup_by(|one, other| one == other && one.1.is_some());
        self.bytes.push(late.len() as u8);
        for (place, over, record) in late {
            self.bytes.extend([place, over.is_some().into()]);
            self.bytes.extend(record);
        }
        for number in self.order {
            self.process(number);
        }
        self.bytes
    }

    fn flag(&mut self, flag: bool) {
        self.bytes.push(flag.into());
    }

    /// Who holds a Lease by a record.
    fn holder(&self, record: u32) -> u8 {
        let holder = self.world.values.record_parts(record).holder;
        holder.map_or(3, |holder| 1 + u8::from(self.order[0] != usize::from(holder)))
    }

    /// A record that can be read: who holds the Lease, what its holder has done, and who knows the record.
    fn record(&self, place: u8, record: u32) -> [u8; 3] {
        let (values, state) = (&self.world.values, self.state);
        let parts = values.record_parts(record);
        let mut known = 0;
        for number in self.order {
            let process = &state.processes[number];
            let election = values.election_parts(process.election);
            let seen = if process.place == place {
                election.known
            } else {
                self.former_of(number).and_then(|former| former.known)
            };
            let is_known = seen.is_some_and(|known| known.record == record);
            let is_holder = parts.holder.is_some_and(|holder| usize::from(holder) == number);
            let is_attempted = is_holder && process.place == place && election.attempted.contains(&record);
            known = known << 2 | u8::from(is_known) << 1 | u8::from(is_attempted);
        }
        [self.holder(record), parts.work as u8, known]
    }

    fn process(&mut self, number: usize) {
        let (world, state) = (self.world, self.state);
        let process = &state.processes[number];
        let version = state.leases[usize::from(process.place)].map(|stored| stored.version);
        self.bytes.push(process.place);
        self.bytes.push(match process.known {
            None => 0,
            Some(None) => 1,
            Some(known) if known == version => 2,
            Some(_) => 3,
        });
        self.election(number);
        self.request_and_term(number);
        if self.may_be_ours(number) {
            // Whether it waits for who held the Lease before. Who takes the Lease again finds that out again.
            let counts = world.may_start(state, number) || world.setting.flaw == LeaseFlaw::MadeStays;
            let made = process.made.filter(|_| counts);
            let made = made.map(|made| LeaseWorld::monotonic_age(state, number, made));
            self.bytes.push(made.map_or(0, |age| age + 1));
            self.flag(process.former_holder);
        }
        let mut is_new = state.recorded.is_none();
        if world.may_start(state, number) {
            self.bytes.push(process.confirmation as u8);
            self.bytes.extend(match process.look {
                None => [0; 3],
                Some((version, ..)) if version == state.config => [1, 0, 0],
                Some((_, recorded, wanted)) => {
                    is_new |= recorded.is_none();
                    [2, recorded.unwrap_or(2), wanted]
                }
            });
            self.former(number);
        }
        // It counts while nothing is recorded.
        self.bytes.extend(process.seen.map(|seen| u8::from(seen && is_new)));
    }

    /// Whether this process holds the Lease, as far as it knows, or may find that it does before its next write.
    fn may_be_ours(&self, number: usize) -> bool {
        let (world, state) = (self.world, self.state);
        let process = &state.processes[number];
        let attempted = &world.values.election_parts(process.election).attempted;
        world.may_start(state, number)
            || attempted.is_empty()
            || world.values.election(process.election).is_ours()
            || attempted
                .iter()
                .any(|record| world.can_be_read(state, process.place, *record))
    }

    fn election(&mut self, number: usize) {
        let (world, process) = (self.world, &self.state.processes[number]);
        let parts = world.values.election_parts(process.election);
        self.flag(parts.attempted.is_empty());
        let Some(known) = parts.known else {
            return self.bytes.push(0);
        };
        self.bytes.push(self.holder(known.record));
        self.flag(known.exists);
        let is_ours = world.values.election(process.election).is_ours();
        let work = world.values.record_parts(known.record).work;
        self.bytes.push(if is_ours { 1 + work as u8 } else { 0 });
        // Nothing is waited for when it is ours, and it stays so as long as it is known.
        if !parts.attempted.contains(&known.record) {
            self.since(number, known.record, known.since);
        }
    }

    /// Since when a record is known, if that matters.
    fn since(&mut self, number: usize, record: u32, since: Tick) {
        if self.world.values.record_parts(record).holder.is_some() {
            self.bytes.push(LeaseWorld::monotonic_age(self.state, number, since));
        }
    }

    fn request_and_term(&mut self, number: usize) {
        let (world, state) = (self.world, self.state);
        let process = &state.processes[number];
        let holds = world.may_start(state, number);
        let term = process.term.map(|renewed| world.age(state, number, renewed));
        let leads = process.leading && term.is_some_and(|age| age < most_ticks());
        let request = process
            .request
            .filter(|(write, ..)| LeaseWorld::can_succeed(state, write));
        // One that is over ends with the next answer, and is no other than none when there is nothing to answer.
        self.bytes.push(match term {
            Some(age) if holds || leads => age + 2,
            Some(_) if request.is_some() => 1,
            _ => 0,
        });
        self.flag(leads);
        self.bytes
            .push(u8::from(process.request.is_some()) + u8::from(request.is_some()));
        if let Some((write, monotonic, boot)) = request {
            self.bytes.push(world.values.record_parts(write.record).work as u8);
            self.flag(write.over.is_some());
            self.flag(process.makes);
            // A term that begins after the deadline is over.
            let most = if world.setting.flaw == LeaseFlaw::Hasty { 3 } else { 2 };
            let age = world.age(state, number, (monotonic, boot)).min(most);
            let begins_a_term = process.term.is_none() || holds;
            self.bytes.push(if begins_a_term { age } else { 0 });
        }
    }

    /// What a process knows of the former place, which counts while it holds the Lease of its own.
    fn former_of(&self, number: usize) -> Option<&super::values::FormerParts> {
        let former = self.state.processes[number].former;
        let counts = former != 0 && self.world.may_start(self.state, number);
        counts.then(|| self.world.values.former_parts(former))
    }

    fn former(&mut self, number: usize) {
        let (world, state) = (self.world, self.state);
        let place = 1 - state.processes[number].place;
        let former = self.former_of(number);
        let out_of_sight = former.and_then(|former| former.out_of_sight);
        // The next look takes in what is there, which is another record.
        let known = former.and_then(|former| former.known);
        let known = known.filter(|known| world.can_be_read(state, place, known.record));
        let out_of_sight = out_of_sight.map(|since| LeaseWorld::monotonic_age(state, number, since));
        self.bytes.push(out_of_sight.map_or(0, |age| age + 1));
        self.flag(known.is_some());
        if let Some(known) = known {
            self.since(number, known.record, known.since);
        }
    }
}
