//! What of a state decides what can follow. States with the same key, which is a fingerprint of that, are one state for the explorer.
//!
//! The key leaves out what no rule looks at, and says the rest in a way that does not depend on the history:
//!
//! * A time by a clock of a replica is how long ago it was, up to the duration of the Lease: beyond that no rule tells times apart.
//! * Each write of a Lease has a time of its own in its record, so that two records are the same when they are of one write. A record is
//!   who holds the Lease, and whether it created the Lease; and for each record that can still be read, who has seen it.
//! * Of a version of a Lease, what matters is whether it is the present one: a former one never comes back.
//! * What is set again before a rule reads it is left out. So is a write that cannot succeed any more.
//! * The names of the two replicas are exchanged when that gives the smaller key.

use csi_attacher_kube::lease::ElectionState;
use csi_attacher_model::api::names::NEW_LEASE_HOLDER;
use tokio::time::Instant;

use super::{
    COUNTS_FROM_SENDING, GOES_ON, LASTS, LeaseState, LeaseWorld, LeaseWrite, OWN, REPLICAS, Record, SIDECAR, TICK,
};
use crate::hash::fingerprint;

/// Says what is in a state.
struct Encoder<'a> {
    world: &'a LeaseWorld,
    state: &'a LeaseState,
    /// The first replica of the key, and the second one.
    order: [usize; 2],
}

impl LeaseWorld {
    /// The key of a state.
    pub(super) fn key(&self, state: &LeaseState) -> u128 {
        let world = self;
        let keys = [[0, 1], [1, 0]].map(|order| Encoder { world, state, order }.key());
        keys[0].min(keys[1])
    }

    /// Whether a write can still be carried out at some moment.
    pub(super) fn can_succeed(state: &LeaseState, write: &LeaseWrite) -> bool {
        let may_vanish = state.deletes > 0 && state.faults > 0;
        state.leases[usize::from(write.lease)] == write.over || (write.over.is_none() && may_vanish)
    }
}

/// The number of the replica that holds a Lease.
pub(super) fn holder_of(record: &Record) -> Option<usize> {
    REPLICAS.iter().position(|name| *name == record.holder)
}

/// Whether a record is the one that was seen last.
pub(super) fn is_known(election: &ElectionState, record: &Record) -> bool {
    election.known().is_some_and(|known| known.record == *record)
}

/// How many ticks ago something was by one clock, as far as it matters.
fn age(now: Instant, since: Instant) -> u64 {
    let past = now.saturating_duration_since(since).as_secs() / TICK.as_secs();
    past.min(LASTS.into())
}

impl Encoder<'_> {
    fn key(&self) -> u128 {
        let state = self.state;
        let deletes = state.deletes.min(state.faults);
        let left = (state.listed, state.changes, state.faults, deletes);
        let lease = |lease: usize| state.leases[lease].map(|record| self.record(lease, record));
        let late = |write: &LeaseWrite| {
            let record = self.record(write.lease.into(), write.record);
            (write.lease, write.over.is_some(), record)
        };
        let mut late: Vec<_> = state.late.iter().map(late).collect();
        late.sort_unstable();
        // Of two over the same Lease, the one that arrives first is the last one that does.
        late.dedup_by(|one, other| one == other && one.1);
        let replica = |number: usize| {
            let replica = &state.replicas[number];
            let is_needed = |lease| self.world.needs(replica, lease);
            let candidate = |lease| is_needed(lease).then(|| self.candidate(number, lease));
            (replica.listed, [OWN, SIDECAR].map(candidate))
        };
        let leases = ([OWN, SIDECAR].map(lease), late, state.robbed, state.claimed);
        fingerprint(&(left, leases, self.order.map(replica), self.sidecar()))
    }

    /// Who holds a Lease by a record, and whether it created the Lease.
    fn holder(&self, record: &Record) -> u8 {
        match (holder_of(record), &*record.holder) {
            (Some(replica), _) => 1 + u8::from(self.order[0] != replica) + 8 * u8::from(record.transitions == 0),
            (None, "") => 0,
            (None, NEW_LEASE_HOLDER) => 3,
            (None, _) => 4,
        }
    }

    /// A record that can be read: who holds the Lease, and who knows the record and has written it.
    fn record(&self, lease: usize, number: u32) -> [u8; 4] {
        let (world, state) = (self.world, self.state);
        let record = world.records.get(number);
        let holder = holder_of(record);
        let knows = |election: u32, is_holder: bool| {
            let election = world.elections.get(election);
            let is_written = is_holder && election.has_written(record);
            u8::from(is_known(election, record)) << 1 | u8::from(is_written)
        };
        let [one, other] = self.order.map(|number| {
            let candidate = &state.replicas[number].candidates[lease];
            knows(candidate.election, holder == Some(number))
        });
        let sidecar = state.sidecar.filter(|_| lease == SIDECAR);
        let of_sidecar = sidecar.map_or(0, |sidecar| knows(sidecar.election, holder.is_none()));
        [self.holder(record), one, other, of_sidecar]
    }

    fn election(&self, election: u32, now: Instant) -> u128 {
        let election = self.world.elections.get(election);
        let known = election.known().map(|known| {
            let holder = self.holder(&known.record);
            let is_ours = election.is_ours(false);
            // Nothing is waited for when it is ours, and it stays so as long as it is known.
            let stays_ours = is_ours && election.has_written(&known.record);
            let age = (holder != 0 && !stays_ours).then(|| age(now, known.since));
            (holder, known.exists, is_ours, election.is_ours(true), age)
        });
        fingerprint(&(election.has_looked(), known))
    }

    fn candidate(&self, number: usize, lease: usize) -> u128 {
        let (world, state) = (self.world, self.state);
        let candidate = &state.replicas[number].candidates[lease];
        let now = world.now(state, number).monotonic;
        let is_present = |known: u32| Some(known) == state.leases[lease];
        let known = candidate.known.map(|known| known.map(is_present));
        let age_of = |since| LASTS - world.rest(state, number, since, LASTS);
        let begins_a_term = candidate.term.is_none() || world.holds(state, number, lease);
        let request = candidate.request.map(|(write, sent)| {
            LeaseWorld::can_succeed(state, &write).then(|| {
                let record = self.record(lease, write.record);
                let is_by_sending = world.setting.flaw == COUNTS_FROM_SENDING;
                let age_by_sending = is_by_sending.then(|| age(now, world.instant(sent.0)));
                let age = begins_a_term.then(|| age_of(sent));
                (record, write.over.is_some(), age, age_by_sending)
            })
        });
        // One that is over ends with the next answer, and is no other than none when there is nothing to answer.
        let ends = request.flatten().is_some() || world.setting.flaw == GOES_ON;
        let term = candidate.term.map(age_of).filter(|age| *age < LASTS || ends);
        fingerprint(&(known, self.election(candidate.election, now), request, term))
    }

    fn sidecar(&self) -> Option<u128> {
        let (sidecar, now) = (self.state.sidecar?, self.state.now);
        // When it could not renew its Lease in time it starts again.
        let works = self.state.sidecar_works();
        let term = sidecar.term.map(|(_, renewed)| works.then(|| now - renewed));
        let election = self.election(sidecar.election, self.world.instant(now));
        Some(fingerprint(&(self.state.excused, election, term)))
    }
}
