//! What the processes of the operator do: attempts that begin and go on, requests and calls with their faults, watches, the Lease.

use super::invariants::{ALONE, LEASED, NOT_ATTACHED, RELEASED};
use super::state::{ATTACHMENT, CLAIM, Doing, Engine, FORGOTTEN, GONE, Id, Key, Late, OWN, SLOTS, State, VOLUMES};
use super::universe::{Advance, Glance, words};
use super::view::{Answer, Asked, Event};
use super::{Fault, Flaw, Found, Provisioner};

/// A key of a process: of a claim, or of a PersistentVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Claim(usize),
    Volume(usize),
}

/// Which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The one that holds the Lease.
    Leader,
    /// The one that held it before.
    Former,
}

/// All keys.
pub const KEYS: [At; 5] = [At::Claim(0), At::Claim(1), At::Volume(0), At::Volume(1), At::Volume(2)];

impl At {
    pub fn of(self, engine: &Engine) -> Key {
        match self {
            Self::Claim(number) => engine.claims[number],
            Self::Volume(number) => engine.volumes[number],
        }
    }

    pub fn set(self, engine: &mut Engine, key: Key) {
        match self {
            Self::Claim(number) => engine.claims[number] = key,
            Self::Volume(number) => engine.volumes[number] = key,
        }
    }

    pub const fn slot(self) -> usize {
        match self {
            Self::Claim(_) => CLAIM,
            Self::Volume(number) => VOLUMES[number],
        }
    }

    fn words(self) -> String {
        match self {
            Self::Claim(number) => format!("claim u{}", number + 1),
            Self::Volume(_) => words(self.slot()),
        }
    }
}

/// The work of a process.
pub fn engine_of(state: &State, who: Who) -> Option<&Engine> {
    match who {
        Who::Leader => state.engine.as_ref(),
        Who::Former => state.ghost.as_ref(),
    }
}

/// The work of a process, to be changed.
pub fn engine_in(state: &mut State, who: Who) -> &mut Engine {
    match who {
        Who::Leader => state.engine.as_mut(),
        Who::Former => state.ghost.as_mut(),
    }
    .expect("the process is there")
}

impl Provisioner {
    /// All steps of one process.
    pub(super) fn process(&mut self, state: &State, who: Who, found: &mut Found) {
        let Some(engine) = engine_of(state, who) else { return };
        for at in KEYS {
            match at.of(engine) {
                Key::Idle { memory, of } if who == Who::Leader => self.begin(state, engine, at, memory, of, found),
                Key::Idle { .. } => {}
                Key::Running { doing, .. } if who == Who::Leader => self.perform(state, who, at, doing, found),
                Key::Running { doing, .. } => {
                    for cursor in cursors_from(state, engine.cursor) {
                        let mut seen = state.clone();
                        engine_in(&mut seen, who).cursor = cursor;
                        self.perform(&seen, who, at, doing, found);
                    }
                }
            }
        }
        if who == Who::Former {
            // It begins nothing. So how far its watches have come is chosen when it takes in an answer, and no step before.
            return;
        }
        for slot in 0..SLOTS {
            let is_behind = usize::from(engine.cursor[slot]) + 1 < state.history[slot].0.len();
            let is_unlisted = engine.unlisted & (1 << slot) != 0;
            if !is_behind && !is_unlisted {
                continue;
            }
            let mut next = state.clone();
            let number = engine.number;
            let engine = engine_in(&mut next, who);
            if is_unlisted {
                engine.unlisted &= !(1 << slot);
                engine.cursor[slot] = (state.history[slot].0.len() - 1) as u8;
            } else {
                engine.cursor[slot] += 1;
            }
            self.push(found, next, Calm::Quiet, None, || {
                format!("process {number} sees {}", words(slot))
            });
        }
    }

    fn begin(&mut self, state: &State, engine: &Engine, at: At, memory: u32, of: u8, found: &mut Found) {
        let shown = state.shown(engine, at.slot());
        let uid = self.universe.facts(shown).map_or(0, |facts| facts.uid);
        let of = match at {
            At::Claim(number) => number as u8 + 1,
            At::Volume(_) if memory == 0 => uid,
            At::Volume(_) => of,
        };
        let needs_work = || match at {
            At::Claim(_) => self.universe.needs_claim_work(shown),
            At::Volume(_) => self.universe.needs_volume_work(shown),
        };
        let is_listed = engine.unlisted & (1 << at.slot()) == 0;
        if memory == 0 && !(is_listed && uid == of && needs_work()) {
            return;
        }
        let advance = self.ask(state, Who::Leader, at, (memory, of), Event::Begin);
        let mut next = state.clone();
        let violation = self.advanced(&mut next, Who::Leader, at, of, None, advance);
        if next == *state && violation.is_none() {
            return;
        }
        let number = engine.number;
        let then = self.then(&next, Who::Leader, at);
        self.push(found, next, Calm::Quiet, violation, || {
            format!("process {number} begins an attempt for {}{then}", at.words())
        });
    }

    fn ask(&mut self, state: &State, who: Who, at: At, (from, of): (u32, u8), event: Event) -> Advance {
        let engine = engine_of(state, who).expect("the process is there");
        let shown = state.view(engine);
        let holds = |key: Key| match key {
            Key::Idle { memory, .. } => self.universe.memory_holds(memory),
            Key::Running { attempt, .. } => self.universe.attempt_holds(attempt),
        };
        let held = if matches!(at, At::Volume(_)) && self.setting.flaw != Flaw::TwoKeys {
            u8::from(holds(engine.claims[0])) | u8::from(holds(engine.claims[1])) << 1
        } else {
            0
        };
        let glance = Glance {
            from,
            event,
            of,
            slot: at.slot() as u8,
            number: engine.number,
            shown,
            unlisted: engine.unlisted,
            second: self.second(state),
            may_start: who == Who::Leader || self.setting.flaw == Flaw::Unfenced,
            held,
            believed: engine.believed,
        };
        match at {
            At::Claim(_) => self.universe.ask_claim(glance),
            At::Volume(_) => self.universe.ask_volume(glance),
        }
    }

    /// Puts what an attempt says into a state; what must not have been decided.
    fn advanced(
        &mut self,
        state: &mut State,
        who: Who,
        at: At,
        of: u8,
        live: Option<Id>,
        advance: Advance,
    ) -> Option<&'static str> {
        // Who lost the Lease begins nothing more: what it remembers does not matter.
        let is_over = advance.memory == 0 || who == Who::Former;
        let key = match advance.next {
            None if is_over => FORGOTTEN,
            None => Key::Idle {
                memory: advance.memory,
                of: if matches!(at, At::Volume(_)) { of } else { 0 },
            },
            Some((attempt, doing)) => Key::Running {
                attempt,
                doing,
                live,
                of,
            },
        };
        at.set(engine_in(state, who), key);
        if advance.told != 0 {
            state.told |= 1 << advance.told;
        }
        let engine = engine_of(state, who)?;
        let decided = match (at, advance.next) {
            (At::Volume(_), Some((_, Doing::Delete(_)))) => self.may_delete(state, engine, at, live),
            (At::Claim(0), Some((_, Doing::Delete(_)))) => is_perhaps_attached(state, engine).then_some(NOT_ATTACHED),
            _ => None,
        };
        let calls = |key: Key| {
            matches!(
                key,
                Key::Running {
                    doing: Doing::Create { .. } | Doing::Delete(_),
                    ..
                }
            )
        };
        let both = (0..2).any(|number| calls(engine.claims[number]) && calls(engine.volumes[number]));
        let is_late = who == Who::Former && advance.next.is_some_and(|(_, doing)| !is_read(doing));
        let leads = is_late.then_some(LEASED);
        advance.violation.or(leads).or(decided).or(both.then_some(ALONE))
    }

    /// What was looked at before DeleteVolume was decided.
    fn may_delete(&self, state: &State, engine: &Engine, at: At, live: Option<Id>) -> Option<&'static str> {
        let slot = at.slot();
        let shown = state.shown(engine, slot);
        let is_read = live == Some(shown) && shown != GONE;
        let facts = self.universe.facts(shown).unwrap_or_default();
        if !is_read || !facts.released || !facts.reclaims {
            return Some(RELEASED);
        }
        (slot == OWN && is_perhaps_attached(state, engine)).then_some(NOT_ATTACHED)
    }

    /// What an attempt waits for then, in words.
    fn then(&self, state: &State, who: Who, at: At) -> String {
        if !self.is_told() {
            return String::new();
        }
        let Some(engine) = engine_of(state, who) else {
            return String::new();
        };
        match at.of(engine) {
            Key::Idle { memory: 0, .. } => "; done".to_owned(),
            Key::Idle { .. } => "; it ends, and is remembered".to_owned(),
            Key::Running { attempt, doing, .. } => {
                let known = match at {
                    At::Claim(_) => format!(" ({})", self.universe.creation(attempt)),
                    At::Volume(_) => String::new(),
                };
                format!("; then{known}: {}", self.shown_doing(doing))
            }
        }
    }

    pub(super) fn shown_doing(&self, doing: Doing) -> String {
        match doing {
            Doing::Patch { slot, write, .. } => {
                format!("PATCH of {} {}", words(slot.into()), self.universe.shown_write(write))
            }
            Doing::ReadClaim | Doing::ReadOwner => "GET of the claim".to_owned(),
            Doing::ReadVolume(slot) => format!("GET of {}", words(slot.into())),
            Doing::Create { of, zone: 0 } => format!("CreateVolume for u{of}"),
            Doing::Create { of, zone } => format!("CreateVolume for u{of} in zone z{zone}"),
            Doing::Delete(handle) => format!("DeleteVolume of h{handle}"),
            Doing::Save { slot, .. } => format!("POST of {}", words(slot.into())),
            Doing::Remove { slot, uid } => format!("DELETE of {} with UID u{uid}", words(slot.into())),
        }
    }

    /// What an attempt waits for is carried out, or not.
    fn perform(&mut self, state: &State, who: Who, at: At, doing: Doing, found: &mut Found) {
        match doing {
            Doing::Patch { .. } | Doing::Save { .. } | Doing::Remove { .. } => {
                self.write(state, who, at, doing, found);
            }
            Doing::ReadClaim | Doing::ReadVolume(_) | Doing::ReadOwner => self.read(state, who, at, doing, found),
            Doing::Create { .. } | Doing::Delete(_) => self.call(state, who, at, doing, found),
        }
    }

    /// Hands an answer to an attempt.
    #[allow(clippy::too_many_arguments, reason = "it is one step with all that it has")]
    pub(super) fn answer(
        &mut self,
        mut next: State,
        (who, at): (Who, At),
        answer: Answer,
        calm: Calm,
        broken: Option<&'static str>,
        what: &str,
        found: &mut Found,
    ) {
        let engine = engine_of(&next, who).expect("the process is there");
        let Key::Running {
            attempt,
            doing,
            live,
            of,
        } = at.of(engine)
        else {
            return;
        };
        let number = engine.number;
        let event = Event::Told(Asked::of(doing), answer);
        let advance = self.ask(&next, who, at, (attempt, of), event);
        let violation = self.advanced(&mut next, who, at, of, live, advance);
        let words = if self.is_told() {
            format!(
                "process {number}: {}: {what}{}",
                self.shown_doing(doing),
                self.then(&next, who, at)
            )
        } else {
            String::new()
        };
        self.push(found, next, calm, broken.or(violation), || words);
    }

    fn read(&mut self, state: &State, who: Who, at: At, doing: Doing, found: &mut Found) {
        let mut next = state.clone();
        let slot = match doing {
            Doing::ReadVolume(slot) => usize::from(slot),
            _ => CLAIM,
        };
        let now = state.now(slot);
        if doing != Doing::ReadOwner {
            next_cursor(&mut next, who, slot);
            let engine = engine_in(&mut next, who);
            // A PersistentVolume may be asked for another one, too.
            let is_own = matches!(at, At::Claim(_)) || at.slot() == slot;
            if let (Key::Running { attempt, doing, of, .. }, Doing::ReadVolume(_)) = (at.of(engine), doing)
                && is_own
            {
                let live = Some(now);
                at.set(
                    engine,
                    Key::Running {
                        attempt,
                        doing,
                        live,
                        of,
                    },
                );
            }
        }
        let answer = if now == GONE {
            Answer::NotFound
        } else {
            Answer::Saw(now)
        };
        self.answer(next, (who, at), answer, Calm::Quiet, None, "answered", found);
        if let Some(next) = self.with_fault(state, Fault::Lie) {
            let what = "FAULT: a 404 that does not name the object";
            self.answer(next, (who, at), Answer::Unknown, Calm::No, None, what, found);
        }
    }
}

/// All copies that a process may have by now which has had these.
pub fn cursors_from(state: &State, from: [u8; SLOTS]) -> Vec<[u8; SLOTS]> {
    let mut cursors = vec![from];
    for slot in 0..SLOTS {
        let versions = state.history[slot].0.len() as u8;
        let with = |cursor: [u8; SLOTS]| {
            (from[slot]..versions).map(move |at| {
                let mut cursor = cursor;
                cursor[slot] = at;
                cursor
            })
        };
        cursors = cursors.into_iter().flat_map(with).collect();
    }
    cursors
}

/// Whether an engine sees the VolumeAttachment, or does not know whether there is one.
fn is_perhaps_attached(state: &State, engine: &Engine) -> bool {
    state.shown(engine, ATTACHMENT) != GONE || engine.unlisted & (1 << ATTACHMENT) != 0
}

/// What a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calm {
    /// A fault, or a wish of somebody.
    No,
    /// It changes nothing outside of the operator.
    Quiet,
    /// It calls or writes.
    Acts,
}

/// Whether it changes nothing.
pub const fn is_read(doing: Doing) -> bool {
    matches!(doing, Doing::ReadClaim | Doing::ReadVolume(_) | Doing::ReadOwner)
}

/// What of it may arrive later.
pub fn late_of(doing: Doing) -> Late {
    match doing {
        Doing::Patch { slot, write, by_policy } => Late::Patch { slot, write, by_policy },
        Doing::Save { slot, body } => Late::Save { slot, body },
        Doing::Remove { slot, uid } => Late::Remove { slot, uid },
        Doing::Create { of, zone } => Late::Create { of, zone },
        Doing::Delete(handle) => Late::Delete(handle),
        Doing::ReadClaim | Doing::ReadVolume(_) | Doing::ReadOwner => unreachable!("a read changes nothing"),
    }
}

/// An object has a new version, or is gone.
pub fn happen(state: &mut State, slot: usize, after: Id) {
    if state.now(slot) != after {
        state.history[slot].0.push(after);
    }
}

/// What a request brought is in the cache.
pub fn next_cursor(state: &mut State, who: Who, slot: usize) {
    let last = state.history[slot].0.len() - 1;
    let engine = engine_in(state, who);
    engine.cursor[slot] = last as u8;
    engine.unlisted &= !(1 << slot);
}
