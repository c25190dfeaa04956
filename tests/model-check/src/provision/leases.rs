//! Who holds the Lease, and what arrives late of those who held it.

use super::names::Named;
use super::state::{Engine, FORGOTTEN, GONE, Key, Late, SLOTS, State};
use super::steps::{At, Calm, KEYS, cursors_from, is_read, late_of};
use super::universe::words;
use super::{Fault, Found, Provisioner};

impl Provisioner {
    /// The state with one fault less, where that may happen.
    pub(super) fn with_fault(&self, state: &State, fault: Fault) -> Option<State> {
        (state.faults > 0 && self.setting.kinds.contains(&fault)).then(|| State {
            faults: state.faults - 1,
            ..state.clone()
        })
    }

    /// A process crashes, loses the Lease, or takes it.
    pub(super) fn leases(&mut self, state: &State, found: &mut Found) {
        let Some(engine) = &state.engine else {
            return self.take_over(state, found);
        };
        let number = engine.number;
        let sent: Vec<(At, Late)> = KEYS
            .into_iter()
            .filter_map(|at| match at.of(engine) {
                Key::Running { doing, .. } if !is_read(doing) => Some((at, late_of(doing))),
                _ => None,
            })
            .collect();
        let is_call = |what: &Late| matches!(what, Late::Create { .. } | Late::Delete(_));
        for chosen in 0..1_u8 << sent.len() {
            let is_late = |number: usize| chosen & (1 << number) != 0;
            let late = (0..sent.len()).filter(|number| is_late(*number));
            let late: Vec<Late> = late.map(|number| sent[number].1).collect();
            let told = || format!("may be carried out later: {late:?}");
            if let Some(mut next) = self.with_fault(state, Fault::Crash) {
                next.engine = None;
                next.late.extend(&late);
                let words = || format!("FAULT: process {number} crashes; {}", told());
                self.push(found, next, Calm::No, None, words);
            }
            if state.ghost.is_none()
                && let Some(mut next) = self.with_fault(state, Fault::LeaseLost)
            {
                let mut former = engine.clone();
                for (number, (at, what)) in sent.iter().enumerate() {
                    // A call that was begun is carried out later or never. A write that was sent is answered later, or never was sent.
                    if is_call(what) || !is_late(number) {
                        at.set(&mut former, FORGOTTEN);
                    }
                }
                for at in KEYS {
                    if matches!(at.of(&former), Key::Idle { .. }) {
                        at.set(&mut former, FORGOTTEN);
                    }
                }
                next.engine = None;
                next.ghost = KEYS.iter().any(|at| at.of(&former) != FORGOTTEN).then_some(former);
                next.late.extend(late.iter().filter(|&late| is_call(late)));
                let words = || format!("FAULT: process {number} stands still and loses the Lease; {}", told());
                self.push(found, next, Calm::No, None, words);
            }
        }
    }

    fn take_over(&mut self, state: &State, found: &mut Found) {
        let relisted = |slot: usize| self.setting.relisted & (1 << slot) != 0;
        let oldest = std::array::from_fn(|slot| {
            let newest = state.history[slot].0.len() - 1;
            if relisted(slot) { newest as u8 } else { 0 }
        });
        for cursor in cursors_from(state, oldest) {
            let mut next = state.clone();
            let number = self.fresh(state, Named::Process);
            next.engine = Some(Engine {
                number,
                cursor,
                unlisted: self.setting.unlisted,
                claims: [FORGOTTEN; 2],
                volumes: [FORGOTTEN; 3],
                believed: GONE,
            });
            let behind = |slot: usize| match state.history[slot].0.len() - 1 - usize::from(cursor[slot]) {
                0 => None,
                versions => Some(format!("{} by {versions}", words(slot))),
            };
            self.push(found, next, Calm::Quiet, None, || {
                let behind: Vec<String> = (0..SLOTS).filter_map(behind).collect();
                format!("process {number} takes the Lease; it is behind with {behind:?}")
            });
        }
    }

    /// What was sent before arrives.
    pub(super) fn late(&mut self, state: &State, found: &mut Found) {
        for (number, late) in state.late.iter().enumerate() {
            if state.late[..number].contains(late) {
                continue;
            }
            // That it never is was chosen when it was sent: the fault has that outcome as well.
            let mut done = state.clone();
            done.late.remove(number);
            let (answer, violation) = self.carry_out(&mut done, *late);
            let words = || format!("late: {late:?}: {answer:?}");
            self.push(found, done, Calm::Acts, violation, words);
        }
    }
}
