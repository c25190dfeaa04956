//! What of a state decides what can follow. States with the same key are one state for the explorer.
//!
//! The key leaves out what no rule looks at, and says the rest in a way that does not depend on the history:
//!
//! * A time by a clock of a replica is how long ago it was, up to the duration of the Lease: beyond that no rule tells times apart.
//! * Each write of a Lease has a time of its own in its record, so that two records are the same when they are of one write. A record is
//!   who holds the Lease, and whether it created the Lease; and for each record that can still be read, who has seen it.
//! * Of a resource version, what matters is whether it is the present one: a former one never comes back.
//! * What is set again before a rule reads it is left out. So is a write that cannot succeed any more.
//! * The names of the two replicas are exchanged when that gives the smaller key.

use csi_attacher_kube::lease::rest;

use super::values::ElectionParts;
use super::{LEASES, LeaseFlaw, LeaseState, LeaseWorld, LeaseWrite, SIDECAR, TICK, Tick, timings};

/// Writes the key of a state.
struct Encoder<'a> {
    world: &'a LeaseWorld,
    state: &'a LeaseState,
    /// The first replica of the key, and the second one.
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
        let stored = state.leases[usize::from(write.lease)].map(|stored| stored.version);
        stored == write.over || (write.over.is_none() && Self::may_vanish(state))
    }

    fn may_vanish(state: &LeaseState) -> bool {
        state.deletes > 0 && state.faults > 0
    }

    /// How many ticks ago something was begun, by the clock that went further, as far as it matters.
    fn age(&self, state: &LeaseState, number: usize, (monotonic, boot): (Tick, Tick)) -> u8 {
        let now = self.moment(Self::now_of(state, number));
        let left = rest(timings().lease_duration, self.moment((monotonic, boot)), now);
        most_ticks() - ticks(left.as_secs())
    }

    /// As [`LeaseWorld::age`], by one clock.
    fn age_at(now: Tick, since: Tick) -> u8 {
        u8::try_from(now.saturating_sub(since))
            .unwrap_or(u8::MAX)
            .min(most_ticks())
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
        let deletes = state.deletes.min(state.faults);
        self.bytes
            .extend([state.listed.into(), state.changes, state.faults, deletes]);
        self.bytes.extend([state.robbed, state.claimed].map(u8::from));
        for (lease, stored) in state.leases.iter().enumerate() {
            let stored = stored.map_or([9; 3], |stored| self.record(lease, stored.record));
            self.bytes.extend(stored);
        }
        let late = |write: &LeaseWrite| {
            let record = self.record(usize::from(write.lease), write.record);
            (write.lease, write.over, record)
        };
        let mut late: Vec<_> = state.late.iter().map(late).collect();
        late.sort_unstable();
        // Of two over the same Lease, the one that arrives first is the last one that does.
        late.dedup_by(|one, other| one == other && one.1.is_some());
        self.bytes.push(late.len() as u8);
        for (lease, over, record) in late {
            self.bytes.extend([lease, over.is_some().into()]);
            self.bytes.extend(record);
        }
        for number in self.order {
            self.bytes.push(state.replicas[number].listed.into());
            for lease in 0..LEASES.len() {
                if self.world.needs(&state.replicas[number], lease) {
                    self.candidate(number, lease);
                }
            }
        }
        self.sidecar();
        self.bytes
    }

    fn flag(&mut self, flag: bool) {
        self.bytes.push(flag.into());
    }

    /// Who holds a Lease by a record, and whether it created the Lease.
    fn holder(&self, record: u32) -> u8 {
        let parts = self.world.values.record_parts(record);
        let Some(replica) = parts.replica else {
            return parts.other;
        };
        1 + u8::from(self.order[0] != usize::from(replica)) + if parts.created { 8 } else { 0 }
    }

    /// A record that can be read: who holds the Lease, and who knows the record and has written it.
    fn record(&self, lease: usize, record: u32) -> [u8; 3] {
        let (values, state) = (&self.world.values, self.state);
        let holder = values.record_parts(record).replica;
        let knows = |parts: &ElectionParts, is_holder: bool| {
            let is_known = parts.known.is_some_and(|known| known.record == record);
            let is_attempted = is_holder && parts.attempted.contains(&record);
            u8::from(is_known) << 1 | u8::from(is_attempted)
        };
        let mut known = 0;
        for number in self.order {
            let election = values.election_parts(state.replicas[number].candidates[lease].election);
            let is_holder = holder.is_some_and(|holder| usize::from(holder) == number);
            known = known << 2 | knows(election, is_holder);
        }
        let of_sidecar = state.sidecar.filter(|_| lease == SIDECAR).map_or(0, |sidecar| {
            knows(values.election_parts(sidecar.election), holder.is_none())
        });
        [self.holder(record), known, of_sidecar]
    }

    fn candidate(&mut self, number: usize, lease: usize) {
        let state = self.state;
        let candidate = &state.replicas[number].candidates[lease];
        let version = state.leases[lease].map(|stored| stored.version);
        self.bytes.push(match candidate.known {
            None => 0,
            Some(None) => 1,
            Some(known) if known == version => 2,
            Some(_) => 3,
        });
        let now = LeaseWorld::now_of(state, number).0;
        self.election(candidate.election, now);
        self.request_and_term(number, lease);
    }

    fn election(&mut self, election: u32, now: Tick) {
        let world = self.world;
        let parts = world.values.election_parts(election);
        self.flag(parts.has_looked);
        let Some(known) = parts.known else {
            return self.bytes.push(u8::MAX);
        };
        let holder = self.holder(known.record);
        self.bytes.push(holder);
        self.flag(known.exists);
        let is_ours = world.values.election(election).is_ours(false);
        let is_written_by_us = world.values.election(election).is_ours(true);
        self.bytes.push(u8::from(is_ours) << 1 | u8::from(is_written_by_us));
        // Nothing is waited for when it is ours, and it stays so as long as it is known.
        let stays_ours = is_ours && parts.attempted.contains(&known.record);
        if holder != 0 && !stays_ours {
            self.bytes.push(LeaseWorld::age_at(now, known.since));
        }
    }

    fn request_and_term(&mut self, number: usize, lease: usize) {
        let (world, state) = (self.world, self.state);
        let candidate = &state.replicas[number].candidates[lease];
        let holds = world.holds(state, number, lease);
        let term = candidate.term.map(|renewed| world.age(state, number, renewed));
        let request = candidate
            .request
            .filter(|(write, ..)| LeaseWorld::can_succeed(state, write));
        // One that is over ends with the next answer, and is no other than none when there is nothing to answer.
        self.bytes.push(match term {
            Some(age) if age < most_ticks() => age + 2,
            Some(_) if request.is_some() || world.setting.flaw == LeaseFlaw::GoesOn => 1,
            _ => 0,
        });
        self.bytes
            .push(u8::from(candidate.request.is_some()) + u8::from(request.is_some()));
        if let Some((write, monotonic, boot)) = request {
            let record = self.record(lease, write.record);
            self.bytes.extend(record);
            self.flag(write.over.is_some());
            let age = world.age(state, number, (monotonic, boot));
            let begins_a_term = candidate.term.is_none() || holds;
            self.bytes.push(if begins_a_term { age } else { 0 });
            if world.setting.flaw == LeaseFlaw::CountsFromSending {
                let now = LeaseWorld::now_of(state, number).0;
                self.bytes.push(LeaseWorld::age_at(now, monotonic));
            }
        }
    }

    fn sidecar(&mut self) {
        let state = self.state;
        let Some(sidecar) = state.sidecar else {
            return self.flag(false);
        };
        self.flag(true);
        self.flag(sidecar.excused);
        self.election(sidecar.election, state.now);
        let term = sidecar
            .term
            .map_or(most_ticks(), |term| LeaseWorld::age_at(state.now, term));
        // When it could not renew its Lease in time it starts again.
        self.bytes.push(if LeaseWorld::sidecar_works(state).is_some() {
            term
        } else {
            8 + u8::from(sidecar.term.is_some())
        });
    }
}
