//! What can happen in a state.

use csi_attacher_model::decide::Failure;

use super::attempt::{At, bit};
use super::event::Event;
use super::objects::{self, Kind};
use super::state::{Attempt, NOBODY, NONE, Orphan, Phase, Request, State};
use super::universe::{CacheEvent, Patched};
use super::world::{Fault, User};
use super::{Core, next_version};
use crate::explorer::Next;

type Found = Vec<Next<State>>;

impl Core {
    pub(super) fn steps_of_process(&mut self, state: &State, replica: usize, found: &mut Found) {
        let process = &state.replicas[replica];
        if state.leader == NOBODY && process.attempts.is_empty() {
            let event = Event::TakesTheLease { replica };
            self.step(state, found, true, event, |core, state| core.take_over(state, replica));
        }
        let leads = usize::from(state.leader) == replica;
        if !leads && !self.universe.rules().unfenced {
            return;
        }
        for slot in (0..8).filter(|slot| process.ready & bit(*slot) != 0 && process.attempt(*slot).is_none()) {
            let at = At { replica, slot };
            for expired in [false, true] {
                if expired && process.waited & bit(slot) == 0 {
                    continue;
                }
                let event = Event::Looks { at, expired };
                self.step(state, found, true, event, |core, state| core.begin(state, at, expired));
            }
        }
        for kind in 0..3 {
            let seen = usize::from(process.seen[kind]);
            let Some(told) = state.logs[kind].get(seen).copied().filter(|_| leads) else {
                continue;
            };
            let event = Event::Shows { replica, told };
            self.step(state, found, true, event, |core, state| {
                state.replicas[replica].seen[kind] += 1;
                let event = if told.ends {
                    CacheEvent::Ended(told.object)
                } else {
                    CacheEvent::Told(told.object)
                };
                core.cache(state, replica, event);
            });
        }
    }

    fn take_over(&mut self, state: &mut State, replica: usize) {
        state.leader = u8::try_from(replica).unwrap_or(NOBODY);
        state.replicas[replica].unfinished.clear();
        if !self.universe.rules().stale {
            for log in &mut state.logs {
                log.clear();
            }
            state.replicas[replica].seen = [0; 3];
            self.cache(state, replica, CacheEvent::Listed(state.objects));
        }
        self.start_engine(state, replica);
    }

    /// The engine of a driver starts: everything that may need work is queued, and what the last one left is looked at.
    fn start_engine(&mut self, state: &mut State, replica: usize) {
        let process = &mut state.replicas[replica];
        process.ready = self.universe.work_of(process.cache, state.capable);
        (process.dirty, process.forgotten, process.waited) = (0, 0, 0);
        for (slot, machine, _) in std::mem::take(&mut state.replicas[replica].unfinished) {
            self.resume(state, At { replica, slot }, machine);
        }
    }

    pub(super) fn steps_of_attempt(&mut self, state: &State, at: At, attempt: &Attempt, found: &mut Found) {
        match attempt.phase {
            Phase::Write {
                write,
                request: Request::Sent,
                ..
            } => {
                let event = Event::Takes { at, write };
                self.step(state, found, true, event, |core, state| {
                    let answer = core.serve(state, write);
                    core.answer(state, at, answer);
                });
                if self.may_fail(state, Fault::NoAnswer) {
                    let event = Event::Loses { at, write };
                    self.step(state, found, false, event, |core, state| {
                        state.faults -= 1;
                        state.late.push(write);
                        core.answer(state, at, Request::Lost);
                    });
                    if self.universe.rules().believing {
                        self.step(state, found, false, Event::Lies { at }, |core, state| {
                            state.faults -= 1;
                            core.answer(state, at, Request::NotFound);
                        });
                    }
                }
            }
            Phase::Read {
                slot: of,
                request: Request::Sent,
                ..
            } => {
                let event = Event::Reads { at, slot: of };
                self.step(state, found, true, event, |core, state| {
                    let answer = match state.objects[usize::from(of)] {
                        NONE => Request::NotFound,
                        object => Request::Object(object),
                    };
                    core.answer(state, at, answer);
                });
                if self.may_fail(state, Fault::NoAnswer) {
                    let event = Event::LosesRead { at };
                    self.step(state, found, false, event, |core, state| {
                        state.faults -= 1;
                        core.answer(state, at, Request::Lost);
                    });
                }
            }
            Phase::Write { request, .. } | Phase::Read { request, .. } => {
                let event = Event::Answers { at, request };
                self.step(state, found, true, event, |core, state| core.receive(state, at));
            }
            Phase::Call { publishes, place } => self.steps_of_call(state, at, Orphan { place, publishes }, found),
            Phase::Begins => {}
        }
    }

    fn answer(&mut self, state: &mut State, at: At, answer: Request) {
        let process = &mut state.replicas[at.replica];
        let Some((_, attempt)) = process.attempts.iter_mut().find(|(slot, _)| *slot == at.slot) else {
            return;
        };
        if let Phase::Write { request, .. } | Phase::Read { request, .. } = &mut attempt.phase {
            *request = answer;
        }
        if answer == Request::Lost {
            // Nothing is learned from it, so that nothing is lost by going on at once.
            self.receive(state, at);
        }
    }

    /// The API server carries out a write.
    fn serve(&mut self, state: &mut State, write: u32) -> Request {
        let (slot, _) = self.universe.target(write);
        let before = state.objects[usize::from(slot)];
        if before == NONE {
            return Request::NotFound;
        }
        let version = state.versions[usize::from(slot)] + 1;
        match self.universe.apply(before, write, version) {
            Patched::Stale => Request::Stale,
            Patched::Object(same) if same == before => Request::Object(same),
            Patched::Object(object) => {
                next_version(state, slot);
                self.put(state, slot, object, false);
                Request::Object(object)
            }
            Patched::Gone(object) => {
                next_version(state, slot);
                self.put(state, slot, object, true);
                Request::Object(object)
            }
        }
    }

    fn steps_of_call(&mut self, state: &State, at: At, call: Orphan, found: &mut Found) {
        let Orphan { place, publishes } = call;
        // The driver does one thing after the other for a volume and node.
        if !state.orphans.iter().any(|orphan| orphan.place == place) {
            let event = Event::CallSucceeds { at, call };
            self.step(state, found, true, event, |core, state| {
                core.takes_effect(state, call);
                core.answered(state, at, None);
            });
            if self.may_fail(state, Fault::Refused) {
                let event = Event::CallRefused { at, call };
                self.step(state, found, false, event, |core, state| {
                    state.faults -= 1;
                    let code = if publishes { 13 } else { 5 };
                    let failure = core.universe.fails(Failure {
                        message: "refused".to_owned(),
                        code: Some(code),
                    });
                    core.answered(state, at, Some(failure));
                });
            }
        }
        if self.may_fail(state, Fault::Hangs) {
            let event = Event::CallHangs { at, call };
            self.step(state, found, false, event, |core, state| {
                state.faults -= 1;
                hangs(state, call);
                let failure = core.universe.fails(Failure {
                    message: "late".to_owned(),
                    code: Some(4),
                });
                core.answered(state, at, Some(failure));
            });
        }
    }

    /// The driver does what it was called for.
    fn takes_effect(&mut self, state: &mut State, call: Orphan) {
        let mask = 1 << call.place;
        if call.publishes {
            let context = &mut state.contexts[usize::from(call.place)];
            *context = match *context {
                0 => 1,
                1 | 3 if self.setting.contexts => 2,
                2 => 3,
                same => same,
            };
            state.published |= mask;
        } else {
            state.published &= !mask;
        }
    }

    pub(super) fn steps_of_what_is_on_its_way(&mut self, state: &State, found: &mut Found) {
        for (number, write) in state.late.iter().copied().enumerate() {
            self.step(state, found, true, Event::ComesLate { write }, |core, state| {
                state.late.remove(number);
                core.serve(state, write);
            });
            self.step(state, found, true, Event::NeverComes { write }, |_, state| {
                state.late.remove(number);
            });
        }
        for (number, orphan) in state.orphans.iter().copied().enumerate() {
            self.step(state, found, true, Event::DoneLate { call: orphan }, |core, state| {
                state.orphans.remove(number);
                core.takes_effect(state, orphan);
            });
            self.step(state, found, true, Event::GivenUp { call: orphan }, |_, state| {
                state.orphans.remove(number);
            });
        }
    }

    pub(super) fn steps_of_people(&mut self, state: &State, found: &mut Found) {
        for (number, (user, _)) in self.setting.users.clone().into_iter().enumerate() {
            if state.users[number] == 0 || !self.may(state, user) {
                continue;
            }
            self.step(state, found, false, Event::Does(user), |core, state| {
                state.users[number] -= 1;
                core.act(state, user);
            });
        }
        if !state.secret {
            self.step(state, found, true, Event::Secret { there: true }, |_, state| {
                state.secret = true;
            });
        }
        if !state.capable {
            self.step(state, found, true, Event::Capable { capable: true }, |core, state| {
                core.has_capability(state, true);
            });
        }
    }

    fn may(&self, state: &State, user: User) -> bool {
        let there = |slot: u8| self.facts(state, slot);
        match user {
            User::Attach(number) => {
                let slot = self.setting.attachment(number);
                let volume = self.setting.needs(slot, Kind::Volume);
                let mut others = self.setting.slots_of(Kind::Attachment);
                let taken =
                    others.any(|other| there(other).is_some() && self.setting.needs(other, Kind::Volume) == volume);
                there(slot).is_none() && there(volume).is_some() && !(self.setting.one_at_a_time && taken)
            }
            User::Detach(number) => there(self.setting.attachment(number)).is_some_and(|facts| !facts.deleting),
            User::DeleteVolume(number) => there(number).is_some_and(|facts| !facts.deleting),
            User::Hold(number) => {
                there(self.setting.attachment(number)).is_some_and(|facts| !facts.deleting && !facts.foreign)
            }
            User::HoldVolume(number) => there(number).is_some_and(|facts| !facts.deleting && !facts.foreign),
            User::Reborn(_) => true,
            User::Unprotect(number) => there(number).is_some_and(|facts| facts.ours && !facts.deleting),
        }
    }

    pub(super) fn act(&mut self, state: &mut State, user: User) {
        match user {
            User::Attach(number) => {
                let slot = self.setting.attachment(number);
                self.create(state, slot);
            }
            User::Detach(number) => {
                let slot = self.setting.attachment(number);
                self.edit(state, slot, objects::deleted);
            }
            User::DeleteVolume(number) => self.edit(state, number, objects::deleted),
            User::Hold(number) => {
                let slot = self.setting.attachment(number);
                self.edit(state, slot, objects::held);
            }
            User::HoldVolume(number) => self.edit(state, number, objects::held),
            User::Reborn(number) => {
                let slot = self.setting.node(number);
                let (name, id) = (format!("node{number}"), format!("id{number}b"));
                self.edit(state, slot, |_| objects::node(&name, Some(&id)));
            }
            User::Unprotect(number) => self.edit(state, number, objects::unprotected),
        }
    }

    fn may_fail(&self, state: &State, fault: Fault) -> bool {
        state.faults > 0 && self.setting.kinds.contains(&fault)
    }

    pub(super) fn faults_of_processes(&mut self, state: &State, found: &mut Found) {
        for replica in 0..state.replicas.len() {
            let leads = usize::from(state.leader) == replica;
            if self.may_fail(state, Fault::Crash) && (leads || !state.replicas[replica].attempts.is_empty()) {
                let event = Event::Dies { replica };
                self.step(state, found, false, event, |core, state| core.crash(state, replica));
            }
            if self.may_fail(state, Fault::LeaseLost) && leads {
                let event = Event::LosesTheLease { replica };
                self.step(state, found, false, event, |core, state| {
                    state.faults -= 1;
                    state.leader = NOBODY;
                    core.end_calls(state, replica);
                });
            }
        }
        if state.secret && self.may_fail(state, Fault::SecretGoes) {
            self.step(state, found, false, Event::Secret { there: false }, |_, state| {
                state.faults -= 1;
                state.secret = false;
            });
        }
        if state.capable && self.may_fail(state, Fault::CapabilityGoes) {
            self.step(state, found, false, Event::Capable { capable: false }, |core, state| {
                state.faults -= 1;
                core.has_capability(state, false);
            });
        }
    }

    fn crash(&mut self, state: &mut State, replica: usize) {
        state.faults -= 1;
        if usize::from(state.leader) == replica {
            state.leader = NOBODY;
        }
        self.leave_on_its_way(state, replica);
        let cache = self.universe.empty_cache();
        let stale = self.universe.rules().stale;
        let process = &mut state.replicas[replica];
        let kept = std::mem::take(process);
        process.cache = cache;
        if stale {
            // Its successor is another process, which has followed from the beginning.
            (process.cache, process.seen) = (kept.cache, kept.seen);
        }
    }

    /// What an attempt has sent goes on without it.
    fn leave_on_its_way(&mut self, state: &mut State, replica: usize) {
        for (_, attempt) in state.replicas[replica].attempts.clone() {
            match attempt.phase {
                Phase::Write {
                    write,
                    request: Request::Sent,
                    ..
                } => state.late.push(write),
                Phase::Call { publishes, place } => hangs(state, Orphan { place, publishes }),
                Phase::Begins | Phase::Write { .. } | Phase::Read { .. } => {}
            }
        }
    }

    /// The term is over: calls are cancelled, and writes go on.
    fn end_calls(&mut self, state: &mut State, replica: usize) {
        if self.universe.rules().unfenced {
            return;
        }
        for (slot, attempt) in state.replicas[replica].attempts.clone() {
            if let Phase::Call { publishes, place } = attempt.phase {
                hangs(state, Orphan { place, publishes });
                self.cancelled(state, At { replica, slot });
            }
        }
    }

    /// The driver is connected to again and has other capabilities: its engine ends, and another one starts.
    fn has_capability(&mut self, state: &mut State, capable: bool) {
        let leader = usize::from(state.leader);
        if leader < state.replicas.len() {
            self.leave_on_its_way(state, leader);
            for (slot, attempt) in state.replicas[leader].attempts.clone() {
                self.cut(state, At { replica: leader, slot }, attempt);
            }
        }
        state.capable = capable;
        if leader < state.replicas.len() {
            self.start_engine(state, leader);
        }
    }
}

/// A call goes on without its caller.
fn hangs(state: &mut State, orphan: Orphan) {
    if !state.orphans.contains(&orphan) {
        state.orphans.push(orphan);
    }
}
