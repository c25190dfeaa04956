//! How the attempt of production runs in a world. The production machine ([`csi_attacher_model::attempt`]) says what it does next;
//! what waits for the surroundings is a state of the world, and everything else is answered at once.

use csi_attacher_model::attempt::Note;
use csi_attacher_model::decide::{self, CallAt};

use super::Core;
use super::invariants::{
    CLAIMED_FIRST, NOT_UNDER_A_LIVE_ONE, ONE_AT_A_TIME, ONLY_WITH_THE_LEASE, PROTECTED_FIRST, RIGHT_DRIVER,
    RIGHT_REQUEST, WANTED,
};
use super::machine::{Answer, Doing, Glance, Received};
use super::objects::Kind;
use super::state::{Attempt, End, NONE, Phase, Request, State};
use super::universe::{CacheEvent, uid_number};

/// An attempt of a replica at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The process.
    pub replica: usize,
    /// The key.
    pub slot: u8,
}

impl Core {
    /// Begins an attempt.
    pub(super) fn begin(&mut self, state: &mut State, at: At, expired: bool) {
        state.replicas[at.replica].ready &= !bit(at.slot);
        if self.universe.kind(at.slot) == Kind::Volume {
            return self.release_volume(state, at, 0);
        }
        let shown = self.universe.shown(state.replicas[at.replica].cache, at.slot);
        let of_detach = shown.is_some_and(|shown| self.universe.snapshot(shown).attachment.deleting.is_some());
        let machine = self.universe.new_attempt(at.slot);
        self.go_on(state, at, Attempt::new(machine, of_detach, expired), Received::Done);
    }

    /// Goes on with a Publish that a former engine left without an outcome.
    pub(super) fn resume(&mut self, state: &mut State, at: At, machine: u32) {
        self.go_on(state, at, Attempt::new(machine, false, false), Received::Done);
    }

    /// Hands an answer to the attempt, and does what it asks for until it waits for its surroundings.
    pub(super) fn go_on(&mut self, state: &mut State, at: At, mut attempt: Attempt, mut received: Received) {
        loop {
            let replica = &state.replicas[at.replica];
            attempt.expired &= replica.waited & bit(at.slot) != 0;
            let leads = usize::from(state.leader) == at.replica;
            let next = self.universe.advance(Glance {
                machine: attempt.machine,
                slot: at.slot,
                cache: replica.cache,
                received,
                may_start: leads || self.universe.rules().unfenced,
                capable: state.capable,
                expired: attempt.expired,
                of_detach: attempt.of_detach,
                recorded: replica.unanswered[usize::from(at.slot)],
            });
            attempt.machine = next.machine;
            for (uid, note) in &next.notes {
                self.take_note(state, at, *uid, note);
            }
            received = match &next.doing {
                Doing::End(end) => return self.finish(state, at, attempt, *end),
                Doing::Answered(received) => *received,
                Doing::Fetch(slot) => self.fetch(state, at, *slot),
                Doing::Secret => Received::Secret(state.secret),
                Doing::Take { places, alone } => self.take(state, at, places, *alone),
                Doing::Write { write, uid } => {
                    self.note(|core| format!("sends {}", core.shown_write(*write)));
                    attempt.phase = Phase::Write {
                        write: *write,
                        uid: *uid,
                        request: Request::Sent,
                    };
                    return state.replicas[at.replica].put(at.slot, attempt);
                }
                Doing::Read { slot, uid, live } => {
                    attempt.phase = Phase::Read {
                        slot: *slot,
                        uid: *uid,
                        live: *live,
                        request: Request::Sent,
                    };
                    return state.replicas[at.replica].put(at.slot, attempt);
                }
                Doing::Publish { .. } | Doing::Unpublish(_) if !leads && !self.universe.rules().unfenced => {
                    Received::LeaseLost { started: false }
                }
                Doing::Publish { place, read_only } => {
                    self.check_publish(state, at, *place, *read_only);
                    return self.call(state, at, attempt, true, *place);
                }
                Doing::Unpublish(place) => {
                    self.check_unpublish(state, at, *place);
                    return self.call(state, at, attempt, false, *place);
                }
            };
        }
    }

    fn take_note(&mut self, state: &mut State, at: At, uid: u8, note: &Note) {
        let unanswered = &mut state.replicas[at.replica].unanswered[usize::from(at.slot)];
        match note {
            Note::RecordBegins => *unanswered = uid,
            Note::RecordKnown => *unanswered = 0,
            note => self.note(|_| format!("{note:?}").chars().take(100).collect()),
        }
    }

    /// What a Publish may have left is kept for the next engine of this process in the same term.
    fn keep_publish(&mut self, state: &mut State, at: At, machine: u32) {
        if usize::from(state.leader) != at.replica {
            return;
        }
        let Some((resumed, place)) = self.universe.resumed(machine) else {
            return;
        };
        let unfinished = &mut state.replicas[at.replica].unfinished;
        if !unfinished.iter().any(|(_, _, kept)| *kept == place) {
            unfinished.push((at.slot, resumed, place));
        }
    }

    /// The attempt is over.
    fn finish(&mut self, state: &mut State, at: At, attempt: Attempt, end: End) {
        self.keep_publish(state, at, attempt.machine);
        let replica = &mut state.replicas[at.replica];
        replica.take(at.slot);
        let (dirty, forgotten) = (replica.dirty & bit(at.slot) != 0, replica.forgotten & bit(at.slot) != 0);
        replica.dirty &= !bit(at.slot);
        replica.forgotten &= !bit(at.slot);
        match end {
            End::Done => replica.waited &= !bit(at.slot),
            End::HeldBack => replica.waited |= bit(at.slot),
            End::Failed => {}
        }
        if dirty || (end != End::Done && !forgotten) {
            replica.ready |= bit(at.slot);
        }
    }

    /// The engine of the attempt ends.
    pub(super) fn cut(&mut self, state: &mut State, at: At, attempt: Attempt) {
        self.finish(state, at, attempt, End::Failed);
    }

    /// Reads a volume or node that the cache does not know. The read is one step here, with its answer.
    fn fetch(&mut self, state: &mut State, at: At, slot: u8) -> Received {
        match state.objects[usize::from(slot)] {
            NONE => Received::Read(Answer::NotFound),
            object => {
                self.cache(state, at.replica, CacheEvent::Told(object));
                Received::Read(Answer::Taken)
            }
        }
    }

    /// Takes the places of a call, all or none.
    fn take(&mut self, state: &State, at: At, places: &[u8], alone: bool) -> Received {
        let occupied = |alone| places.iter().any(|place| self.is_occupied(state, at, *place, alone));
        match (occupied(false), occupied(alone)) {
            (true, _) => Received::Occupied { elsewhere: false },
            (false, true) => Received::Occupied { elsewhere: true },
            (false, false) => Received::Taken,
        }
    }

    /// Whether another call of this process is in the way. It is so until its attempt has written down what it came to.
    fn is_occupied(&self, state: &State, at: At, place: u8, alone: bool) -> bool {
        let others = state.replicas[at.replica].attempts.iter();
        let mut calls = others
            .filter(|(slot, _)| *slot != at.slot)
            .flat_map(|(_, other)| self.universe.places_of(other.machine));
        calls.any(|(occupied, publishes)| {
            let call = CallAt {
                place: self.universe.at(occupied),
                publishes,
            };
            decide::is_in_the_way(call, self.universe.at(place), alone)
        })
    }

    /// Calls the driver.
    fn call(&mut self, state: &mut State, at: At, mut attempt: Attempt, publishes: bool, place: u8) {
        let leads = usize::from(state.leader) == at.replica;
        if !leads {
            self.violated(ONLY_WITH_THE_LEASE);
        }
        let beside = |(slot, other): &(u8, Attempt)| {
            let same = matches!(other.phase, Phase::Call { place: occupied, .. } if occupied == place);
            same && *slot != at.slot
        };
        let replicas = state.replicas.iter().enumerate();
        let mut others =
            replicas.flat_map(|(number, replica)| replica.attempts.iter().map(move |entry| (number, entry)));
        if others.any(|(number, entry)| {
            number != at.replica && !leads && beside(entry) || number == at.replica && beside(entry)
        }) {
            self.violated(ONE_AT_A_TIME);
        }
        self.acted = true;
        self.note(|core| {
            let at = core.universe.at(place);
            let method = if publishes { "Publish" } else { "Unpublish" };
            format!("calls Controller{method}Volume of {} at {}", at.volume_id, at.node_id)
        });
        attempt.phase = Phase::Call { publishes, place };
        state.replicas[at.replica].put(at.slot, attempt);
    }

    /// The driver has answered.
    pub(super) fn answered(&mut self, state: &mut State, at: At, failure: Option<u16>) {
        let Some(attempt) = state.replicas[at.replica].take(at.slot) else {
            return;
        };
        let received = match (failure, attempt.phase) {
            (Some(failure), _) => Received::Failed(failure),
            (None, Phase::Call { publishes: true, place }) => {
                Received::Published(if state.contexts[usize::from(place)] == 2 { 2 } else { 1 })
            }
            (None, _) => Received::Unpublished,
        };
        self.go_on(state, at, attempt, received);
    }

    /// The term is over in the middle of a call, which is cancelled.
    pub(super) fn cancelled(&mut self, state: &mut State, at: At) {
        if let Some(attempt) = state.replicas[at.replica].take(at.slot) {
            self.go_on(state, at, attempt, Received::LeaseLost { started: true });
        }
    }

    /// The answer to a write or a read has come.
    pub(super) fn receive(&mut self, state: &mut State, at: At) {
        let Some(attempt) = state.replicas[at.replica].take(at.slot) else {
            return;
        };
        match attempt.phase {
            Phase::Write { write, uid, request } => {
                let (slot, _) = self.universe.target(write);
                let answer = self.take_answer(state, at, slot, uid, request);
                if attempt.machine == NONE {
                    return self.volume_written(state, at, attempt, slot, uid, answer);
                }
                self.go_on(state, at, attempt, Received::Wrote(answer));
            }
            // That it is there is what is asked; the copy is not kept.
            Phase::Read {
                live: true,
                request: Request::Object(object),
                ..
            } => self.go_on(state, at, attempt, Received::Live(object)),
            Phase::Read { slot, uid, request, .. } => {
                let answer = self.take_answer(state, at, slot, uid, request);
                match (attempt.machine, answer) {
                    (NONE, Answer::Lost) => self.finish(state, at, attempt, End::Failed),
                    (NONE, _) => self.release_volume(state, at, attempt.tries + 1),
                    (_, answer) => self.go_on(state, at, attempt, Received::Read(answer)),
                }
            }
            Phase::Begins | Phase::Call { .. } => state.replicas[at.replica].put(at.slot, attempt),
        }
    }

    /// Puts an answer into the cache. A 404 is about the object of the copy that the request was made from.
    fn take_answer(&mut self, state: &mut State, at: At, slot: u8, uid: u8, request: Request) -> Answer {
        match request {
            Request::Object(object) => {
                self.cache(state, at.replica, CacheEvent::Answered(object));
                if crate::api_server::is_gone(&self.universe.object(object).value) {
                    Answer::Gone
                } else {
                    Answer::Taken
                }
            }
            Request::NotFound => {
                self.cache(state, at.replica, CacheEvent::NotFound(slot, uid));
                Answer::NotFound
            }
            Request::Stale => Answer::Stale,
            Request::Sent | Request::Lost => Answer::Lost,
        }
    }

    fn check_publish(&mut self, state: &State, at: At, place: u8, read_only: bool) {
        let here = self.universe.here(place);
        let claimed = self.attachments(state).filter(|(_, facts)| facts.holds(&here));
        let claimed: Vec<u8> = claimed.map(|(slot, _)| slot).collect();
        if claimed.is_empty() {
            self.violated(CLAIMED_FIRST);
        }
        let protected = |slot: &u8| {
            let volume = self.facts(state, self.setting.needs(*slot, Kind::Volume));
            volume.is_some_and(|volume| volume.ours)
        };
        if !claimed.is_empty() && !claimed.iter().all(protected) && !self.is_unprotected() {
            self.violated(PROTECTED_FIRST);
        }
        let cache = state.replicas[at.replica].cache;
        if let Some(shown) = self.universe.shown(cache, at.slot) {
            let shown = self.universe.snapshot(shown);
            let deleting = shown.volume.as_ref().is_some_and(|volume| volume.deleting);
            if shown.attachment.deleting.is_some() || shown.attachment.attached || deleting {
                self.violated(WANTED);
            }
            let source = shown.volume.as_ref().and_then(|volume| volume.spec.csi());
            if source.is_some_and(|source| &*source.driver != super::objects::DRIVER) {
                self.violated(RIGHT_DRIVER);
            }
            if source.is_some_and(|source| source.read_only != read_only) {
                self.violated(RIGHT_REQUEST);
            }
        }
    }

    fn check_unpublish(&mut self, state: &State, at: At, place: u8) {
        let here = self.universe.here(place);
        let cache = state.replicas[at.replica].cache;
        let slots: Vec<u8> = self.setting.slots_of(Kind::Attachment).collect();
        let claims = |core: &Self, slot: u8| {
            let object = state.objects[usize::from(slot)];
            (object != NONE)
                .then(|| core.universe.object(object))
                .filter(|object| object.facts.claim.as_ref() == Some(&here))
                .map(|object| (object.facts.deleting, object.facts.attached, object.uid().to_owned()))
        };
        let deleting = slots
            .iter()
            .any(|slot| claims(self, *slot).is_some_and(|(deleting, ..)| deleting));
        for slot in slots {
            let Some((false, true, uid)) = claims(self, slot) else {
                continue;
            };
            let known = self.universe.shown(cache, slot).is_some_and(|shown| {
                let shown = self.universe.snapshot(shown);
                *shown.attachment.uid == *uid && decide::is_in_use(&shown.attachment)
            });
            if !deleting || known {
                self.violated(NOT_UNDER_A_LIVE_ONE);
            }
        }
    }

    /// One attempt at a PersistentVolume.
    fn release_volume(&mut self, state: &mut State, at: At, tries: u8) {
        let mut attempt = Attempt::new(NONE, false, false);
        if usize::from(state.leader) != at.replica && !self.universe.rules().unfenced {
            return self.finish(state, at, attempt, End::Failed);
        }
        let cache = state.replicas[at.replica].cache;
        let Some(write) = self.universe.release(cache, at.slot, state.capable) else {
            return self.finish(state, at, attempt, End::Done);
        };
        if tries >= MAX_TRIES {
            return self.finish(state, at, attempt, End::Failed);
        }
        self.note(|core| format!("sends {}", core.shown_write(write)));
        let known = self.universe.cache(cache).volume(&self.universe.name(at.slot));
        attempt.tries = tries;
        attempt.phase = Phase::Write {
            write,
            uid: known.map_or(0, |(volume, _)| uid_number(&volume.uid)),
            request: Request::Sent,
        };
        state.replicas[at.replica].put(at.slot, attempt);
    }

    fn volume_written(&mut self, state: &mut State, at: At, mut attempt: Attempt, slot: u8, uid: u8, answer: Answer) {
        match answer {
            Answer::Taken | Answer::Gone | Answer::NotFound => self.finish(state, at, attempt, End::Done),
            Answer::Lost => self.finish(state, at, attempt, End::Failed),
            Answer::Stale => {
                attempt.phase = Phase::Read {
                    slot,
                    uid,
                    live: false,
                    request: Request::Sent,
                };
                state.replicas[at.replica].put(at.slot, attempt);
            }
        }
    }
}

/// How often the release of a PersistentVolume is written in one attempt.
const MAX_TRIES: u8 = 4;

/// The bit of a slot.
pub fn bit(slot: u8) -> u8 {
    1 << slot
}
