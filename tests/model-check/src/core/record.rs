//! How an attempt writes, as `driver::attempt::writes`, `undo` and `release` of the operator do.

use csi_attacher_model::decide::{self, Failure};

use super::Core;
use super::attempt::{At, MAX_WRITES};
use super::state::{Attempt, CallPurpose, Came, End, NOBODY, NONE, Phase, Purpose, Request, State};
use super::universe::{CacheEvent, View, uid_number};

impl Core {
    /// Sends a write.
    pub(super) fn send(&mut self, state: &mut State, at: At, mut attempt: Attempt, write: u32, purpose: Purpose) {
        self.note(|core| format!("sends {}", core.shown_write(write)));
        attempt.phase = Phase::Write {
            write,
            request: Request::Sent,
            purpose,
        };
        state.replicas[at.replica].put(at.slot, attempt);
    }

    fn read(&mut self, state: &mut State, at: At, mut attempt: Attempt, slot: u8, purpose: Purpose) {
        attempt.phase = Phase::Read {
            slot,
            request: Request::Sent,
            purpose,
        };
        state.replicas[at.replica].put(at.slot, attempt);
    }

    fn view_of(state: &State, attempt: &Attempt) -> View {
        View {
            secret: attempt.secret,
            expired: attempt.expired,
            capable: state.capable,
        }
    }

    /// What the cache knows of the attachment by now.
    fn newest(&mut self, state: &State, at: At, snapshot: u32) -> Option<u32> {
        let newest = self.universe.shown(state.replicas[at.replica].cache, at.slot)?;
        let same = self.universe.snapshot(newest).attachment.uid == self.universe.snapshot(snapshot).attachment.uid;
        same.then_some(newest)
    }

    /// Writes a result down, from what the attachment is now.
    pub(super) fn record(&mut self, state: &mut State, at: At, attempt: Attempt, came: Came, tries: u8) {
        let fresh = self.newest(state, at, attempt.snapshot).unwrap_or(attempt.snapshot);
        self.record_on(state, at, attempt, came, tries, fresh);
    }

    fn record_on(&mut self, state: &mut State, at: At, attempt: Attempt, came: Came, tries: u8, fresh: u32) {
        let (one, other) = (self.universe.snapshot(attempt.snapshot), self.universe.snapshot(fresh));
        if !decide::is_same_work(&one.attachment, &other.attachment, &self.universe.facts(state.capable)) {
            return self.recorded(state, at, attempt, End::Continue);
        }
        self.record_next(state, at, attempt, came, 0, tries, fresh);
    }

    #[allow(clippy::too_many_arguments, reason = "each is one part of the same purpose")]
    fn record_next(
        &mut self,
        state: &mut State,
        at: At,
        attempt: Attempt,
        came: Came,
        number: u8,
        tries: u8,
        fresh: u32,
    ) {
        let writes = self
            .universe
            .settle(attempt.snapshot, fresh, came, Self::view_of(state, &attempt));
        match writes.get(usize::from(number)) {
            Some(write) => {
                let purpose = Purpose::Record {
                    came,
                    at: number,
                    tries,
                    fresh,
                };
                self.send(state, at, attempt, *write, purpose);
            }
            None => self.all_written(state, at, attempt, came),
        }
    }

    /// All writes were taken, or the object is gone: does the cache show the result by now?
    fn all_written(&mut self, state: &mut State, at: At, attempt: Attempt, came: Came) {
        let newest = self.newest(state, at, attempt.snapshot);
        let facts = self.universe.facts(state.capable);
        let differs = newest.is_some_and(|newest| {
            let (one, other) = (self.universe.snapshot(attempt.snapshot), self.universe.snapshot(newest));
            decide::is_same_work(&one.attachment, &other.attachment, &facts)
                && !decide::is_settled(&other.attachment, &facts)
        });
        if differs {
            return self.not_recorded(state, at, attempt, came);
        }
        self.recorded(state, at, attempt, End::Done);
    }

    /// A result that the API server does not take.
    fn not_recorded(&mut self, state: &mut State, at: At, attempt: Attempt, came: Came) {
        let detaches = self.universe.snapshot(attempt.snapshot).attachment.deleting.is_some();
        if detaches {
            let failure = self.universe.fails(Failure::plain("could not mark as detached"));
            return self.record_failure(state, at, attempt, failure);
        }
        self.note(|_| format!("cannot record {came:?}"));
        self.recorded(state, at, attempt, End::Failed);
    }

    /// A result of a Publish is on record, or not; then comes what vanished meanwhile.
    fn recorded(&mut self, state: &mut State, at: At, attempt: Attempt, end: End) {
        if attempt.guard == NOBODY {
            return self.end(state, at, attempt, end);
        }
        if !attempt.on_record {
            forget_record(state, at);
        }
        self.undo(state, at, attempt, end, end != End::Failed);
    }

    /// Takes the volume back when the attachment of a Publish is gone.
    pub(super) fn undo(&mut self, state: &mut State, at: At, attempt: Attempt, end: End, known: bool) {
        let wanted = self.is_wanted_by_another(state, at, attempt.snapshot, attempt.guard);
        if wanted || (known && self.is_believed(state, at, attempt.snapshot)) {
            return self.undone(state, at, attempt, end, known);
        }
        self.note(|_| "looks whether the VolumeAttachment is gone".to_owned());
        self.read(state, at, attempt, at.slot, Purpose::Undo { end, known });
    }

    fn is_believed(&mut self, state: &State, at: At, snapshot: u32) -> bool {
        let newest = self.newest(state, at, snapshot);
        newest.is_some_and(|newest| {
            let newest = self.universe.snapshot(newest);
            decide::may_be_in_use(&newest.attachment, &self.universe.facts(state.capable))
        })
    }

    /// The Publish needs no more watching.
    pub(super) fn undone(&mut self, state: &mut State, at: At, mut attempt: Attempt, end: End, known: bool) {
        attempt.guard = NOBODY;
        if known {
            forget_record(state, at);
        }
        self.end(state, at, attempt, end);
    }

    /// Writes down a failure.
    pub(super) fn record_failure(&mut self, state: &mut State, at: At, attempt: Attempt, failure: u16) {
        let detaches = self.universe.snapshot(attempt.snapshot).attachment.deleting.is_some();
        let came = if detaches {
            Came::DetachFailed(failure)
        } else {
            Came::AttachFailed(failure)
        };
        self.write_failure(state, at, attempt, came, true);
    }

    fn write_failure(&mut self, state: &mut State, at: At, attempt: Attempt, came: Came, again: bool) {
        let fresh = self.newest(state, at, attempt.snapshot).unwrap_or(attempt.snapshot);
        let (one, other) = (self.universe.snapshot(attempt.snapshot), self.universe.snapshot(fresh));
        if !decide::may_note_failure(&one.attachment, &other.attachment, &self.universe.facts(state.capable)) {
            return self.noted(state, at, attempt, came, true);
        }
        let writes = self
            .universe
            .settle(attempt.snapshot, fresh, came, Self::view_of(state, &attempt));
        match writes.first() {
            // A mutant may make several of it; the operator makes one.
            Some(write) => self.send(state, at, attempt, *write, Purpose::Note { came, fresh, again }),
            None => self.noted(state, at, attempt, came, true),
        }
    }

    fn noted(&mut self, state: &mut State, at: At, attempt: Attempt, came: Came, noted: bool) {
        if attempt.guard == NOBODY {
            return self.finish(state, at, End::Failed);
        }
        let refused = match came {
            Came::AttachFailed(failure) => self.universe.failure(failure).code.is_some_and(decide::is_final),
            _ => false,
        };
        self.undo(state, at, attempt, End::Failed, refused || noted);
    }

    /// The answer to a write or a read has come.
    pub(super) fn receive(&mut self, state: &mut State, at: At) {
        let Some(attempt) = state.replicas[at.replica].take(at.slot) else {
            return;
        };
        match attempt.phase {
            Phase::Write {
                write,
                request,
                purpose,
            } => {
                let (slot, _) = self.universe.target(write);
                self.take_answer(state, at, attempt.snapshot, slot, request);
                self.written(state, at, attempt, write, request, purpose);
            }
            Phase::Read { slot, request, purpose } => {
                let looks_for = matches!(purpose, Purpose::Undo { .. });
                // That it is there is what is asked; the copy is not kept.
                if !(looks_for && matches!(request, Request::Object(_))) {
                    self.take_answer(state, at, attempt.snapshot, slot, request);
                }
                self.was_read(state, at, attempt, slot, request, purpose);
            }
            Phase::Call { .. } => state.replicas[at.replica].put(at.slot, attempt),
        }
    }

    fn take_answer(&mut self, state: &mut State, at: At, snapshot: u32, slot: u8, request: Request) {
        match request {
            Request::Object(object) => self.cache(state, at.replica, CacheEvent::Answered(object)),
            Request::NotFound => self.bury(state, at, snapshot, slot),
            Request::Sent | Request::Stale | Request::Lost => {}
        }
    }

    /// An object that the request was about is not there. Its UID is that of the copy that the request was made from.
    fn bury(&mut self, state: &mut State, at: At, snapshot: u32, slot: u8) {
        let uid = if snapshot == NONE {
            let known = self
                .universe
                .cache(state.replicas[at.replica].cache)
                .volume(&self.universe.name(slot));
            known.map_or(0, |(volume, _)| uid_number(&volume.uid))
        } else {
            self.universe.copy(snapshot, slot).0
        };
        self.cache(state, at.replica, CacheEvent::NotFound(slot, uid));
    }

    fn written(&mut self, state: &mut State, at: At, attempt: Attempt, write: u32, request: Request, purpose: Purpose) {
        match purpose {
            Purpose::Prepare => match request {
                Request::Object(_) | Request::NotFound => self.end(state, at, attempt, End::Continue),
                Request::Stale => self.refresh(state, at, attempt, write, attempt.snapshot, purpose),
                Request::Sent | Request::Lost => self.finish(state, at, End::Failed),
            },
            Purpose::Renew { number } => match request {
                Request::Object(_) => self.renew(state, at, attempt, number + 1),
                Request::NotFound => self.end(state, at, attempt, End::Continue),
                Request::Stale => self.refresh(state, at, attempt, write, attempt.snapshot, purpose),
                Request::Sent | Request::Lost => self.finish(state, at, End::Failed),
            },
            Purpose::Record {
                came,
                at: number,
                tries,
                fresh,
            } => {
                let mut attempt = attempt;
                attempt.on_record |= match request {
                    Request::Object(object) => !self.is_gone(object),
                    Request::Lost => true,
                    Request::NotFound | Request::Stale | Request::Sent => false,
                };
                match request {
                    Request::Object(object) if !self.is_gone(object) => {
                        self.record_next(state, at, attempt, came, number + 1, tries, fresh);
                    }
                    Request::Object(_) | Request::NotFound => self.all_written(state, at, attempt, came),
                    Request::Stale => self.refresh(state, at, attempt, write, fresh, purpose),
                    // It is offered again; how often is bounded by the faults of a world.
                    Request::Lost | Request::Sent => self.send(state, at, attempt, write, purpose),
                }
            }
            Purpose::Note { came, fresh, again } => match request {
                Request::Object(_) => self.noted(state, at, attempt, came, true),
                Request::Stale if again => self.refresh(state, at, attempt, write, fresh, purpose),
                Request::NotFound | Request::Stale | Request::Lost | Request::Sent => {
                    self.noted(state, at, attempt, came, false);
                }
            },
            Purpose::Release { tries } => match request {
                Request::Object(_) | Request::NotFound => self.finish(state, at, End::Done),
                Request::Stale => self.read(state, at, attempt, at.slot, Purpose::Release { tries }),
                Request::Lost | Request::Sent => self.finish(state, at, End::Failed),
            },
            Purpose::Undo { .. } => {}
        }
    }

    fn is_gone(&self, object: u32) -> bool {
        crate::api_server::is_gone(&self.universe.object(object).value)
    }

    /// Whether there is a newer copy than the one that a write was made from: in the cache, or else by a read.
    fn refresh(&mut self, state: &mut State, at: At, attempt: Attempt, write: u32, made_from: u32, purpose: Purpose) {
        let (slot, _) = self.universe.target(write);
        if self.is_newer(state, at, made_from, slot) {
            return self.outdated(state, at, attempt, purpose);
        }
        self.read(state, at, attempt, slot, purpose);
    }

    fn is_newer(&self, state: &State, at: At, made_from: u32, slot: u8) -> bool {
        let cache = self.universe.cache(state.replicas[at.replica].cache);
        cache.version(&self.universe.whole(slot)) != self.universe.copy(made_from, slot).1
    }

    /// A write was made from a stale copy.
    fn outdated(&mut self, state: &mut State, at: At, attempt: Attempt, purpose: Purpose) {
        match purpose {
            Purpose::Record { came, tries, .. } => match self.newest(state, at, attempt.snapshot) {
                Some(newer) if tries < MAX_WRITES => self.record_on(state, at, attempt, came, tries + 1, newer),
                _ => self.not_recorded(state, at, attempt, came),
            },
            Purpose::Note { came, .. } => self.write_failure(state, at, attempt, came, false),
            Purpose::Prepare | Purpose::Renew { .. } | Purpose::Release { .. } | Purpose::Undo { .. } => {
                self.end(state, at, attempt, End::Continue);
            }
        }
    }

    /// The API server means its refusal.
    fn refused(&mut self, state: &mut State, at: At, attempt: Attempt, purpose: Purpose) {
        match purpose {
            Purpose::Prepare => {
                let shown = self.universe.snapshot(attempt.snapshot);
                if decide::is_settled(&shown.attachment, &self.universe.facts(state.capable)) {
                    return self.finish(state, at, End::Failed);
                }
                let failure = self.universe.fails(Failure::plain("could not save: conflict"));
                self.record_failure(state, at, attempt, failure);
            }
            Purpose::Renew { .. } => {
                let failure = self.universe.fails(Failure::plain("could not renew a claim: conflict"));
                self.record_failure(state, at, attempt, failure);
            }
            Purpose::Record { came, .. } => self.not_recorded(state, at, attempt, came),
            Purpose::Note { came, .. } => self.noted(state, at, attempt, came, false),
            Purpose::Release { .. } | Purpose::Undo { .. } => self.finish(state, at, End::Failed),
        }
    }

    fn was_read(&mut self, state: &mut State, at: At, attempt: Attempt, slot: u8, request: Request, purpose: Purpose) {
        match purpose {
            Purpose::Undo { end, known } => self.was_looked_for(state, at, attempt, request, end, known),
            Purpose::Release { tries } => {
                if request == Request::Lost {
                    return self.finish(state, at, End::Failed);
                }
                self.release_volume(state, at, tries + 1);
            }
            Purpose::Prepare | Purpose::Renew { .. } | Purpose::Record { .. } | Purpose::Note { .. } => {
                let made_from = match purpose {
                    Purpose::Record { fresh, .. } | Purpose::Note { fresh, .. } => fresh,
                    _ => attempt.snapshot,
                };
                if request == Request::NotFound || self.is_newer(state, at, made_from, slot) {
                    return self.outdated(state, at, attempt, purpose);
                }
                self.refused(state, at, attempt, purpose);
            }
        }
    }

    /// A live read says whether the attachment of a Publish is there.
    fn was_looked_for(&mut self, state: &mut State, at: At, attempt: Attempt, request: Request, end: End, known: bool) {
        let gone = match request {
            Request::NotFound => true,
            Request::Object(object) => {
                let object = self.universe.object(object);
                let same = *self.universe.snapshot(attempt.snapshot).attachment.uid == *object.uid();
                !(same && (object.facts.attached || object.facts.ours))
            }
            Request::Lost | Request::Stale | Request::Sent => {
                return self.read(state, at, attempt, at.slot, Purpose::Undo { end, known });
            }
        };
        let of = self.universe.snapshot(attempt.snapshot).attachment.uid.clone();
        let recorded = uid_number(&of) == state.replicas[at.replica].unanswered[usize::from(at.slot)];
        if !gone || recorded || self.is_wanted_by_another(state, at, attempt.snapshot, attempt.guard) {
            return self.undone(state, at, attempt, end, known);
        }
        self.note(|_| "takes the volume back".to_owned());
        let purpose = CallPurpose::TakeBack { end, known, tries: 0 };
        self.call(state, at, attempt, false, attempt.guard, purpose);
    }

    /// One attempt at a PersistentVolume.
    pub(super) fn release_volume(&mut self, state: &mut State, at: At, tries: u8) {
        if usize::from(state.leader) != at.replica && !self.universe.rules().unfenced {
            return self.finish(state, at, End::Failed);
        }
        let cache = state.replicas[at.replica].cache;
        let Some(write) = self.universe.release(cache, at.slot, state.capable) else {
            return self.finish(state, at, End::Done);
        };
        if tries >= MAX_WRITES {
            return self.finish(state, at, End::Failed);
        }
        let attempt = Attempt {
            snapshot: NONE,
            phase: Phase::Write {
                write,
                request: Request::Sent,
                purpose: Purpose::Release { tries },
            },
            guard: NOBODY,
            flights: 0,
            of_detach: false,
            secret: false,
            asked: 0,
            retracted: false,
            expired: false,
            on_record: false,
        };
        self.send(state, at, attempt, write, Purpose::Release { tries });
    }
}

/// It is known whether the attachment is recorded as attached.
fn forget_record(state: &mut State, at: At) {
    state.replicas[at.replica].unanswered[usize::from(at.slot)] = 0;
}
