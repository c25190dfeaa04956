//! What the processes of the operator do: attempts that begin and go on, requests and calls with their faults, watches, the Lease.

use super::Fault;
use super::invariants::{
    ALONE, FINALIZER, FOREIGN, LEASED, MARKED, MARKER_LEAVES, NOT_ATTACHED, NOT_CLAIMED, NOT_SHARED, RELEASED, SAME,
    UNDONE,
};
use super::objects::{DRIVER, Edit, created, foreign_parts};
use super::state::{ATTACHMENT, CLAIM, Doing, Engine, FORGOTTEN, GONE, Id, Key, Late, OWN, SLOTS, State, VOLUMES};
use super::universe::{Advance, Glance, identity, words};
use super::view::{Answer, Asked, Event, OUT_OF_RANGE};
use super::{Flaw, Found, Provisioner};

use csi_attacher_model::decide::grpc_code;

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

/// `FAILED_PRECONDITION` of gRPC.
const FAILED_PRECONDITION: i32 = 9;

/// All keys.
pub const KEYS: [At; 5] = [At::Claim(0), At::Claim(1), At::Volume(0), At::Volume(1), At::Volume(2)];

impl At {
    fn of(self, engine: &Engine) -> Key {
        match self {
            Self::Claim(number) => engine.claims[number],
            Self::Volume(number) => engine.volumes[number],
        }
    }

    fn set(self, engine: &mut Engine, key: Key) {
        match self {
            Self::Claim(number) => engine.claims[number] = key,
            Self::Volume(number) => engine.volumes[number] = key,
        }
    }

    const fn slot(self) -> usize {
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

fn engine_of(state: &State, who: Who) -> Option<&Engine> {
    match who {
        Who::Leader => state.engine.as_ref(),
        Who::Former => state.ghost.as_ref(),
    }
}

fn engine_in(state: &mut State, who: Who) -> &mut Engine {
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
                Key::Running { doing, .. } => self.perform(state, who, at, doing, found),
            }
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
        if who == Who::Former {
            let mut next = state.clone();
            next.ghost = None;
            self.push(found, next, Calm::Quiet, None, || {
                "the former leader has ended its work".to_owned()
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
        let mut shown = state.view(engine);
        if matches!(at, At::Claim(_)) {
            shown[ATTACHMENT] = GONE;
        }
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
        let key = match advance.next {
            None if advance.memory == 0 => FORGOTTEN,
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
            _ => None,
        };
        let calls = |key: Key| {
            matches!(
                key,
                Key::Running {
                    doing: Doing::Create(_) | Doing::Delete(_),
                    ..
                }
            )
        };
        let both = (0..2).any(|number| calls(engine.claims[number]) && calls(engine.volumes[number]));
        advance.violation.or(decided).or(both.then_some(ALONE))
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
        let sees_attachment = state.shown(engine, ATTACHMENT) != GONE;
        let is_listed = engine.unlisted & (1 << ATTACHMENT) == 0;
        (slot == OWN && (sees_attachment || !is_listed)).then_some(NOT_ATTACHED)
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
            Doing::Create(claim) => format!("CreateVolume for u{claim}"),
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
            Doing::Create(_) | Doing::Delete(_) => self.call(state, who, at, doing, found),
        }
    }

    /// Hands an answer to an attempt.
    #[allow(clippy::too_many_arguments, reason = "it is one step with all that it has")]
    fn answer(
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
            if let (Key::Running { attempt, doing, of, .. }, Doing::ReadVolume(_)) = (at.of(engine), doing) {
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

    fn write(&mut self, state: &State, who: Who, at: At, doing: Doing, found: &mut Found) {
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
                state.uids += 1;
                let value = created(self.universe.body(body), state.uids);
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
            Late::Create(claim) => {
                if state.handle_of(claim).is_none() {
                    state.made += 1;
                    state.driver.push((claim, state.made));
                    state.driver.sort_unstable();
                }
                (Answer::Made(state.handle_of(claim).unwrap_or(0)), None)
            }
            Late::Delete(handle) => {
                state.driver.retain(|(_, known)| *known != handle);
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
        if slot != CLAIM && unmarks && !by_policy && state.has(before.handle) {
            violation = Some(FINALIZER);
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
            None => state.late.contains(&Late::Create(claim)),
        }
    }

    /// Whether a PersistentVolume has this handle.
    pub(super) fn is_named(&self, state: &State, handle: u8) -> bool {
        let mut volumes = VOLUMES
            .into_iter()
            .filter_map(|slot| self.universe.facts(state.now(slot)));
        volumes.any(|volume| volume.handle == handle)
    }

    fn call(&mut self, state: &State, who: Who, at: At, doing: Doing, found: &mut Found) {
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
            Doing::Create(claim) => Some(claim),
            Doing::Delete(handle) => state
                .driver
                .iter()
                .find(|(_, known)| *known == handle)
                .map(|(of, _)| *of),
            _ => None,
        };
        let handle = match doing {
            Doing::Delete(handle) => Some(handle),
            _ => of.and_then(|of| state.handle_of(of)),
        };
        let is_of_volume = |late: &Late| match late {
            Late::Create(claim) => Some(*claim) == of,
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
        let is_create = matches!(doing, Doing::Create(_));
        if let Some(next) = self.with_fault(&begun, Fault::Refused)
            && (!is_create || handle.is_none())
        {
            let code = if is_create { OUT_OF_RANGE } else { FAILED_PRECONDITION };
            self.answer(
                next,
                (who, at),
                Answer::Code(code),
                Calm::No,
                violation,
                "FAULT: refused",
                found,
            );
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
            Doing::Create(claim) => {
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
                    claim.is_some_and(|claim| claim.uid == owner).then_some(NOT_CLAIMED)
                }
            },
            _ => None,
        }
    }

    /// The state with one fault less, where that may happen.
    fn with_fault(&self, state: &State, fault: Fault) -> Option<State> {
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
        for chosen in 0..1_u8 << sent.len() {
            let is_late = |number: usize| chosen & (1 << number) != 0;
            let late = || {
                sent.iter()
                    .enumerate()
                    .filter(|(at, _)| is_late(*at))
                    .map(|(_, (_, late))| *late)
            };
            if let Some(mut next) = self.with_fault(state, Fault::Crash) {
                next.engine = None;
                next.late.extend(late());
                let words = || {
                    format!(
                        "FAULT: process {number} crashes; may be carried out later: {:?}",
                        late().collect::<Vec<_>>()
                    )
                };
                self.push(found, next, Calm::No, None, words);
            }
            if state.ghost.is_none()
                && let Some(mut next) = self.with_fault(state, Fault::LeaseLost)
            {
                let mut former = engine.clone();
                for (number, (at, what)) in sent.iter().enumerate() {
                    let is_call = matches!(what, Late::Create(_) | Late::Delete(_));
                    if is_call || is_late(number) {
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
                next.late.extend(late());
                let words = || {
                    format!(
                        "FAULT: process {number} stands still and loses the Lease; may be carried out later: {:?}",
                        late().collect::<Vec<_>>()
                    )
                };
                self.push(found, next, Calm::No, None, words);
            }
        }
    }

    fn take_over(&mut self, state: &State, found: &mut Found) {
        let mut cursors = vec![[0_u8; SLOTS]];
        for slot in 0..SLOTS {
            let versions = state.history[slot].0.len() as u8;
            cursors = cursors
                .into_iter()
                .flat_map(|cursor| {
                    (0..versions).map(move |at| {
                        let mut cursor = cursor;
                        cursor[slot] = at;
                        cursor
                    })
                })
                .collect();
        }
        for cursor in cursors {
            let mut next = state.clone();
            next.engines += 1;
            let number = next.engines;
            next.engine = Some(Engine {
                number,
                cursor,
                unlisted: self.setting.unlisted,
                claims: [FORGOTTEN; 2],
                volumes: [FORGOTTEN; 3],
                believed: GONE,
            });
            let behind: Vec<String> = (0..SLOTS)
                .filter(|slot| usize::from(cursor[*slot]) + 1 < state.history[*slot].0.len())
                .map(|slot| {
                    format!(
                        "{} by {}",
                        words(slot),
                        state.history[slot].0.len() - 1 - usize::from(cursor[slot])
                    )
                })
                .collect();
            self.push(found, next, Calm::Quiet, None, || {
                format!("process {number} takes the Lease; it is behind with {behind:?}")
            });
        }
    }

    /// What was sent before arrives, or never does.
    pub(super) fn late(&mut self, state: &State, found: &mut Found) {
        for (number, late) in state.late.iter().enumerate() {
            if state.late[..number].contains(late) {
                continue;
            }
            let mut never = state.clone();
            never.late.remove(number);
            let mut done = never.clone();
            let (answer, violation) = self.carry_out(&mut done, *late);
            self.push(found, done, Calm::Acts, violation, || {
                format!("late: {late:?}: {answer:?}")
            });
            self.push(found, never, Calm::Quiet, None, || {
                format!("never carried out: {late:?}")
            });
        }
    }
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

const fn is_read(doing: Doing) -> bool {
    matches!(doing, Doing::ReadClaim | Doing::ReadVolume(_) | Doing::ReadOwner)
}

fn late_of(doing: Doing) -> Late {
    match doing {
        Doing::Patch { slot, write, by_policy } => Late::Patch { slot, write, by_policy },
        Doing::Save { slot, body } => Late::Save { slot, body },
        Doing::Remove { slot, uid } => Late::Remove { slot, uid },
        Doing::Create(claim) => Late::Create(claim),
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
fn next_cursor(state: &mut State, who: Who, slot: usize) {
    let last = state.history[slot].0.len() - 1;
    let engine = engine_in(state, who);
    engine.cursor[slot] = last as u8;
    engine.unlisted &= !(1 << slot);
}
