//! What can happen to the Lease.

use csi_attacher_kube::lease::{
    ElectionState, FormerLease, FormerPlace, LeaderElectionRecord, LeaseAction, LeaseRules, rest,
};

use super::{Confirmation, LeaseFlaw, LeaseState, LeaseWorld, LeaseWrite, NAMESPACES, Stored, Tick, timings};
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
        for number in 0..2 {
            self.steps_of(state, number, found);
        }
        for (number, write) in state.late.iter().copied().enumerate() {
            self.step(
                state,
                found,
                || "a write of the Lease arrives late".to_owned(),
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
                || "somebody changes the namespace of the Lease".to_owned(),
                |_, state| {
                    state.changes -= 1;
                    state.wanted = 1 - state.wanted;
                    state.config += 1;
                },
            );
        }
        if state.faults > 0 {
            self.faults(state, found);
        }
    }

    fn faults(&mut self, state: &LeaseState, found: &mut Found) {
        for number in 0..2 {
            self.step(
                state,
                found,
                || format!("FAULT: r{number} dies, and starts again"),
                |world, state| {
                    state.faults -= 1;
                    let process = state.processes[number];
                    state.late.extend(process.request.map(|(write, ..)| write));
                    state.processes[number] = world.started(number, state.wanted, process.behind);
                },
            );
            let label = || format!("FAULT: the machine of r{number} is suspended while time goes on");
            self.step(state, found, label, |_, state| {
                state.faults -= 1;
                state.now += 1;
                state.processes[number].behind += 1;
            });
            if state.processes[number].request.is_some() {
                self.step(
                    state,
                    found,
                    || format!("FAULT: no answer to the write of r{number}"),
                    |_, state| {
                        state.faults -= 1;
                        let request = state.processes[number].request.take();
                        state.processes[number].makes = false;
                        state.processes[number].ask_again();
                        state.late.extend(request.map(|(write, ..)| write));
                    },
                );
            }
        }
        for (place, namespace) in NAMESPACES.iter().enumerate() {
            if state.deletes > 0 && state.leases[place].is_some() {
                self.step(
                    state,
                    found,
                    || format!("FAULT: somebody deletes the Lease in {namespace}"),
                    |_, state| {
                        state.faults -= 1;
                        state.deletes -= 1;
                        state.leases[place] = None;
                    },
                );
            }
        }
    }

    fn steps_of(&mut self, state: &LeaseState, number: usize, found: &mut Found) {
        let process = &state.processes[number];
        let namespace = NAMESPACES[usize::from(process.place)];
        if process.request.is_some() {
            self.step(
                state,
                found,
                || format!("the write of r{number} in {namespace} is answered"),
                |world, state| world.served(state, number),
            );
        } else {
            // Its holder renews it when that is due, or sooner together with other Leases, and reads it when a write failed.
            let holds = self.may_start(state, number);
            let is_due = self.setting.renews_early || self.left(state, number, timings().retry_period).is_zero();
            if !holds || process.known.is_none() {
                let label = || format!("r{number} reads the Lease in {namespace}");
                self.step(state, found, label, |world, state| world.read(state, number));
            }
            let is_asked = process.confirmation == Confirmation::Asked;
            if process.known.is_some() && (!holds || is_due || is_asked) {
                let label = || format!("r{number} writes the Lease in {namespace}");
                self.step(state, found, label, |world, state| world.write(state, number));
            }
        }
        if process.place != state.wanted {
            self.step(
                state,
                found,
                || format!("r{number} hears of the new namespace"),
                |world, state| world.hear(state, number),
            );
        }
        if !process.leading && process.confirmation == Confirmation::None && self.may_start(state, number) {
            if process.look.is_none() {
                self.step(
                    state,
                    found,
                    || format!("r{number} reads the AttacherConfig"),
                    |_, state| {
                        state.processes[number].look = Some((state.config, state.recorded, state.wanted));
                    },
                );
            } else {
                let label = || format!("r{number} looks at the former places, and records its own if they are over");
                self.step(state, found, label, |world, state| world.look(state, number));
            }
        }
    }

    fn change(&mut self, state: &mut LeaseState, number: usize, change: impl FnOnce(&mut ElectionState)) {
        let mut election = self.values.election(state.processes[number].election).clone();
        change(&mut election);
        state.processes[number].election = self.values.of_election(election);
    }

    fn stored(&self, state: &LeaseState, place: u8) -> Option<(LeaderElectionRecord, Tick)> {
        let stored = state.leases[usize::from(place)]?;
        Some((self.values.record(stored.record).clone(), stored.version))
    }

    /// Carries out a write, if the Lease is what it is written over.
    fn store(&mut self, state: &mut LeaseState, write: LeaseWrite) -> bool {
        let place = usize::from(write.place);
        if state.leases[place].map(|stored| stored.version) != write.over {
            return false;
        }
        state.versions[place] += 1;
        state.leases[place] = Some(Stored {
            record: write.record,
            version: state.versions[place],
        });
        true
    }

    /// As `LeaderElector::read`, and what `keep` and `renew` make of it.
    fn read(&mut self, state: &mut LeaseState, number: usize) {
        let place = state.processes[number].place;
        let stored = self.stored(state, place);
        let now = self.instant(Self::now_of(state, number).0);
        let (record, version) = stored.map_or((None, None), |(record, version)| (Some(record), Some(version)));
        let gone_is_over = self.setting.flaw == LeaseFlaw::GoneIsOver && record.is_none();
        self.change(state, number, |election| {
            if gone_is_over {
                *election = ElectionState::new(format!("r{number}"), timings().lease_duration, LeaseRules::default());
                election.stand();
            }
            election.observe(record, now);
        });
        let wall = Self::wall(state);
        let election = self.values.election(state.processes[number].election);
        let waits = matches!(election.next(now, wall), LeaseAction::Wait { .. });
        let process = &mut state.processes[number];
        let gone = version.is_none() && !process.leading && self.setting.flaw != LeaseFlaw::GoneIsHeld;
        let is_taken = (version.is_some() && !election.is_ours()) || waits || gone;
        process.known = Some(version);
        if waits {
            process.seen[usize::from(place)] = true;
        }
        if is_taken && process.term.is_some() {
            process.end_term();
        }
    }

    /// As `LeaderElector::write_next`, and `keep`.
    fn write(&mut self, state: &mut LeaseState, number: usize) {
        let holds = self.may_start(state, number);
        let (now, wall) = (Self::now_of(state, number), Self::wall(state));
        let instant = self.instant(now.0);
        let process = &mut state.processes[number];
        if !holds {
            // The term is over, also when nobody took the Lease.
            process.end_term();
        }
        let election = self.values.election(process.election);
        let renewed = election.renewed_record(instant, wall).filter(|_| holds);
        let record = match (renewed, election.next(instant, wall)) {
            (Some(record), _) | (None, LeaseAction::Create(record) | LeaseAction::Write(record)) => record,
            (None, LeaseAction::Wait { .. }) => return,
        };
        let over = process.known.flatten();
        if holds {
            process.makes = false;
        } else {
            // As `look_for_former_holder`.
            let made_is_ours = self.setting.flaw == LeaseFlaw::MadeIsOurs;
            let made_stays = self.setting.flaw == LeaseFlaw::MadeStays && over.is_some() && election.is_ours();
            process.made.take_if(|_| !made_stays);
            let is_unused = election.is_unused() && !made_is_ours;
            process.makes = over.is_none() || (process.made.is_none() && is_unused);
            process.former_holder = process.makes || process.made.is_some();
        }
        let record = if process.former_holder { record.unused() } else { record };
        let place = process.place;
        state.written += 1;
        self.change(state, number, |election| election.attempts(&record));
        let write = LeaseWrite {
            place,
            record: self.values.of_record(record),
            over,
        };
        let process = &mut state.processes[number];
        process.request = Some((write, now.0, now.1));
        if process.confirmation == Confirmation::Asked {
            process.confirmation = Confirmation::Begun;
        }
    }

    fn served(&mut self, state: &mut LeaseState, number: usize) {
        let Some((write, monotonic, boot)) = state.processes[number].request.take() else {
            return;
        };
        if !self.store(state, write) {
            // It is read before it is written again.
            state.processes[number].known = None;
            state.processes[number].makes = false;
            state.processes[number].ask_again();
            return;
        }
        let record = self.values.record(write.record).clone();
        let now = Self::now_of(state, number);
        let instant = self.instant(now.0);
        self.change(state, number, |election| election.record_written(record, instant));
        let version = state.versions[usize::from(write.place)];
        let in_time = state.processes[number]
            .term
            .is_none_or(|renewed| !rest(timings().renew_deadline, self.moment(renewed), self.moment(now)).is_zero());
        let process = &mut state.processes[number];
        process.known = Some(Some(version));
        if std::mem::take(&mut process.makes) {
            process.made = Some(now.0);
        }
        if in_time {
            process.term = Some((monotonic, boot));
        } else {
            process.end_term();
        }
        if process.confirmation == Confirmation::Begun {
            process.confirmation = Confirmation::None;
            process.leading = true;
        }
        if self.setting.flaw == LeaseFlaw::Hasty && in_time {
            process.leading = true;
        }
    }

    /// The work under the old place ends, its Lease is released, and the process competes for the new one.
    fn hear(&mut self, state: &mut LeaseState, number: usize) {
        let process = state.processes[number];
        state.late.extend(process.request.map(|(write, ..)| write));
        let election = self.values.election(process.election);
        if let Some(record) = election
            .release_record(Self::wall(state))
            .filter(|_| !process.former_holder && !election.is_unused())
        {
            let over = process.known.flatten();
            let write = LeaseWrite {
                place: process.place,
                record: self.values.of_record(record),
                over,
            };
            if over.is_some() {
                state.written += 1;
                state.late.push(write);
            }
        }
        let started = self.started(number, state.wanted, process.behind);
        state.processes[number] = super::Process {
            seen: process.seen,
            ..started
        };
    }

    /// As `PlaceChange::look` after the AttacherConfig was read.
    fn look(&mut self, state: &mut LeaseState, number: usize) {
        let process = state.processes[number];
        let Some((version, recorded, wanted)) = process.look else {
            return;
        };
        state.processes[number].look = None;
        let now = self.instant(Self::now_of(state, number).0);
        let place = Self::place(number, process.place);
        let known = Self::status(recorded);
        let seen = Self::seen(&process);
        let mut in_use = false;
        if let Some(made) = process.made {
            let gone_is_over = self.setting.flaw == LeaseFlaw::GoneIsOver;
            let runs_out = place.former_holder(&known, &seen).filter(|_| !gone_is_over);
            let may_work = self.instant(made) + runs_out.unwrap_or_default() > now;
            state.processes[number].former_holder = may_work;
            in_use |= may_work;
        }
        if wanted != process.place {
            return;
        }
        for (former, runs_out) in place.former(&known, &seen) {
            let FormerPlace::Lease(namespace) = former else {
                continue;
            };
            let at = u8::from(namespace == NAMESPACES[1]);
            let stored = self.stored(state, at).map(|(record, _)| record);
            let mut lease = match state.processes[number].former {
                0 => FormerLease::new(runs_out, LeaseRules::default()),
                known => self.values.former(known).clone(),
            };
            let is_over = self.setting.flaw == LeaseFlaw::GoneIsOver && stored.is_none();
            lease.observe(stored, now);
            in_use |= lease.in_use_until(now).is_some() && !is_over;
            state.processes[number].former = self.values.of_former(lease);
        }
        if in_use {
            return;
        }
        let record = place.recorded(&known);
        if record != known {
            if state.config != version {
                return;
            }
            state.config += 1;
            state.recorded = Some(process.place);
        }
        let confirms = self.setting.flaw != LeaseFlaw::Unconfirmed;
        let process = &mut state.processes[number];
        process.seen = [false; 2];
        if confirms {
            process.confirmation = Confirmation::Asked;
        } else {
            process.leading = true;
        }
    }
}
