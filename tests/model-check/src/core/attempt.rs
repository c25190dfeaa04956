//! One attempt, as `driver::attempt` of the operator runs it: what it does between two waits is one step here. What it decides and
//! writes is asked of the production functions; which of them is asked when is what this file says once more.

use csi_attacher_model::decide::{self, CallAt, Failure};

use super::Core;
use super::invariants::{
    CLAIMED_FIRST, NOT_UNDER_A_LIVE_ONE, ONE_AT_A_TIME, ONLY_WITH_THE_LEASE, PROTECTED_FIRST, RIGHT_DRIVER,
    RIGHT_REQUEST, WANTED,
};
use super::objects::Kind;
use super::state::{Attempt, CallPurpose, Came, End, NOBODY, NONE, Phase, Purpose, Request, State};
use super::universe::{CacheEvent, Decision, Publish, Unpublish, View, uid_number};
use crate::replay;

/// How often a result is offered to the API server, as in the operator.
pub const MAX_WRITES: u8 = 4;

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
        let replica = &mut state.replicas[at.replica];
        replica.ready &= !bit(at.slot);
        if self.universe.kind(at.slot) == Kind::Volume {
            return self.release_volume(state, at, 0);
        }
        let cache = replica.cache;
        let shown = self.universe.shown(cache, at.slot);
        let attempt = Attempt {
            snapshot: NONE,
            phase: Phase::Read {
                slot: at.slot,
                request: Request::Lost,
                purpose: Purpose::Prepare,
            },
            guard: NOBODY,
            flights: 0,
            of_detach: shown.is_some_and(|shown| self.is_deleted(shown)),
            secret: false,
            asked: 0,
            retracted: false,
            expired,
            on_record: false,
        };
        self.look(state, at, attempt);
    }

    fn view(state: &State, attempt: &Attempt) -> View {
        View {
            secret: attempt.secret,
            expired: attempt.expired,
            capable: state.capable,
        }
    }

    /// Looks at what the cache shows, and begins what is decided.
    fn look(&mut self, state: &mut State, at: At, mut attempt: Attempt) {
        attempt.flights = 0;
        loop {
            if usize::from(state.leader) != at.replica && !self.universe.rules().unfenced {
                self.note(|_| "the Lease is over: the attempt ends".to_owned());
                return self.finish(state, at, End::Failed);
            }
            let cache = state.replicas[at.replica].cache;
            let Some(snapshot) = self.universe.shown(cache, at.slot) else {
                return self.finish(state, at, End::Done);
            };
            attempt.snapshot = snapshot;
            attempt.expired &= state.replicas[at.replica].waited & bit(at.slot) != 0;
            let decision = self.universe.decide(snapshot, Self::view(state, &attempt));
            self.note(|_| format!("decides {decision:?}"));
            let rests = matches!(&*decision, Decision::Ignore | Decision::AwaitDetach);
            if !rests && self.is_deleted(snapshot) != attempt.of_detach {
                self.note(|_| "leaves it to another attempt".to_owned());
                return self.finish(state, at, End::Failed);
            }
            match &*decision {
                Decision::Ignore => return self.finish(state, at, End::Done),
                Decision::AwaitDetach => {
                    state.replicas[at.replica].waited |= bit(at.slot);
                    return self.finish(state, at, End::Failed);
                }
                Decision::Prepare(write) => return self.send(state, at, attempt, *write, Purpose::Prepare),
                Decision::LoadSecret if state.secret => attempt.secret = true,
                Decision::LoadSecret => {
                    let failure = self.universe.fails(Failure::plain("failed to load secret"));
                    return self.record_failure(state, at, attempt, failure);
                }
                Decision::Refuse(refused) if refused.no_volume && attempt.asked & 1 == 0 => {
                    attempt.asked |= 1;
                    self.fetch(state, at, Kind::Volume);
                }
                Decision::Refuse(refused) if refused.no_node && attempt.asked & 2 == 0 => {
                    attempt.asked |= 2;
                    self.fetch(state, at, Kind::Node);
                }
                Decision::Refuse(refused) => return self.record_failure(state, at, attempt, refused.failure),
                Decision::Publish(plan) => return self.publish(state, at, attempt, &plan.clone()),
                Decision::Unpublish(plan) => return self.unpublish(state, at, attempt, &plan.clone()),
                Decision::MarkAttached => return self.record(state, at, attempt, Came::Marked, 1),
                Decision::LetGo => return self.record(state, at, attempt, Came::LetGo, 1),
            }
        }
    }

    fn is_deleted(&self, snapshot: u32) -> bool {
        self.universe.snapshot(snapshot).attachment.deleting.is_some()
    }

    /// Takes in a volume or node that the cache does not know. The read is one step here, with its answer.
    fn fetch(&mut self, state: &mut State, at: At, kind: Kind) {
        let wanted = self.setting.needs(at.slot, kind);
        let object = state.objects[usize::from(wanted)];
        if object != NONE {
            self.cache(state, at.replica, CacheEvent::Told(object));
        }
    }

    fn publish(&mut self, state: &mut State, at: At, mut attempt: Attempt, plan: &Publish) {
        if !plan.former.is_empty() && !attempt.retracted {
            attempt.retracted = true;
            return self.retract(state, at, attempt, 0);
        }
        if self.is_occupied(state, at, plan.place, plan.alone) {
            // Another node is waited for only so long.
            if !self.is_occupied(state, at, plan.place, false) {
                state.replicas[at.replica].waited |= bit(at.slot);
            }
            return self.finish(state, at, End::Failed);
        }
        self.check_publish(state, at, plan);
        attempt.guard = plan.place;
        attempt.on_record = false;
        self.call(state, at, attempt, true, plan.place, CallPurpose::Attach);
    }

    /// Takes all places of a detach, and begins with what comes before the first call.
    fn unpublish(&mut self, state: &mut State, at: At, mut attempt: Attempt, plan: &Unpublish) {
        let mut places = plan.places.iter();
        if places.any(|place| self.is_occupied(state, at, *place, false)) {
            return self.finish(state, at, End::Failed);
        }
        attempt.flights = plan.places.iter().fold(0, |mask, place| mask | (1 << place));
        self.renew(state, at, attempt, 0);
    }

    /// Renews the claim of this number, or makes the first call of the detach after the last one.
    pub(super) fn renew(&mut self, state: &mut State, at: At, attempt: Attempt, number: u8) {
        let plan = self.plan_of_detach(state, &attempt);
        match plan.renew.get(usize::from(number)) {
            Some(write) => self.send(state, at, attempt, *write, Purpose::Renew { number }),
            None => self.call(state, at, attempt, false, plan.places[0], CallPurpose::Detach { at: 0 }),
        }
    }

    /// What a detach that is under way was decided to do.
    fn plan_of_detach(&mut self, state: &State, attempt: &Attempt) -> Unpublish {
        let decision = self.universe.decide(attempt.snapshot, Self::view(state, attempt));
        match &*decision {
            Decision::Unpublish(plan) => plan.clone(),
            _ => Unpublish::default(),
        }
    }

    /// Takes the volume back from the former place of this number, or looks again after the last one.
    pub(super) fn retract(&mut self, state: &mut State, at: At, attempt: Attempt, from: u8) {
        let decision = self.universe.decide(
            attempt.snapshot,
            View {
                secret: attempt.secret,
                expired: attempt.expired,
                capable: true,
            },
        );
        let Decision::Publish(plan) = &*decision else {
            return self.look(state, at, attempt);
        };
        let former = plan.former.clone();
        let left = former.iter().enumerate().skip(usize::from(from));
        for (number, place) in left {
            if self.is_wanted_by_another(state, at, attempt.snapshot, *place)
                || self.is_occupied(state, at, *place, false)
            {
                continue;
            }
            let purpose = CallPurpose::Former {
                at: u8::try_from(number).unwrap_or(0),
            };
            return self.call(state, at, attempt, false, *place, purpose);
        }
        self.look(state, at, attempt);
    }

    pub(super) fn is_wanted_by_another(&self, state: &State, at: At, snapshot: u32, place: u8) -> bool {
        let cache = self.universe.cache(state.replicas[at.replica].cache);
        let snapshot = self.universe.snapshot(snapshot);
        let facts = self.universe.facts(state.capable);
        cache.is_claimed(&snapshot.attachment, &facts, self.universe.at(place))
    }

    /// Whether another call of this process is in the way. It is so until its attempt has written down what it came to.
    fn is_occupied(&self, state: &State, at: At, place: u8, alone: bool) -> bool {
        self.calls_of_others(state, at).any(|(occupied, publishes)| {
            let call = CallAt {
                place: self.universe.at(occupied),
                publishes,
            };
            decide::is_in_the_way(call, self.universe.at(place), alone)
        })
    }

    /// The places of the calls of the other attempts, and whether they are published there.
    fn calls_of_others(&self, state: &State, at: At) -> impl Iterator<Item = (u8, bool)> {
        let others = state.replicas[at.replica].attempts.iter();
        others.filter(move |(slot, _)| *slot != at.slot).flat_map(|(_, other)| {
            let called = match other.phase {
                Phase::Call { place, publishes, .. } if other.guard == NOBODY => Some((place, publishes)),
                _ => None,
            };
            let guarded = (other.guard != NOBODY).then_some((other.guard, true));
            let flights = (0..16_u8).filter(|place| other.flights & (1 << place) != 0);
            called
                .into_iter()
                .chain(guarded)
                .chain(flights.map(|place| (place, false)))
        })
    }

    /// Calls the driver, at a place that is free.
    pub(super) fn call(
        &mut self,
        state: &mut State,
        at: At,
        mut attempt: Attempt,
        publishes: bool,
        place: u8,
        purpose: CallPurpose,
    ) {
        let leads = usize::from(state.leader) == at.replica;
        if !leads && !self.universe.rules().unfenced {
            return self.without_lease(state, at, attempt);
        }
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
        if !publishes {
            self.check_unpublish(state, at, place);
        }
        self.acted = true;
        if self.traced.is_some() {
            let call = replay::call(publishes, self.universe.at(place));
            self.notes.push(format!("calls {call}"));
            self.calls.push((self.universe.name(at.slot).to_string(), call));
        }
        attempt.phase = Phase::Call {
            publishes,
            place,
            purpose,
        };
        state.replicas[at.replica].put(at.slot, attempt);
    }

    /// The driver has answered; none is OK.
    pub(super) fn answered(&mut self, state: &mut State, at: At, failure: Option<u16>) {
        let Some(attempt) = state.replicas[at.replica].take(at.slot) else {
            return;
        };
        let Phase::Call { place, purpose, .. } = attempt.phase else {
            return;
        };
        match (purpose, failure) {
            (CallPurpose::Attach, None) => {
                let context = if state.contexts[usize::from(place)] == 2 { 2 } else { 1 };
                let mut attempt = attempt;
                let own = uid_number(&self.universe.snapshot(attempt.snapshot).attachment.uid);
                let unanswered = &mut state.replicas[at.replica].unanswered[usize::from(at.slot)];
                attempt.on_record = std::mem::replace(unanswered, own) == own;
                self.record(state, at, attempt, Came::Published(context), 1);
            }
            (CallPurpose::Attach, Some(failure)) => self.record_failure(state, at, attempt, failure),
            (CallPurpose::Detach { .. }, Some(failure)) if !self.is_detached(failure) => {
                self.record_failure(state, at, attempt, failure);
            }
            (CallPurpose::Detach { at: number }, _) => {
                let places = self.plan_of_detach(state, &attempt).places;
                match places.get(usize::from(number) + 1) {
                    Some(next) => self.call(state, at, attempt, false, *next, CallPurpose::Detach { at: number + 1 }),
                    None => self.record(state, at, attempt, Came::Unpublished, 1),
                }
            }
            (CallPurpose::Former { at: number }, _) => self.retract(state, at, attempt, number + 1),
            (CallPurpose::TakeBack { end, .. }, None) => self.undone(state, at, attempt, end, false),
            (CallPurpose::TakeBack { end, known, tries }, Some(_)) => {
                if self.is_wanted_by_another(state, at, attempt.snapshot, place) || tries > 5 {
                    return self.undone(state, at, attempt, end, known);
                }
                let purpose = CallPurpose::TakeBack {
                    end,
                    known,
                    tries: tries + 1,
                };
                self.call(state, at, attempt, false, place, purpose);
            }
        }
    }

    /// Whether an answer to ControllerUnpublishVolume counts as detached.
    fn is_detached(&self, failure: u16) -> bool {
        let answer = Err(self.universe.failure(failure).clone());
        decide::unpublished(&self.setting.policy(), answer).is_ok()
    }

    /// The Lease was lost: what a Publish may have left is kept for the next term of this process.
    pub(super) fn without_lease(&mut self, state: &mut State, at: At, attempt: Attempt) {
        let replica = &mut state.replicas[at.replica];
        if attempt.guard != NOBODY && !replica.unfinished.iter().any(|(_, _, place)| *place == attempt.guard) {
            replica.unfinished.push((at.slot, attempt.snapshot, attempt.guard));
        }
        self.finish(state, at, End::Failed);
    }

    /// The attempt is over.
    pub(super) fn finish(&mut self, state: &mut State, at: At, end: End) {
        let replica = &mut state.replicas[at.replica];
        replica.take(at.slot);
        let (dirty, forgotten) = (replica.dirty & bit(at.slot) != 0, replica.forgotten & bit(at.slot) != 0);
        replica.dirty &= !bit(at.slot);
        replica.forgotten &= !bit(at.slot);
        if end == End::Done {
            replica.waited &= !bit(at.slot);
        }
        if dirty || (end != End::Done && !forgotten) {
            replica.ready |= bit(at.slot);
        }
    }

    /// Goes on after what watches over a Publish has ended.
    pub(super) fn end(&mut self, state: &mut State, at: At, attempt: Attempt, end: End) {
        match end {
            End::Continue => self.look(state, at, attempt),
            end => self.finish(state, at, end),
        }
    }

    fn check_publish(&mut self, state: &State, at: At, plan: &Publish) {
        let place = self.universe.at(plan.place);
        let here = (place.volume_id.to_owned(), place.node_id.to_owned());
        let attachments = self.setting.slots_of(Kind::Attachment);
        let claimed: Vec<u8> = attachments
            .filter(|slot| {
                let object = state.objects[usize::from(*slot)];
                object != NONE && {
                    let facts = &self.universe.object(object).facts;
                    facts.ours && (facts.claim.as_ref() == Some(&here) || facts.former.contains(&here))
                }
            })
            .collect();
        if claimed.is_empty() {
            self.violated(CLAIMED_FIRST);
        }
        let protected = |slot: &u8| {
            let volume = state.objects[usize::from(self.setting.needs(*slot, Kind::Volume))];
            volume != NONE && self.universe.object(volume).facts.ours
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
            if source.is_some_and(|source| source.read_only != plan.read_only) {
                self.violated(RIGHT_REQUEST);
            }
        }
    }

    fn check_unpublish(&mut self, state: &State, at: At, place: u8) {
        let here = self.universe.at(place);
        let here = (here.volume_id.to_owned(), here.node_id.to_owned());
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
}

/// The bit of a slot.
pub fn bit(slot: u8) -> u8 {
    1 << slot
}
