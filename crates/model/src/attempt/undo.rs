//! A VolumeAttachment that vanished while its volume was being published.
//!
//! Our finalizer makes that impossible, unless somebody removes it by force or the API server goes back to an older state.
//! Then nobody will ever ask for the detach, and the volume would stay attached to a node that no object names. But a
//! cache can be wrong, and the volume may be in use: it is taken back only after a live read has confirmed that the object
//! is gone, and not if a write that records it as attached may have been taken in. Else it stays where it is, and an Event
//! says so. What ends before that is known is kept by the process for its next engine for the driver, in the same term of the Lease.

use std::time::Duration;

use super::note::{Undone, Vanished};
use super::step::{Answer, Call, CallEnd, Event, Read, Step, View};
use super::undo_state::{End, INITIAL_BACKOFF, Stage, Undo};
use super::{Attempt, LeaseLost, Note, Phase, Verdict};
use crate::answer::ApiErrorKind;
use crate::decide;
use crate::objects::{Attachment, StringMap};

const TRIES: u32 = 6;
const TRIES_WHILE_BELIEVED: u32 = 4;
/// How long it rests while the lists of the cache are of more than one state.
const LIST_REST: Duration = Duration::from_millis(200);

/// What a live read says of a VolumeAttachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LiveRead {
    /// It is gone, or back at the state before its claim.
    Gone,
    Claimed,
    /// Another one under its name has the volume at the place.
    Replaced,
    /// There was no answer that says so.
    Unknown,
}

impl Attempt {
    /// Takes the volume back from the node when the VolumeAttachment is gone, or was brought back to before its claim, unless another
    /// one is claimed for the place. One that came back under the same name is not: it waits for this attempt to end, and may never get
    /// as far as its claim.
    pub(super) fn undo(&mut self, view: &dyn View, end: End, is_known: bool, is_on_record: bool) -> Step {
        self.begin_undo(view, Undo::new(end, is_known, is_on_record, Stage::Read))
    }

    fn begin_undo(&mut self, view: &dyn View, undo: Undo) -> Step {
        if self.is_wanted_by_another(view) || (undo.is_known && self.is_believed(view)) {
            return self.finish_undo(view, undo);
        }
        self.read_live(undo)
    }

    pub(super) fn undone(&mut self, view: &dyn View, undo: Undo, event: Event) -> Step {
        match (undo.stage, event) {
            (Stage::Lists, _) if !view.is_of_one_state() => {
                self.phase = Phase::Undo(undo);
                Step::Rest(LIST_REST)
            }
            (Stage::Lists, _) => self.begin_undo(view, undo),
            (Stage::Read, Event::Read(answer)) => self.live_answered(view, undo, answer),
            (Stage::ReadAgain, _) => self.read_live(undo),
            (Stage::Call, Event::Called(answer)) => self.take_back_answered(view, undo, answer),
            (Stage::CallAgain, _) => self.take_back(view, undo),
            (Stage::Place, _) => self.call_to_take_back(view, undo),
            (Stage::Read | Stage::Call, _) => self.end(Verdict::Failed),
        }
    }

    fn read_live(&mut self, undo: Undo) -> Step {
        let Some(snapshot) = self.publish.as_ref().map(|publish| publish.snapshot.clone()) else {
            return self.end(Verdict::Failed);
        };
        self.phase = Phase::Undo(Undo {
            stage: Stage::Read,
            ..undo
        });
        Step::Read(Read::Live(Box::new(snapshot)))
    }

    /// The VolumeAttachment is read until there is an answer that counts, but not for ever; and not for long while the cache believes
    /// that it is there.
    fn live_answered(&mut self, view: &dyn View, mut undo: Undo, answer: Answer) -> Step {
        let live = match answer {
            Ok(Some(record)) if record.name == self.name => self.judge(view, &record),
            // The answer to another request.
            Ok(_) => LiveRead::Unknown,
            Err(error) if error.kind == ApiErrorKind::NotFound => LiveRead::Gone,
            Err(error) => {
                self.note(Note::Undo(Undone::CannotRead(error, undo.pause)));
                LiveRead::Unknown
            }
        };
        undo.tries += 1;
        let gives_up = undo.tries >= TRIES || (undo.tries >= TRIES_WHILE_BELIEVED && self.is_believed(view));
        if live == LiveRead::Unknown && !gives_up {
            let rest = undo.pause;
            undo.pause *= 2;
            undo.stage = Stage::ReadAgain;
            self.phase = Phase::Undo(undo);
            return Step::Rest(rest);
        }
        let recorded = self.publish.as_ref().is_some_and(|publish| {
            let former = &publish.snapshot.attachment;
            // One that is attached is published again when the driver does not list it.
            former.attached || view.may_be_recorded(former)
        });
        match live {
            LiveRead::Gone if !recorded => {
                undo.tries = 0;
                undo.pause = INITIAL_BACKOFF;
                return self.take_back(view, undo);
            }
            LiveRead::Gone => self.note(Note::Undo(Undone::Vanished(Vanished::MaybeInUse))),
            LiveRead::Replaced => self.note(Note::Undo(Undone::CreatedAgain)),
            // Or nothing says that it is gone.
            LiveRead::Claimed | LiveRead::Unknown if self.is_believed(view) => {}
            LiveRead::Claimed => self.note(Note::Undo(Undone::IsThere)),
            LiveRead::Unknown => self.note(Note::Undo(Undone::Vanished(Vanished::Unconfirmed))),
        }
        self.finish_undo(view, undo)
    }

    /// Unpublishes the volume of an object that is gone, as long as nobody wants it at that place.
    fn take_back(&mut self, view: &dyn View, mut undo: Undo) -> Step {
        if undo.tries >= TRIES {
            self.note(Note::Undo(Undone::Vanished(Vanished::Stays)));
            return self.finish_undo(view, undo);
        }
        undo.stage = Stage::Place;
        self.phase = Phase::Undo(undo);
        Step::Place
    }

    fn call_to_take_back(&mut self, view: &dyn View, mut undo: Undo) -> Step {
        let place = self.publish.as_ref().map(|publish| publish.place.clone());
        match place {
            Some(place) if !self.is_wanted_by_another(view) => {
                undo.tries += 1;
                undo.stage = Stage::Call;
                self.phase = Phase::Undo(undo);
                self.call(Call::Unpublish { place, anew: true })
            }
            _ => self.finish_undo(view, undo),
        }
    }

    fn take_back_answered(&mut self, view: &dyn View, mut undo: Undo, answer: Result<StringMap, CallEnd>) -> Step {
        let answer = match answer {
            Err(CallEnd::LeaseLost(lost)) => {
                // Whoever holds the Lease next finds no object that speaks of this volume.
                self.note(Note::Undo(Undone::Vanished(Vanished::LeaseLost)));
                return self.lease_lost(lost);
            }
            Err(CallEnd::Failed(failure)) => Err(failure),
            Ok(_) => Ok(()),
        };
        match decide::unpublished(&self.policy, answer) {
            Ok(orphan) => {
                let place = self.publish.as_ref().map(|publish| publish.place.clone());
                if let Some((orphan, place)) = orphan.zip(place) {
                    self.note(Note::Orphaned(place, orphan));
                }
                self.note(Note::Undo(Undone::Vanished(Vanished::Detached)));
                self.finish_undo(view, undo)
            }
            Err(failure) => {
                self.note(Note::Undo(Undone::CannotDetach(failure, undo.pause)));
                let rest = undo.pause;
                undo.pause *= 2;
                undo.stage = Stage::CallAgain;
                self.phase = Phase::Undo(undo);
                Step::Rest(rest)
            }
        }
    }

    /// The Lease was lost before the answer to a Publish.
    pub(super) fn lost_while_publishing(&mut self, view: &dyn View, lost: LeaseLost) -> Step {
        match lost {
            LeaseLost::NotStarted => self.publish = None,
            LeaseLost::Cancelled if self.is_believed(view) => {}
            LeaseLost::Cancelled => self.note(Note::Undo(Undone::Vanished(Vanished::LeaseLost))),
        }
        self.lease_lost(lost)
    }

    fn finish_undo(&mut self, view: &dyn View, undo: Undo) -> Step {
        self.publish = None;
        if undo.is_on_record {
            self.note(Note::RecordKnown);
        }
        self.go_on(view, undo.end)
    }

    /// Whether another VolumeAttachment is claimed for the place of the Publish.
    fn is_wanted_by_another(&self, view: &dyn View) -> bool {
        self.publish
            .as_ref()
            .is_some_and(|publish| view.is_wanted_by_another(&publish.snapshot, publish.place.borrow()))
    }

    /// Whether the cache shows that the VolumeAttachment is there.
    fn is_believed(&self, view: &dyn View) -> bool {
        let known = view.attachment(&self.name);
        let publish = self.publish.as_ref();
        publish
            .zip(known)
            .is_some_and(|(publish, known)| publish.is_claimed_by(&known.attachment, view.driver()))
    }

    /// What an object of the VolumeAttachment's name says, which was read from the API server. Another one under the name may have been
    /// attached by an attacher that led meanwhile, and the watch may be behind with it.
    fn judge(&self, view: &dyn View, record: &Attachment) -> LiveRead {
        let (driver, Some(publish)) = (view.driver(), self.publish.as_ref()) else {
            return LiveRead::Unknown;
        };
        let former = &publish.snapshot.attachment;
        let is_another = *record.uid != *former.uid && record.attacher == driver.name;
        let keeps_place = is_another
            && decide::holds_its_place(record, &driver.finalizer)
            && decide::is_claimed_for(record, None, None, publish.place.borrow(), former);
        if keeps_place {
            LiveRead::Replaced
        } else if publish.is_claimed_by(record, driver) {
            LiveRead::Claimed
        } else {
            LiveRead::Gone
        }
    }
}
