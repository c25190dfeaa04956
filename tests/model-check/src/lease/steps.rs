//! What can happen to the Leases.

use csi_attacher_kube::lease::{ElectionState, LeaderElectionRecord, LeaseAction};
use csi_attacher_model::api::names::NEW_LEASE_HOLDER;

use super::{
    LEASES, LeaseFault, LeaseFlaw, LeaseState, LeaseWorld, LeaseWrite, OWN, SIDECAR, Stored, Tick, sidecar_election,
    timings,
};
use crate::explorer::Next;

type Found = Vec<Next<LeaseState>>;

impl LeaseWorld {
    fn step(
        &mut self,
        state: &LeaseState,
        found: &mut Found,
        label: impl FnOnce() -> String,
        act: impl FnOnce(&mut Self, &mut LeaseState),
    ) {
        let mut next = state.clone();
        act(self, &mut next);
        let mut late = std::mem::take(&mut next.late);
        late.retain(|write| Self::can_succeed(&next, write));
        late.sort_unstable();
        late.dedup();
        next.late = late;
        let robbed = self.a_replica_may_think_it_holds(&next);
        if let Some(sidecar) = &mut next.sidecar {
            sidecar.excused &= robbed;
        }
        if next == *state {
            return;
        }
        if let Some(labels) = &mut self.labels {
            labels.push(format!("{:>2} s: {}", state.now * 2, label()));
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
        if let Some(sidecar) = state.sidecar {
            let label = || "the sidecar reads its Lease, and takes or renews it if it may".to_owned();
            // It renews its Lease once in a retry period.
            if sidecar.term != Some(state.now) {
                self.step(state, found, label, Self::sidecar_tries);
            }
            if Self::sidecar_works(state).is_some() {
                let label = || "the sidecar ends and releases its Lease".to_owned();
                self.step(state, found, label, Self::sidecar_ends);
            }
        }
        for (number, write) in state.late.iter().copied().enumerate() {
            self.step(
                state,
                found,
                || format!("a write of {} arrives late", LEASES[usize::from(write.lease)]),
                |world, state| {
                    state.late.remove(number);
                    world.store(state, write);
                },
            );
        }
        if state.changes > 0 {
            self.step(
                state,
                found,
                || "somebody changes the list of namespaces".to_owned(),
                |_, state| {
                    state.changes -= 1;
                    state.listed = !state.listed;
                },
            );
        }
        if self.setting.flaw == LeaseFlaw::CreatorOfIdleWorks && (self.may_start(state, 0) || self.may_start(state, 1))
        {
            let label = || "a replica puts the finalizer on an object, or takes it off the last one".to_owned();
            self.step(state, found, label, |_, state| state.claimed = !state.claimed);
        }
        if state.faults > 0 {
            self.faults(state, found);
        }
    }

    fn faults(&mut self, state: &LeaseState, found: &mut Found) {
        let kinds = self.setting.kinds;
        for number in 0..self.setting.replicas {
            if kinds.contains(&LeaseFault::Dies) {
                let label = || format!("FAULT: r{number} dies, and starts again");
                self.step(state, found, label, |world, state| {
                    state.faults -= 1;
                    let replica = state.replicas[number];
                    let requests = replica.candidates.iter().filter_map(|candidate| candidate.request);
                    state.late.extend(requests.map(|(write, ..)| write));
                    state.replicas[number] = world.started(number, state.listed, replica.behind);
                });
            }
            if kinds.contains(&LeaseFault::Suspended) {
                let label = || format!("FAULT: the machine of r{number} is suspended while time goes on");
                self.step(state, found, label, |_, state| {
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
                self.step(
                    state,
                    found,
                    || format!("FAULT: somebody deletes {name}"),
                    |world, state| {
                        state.faults -= 1;
                        state.deletes -= 1;
                        let stored = state.leases[lease].take();
                        let of_replica = |stored: Stored| world.values.record_parts(stored.record).replica.is_some();
                        if lease == SIDECAR {
                            state.robbed = stored.is_some_and(of_replica);
                        }
                    },
                );
            }
        }
    }

    /// The answer to a write is lost, and the write may arrive late.
    fn unanswered(&mut self, state: &LeaseState, number: usize, lease: usize, found: &mut Found) {
        let begins = !self.setting.slow[lease] && self.may_act(state, number, lease);
        if !begins && state.replicas[number].candidates[lease].request.is_none() {
            return;
        }
        self.step(
            state,
            found,
            || format!("FAULT: no answer to the write of {} by r{number}", LEASES[lease]),
            |world, state| {
                if begins {
                    world.act(state, number, lease);
                    state.replicas[number].candidates[lease].known = None;
                }
                let request = state.replicas[number].candidates[lease].request.take();
                if let Some((write, ..)) = request {
                    state.faults -= 1;
                    state.late.push(write);
                }
            },
        );
    }

    fn steps_of(&mut self, state: &LeaseState, number: usize, found: &mut Found) {
        let replica = &state.replicas[number];
        for (lease, name) in LEASES.iter().enumerate() {
            if !self.needs(replica, lease) {
                continue;
            }
            if replica.candidates[lease].request.is_some() {
                self.step(
                    state,
                    found,
                    || format!("the write of {name} by r{number} is answered"),
                    |world, state| world.served(state, number, lease),
                );
                continue;
            }
            if !self.setting.slow[lease] {
                if self.may_act(state, number, lease) {
                    let label = || format!("r{number} looks at {name}, and writes it if it may");
                    self.step(state, found, label, |world, state| {
                        world.act(state, number, lease);
                        world.served(state, number, lease);
                        // It is read again before it is written.
                        state.replicas[number].candidates[lease].known = None;
                    });
                }
                continue;
            }
            if !self.holds(state, number, lease) || replica.candidates[lease].known.is_none() {
                let label = || format!("r{number} reads {name}");
                self.step(state, found, label, |world, state| world.read(state, number, lease));
            }
            if self.may_write(state, number, lease) {
                let label = || format!("r{number} writes {name}");
                self.step(state, found, label, |world, state| world.write(state, number, lease));
            }
        }
        for (lease, other) in [(SIDECAR, OWN), (OWN, SIDECAR)] {
            let is_early = lease == SIDECAR && self.setting.flaw == LeaseFlaw::GivesUpEarly;
            let over = !self.may_run(state, number) || is_early;
            let has_it = !self.left(state, number, lease, timings().lease_duration).is_zero();
            let lacks = self.needs(replica, other) && !self.holds(state, number, other);
            if self.needs(replica, lease) && lacks && over && has_it {
                let (lease_name, other) = (LEASES[lease], LEASES[other]);
                self.step(
                    state,
                    found,
                    || format!("r{number} does not hold {other}, and gives {lease_name} up"),
                    |world, state| world.give_up(state, number, lease),
                );
            }
        }
        if replica.listed != state.listed {
            self.step(
                state,
                found,
                || format!("r{number} hears of the new list: its calls end, and it starts over"),
                |world, state| world.hear(state, number),
            );
        }
    }

    /// Whether a replica may begin to write a Lease. Its holder renews it when that is due, or sooner together with other Leases, and
    /// reads it when a write failed. The sidecar's Lease is created by any replica, and taken by the one that holds the own Lease.
    fn may_write(&self, state: &LeaseState, number: usize, lease: usize) -> bool {
        let candidate = &state.replicas[number].candidates[lease];
        let is_due = || self.setting.renews_early || self.left(state, number, lease, timings().retry_period).is_zero();
        self.needs(&state.replicas[number], lease)
            && candidate.request.is_none()
            && candidate.known.is_some()
            && (!self.holds(state, number, lease) || is_due())
            && self.record_to_write(state, number, lease).is_some()
    }

    /// Whether a replica may look at a Lease whose requests are answered at once, and write it in the same step. That a write comes
    /// later than the look changes nothing: when the Lease was changed meanwhile, it fails.
    fn may_act(&self, state: &LeaseState, number: usize, lease: usize) -> bool {
        let is_due = self.setting.renews_early || self.left(state, number, lease, timings().retry_period).is_zero();
        self.needs(&state.replicas[number], lease) && (!self.holds(state, number, lease) || is_due)
    }

    fn act(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        self.read(state, number, lease);
        self.write(state, number, lease);
    }

    /// What a replica would write into a Lease now.
    fn record_to_write(&self, state: &LeaseState, number: usize, lease: usize) -> Option<LeaderElectionRecord> {
        let holds = self.holds(state, number, lease);
        let (instant, wall) = (self.instant(Self::now_of(state, number).0), Self::wall(state));
        let election = self.values.election(state.replicas[number].candidates[lease].election);
        let mistakes = self.setting.flaw == LeaseFlaw::CreatedIsOurs && election.is_ours(true);
        let renewed = election.renewed_record(instant, wall, holds).filter(|_| holds);
        let next = election.next(instant, wall, holds || mistakes);
        let mut record = match (renewed, next) {
            (Some(record), _) | (None, LeaseAction::Create(record) | LeaseAction::Write(record)) => record,
            (None, LeaseAction::Wait { .. }) => return None,
        };
        let creates = state.replicas[number].candidates[lease].known == Some(None);
        if self.setting.flaw == LeaseFlaw::CreatorOfIdleWorks && creates && !holds && state.claimed {
            NEW_LEASE_HOLDER.clone_into(&mut record.holder);
        }
        let waits = lease == SIDECAR
            && self.needs(&state.replicas[number], OWN)
            && !self.holds(state, number, OWN)
            && record.holder != NEW_LEASE_HOLDER;
        (!waits).then_some(record)
    }

    fn change(&mut self, state: &mut LeaseState, number: usize, lease: usize, change: impl FnOnce(&mut ElectionState)) {
        let candidate = &mut state.replicas[number].candidates[lease];
        let mut election = self.values.election(candidate.election).clone();
        change(&mut election);
        candidate.election = self.values.of_election(election);
    }

    fn stored(&self, state: &LeaseState, lease: usize) -> Option<(LeaderElectionRecord, Tick)> {
        let stored = state.leases[lease]?;
        Some((self.values.record(stored.record).clone(), stored.version))
    }

    /// Carries out a write, if the Lease is what it is written over.
    fn store(&mut self, state: &mut LeaseState, write: LeaseWrite) -> bool {
        let lease = usize::from(write.lease);
        if state.leases[lease].map(|stored| stored.version) != write.over {
            return false;
        }
        if lease == SIDECAR {
            state.robbed = false;
        }
        state.versions[lease] += 1;
        state.leases[lease] = Some(Stored {
            record: write.record,
            version: state.versions[lease],
        });
        true
    }

    /// As `LeaderElector::read`, and what `renew` makes of it.
    fn read(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        let stored = self.stored(state, lease);
        let holds = self.holds(state, number, lease);
        let now = self.instant(Self::now_of(state, number).0);
        let (record, version) = stored.map_or((None, None), |(record, version)| (Some(record), Some(version)));
        self.change(state, number, lease, |election| election.observe(record, now));
        let wall = Self::wall(state);
        let candidate = &mut state.replicas[number].candidates[lease];
        let election = self.values.election(candidate.election);
        let waits = matches!(election.next(now, wall, holds), LeaseAction::Wait { .. });
        candidate.known = Some(version);
        if (version.is_some() && !election.is_ours(holds)) || waits {
            candidate.term = None;
        }
    }

    /// As `LeaderElector::write`.
    fn write(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        let Some(record) = self.record_to_write(state, number, lease) else {
            return;
        };
        let (monotonic, boot) = Self::now_of(state, number);
        let holds = self.holds(state, number, lease);
        state.written += 1;
        self.change(state, number, lease, |election| election.attempts(&record));
        let record = self.values.of_record(record);
        let candidate = &mut state.replicas[number].candidates[lease];
        if !holds {
            // The term is over, also when nobody took the Lease.
            candidate.term = None;
        }
        let write = LeaseWrite {
            lease: lease as u8,
            record,
            over: candidate.known.flatten(),
        };
        candidate.request = Some((write, monotonic, boot));
    }

    fn served(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        let Some((write, monotonic, boot)) = state.replicas[number].candidates[lease].request.take() else {
            return;
        };
        if !self.store(state, write) {
            // It is read before it is written again.
            state.replicas[number].candidates[lease].known = None;
            return;
        }
        let record = self.values.record(write.record).clone();
        let is_new = record.holder == NEW_LEASE_HOLDER;
        let now = Self::now_of(state, number).0;
        let since = if self.setting.flaw == LeaseFlaw::CountsFromSending {
            monotonic
        } else {
            now
        };
        let since = self.instant(since);
        self.change(state, number, lease, |election| election.record_written(record, since));
        let in_time = self.holds(state, number, lease);
        let version = state.versions[lease];
        let candidate = &mut state.replicas[number].candidates[lease];
        candidate.known = Some(Some(version));
        let goes_on = candidate.term.is_none() || in_time;
        candidate.term = (goes_on && !is_new).then_some((monotonic, boot));
    }

    /// The write that releases a Lease, if it is the replica's. It arrives at some moment, or never.
    fn release(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        let held = self.holds(state, number, lease);
        let candidate = state.replicas[number].candidates[lease];
        state.late.extend(candidate.request.map(|(write, ..)| write));
        let record = self
            .values
            .election(candidate.election)
            .release_record(Self::wall(state), held);
        let known = self.values.election_parts(candidate.election).known;
        let is_known = |stored: &Stored| known.is_some_and(|known| known.record == stored.record);
        let over = if self.setting.slow[lease] {
            candidate.known.flatten()
        } else {
            state.leases[lease].filter(is_known).map(|stored| stored.version)
        };
        if let (Some(record), Some(over)) = (record, over) {
            state.written += 1;
            let record = self.values.of_record(record);
            state.late.push(LeaseWrite {
                lease: lease as u8,
                record,
                over: Some(over),
            });
        }
    }

    /// As the group does with the other Leases when the own one is lost, and with the own one when another replica holds another one.
    fn give_up(&mut self, state: &mut LeaseState, number: usize, lease: usize) {
        self.release(state, number, lease);
        let is_early = lease == SIDECAR && self.setting.flaw == LeaseFlaw::GivesUpEarly;
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
        state.replicas[number] = self.started(number, state.listed, state.replicas[number].behind);
    }

    /// As client-go's `tryAcquireOrRenew`.
    fn sidecar_tries(&mut self, state: &mut LeaseState) {
        let works = Self::sidecar_works(state).is_some();
        let (stored, wall, now) = (self.stored(state, SIDECAR), Self::wall(state), self.instant(state.now));
        let Some(mut sidecar) = state.sidecar else { return };
        let mut election = self.values.election(sidecar.election).clone();
        if sidecar.term.is_some() && !works {
            // It has exited, and starts again.
            election = sidecar_election();
            sidecar.term = None;
        }
        let over = stored.as_ref().map(|(_, version)| *version);
        election.observe(stored.map(|(record, _)| record), now);
        if let LeaseAction::Create(record) | LeaseAction::Write(record) = election.next(now, wall, works) {
            election.attempts(&record);
            state.written += 1;
            let write = LeaseWrite {
                lease: SIDECAR as u8,
                record: self.values.of_record(record.clone()),
                over,
            };
            let robbed = state.robbed;
            if self.store(state, write) {
                election.record_written(record, now);
                sidecar.term = Some(state.now);
                sidecar.excused |= robbed;
            }
        }
        sidecar.election = self.values.of_election(election);
        state.sidecar = Some(sidecar);
    }

    fn sidecar_ends(&mut self, state: &mut LeaseState) {
        let (stored, wall) = (self.stored(state, SIDECAR), Self::wall(state));
        let Some(sidecar) = state.sidecar.take() else { return };
        let mut election = self.values.election(sidecar.election).clone();
        let over = stored.as_ref().map(|(_, version)| *version);
        election.observe(stored.map(|(record, _)| record), self.instant(state.now));
        if let Some(record) = election.release_record(wall, false) {
            state.written += 1;
            let record = self.values.of_record(record);
            self.store(
                state,
                LeaseWrite {
                    lease: SIDECAR as u8,
                    record,
                    over,
                },
            );
        }
    }

    /// Whether a replica holds the sidecar's Lease as far as it knows, or is about to believe so.
    fn a_replica_may_think_it_holds(&self, state: &LeaseState) -> bool {
        (0..2).any(|number| {
            let candidate = &state.replicas[number].candidates[SIDECAR];
            candidate.request.is_some() || !self.left(state, number, SIDECAR, timings().lease_duration).is_zero()
        })
    }
}
