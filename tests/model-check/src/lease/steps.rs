//! What can happen to the Leases.

use csi_attacher_kube::lease::{ElectionState, LeaseAction};
use csi_attacher_model::api::names::NEW_LEASE_HOLDER;

use super::key::{holder_of, is_known};
use super::{
    COUNTS_FROM_SENDING, CREATED_IS_OURS, CREATOR_OF_IDLE, Candidate, DEADLINE, GIVES_UP_EARLY, LASTS, LEASES,
    LeaseFault, LeaseState, LeaseWorld, LeaseWrite, OWN, Record, SIDECAR,
};
use crate::explorer::Next;

type Found = Vec<Next<LeaseState>>;

impl LeaseWorld {
    fn step(
        &mut self,
        state: &LeaseState,
        found: &mut Found,
        words: impl FnOnce() -> String,
        act: impl FnOnce(&mut Self, &mut LeaseState),
    ) {
        let mut next = state.clone();
        act(self, &mut next);
        let mut late = std::mem::take(&mut next.late);
        late.retain(|write| Self::can_succeed(&next, write));
        late.sort_unstable();
        next.late = late;
        next.excused &= next.sidecar.is_some() && self.a_replica_may_think_it_holds(&next);
        if next == *state {
            return;
        }
        if let Some(told) = &mut self.words {
            told.push(format!("{:>2} s: {}", state.now * 2, words()));
        }
        let violation = self.violation(&next);
        found.push(Next {
            state: next,
            calm: false,
            acts: false,
            violation,
        });
    }

    pub(super) fn steps(&mut self, state: &LeaseState, found: &mut Found) {
        self.step(state, found, || "time goes on".to_owned(), |_, state| state.now += 1);
        for number in 0..self.setting.replicas {
            self.steps_of(state, number, found);
        }
        // It renews its Lease once in a retry period.
        if state
            .sidecar
            .is_some_and(|sidecar| sidecar.term != Some((state.now, state.now)))
        {
            let words = || "the sidecar reads its Lease, and takes or renews it if it may".to_owned();
            self.step(state, found, words, Self::sidecar_tries);
        }
        if state.sidecar_works() {
            let words = || "the sidecar ends and releases its Lease".to_owned();
            self.step(state, found, words, Self::sidecar_ends);
        }
        for (number, write) in state.late.iter().copied().enumerate() {
            let words = || format!("a write of {} arrives late", LEASES[usize::from(write.lease)]);
            self.step(state, found, words, |_, state| {
                state.late.remove(number);
                store(state, write);
            });
        }
        if state.changes > 0 {
            let words = || "somebody changes the list of namespaces".to_owned();
            self.step(state, found, words, |_, state| {
                state.changes -= 1;
                state.listed = !state.listed;
            });
        }
        let one_works = || (0..2).any(|number| self.works(state, number, DEADLINE));
        if self.setting.flaw == CREATOR_OF_IDLE && one_works() {
            let words = || "a replica puts the finalizer on an object, or takes it off the last one".to_owned();
            self.step(state, found, words, |_, state| state.claimed = !state.claimed);
        }
        if state.faults > 0 {
            self.faults(state, found);
        }
    }

    fn faults(&mut self, state: &LeaseState, found: &mut Found) {
        let kinds = self.setting.kinds;
        for number in 0..self.setting.replicas {
            if kinds.contains(&LeaseFault::Dies) {
                let words = || format!("FAULT: r{number} dies, and starts again");
                self.step(state, found, words, |world, state| {
                    state.faults -= 1;
                    let requests = state.replicas[number].candidates.map(|candidate| candidate.request);
                    state.late.extend(requests.iter().flatten().map(|(write, _)| *write));
                    world.start(state, number);
                });
            }
            if kinds.contains(&LeaseFault::Suspended) {
                let words = || format!("FAULT: the machine of r{number} is suspended while time goes on");
                self.step(state, found, words, |_, state| {
                    state.faults -= 1;
                    state.now += 1;
                    state.replicas[number].behind += 1;
                });
            }
            if kinds.contains(&LeaseFault::Unanswered) {
                for lease in OWN..=SIDECAR {
                    self.unanswered(state, number, lease, found);
                }
            }
        }
        for (lease, name) in LEASES.iter().enumerate() {
            if state.deletes > 0 && state.leases[lease].is_some() {
                let words = || format!("FAULT: somebody deletes {name}");
                self.step(state, found, words, |world, state| {
                    state.faults -= 1;
                    state.deletes -= 1;
                    let deleted = state.leases[lease].take();
                    if lease == SIDECAR {
                        state.robbed = deleted.is_some_and(|record| match world.records.get(record).holder.as_str() {
                            // It stands for the one that was deleted before.
                            NEW_LEASE_HOLDER => world.a_replica_may_think_it_holds(state),
                            _ => holder_of(world.records.get(record)).is_some(),
                        });
                    }
                });
            }
        }
    }

    /// The answer to a write is lost, and the write may arrive late.
    fn unanswered(&mut self, state: &LeaseState, number: usize, lease: usize, found: &mut Found) {
        let begins = !self.setting.slow[lease] && self.is_due(state, number, lease);
        if !begins && state.replicas[number].candidates[lease].request.is_none() {
            return;
        }
        let words = || format!("FAULT: no answer to the write of {} by r{number}", LEASES[lease]);
        self.step(state, found, words, |world, state| {
            if begins {
                world.read(state, number, lease);
                world.write(state, number, lease);
                state.replicas[number].candidates[lease].known = None;
            }
            let request = state.replicas[number].candidates[lease].request.take();
            if let Some((write, _)) = request {
                state.faults -= 1;
                state.late.push(write);
            }
        });
    }

    fn steps_of(&mut self, state: &LeaseState, number: usize, found: &mut Found) {
        let replica = &state.replicas[number];
        for (lease, name) in LEASES.iter().enumerate() {
            if !self.needs(replica, lease) {
                continue;
            }
            let candidate = &replica.candidates[lease];
            if candidate.request.is_some() {
                let words = || format!("the write of {name} by r{number} is answered");
                self.step(state, found, words, |world, state| world.served(state, number, lease));
            } else if self.setting.slow[lease] {
                if !self.holds(state, number, lease) || candidate.known.is_none() {
                    let words = || format!("r{number} reads {name}");
                    self.step(state, found, words, |world, state| world.read(state, number, lease));
                }
                // Its holder reads it when a write failed.
                if candidate.known.is_some() && self.is_due(state, number, lease) {
                    let words = || format!("r{number} writes {name}");
                    self.step(state, found, words, |world, state| world.write(state, number, lease));
                }
            } else if self.is_due(state, number, lease) {
                // That a write comes later than the look changes nothing: when the Lease was changed meanwhile, it fails.
                let words = || format!("r{number} looks at {name}, and writes it if it may");
                self.step(state, found, words, |world, state| {
                    world.read(state, number, lease);
                    world.write(state, number, lease);
                    world.served(state, number, lease);
                    // It is read again before it is written.
                    state.replicas[number].candidates[lease].known = None;
                });
            }
        }
        for (lease, other) in [(SIDECAR, OWN), (OWN, SIDECAR)] {
            let is_over = !self.works(state, number, LASTS) || self.is_early(lease);
            let has_it = self.left(state, number, lease, LASTS) > 0;
            let lacks = self.needs(replica, other) && !self.holds(state, number, other);
            if self.needs(replica, lease) && lacks && is_over && has_it {
                let (name, lacking) = (LEASES[lease], LEASES[other]);
                let words = || format!("r{number} does not hold {lacking}, and gives {name} up");
                self.step(state, found, words, |world, state| world.give_up(state, number, lease));
            }
        }
        if replica.listed != state.listed {
            let words = || format!("r{number} hears of the new list: its calls end, and it starts over");
            self.step(state, found, words, |world, state| world.hear(state, number));
        }
    }

    /// Whether a replica may write a Lease: its holder renews it when that is due, or sooner together with other Leases.
    fn is_due(&self, state: &LeaseState, number: usize, lease: usize) -> bool {
        let is_due = self.setting.renews_early || self.left(state, number, lease, 1) == 0;
        is_due && self.needs(&state.replicas[number], lease)
    }

    /// Whether a replica gives a Lease up before its calls are over.
    fn is_early(&self, lease: usize) -> bool {
        lease == SIDECAR && self.setting.flaw == GIVES_UP_EARLY
    }

    /// What a replica would write into a Lease now. The sidecar's Lease is created by any replica, and taken by the one that holds the
    /// own Lease.
    fn record_to_write(&self, state: &LeaseState, number: usize, lease: usize) -> Option<Record> {
        let candidate = &state.replicas[number].candidates[lease];
        let holds = self.holds(state, number, lease);
        let (now, wall) = (self.now(state, number).monotonic, Self::wall(state));
        let election = self.elections.get(candidate.election);
        let mistakes = self.setting.flaw == CREATED_IS_OURS && election.is_ours(true);
        let renewed = election.renewed_record(now, wall, holds).filter(|_| holds);
        let next = election.next(now, wall, holds || mistakes);
        let mut record = match (renewed, next) {
            (Some(record), _) | (None, LeaseAction::Create(record) | LeaseAction::Write(record)) => record,
            (None, LeaseAction::Wait(_)) => return None,
        };
        let creates = candidate.known == Some(None);
        if self.setting.flaw == CREATOR_OF_IDLE && creates && !holds && state.claimed {
            NEW_LEASE_HOLDER.clone_into(&mut record.holder);
        }
        let lacks_own = self.needs(&state.replicas[number], OWN) && !self.holds(state, number, OWN);
        let waits = lease == SIDECAR && lacks_own && record.holder != NEW_LEASE_HOLDER;
        (!waits).then_some(record)
    }

    fn stored(&self, state: &LeaseState, lease: usize) -> Option<Record> {
        state.leases[lease].map(|record| self.records.get(record).clone())
    }

    /// A write that is sent.
    fn sent(&mut self, state: &mut LeaseState, lease: usize, record: Record, over: Option<u32>) -> LeaseWrite {
        state.written += 1;
        LeaseWrite {
            lease: lease as u8,
            record: self.records.of(record),
            over,
        }
    }

    /// An election after a change.
    fn changed(&mut self, election: u32, change: impl FnOnce(&mut ElectionState)) -> u32 {
        let mut election = self.elections.get(election).clone();
        change(&mut election);
        self.elections.of(election)
    }

    /// As `LeaderElector::read`, and what `renew` makes of it.
    fn read(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        let (version, record) = (state.leases[lease], self.stored(state, lease));
        let holds = self.holds(state, number, lease);
        let (now, wall) = (self.now(state, number).monotonic, Self::wall(state));
        let candidate = &mut state.replicas[number].candidates[lease];
        candidate.election = self.changed(candidate.election, |election| election.observe(record, now));
        candidate.known = Some(version);
        let election = self.elections.get(candidate.election);
        let waits = matches!(election.next(now, wall, holds), LeaseAction::Wait(_));
        if (version.is_some() && !election.is_ours(holds)) || waits {
            candidate.term = None;
        }
    }

    /// As `LeaderElector::write`.
    fn write(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        let Some(record) = self.record_to_write(state, number, lease) else {
            return;
        };
        let (clocks, holds) = (Self::clocks(state, number), self.holds(state, number, lease));
        let candidate = state.replicas[number].candidates[lease];
        let election = self.changed(candidate.election, |election| election.attempts(&record));
        let write = self.sent(state, lease, record, candidate.known.flatten());
        state.replicas[number].candidates[lease] = Candidate {
            election,
            request: Some((write, clocks)),
            // It is over if it was not renewed, also when nobody took the Lease.
            term: candidate.term.filter(|_| holds),
            ..candidate
        };
    }

    fn served(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        let request = state.replicas[number].candidates[lease].request.take();
        let Some((write, sent)) = request else { return };
        if !store(state, write) {
            // It is read before it is written again.
            state.replicas[number].candidates[lease].known = None;
            return;
        }
        let record = self.records.get(write.record).clone();
        let is_new = record.holder == NEW_LEASE_HOLDER;
        let since = match self.setting.flaw {
            COUNTS_FROM_SENDING => self.instant(sent.0),
            _ => self.now(state, number).monotonic,
        };
        let in_time = self.holds(state, number, lease);
        let candidate = &mut state.replicas[number].candidates[lease];
        candidate.election = self.changed(candidate.election, |election| election.record_written(record, since));
        candidate.known = Some(Some(write.record));
        let goes_on = candidate.term.is_none() || in_time;
        candidate.term = (goes_on && !is_new).then_some(sent);
    }

    /// The write that releases a Lease, if it is the replica's. It arrives at some moment, or never.
    fn release(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        let held = self.holds(state, number, lease);
        let candidate = state.replicas[number].candidates[lease];
        state.late.extend(candidate.request.map(|(write, _)| write));
        let election = self.elections.get(candidate.election);
        let record = election.release_record(Self::wall(state), held);
        let over = if self.setting.slow[lease] {
            candidate.known.flatten()
        } else {
            state.leases[lease].filter(|stored| is_known(election, self.records.get(*stored)))
        };
        if let (Some(record), Some(_)) = (record, over) {
            let write = self.sent(state, lease, record, over);
            state.late.push(write);
        }
    }

    /// As the group does with the other Leases when the own one is lost, and with the own one when another replica holds another one.
    fn give_up(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        self.release(state, number, lease);
        let is_early = self.is_early(lease);
        let candidate = &mut state.replicas[number].candidates[lease];
        candidate.request = None;
        // What it has of its calls still runs when it is early.
        candidate.term.take_if(|_| !is_early);
    }

    /// The work under the old list ends, its Leases are released, and the replica competes by the new one.
    fn hear(&mut self, state: &mut LeaseState, number: usize) {
        for lease in OWN..=SIDECAR {
            self.release(state, number, lease);
        }
        self.start(state, number);
    }

    /// As client-go's `tryAcquireOrRenew`.
    fn sidecar_tries(&mut self, state: &mut LeaseState) {
        let (over, now, wall) = (state.leases[SIDECAR], self.instant(state.now), Self::wall(state));
        let Some(mut sidecar) = state.sidecar else { return };
        let works = state.sidecar_works();
        if sidecar.term.is_some() && !works {
            // It has exited, and starts again.
            sidecar = self.started("s", false);
        }
        let mut election = self.elections.get(sidecar.election).clone();
        election.observe(self.stored(state, SIDECAR), now);
        if let LeaseAction::Create(record) | LeaseAction::Write(record) = election.next(now, wall, works) {
            let write = self.sent(state, SIDECAR, record.clone(), over);
            election.record_written(record, now);
            sidecar.term = Some((state.now, state.now));
            state.excused |= state.robbed;
            store(state, write);
        }
        sidecar.election = self.elections.of(election);
        state.sidecar = Some(sidecar);
    }

    fn sidecar_ends(&mut self, state: &mut LeaseState) {
        let Some(sidecar) = state.sidecar.take() else { return };
        let over = state.leases[SIDECAR];
        let mut election = self.elections.get(sidecar.election).clone();
        election.observe(self.stored(state, SIDECAR), self.instant(state.now));
        if let Some(record) = election.release_record(Self::wall(state), false) {
            let write = self.sent(state, SIDECAR, record, over);
            store(state, write);
        }
    }

    /// Whether a replica holds the sidecar's Lease as far as it knows, or is about to believe so.
    fn a_replica_may_think_it_holds(&self, state: &LeaseState) -> bool {
        (0..2).any(|number| {
            let candidate = &state.replicas[number].candidates[SIDECAR];
            candidate.request.is_some() || self.left(state, number, SIDECAR, LASTS) > 0
        })
    }
}

/// Carries out a write, if the Lease is what it is written over.
fn store(state: &mut LeaseState, write: LeaseWrite) -> bool {
    let lease = usize::from(write.lease);
    if state.leases[lease] != write.over {
        return false;
    }
    state.leases[lease] = Some(write.record);
    state.robbed &= lease != SIDECAR;
    true
}
