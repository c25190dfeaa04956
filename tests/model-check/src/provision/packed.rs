//! States in little room: their parts are numbers of what is kept once.

use std::hash::Hash;

use super::state::{Engine, Held, History, Late, SLOTS, State};
use crate::hash::{FastMap, fingerprint};

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

/// Values of one kind with their numbers.
struct Numbered<T> {
    all: Vec<T>,
    numbers: FastMap<u128, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            numbers: FastMap::default(),
        }
    }
}

impl<T: Hash> Numbered<T> {
    fn number(&mut self, value: T) -> u32 {
        let fresh = self.all.len() as u32;
        let number = *self.numbers.entry(fingerprint(&value)).or_insert(fresh);
        if number == fresh {
            self.all.push(value);
        }
        number
    }

    fn get(&self, number: u32) -> &T {
        &self.all[number as usize]
    }
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
            history: state.history.map(|history| self.histories.number(history)),
            engine: self.engines.number(state.engine),
            ghost: self.engines.number(state.ghost),
            late: self.late.number(state.late),
            driver: self.driver.number(state.driver),
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
