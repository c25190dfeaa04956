//! New names: identities of processes, handles of volumes, UIDs of PersistentVolumes.
//!
//! A new one is the first that nothing mentions: no version that somebody may still see, no attempt, nothing that is on its way. In the
//! world names do not come back. Here one does that nobody can know any more, so that two states are one that differ by names alone.

use super::Provisioner;
use super::state::{CLAIM, Doing, Engine, Key, Late, State};
use super::steps::{At, KEYS};

/// What is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    Process,
    Handle,
    Uid,
    /// Seconds since the beginning, at which a marker was written.
    Second,
}

/// The names that a value mentions: bits of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mentions([u32; 4]);

impl Mentions {
    fn add(&mut self, named: Named, number: u8) {
        self.0[named as usize] |= 1 << u32::from(number).min(31);
    }

    fn join(&mut self, other: Self) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own |= other;
        }
    }

    /// Those in what a value shows of itself.
    pub fn in_text(text: &str) -> Self {
        let mut found = Self::default();
        for (before, named) in [
            ("1970-01-01T00:00:", Named::Second),
            ("process-", Named::Process),
            ("\"h", Named::Handle),
            ("\"u", Named::Uid),
        ] {
            for part in text.split(before).skip(1) {
                let digits = part
                    .find(|character: char| !character.is_ascii_digit())
                    .unwrap_or(part.len());
                if let Ok(number) = part[..digits].parse() {
                    found.add(named, number);
                }
            }
        }
        found
    }
}

impl Provisioner {
    /// The first name that nothing mentions.
    pub(super) fn fresh(&self, state: &State, named: Named) -> u8 {
        let mut mentions = Mentions::default();
        for id in state.history.iter().flat_map(|history| &history.0) {
            mentions.join(self.universe.mentions_of_object(*id));
        }
        for engine in [&state.engine, &state.ghost].into_iter().flatten() {
            self.join_engine(&mut mentions, engine);
        }
        for late in &state.late {
            match *late {
                Late::Patch { write, .. } | Late::Attach { write, .. } => {
                    mentions.join(self.universe.mentions_of_write(write));
                }
                Late::Save { body, .. } => mentions.join(self.universe.mentions_of_body(body)),
                Late::Remove { uid, .. } => mentions.add(Named::Uid, uid),
                Late::Delete(handle) => mentions.add(Named::Handle, handle),
                Late::Create { .. } => {}
            }
        }
        for held in &state.driver {
            mentions.add(Named::Handle, held.handle);
        }
        let from = if named == Named::Uid { 10 } else { 1 };
        (from..31)
            .find(|number| mentions.0[named as usize] & (1 << number) == 0)
            .expect("a world mentions few names")
    }

    /// The time at which an attempt looks at a claim: the first that no patch of it mentions that may arrive late. So a marker that is
    /// written again differs from the one which such a patch is about, as it does in the world, where time passes. Else time stands still.
    pub(super) fn second(&self, state: &State) -> u8 {
        let mut mentions = Mentions::default();
        let is_of_claim = |slot: u8| usize::from(slot) == CLAIM;
        for late in &state.late {
            match *late {
                Late::Patch { slot, write, .. } if is_of_claim(slot) => {
                    mentions.join(self.universe.mentions_of_write(write));
                }
                _ => {}
            }
        }
        for at in state.ghost.iter().flat_map(|ghost| KEYS.map(|at| at.of(ghost))) {
            if let Key::Running {
                doing: Doing::Patch { slot, write, .. },
                ..
            } = at
                && is_of_claim(slot)
            {
                mentions.join(self.universe.mentions_of_write(write));
            }
        }
        (0..8)
            .find(|second| mentions.0[Named::Second as usize] & (1 << second) == 0)
            .unwrap_or(8)
    }

    fn join_engine(&self, mentions: &mut Mentions, engine: &Engine) {
        mentions.add(Named::Process, engine.number);
        mentions.join(self.universe.mentions_of_object(engine.believed));
        for at in KEYS {
            match at.of(engine) {
                Key::Idle { memory, of } => {
                    mentions.add(Named::Uid, of);
                    mentions.join(self.universe.mentions_of_memory(matches!(at, At::Claim(_)), memory));
                }
                Key::Running {
                    attempt,
                    doing,
                    live,
                    of,
                } => {
                    mentions.add(Named::Uid, of);
                    mentions.join(self.universe.mentions_of_attempt(matches!(at, At::Claim(_)), attempt));
                    mentions.join(self.universe.mentions_of_object(live.unwrap_or_default()));
                    self.join_doing(mentions, doing);
                }
            }
        }
    }

    fn join_doing(&self, mentions: &mut Mentions, doing: Doing) {
        match doing {
            Doing::Patch { write, .. } => mentions.join(self.universe.mentions_of_write(write)),
            Doing::Save { body, .. } => mentions.join(self.universe.mentions_of_body(body)),
            Doing::Remove { uid, .. } => mentions.add(Named::Uid, uid),
            Doing::Delete(handle) => mentions.add(Named::Handle, handle),
            Doing::Create { .. } | Doing::ReadClaim | Doing::ReadVolume(_) | Doing::ReadOwner => {}
        }
    }
}
