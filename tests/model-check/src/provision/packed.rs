//! States in little room: their parts are numbers of what is kept once.

use super::state::{Engine, Held, History, Late, SLOTS, State};
use crate::hash::Numbered;

/// A state. Equal ones have equal numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Packed {
    history: [u32; SLOTS],
    engine: u32,
    ghost: u32,
    late: u32,
    driver: u32,
    told: u32,
    wishes: u16,
    faults: u8,
}

/// The parts of all states.
#[derive(Default)]
pub struct Parts {
    histories: Numbered<History>,
    engines: Numbered<Option<Engine>>,
    late: Numbered<Vec<Late>>,
    driver: Numbered<Vec<Held>>,
}

impl Parts {
    /// A state in little room.
    pub fn pack(&mut self, state: State) -> Packed {
        Packed {
            history: state.history.map(|history| self.histories.of(history)),
            engine: self.engines.of(state.engine),
            ghost: self.engines.of(state.ghost),
            late: self.late.of(state.late),
            driver: self.driver.of(state.driver),
            told: state.told,
            wishes: state.wishes,
            faults: state.faults,
        }
    }

    /// The state itself.
    pub fn unpack(&self, packed: &Packed) -> State {
        State {
            history: packed.history.map(|history| self.histories.get(history).clone()),
            engine: self.engines.get(packed.engine).clone(),
            ghost: self.engines.get(packed.ghost).clone(),
            late: self.late.get(packed.late).clone(),
            driver: self.driver.get(packed.driver).clone(),
            told: packed.told,
            wishes: packed.wishes,
            faults: packed.faults,
        }
    }
}
