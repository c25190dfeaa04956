//! States in little room: their parts are numbers of what is kept once.

use std::hash::Hash;

use super::state::{Engine, Held, History, Late, SLOTS, State};
use crate::hash::{Numbered, fingerprint};

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
            history: state.history.map(|history| kept(&mut self.histories, history)),
            engine: kept(&mut self.engines, state.engine),
            ghost: kept(&mut self.engines, state.ghost),
            late: kept(&mut self.late, state.late),
            driver: kept(&mut self.driver, state.driver),
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

fn kept<T: Hash>(all: &mut Numbered<T>, value: T) -> u32 {
    all.number(fingerprint(&value), || value)
}
