//! Worlds of volumes: PersistentVolumes, VolumeAttachments, CSINodes, processes that attach and detach, the driver, and people.
//!
//! A process lags behind by any number of events; each request, call and attempt can go on at any later moment. Who holds the Lease is
//! a fact here: that at most one process may begin calls at a time is checked by the worlds of the Lease ([`crate::lease`]).

mod attempt;
mod check;
mod event;
mod invariants;
mod machine;
mod mutants;
mod objects;
mod rules;
mod state;
mod steps;
mod universe;
mod world;
pub mod worlds;

pub use mutants::all as mutants;
pub use rules::Rules;
pub use state::State;
pub use world::{Fault, Setting, User};

use std::collections::HashSet;

use attempt::{At, bit};
use event::Event;
use objects::Kind;
use state::{NOBODY, NONE, PLACES, Replica, SLOTS};
use universe::{CacheEvent, Universe, uid_of};

use crate::explorer::{Next, Told, World};

/// A world, and the step that is being made.
pub struct Core {
    setting: Setting,
    universe: Universe,
    violation: Option<&'static str>,
    acted: bool,
    words: Option<Vec<String>>,
    /// What the operator sends or calls in the step.
    notes: Vec<String>,
}

impl Core {
    /// A world.
    pub fn new(setting: Setting) -> Self {
        let universe = Universe::new(&setting);
        Self {
            setting,
            universe,
            violation: None,
            acted: false,
            words: None,
            notes: Vec::new(),
        }
    }

    fn violated(&mut self, property: &'static str) {
        self.violation.get_or_insert(property);
    }

    /// Notes why something is done, when somebody will read it.
    fn note(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.words.is_some() {
            let what = what(self);
            self.notes.push(what);
        }
    }

    /// The cache of a process takes something in; who has to look again is noted in its queue.
    fn cache(&mut self, state: &mut State, replica: usize, event: CacheEvent) {
        let before = state.replicas[replica].cache;
        let (cache, looks) = self.universe.change(before, event);
        state.replicas[replica].cache = cache;
        for slot in looks.iter().copied() {
            if self.universe.kind(slot) != Kind::Node {
                self.end_wait_of_former(state, replica, slot, before);
                self.look_again(state, replica, slot);
            }
        }
    }

    /// An attachment that is another one by now has not waited yet, whatever the former one of its name did.
    fn end_wait_of_former(&mut self, state: &mut State, replica: usize, slot: u8, before: u32) {
        let process = &mut state.replicas[replica];
        if process.waited & bit(slot) != 0 {
            let mut uid = |cache| {
                let shown = self.universe.shown(cache, slot)?;
                Some(self.universe.snapshot(shown).attachment.uid.clone())
            };
            if uid(before) != uid(process.cache) {
                process.waited &= !bit(slot);
            }
        }
    }

    fn look_again(&mut self, state: &mut State, replica: usize, slot: u8) {
        let needed = self
            .universe
            .needs_work(state.replicas[replica].cache, slot, state.capable);
        let replica = &mut state.replicas[replica];
        let runs = replica.attempt(slot).is_some();
        match needed {
            Some(true) if runs => {
                replica.dirty |= bit(slot);
                replica.forgotten &= !bit(slot);
            }
            Some(true) => replica.ready |= bit(slot),
            // An attachment that is gone, or settled, leaves the queue.
            Some(false) | None if self.universe.kind(slot) == Kind::Attachment => {
                replica.ready &= !bit(slot);
                replica.dirty &= !bit(slot);
                replica.waited &= !bit(slot);
                if runs {
                    replica.forgotten |= bit(slot);
                }
            }
            Some(false) | None => {}
        }
    }

    fn step(
        &mut self,
        state: &State,
        found: &mut Vec<Next<State>>,
        calm: bool,
        event: Event,
        act: impl FnOnce(&mut Self, &mut State),
    ) {
        let mut next = state.clone();
        (self.violation, self.acted) = (None, false);
        self.notes.clear();
        act(self, &mut next);
        self.check_state(&next);
        self.leave_idle(&mut next);
        let next = next.canonical(!self.universe.rules().stale);
        if self.violation.is_none() && next == *state {
            return;
        }
        if let Some(mut words) = self.words.take() {
            self.notes.insert(0, self.in_words(event));
            words.push(self.notes.join("; "));
            self.words = Some(words);
        }
        found.push(Next {
            state: next,
            calm,
            acts: self.acted,
            violation: self.violation,
        });
    }

    /// What a process without the Lease keeps in mind that matters to nobody is the same for all.
    fn leave_idle(&mut self, state: &mut State) {
        if self.universe.rules().unfenced || self.universe.rules().stale {
            return;
        }
        let empty = self.universe.empty_cache();
        for (number, replica) in state.replicas.iter_mut().enumerate() {
            if number == usize::from(state.leader) {
                continue;
            }
            (replica.ready, replica.dirty, replica.forgotten, replica.waited) = (0, 0, 0, 0);
            if replica.attempts.is_empty() {
                replica.cache = empty;
            }
        }
    }
}

impl World for Core {
    type State = State;

    fn first(&mut self) -> State {
        let mut state = State {
            objects: [NONE; SLOTS],
            uids: [0; SLOTS],
            versions: [0; SLOTS],
            logs: Default::default(),
            replicas: vec![
                Replica {
                    cache: self.universe.empty_cache(),
                    ..Replica::default()
                };
                self.setting.replicas
            ],
            leader: NOBODY,
            late: Vec::new(),
            orphans: Vec::new(),
            published: 0,
            contexts: [0; PLACES],
            faults: self.setting.faults,
            users: [0; 8],
            capable: true,
            secret: true,
        };
        for (left, (_, count)) in state.users.iter_mut().zip(&self.setting.users) {
            *left = *count;
        }
        let (volumes, nodes) = (self.setting.slots_of(Kind::Volume), self.setting.slots_of(Kind::Node));
        for slot in volumes.chain(nodes) {
            self.create(&mut state, slot);
        }
        if self.universe.rules().stale {
            let listed = CacheEvent::Listed(state.objects);
            for replica in 0..state.replicas.len() {
                self.cache(&mut state, replica, listed);
                state.replicas[replica].ready = 0;
                state.replicas[replica].seen =
                    std::array::from_fn(|kind| u8::try_from(state.logs[kind].len()).unwrap_or(0));
            }
        }
        let mut state = state.canonical(!self.universe.rules().stale);
        for user in self.setting.before.clone() {
            self.act(&mut state, user);
            state = self.come_to_rest(state);
        }
        state
    }

    fn next(&mut self, state: &State, found: &mut Vec<Next<State>>) {
        for replica in 0..state.replicas.len() {
            self.steps_of_process(state, replica, found);
            for (slot, attempt) in state.replicas[replica].attempts.clone() {
                self.steps_of_attempt(state, At { replica, slot }, &attempt, found);
            }
        }
        self.steps_of_what_is_on_its_way(state, found);
        self.steps_of_people(state, found);
        self.faults_of_processes(state, found);
    }

    fn unrest(&mut self, state: &State) -> Option<(&'static str, String)> {
        self.unsettled(state)
    }
}

impl Told for Core {
    fn words(&mut self) -> &mut Option<Vec<String>> {
        &mut self.words
    }
}

impl Core {
    /// Where a state ends when nothing happens but what is nobody's wish and nobody's fault.
    fn come_to_rest(&mut self, state: State) -> State {
        let (mut open, mut known, mut found) = (vec![state.clone()], HashSet::new(), Vec::new());
        while let Some(state) = open.pop() {
            if !known.insert(state.clone()) {
                continue;
            }
            found.clear();
            self.next(&state, &mut found);
            let mut calm: Vec<State> = found
                .drain(..)
                .filter(|next| next.calm)
                .map(|next| next.state)
                .collect();
            calm.retain(|next| !known.contains(next));
            if calm.is_empty() && self.unsettled(&state).is_none() {
                return state;
            }
            open.append(&mut calm);
        }
        state
    }

    /// Stores an object that is not there.
    fn create(&mut self, state: &mut State, slot: u8) {
        let at = usize::from(slot);
        state.uids[at] += 1;
        let (kind, name) = (self.universe.kind(slot), self.universe.name(slot));
        let version = next_version(state, slot);
        let value = objects::stored(self.setting.object(slot), &uid_of(&name, state.uids[at]), version);
        let object = self.universe.store(kind, value);
        self.put(state, slot, object, false);
    }

    /// An object has another version, or is gone.
    fn put(&mut self, state: &mut State, slot: u8, object: u32, gone: bool) {
        self.check_change(state, slot, object, gone);
        state.objects[usize::from(slot)] = if gone { NONE } else { object };
        let told = state::Told {
            slot,
            object,
            ends: gone,
        };
        state.logs[self.universe.kind(slot) as usize].push(told);
        self.acted = true;
    }

    /// Somebody changes an object.
    fn edit(&mut self, state: &mut State, slot: u8, edit: impl FnOnce(&serde_json::Value) -> serde_json::Value) {
        let object = state.objects[usize::from(slot)];
        let kind = self.universe.kind(slot);
        let value = edit(&self.universe.object(object).value);
        let gone = crate::api_server::is_gone(&value);
        let version = next_version(state, slot);
        let uid = self.universe.object(object).uid().to_owned();
        let object = self.universe.store(kind, objects::stored(value, &uid, version));
        self.put(state, slot, object, gone);
    }
}

fn next_version(state: &mut State, slot: u8) -> u16 {
    let version = &mut state.versions[usize::from(slot)];
    *version += 1;
    *version
}
