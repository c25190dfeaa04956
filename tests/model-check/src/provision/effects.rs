//! Requests and calls of the provisioner, with their faults: what is carried out, at once, later or never, and what must hold then.

use csi_attacher_model::decide::grpc_code;

use super::invariants::{
    FINALIZER, FOREIGN, LEASED, MARKED, MARKER_LEAVES, NOT_CLAIMED, NOT_SHARED, PLACED, SAME, SAME_PLACE, UNDONE,
};
use super::names::Named;
use super::objects::{DRIVER, Edit, created, foreign_parts};
use super::state::{CLAIM, Doing, GONE, Held, Id, Key, Late, State, VOLUMES};
use super::steps::{At, Calm, Who, engine_in, engine_of, happen, late_of, next_cursor};
use super::universe::identity;
use super::view::{Answer, OUT_OF_RANGE};
use super::{Fault, Flaw, Found, Provisioner, Topology};

/// `FAILED_PRECONDITION` of gRPC.
const FAILED_PRECONDITION: i32 = 9;

/// Whether a CreateVolume for a claim was sent that may still be carried out.
pub fn is_on_its_way(state: &State, claim: u8) -> bool {
    let is_of_claim = |late: &Late| matches!(late, Late::Create { of, .. } if *of == claim);
    state.late.iter().any(is_of_claim)
}

impl Provisioner {
    pub(super) fn write(&mut self, state: &State, who: Who, at: At, doing: Doing, found: &mut Found) {
        let mut next = state.clone();
        let late = late_of(doing);
        let (answer, violation) = self.carry_out(&mut next, late);
        let slot = match doing {
            Doing::Patch { slot, .. } | Doing::Save { slot, .. } | Doing::Remove { slot, .. } => usize::from(slot),
            _ => CLAIM,
        };
        let done = next.clone();
        if matches!(answer, Answer::Done | Answer::NotFound) {
            next_cursor(&mut next, who, slot);
        }
        let mut answer = answer;
        if let (Answer::Exists, Doing::Save { body, .. }, Flaw::AnyConflictIsSuccess) =
            (answer, doing, self.setting.flaw)
        {
            let value = created(self.universe.body(body), 99);
            engine_in(&mut next, who).believed = self.universe.object(slot, value);
            answer = Answer::Done;
        }
        self.answer(
            next,
            (who, at),
            answer,
            Calm::Acts,
            violation,
            &format!("{answer:?}"),
            found,
        );
        if let Some(mut unanswered) = self.with_fault(state, Fault::Unanswered) {
            let faults = unanswered.faults;
            let what = "FAULT: no answer, and it is never carried out";
            self.answer(
                unanswered.clone(),
                (who, at),
                Answer::Unknown,
                Calm::No,
                None,
                what,
                found,
            );
            if done != *state {
                let done = State { faults, ..done };
                let what = "FAULT: carried out, and no answer";
                self.answer(done, (who, at), Answer::Unknown, Calm::No, violation, what, found);
            }
            unanswered.late.push(late);
            let what = "FAULT: no answer, and it may be carried out later";
            self.answer(unanswered, (who, at), Answer::Unknown, Calm::No, None, what, found);
        }
    }

    /// Carries out what was sent; what it is answered with, and what must not have happened.
    pub(super) fn carry_out(&mut self, state: &mut State, late: Late) -> (Answer, Option<&'static str>) {
        match late {
            Late::Patch { slot, write, by_policy } => self.carry_out_patch(state, slot.into(), write, by_policy),
            Late::Attach { slot, write } => {
                let slot = usize::from(slot);
                let now = state.now(slot);
                if now == GONE {
                    return (Answer::NotFound, None);
                }
                let Some(after) = self.universe.patched(now, write) else {
                    return (Answer::Stale, None);
                };
                happen(state, slot, after);
                (Answer::Done, None)
            }
            Late::Save { slot, body } => {
                let slot = usize::from(slot);
                if state.now(slot) != GONE {
                    return (Answer::Exists, None);
                }
                let uid = self.fresh(state, Named::Uid);
                let value = created(self.universe.body(body), uid);
                let id = self.universe.object(slot, value);
                happen(state, slot, id);
                (Answer::Done, None)
            }
            Late::Remove { slot, uid } => {
                let slot = usize::from(slot);
                let now = state.now(slot);
                let Some(facts) = self.universe.facts(now) else {
                    return (Answer::NotFound, None);
                };
                let mut violation = None;
                if facts.uid != uid {
                    if self.setting.flaw != Flaw::DeletesByName {
                        return (Answer::Stale, None);
                    }
                    violation = Some(SAME);
                }
                let after = self.universe.edit(now, Edit::Delete);
                happen(state, slot, after);
                (Answer::Done, violation)
            }
            Late::Create { of, zone } => {
                let known = state.driver.iter().find(|held| held.of == of).copied();
                let made = known.unwrap_or_else(|| {
                    let handle = self.fresh(state, Named::Handle);
                    let made = Held { of, handle, zone };
                    state.driver.push(made);
                    state.driver.sort_unstable();
                    made
                });
                let Held { handle, zone, .. } = made;
                (Answer::Made { handle, zone }, None)
            }
            Late::Delete(handle) => {
                state.driver.retain(|held| held.handle != handle);
                (Answer::Done, None)
            }
        }
    }

    fn carry_out_patch(
        &mut self,
        state: &mut State,
        slot: usize,
        write: u32,
        by_policy: bool,
    ) -> (Answer, Option<&'static str>) {
        let now = state.now(slot);
        let Some(before) = self.universe.facts(now) else {
            return (Answer::NotFound, None);
        };
        let Some(after) = self.universe.patched(now, write) else {
            return (Answer::Stale, None);
        };
        let facts = self.universe.facts(after);
        let unmarks = before.marked && facts.is_none_or(|facts| !facts.marked);
        let mut violation = None;
        if slot == CLAIM && unmarks && self.may_be_left(state, before.uid) {
            violation = Some(MARKER_LEAVES);
        }
        let is_left_to = |other: usize| {
            let other = self.universe.facts(state.now(other));
            other.is_some_and(|other| other.handle == before.handle && other.goes())
        };
        let is_left = || VOLUMES.into_iter().any(|other| other != slot && is_left_to(other));
        if slot != CLAIM && unmarks && !by_policy && state.has(before.handle) && !is_left() {
            violation = Some(FINALIZER);
        }
        if slot != CLAIM && unmarks && by_policy {
            // Who set the policy keeps the volume.
            state.told |= 1 << before.handle;
        }
        let is_taken_off = before.node != 0 && facts.is_some_and(|facts| facts.node == 0);
        if is_taken_off && self.may_be_left(state, before.uid) {
            violation = Some(PLACED);
        }
        if let Some(object) = self.universe.get(after) {
            let same = self.universe.get(now).map(|before| foreign_parts(&before.value));
            if same != Some(foreign_parts(&object.value)) {
                violation = Some(FOREIGN);
            }
        }
        happen(state, slot, after);
        (Answer::Done, violation)
    }

    /// Whether there is a volume of a claim that no PersistentVolume names, or there may be one. A call on its way creates none where there
    /// is one already: it comes to an end before that is deleted.
    fn may_be_left(&self, state: &State, claim: u8) -> bool {
        match state.handle_of(claim) {
            Some(handle) => !self.is_named(state, handle) && state.told & (1 << handle) == 0,
            None => is_on_its_way(state, claim),
        }
    }

    /// Whether a PersistentVolume has this handle.
    pub(super) fn is_named(&self, state: &State, handle: u8) -> bool {
        let mut volumes = VOLUMES
            .into_iter()
            .filter_map(|slot| self.universe.facts(state.now(slot)));
        volumes.any(|volume| volume.handle == handle)
    }

    pub(super) fn call(&mut self, state: &State, who: Who, at: At, doing: Doing, found: &mut Found) {
        let is_fenced = who == Who::Former;
        if is_fenced && self.setting.flaw != Flaw::Unfenced {
            let next = state.clone();
            return self.answer(
                next,
                (who, at),
                Answer::NotStarted,
                Calm::Quiet,
                None,
                "the Lease is lost",
                found,
            );
        }
        let mut violation = self.may_call(state, who, at, doing);
        if is_fenced {
            violation = Some(LEASED);
        }
        let late = late_of(doing);
        // The driver takes the calls for one volume one after the other: an earlier one comes to an end first.
        let mut begun = state.clone();
        let of = match doing {
            Doing::Create { of, .. } => Some(of),
            Doing::Delete(handle) => state
                .driver
                .iter()
                .find(|held| held.handle == handle)
                .map(|held| held.of),
            _ => None,
        };
        let handle = match doing {
            Doing::Delete(handle) => Some(handle),
            _ => of.and_then(|of| state.handle_of(of)),
        };
        let is_of_volume = |late: &Late| match late {
            Late::Create { of: known, .. } => Some(*known) == of,
            Late::Delete(known) => Some(*known) == handle,
            _ => false,
        };
        begun.late.retain(|late| !is_of_volume(late));
        let mut next = begun.clone();
        let (answer, _) = self.carry_out(&mut next, late);
        let done = next.clone();
        self.answer(
            next,
            (who, at),
            answer,
            Calm::Acts,
            violation,
            &format!("{answer:?}"),
            found,
        );
        let is_create = matches!(doing, Doing::Create { .. });
        if let Some(next) = self.with_fault(&begun, Fault::Refused)
            && (!is_create || handle.is_none())
        {
            let codes: &[i32] = match doing {
                Doing::Create { zone: 1.., .. } => &[OUT_OF_RANGE, grpc_code::RESOURCE_EXHAUSTED],
                Doing::Create { .. } => &[OUT_OF_RANGE],
                _ => &[FAILED_PRECONDITION],
            };
            for code in codes {
                let answer = Answer::Code(*code);
                let what = format!("FAULT: refused with code {code}");
                self.answer(next.clone(), (who, at), answer, Calm::No, violation, &what, found);
            }
        }
        if let Some(next) = self.with_fault(&begun, Fault::TimedOut) {
            let answer = Answer::Code(grpc_code::DEADLINE_EXCEEDED);
            let faults = next.faults;
            let what = "FAULT: DEADLINE_EXCEEDED, never carried out";
            self.answer(next.clone(), (who, at), answer, Calm::No, violation, what, found);
            let mut later = next;
            later.late.push(late);
            let what = "FAULT: DEADLINE_EXCEEDED, may be carried out later";
            self.answer(later, (who, at), answer, Calm::No, violation, what, found);
            let done = State { faults, ..done };
            let what = "FAULT: DEADLINE_EXCEEDED, carried out";
            self.answer(done, (who, at), answer, Calm::No, violation, what, found);
        }
    }

    /// What must hold when a call is made.
    fn may_call(&self, state: &State, who: Who, at: At, doing: Doing) -> Option<&'static str> {
        let engine = engine_of(state, who)?;
        match doing {
            Doing::Create { of: claim, zone } => {
                let is_elsewhere = |of: u8, there: u8| of == claim && there != zone;
                let made = state.driver.iter().any(|held| is_elsewhere(held.of, held.zone));
                let sent = |late: &Late| matches!(*late, Late::Create { of, zone } if is_elsewhere(of, zone));
                if self.setting.topology != Topology::None && (made || state.late.iter().any(sent)) {
                    return Some(SAME_PLACE);
                }
                let object = self.universe.get(state.now(CLAIM)).and_then(|object| object.claim());
                let object = object.filter(|object| *object.uid == *format!("u{claim}") && object.marker_at.is_some());
                let writer = format!("\"writer\":\"{}\"", identity(engine.number));
                let marker = object.and_then(|object| object.marker.as_deref());
                let ours = format!("\"driver\":\"{DRIVER}\"");
                let is_own = marker.is_some_and(|marker| marker.contains(&writer) && marker.contains(&ours));
                (!is_own).then_some(MARKED)
            }
            Doing::Delete(handle) => match at {
                At::Claim(_) => {
                    let live = match at.of(engine) {
                        Key::Running { live, .. } => live,
                        Key::Idle { .. } => None,
                    };
                    let names = |id: Id| self.universe.facts(id).is_some_and(|volume| volume.handle == handle);
                    let is_looked = live.is_some_and(|live| !names(live));
                    let is_named = VOLUMES.into_iter().any(|slot| names(state.now(slot)));
                    (is_named && !is_looked).then_some(UNDONE)
                }
                At::Volume(_) => {
                    let slot = at.slot();
                    let shared = VOLUMES.into_iter().filter(|other| *other != slot).any(|other| {
                        let volume = self.universe.facts(state.now(other));
                        volume.is_some_and(|volume| volume.handle == handle)
                    });
                    if shared {
                        return Some(NOT_SHARED);
                    }
                    let owner = self
                        .universe
                        .facts(state.shown(engine, slot))
                        .map_or(0, |volume| volume.claim);
                    let claim = self.universe.facts(state.now(CLAIM));
                    // The one that it names it is bound to, whatever its phase says yet.
                    let uses = claim.is_some_and(|claim| match claim.names {
                        Some(named) => usize::from(named) == slot,
                        None => claim.uid == owner,
                    });
                    uses.then_some(NOT_CLAIMED)
                }
            },
            _ => None,
        }
    }
}
