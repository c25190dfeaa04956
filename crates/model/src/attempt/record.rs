//! How the result of a call, or a failure, is written down. The call behind a result is not to be repeated because the API server is
//! out of order, or because somebody else changed the object meanwhile.

use std::collections::VecDeque;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use super::prepare::{has_changed, is_newer};
use super::step::{Event, Patch, Read, Step, View};
use super::{Attempt, End, FailureCause, Note, Phase, Verdict};
use crate::answer::{ApiError, ApiErrorKind};
use crate::decide::patch::{self, WriteTarget};
use crate::decide::{self, Action, Failure, MAX_ERROR_BYTES, Observed, Outcome, Snapshot, Write, cut};
use crate::objects::{Operation, StringMap};

/// How often a result is offered to the API server before the attempt counts as failed.
const MAX_WRITES: u32 = 4;
const INITIAL_WRITE_BACKOFF: Duration = Duration::from_millis(100);
/// How long a result is offered to an API server that asks to wait.
const MAX_OFFER: Duration = Duration::from_mins(2);

/// A result that is written down.
#[derive(Clone, Debug)]
pub(super) enum Recorded {
    /// ControllerPublishVolume answered OK with this publish context.
    Published(StringMap),
    /// ControllerUnpublishVolume answered OK for each place.
    Unpublished,
    /// The driver has no such call, and the VolumeAttachment is marked as attached.
    Marked,
    /// The same, and our finalizer is taken off.
    Released,
}

/// A result on its way to the object.
#[derive(Clone, Debug)]
pub(super) struct Record {
    result: Recorded,
    /// The copies that the writes were made from.
    fresh: Snapshot,
    /// The write that is offered, and those after it.
    writes: VecDeque<Write>,
    /// How often all of it was begun.
    tries: u32,
    offer: Offer,
}

/// How often one write was offered.
#[derive(Clone, Debug)]
struct Offer {
    tries: u32,
    sent: u32,
    pause: Duration,
    since: Duration,
    /// It was refused as stale, and its object is being read.
    refused: Option<ApiError>,
}

impl Offer {
    fn begun(view: &dyn View) -> Self {
        Self {
            tries: 1,
            sent: 0,
            pause: INITIAL_WRITE_BACKOFF,
            since: view.elapsed(),
            refused: None,
        }
    }
}

/// A failure on its way to the object.
#[derive(Clone, Debug)]
pub(super) struct FailureWrite {
    /// What it is about.
    pub about: Snapshot,
    failure: Failure,
    cause: FailureCause,
    /// As the object shows it.
    outcome: Outcome,
    fresh: Snapshot,
    /// It may be made anew when it was made from a stale copy.
    may_repeat: bool,
    refused: Option<ApiError>,
}

impl FailureWrite {
    /// The message that the object is to show.
    pub fn shown(&self) -> &str {
        match &self.outcome {
            Outcome::AttachFailed(shown) | Outcome::DetachFailed(shown) => &shown.message,
            Outcome::Published(_) | Outcome::Unpublished => &self.failure.message,
        }
    }
}

/// What became of a failure on the VolumeAttachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureNote {
    /// It is written there, so that the VolumeAttachment was there.
    Written,
    /// It was not to be written: there were many failures lately. That says nothing about the VolumeAttachment.
    NotSent,
    /// No answer of the API server says that it is.
    Failed,
}

impl Attempt {
    /// Records the success of a Publish. Until the API server has answered, a pod may use the volume.
    pub(super) fn record_published(&mut self, view: &dyn View, context: StringMap) -> Step {
        let about = self.snapshot();
        self.may_be_on_record = about.is_some_and(|about| view.may_be_recorded(&about.attachment));
        self.note(Note::RecordBegins);
        self.record(view, Recorded::Published(context))
    }

    /// Writes a result down.
    pub(super) fn record(&mut self, view: &dyn View, result: Recorded) -> Step {
        let fresh = self.newest(view).or_else(|| self.snapshot().cloned());
        match fresh {
            Some(fresh) => self.record_on(view, result, fresh, 1),
            None => self.end(Verdict::Failed),
        }
    }

    /// When somebody else changed the object meanwhile, the writes are made again from what it is now.
    fn record_on(&mut self, view: &dyn View, result: Recorded, fresh: Snapshot, tries: u32) -> Step {
        let Some(inputs) = self.inputs.clone() else {
            return self.end(Verdict::Failed);
        };
        if !decide::is_same_work(&inputs.snapshot.attachment, &fresh.attachment, view.driver()) {
            // Whatever was called, it is not what this VolumeAttachment is about any more.
            return self.result_taken(view, End::Observe);
        }
        let current = Observed {
            attachment: &fresh.attachment,
            ..inputs.observed(view)
        };
        let settle = |outcome: &Outcome| (view.rules().settle)(&current, outcome, view.now());
        let writes = match &result {
            Recorded::Published(context) => settle(&Outcome::Published(context.clone())),
            Recorded::Unpublished => settle(&Outcome::Unpublished),
            Recorded::Marked => vec![patch::attached(current.attachment, None)],
            Recorded::Released => match (view.rules().attachment)(&current) {
                Action::Release(_) => settle(&Outcome::Unpublished),
                _ => Vec::new(),
            },
        };
        self.offer(
            view,
            Record {
                result,
                fresh,
                writes: writes.into(),
                tries,
                offer: Offer::begun(view),
            },
        )
    }

    /// Offers the next write.
    fn offer(&mut self, view: &dyn View, record: Record) -> Step {
        let Some(write) = record.writes.front().cloned() else {
            return self.all_written(view, &record);
        };
        let patch = Patch {
            write,
            copy: record.fresh.clone(),
            resends: record.offer.sent,
            claims: None,
        };
        self.phase = Phase::Record(Box::new(record));
        Step::Write(patch)
    }

    pub(super) fn recorded(&mut self, view: &dyn View, mut record: Record, event: Event) -> Step {
        match event {
            Event::Wrote(Ok(gone)) => {
                self.may_be_on_record |= !gone;
                record.writes.pop_front();
                if gone {
                    // The rest is left out once the object is gone.
                    record.writes.clear();
                }
                record.offer = Offer::begun(view);
                self.offer(view, record)
            }
            Event::Wrote(Err(error)) => {
                self.may_be_on_record |= error.may_have_happened();
                self.offer_refused(view, record, error)
            }
            Event::Read(answer) => {
                let Some((error, write)) = record.offer.refused.take().zip(record.writes.front()) else {
                    return self.end(Verdict::Failed);
                };
                if has_changed(view, &record.fresh, &write.target, &answer) {
                    return self.result_outdated(view, record, &error);
                }
                self.result_refused(view, &record, &error.meant())
            }
            // The pause is over.
            _ => self.offer(view, record),
        }
    }

    /// Offers a result again while the API server is out of order or does not know us: after a call its answer must not get lost.
    fn offer_refused(&mut self, view: &dyn View, mut record: Record, error: ApiError) -> Step {
        record.offer.sent += 1;
        let Some(write) = record.writes.front() else {
            return self.all_written(view, &record);
        };
        let waited = view.elapsed().saturating_sub(record.offer.since);
        match error.kind {
            ApiErrorKind::NotFound => {
                record.writes.clear();
                self.all_written(view, &record)
            }
            // The next try waits by itself until the API server takes it; this one was refused unread.
            _ if error.retry_after.is_some() && waited < MAX_OFFER => self.offer(view, record),
            _ if error.is_transient() && record.offer.tries < MAX_WRITES => {
                // Many VolumeAttachments are refused at the same time, and are not to come back at the same time.
                let rest = record.offer.pause.mul_f64(spread(&record.fresh.attachment.uid));
                record.offer.pause *= 4;
                record.offer.tries += 1;
                self.phase = Phase::Record(Box::new(record));
                Step::Rest(rest)
            }
            ApiErrorKind::Stale if is_newer(view, &record.fresh, &write.target) => {
                self.result_outdated(view, record, &error)
            }
            ApiErrorKind::Stale => {
                let read = Read::Again(write.target.clone(), Box::new(record.fresh.clone()));
                record.offer.refused = Some(error);
                self.phase = Phase::Record(Box::new(record));
                Step::Read(read)
            }
            // Once more: the answer may have been that to another request.
            ApiErrorKind::NotKept if record.tries == 1 => match self.newest(view) {
                Some(newer) => self.record_on(view, record.result, newer, record.tries + 1),
                None => self.result_refused(view, &record, &error),
            },
            _ => self.result_refused(view, &record, &error),
        }
    }

    fn result_outdated(&mut self, view: &dyn View, mut record: Record, error: &ApiError) -> Step {
        match self.newest(view) {
            Some(newer) if record.tries < MAX_WRITES => self.record_on(view, record.result, newer, record.tries + 1),
            // It is gone, or another one has its name: a detach leaves nothing to be recorded.
            None if self
                .snapshot()
                .is_some_and(|about| about.operation() == Operation::Detach) =>
            {
                record.writes.clear();
                self.all_written(view, &record)
            }
            _ => self.result_refused(view, &record, error),
        }
    }

    /// All writes were taken, or the object is gone. Does it show the result by now, whatever was written? What nobody wrote, no watch
    /// would bring, and nobody would observe again.
    fn all_written(&mut self, view: &dyn View, record: &Record) -> Step {
        let Some(inputs) = self.inputs.clone() else {
            return self.end(Verdict::Failed);
        };
        let (snapshot, finalizer) = (&inputs.snapshot, &view.driver().finalizer);
        let differs = self.newest(view).is_some_and(|newest| {
            decide::is_same_work(&snapshot.attachment, &newest.attachment, view.driver())
                && !decide::is_settled(&newest.attachment, finalizer)
        });
        if differs {
            let error = ApiError::garbled("the object does not show the result of the call");
            return self.result_refused(view, record, &error);
        }
        self.note(if decide::is_settled(&snapshot.attachment, finalizer) {
            Note::Repaired
        } else {
            Note::Succeeded(Box::new(snapshot.clone()))
        });
        if matches!(record.result, Recorded::Released) && decide::is_claimed(&snapshot.attachment, view.driver()) {
            self.note(Note::Released(Box::new(snapshot.clone())));
        }
        self.result_taken(view, End::Over(Verdict::Done))
    }

    /// A result that the API server does not take, though it was offered again and again.
    fn result_refused(&mut self, view: &dyn View, record: &Record, error: &ApiError) -> Step {
        let Some(about) = self.snapshot().cloned() else {
            return self.end(Verdict::Failed);
        };
        if about.operation() == Operation::Detach {
            let failure = Failure::plain(format!("could not mark as detached: {error}"));
            return self.record_failure(view, failure, FailureCause::Other);
        }
        // The volume is attached: an attachError would be wrong. The next attempt calls again, which the CSI spec makes harmless, and
        // records the answer.
        let why = format!("could not mark as attached: {error}");
        if matches!(record.result, Recorded::Published(_)) {
            self.note_failure(about, FailureCause::not_recorded(&why), FailureCause::NotRecorded);
            let end = End::Over(self.failed(view));
            return self.publish_recorded(view, end, false);
        }
        self.fail(view, about, Failure::plain(why), FailureCause::Other)
    }

    fn result_taken(&mut self, view: &dyn View, end: End) -> Step {
        if self.publish.is_some() {
            return self.publish_recorded(view, end, true);
        }
        self.go_on(view, end)
    }

    /// The result of a Publish is on record, or not; then comes what vanished meanwhile.
    fn publish_recorded(&mut self, view: &dyn View, end: End, is_on_record: bool) -> Step {
        if !self.may_be_on_record {
            self.note(Note::RecordKnown);
        }
        self.undo(view, end, is_on_record, is_on_record)
    }

    /// Records a failure of what was decided on, and ends the attempt. That the error itself cannot be written changes nothing: it
    /// is tried again either way.
    pub(super) fn record_failure(&mut self, view: &dyn View, failure: Failure, cause: FailureCause) -> Step {
        match self.snapshot().cloned() {
            Some(about) => self.record_failure_about(view, about, failure, cause),
            None => self.end(Verdict::Failed),
        }
    }

    pub(super) fn record_failure_about(
        &mut self,
        view: &dyn View,
        about: Snapshot,
        failure: Failure,
        cause: FailureCause,
    ) -> Step {
        let operation = about.operation();
        let shown = with_trace_id(&failure, view.trace_id());
        let outcome = match operation {
            Operation::Attach => Outcome::AttachFailed(shown),
            Operation::Detach => Outcome::DetachFailed(shown),
        };
        self.phase = Phase::Failure(Box::new(FailureWrite {
            fresh: about.clone(),
            about,
            failure,
            cause,
            outcome,
            may_repeat: true,
            refused: None,
        }));
        Step::Turn(operation)
    }

    pub(super) fn failure_noted(&mut self, view: &dyn View, mut note: FailureWrite, event: Event) -> Step {
        match event {
            Event::Turn(false) => self.failure_recorded(view, note, FailureNote::NotSent),
            Event::Wrote(Ok(_)) => self.failure_recorded(view, note, FailureNote::Written),
            Event::Wrote(Err(error)) => self.failure_refused(view, note, error),
            Event::Read(answer) => {
                let target = WriteTarget::AttachmentStatus(self.name.clone());
                match note.refused.take() {
                    Some(error) if !has_changed(view, &note.fresh, &target, &answer) => {
                        self.note(Note::FailureNotSaved(error));
                        self.failure_recorded(view, note, FailureNote::Failed)
                    }
                    _ => self.make_failure(view, note),
                }
            }
            _ => self.make_failure(view, note),
        }
    }

    /// Makes the write of a failure from what the VolumeAttachment is now; none when it was claimed again or recorded as attached
    /// meanwhile. One that is to be detached by now shows it too: people wonder why that takes a while, and a driver that goes on with
    /// a call after its deadline gets a moment to end it.
    fn make_failure(&mut self, view: &dyn View, mut note: FailureWrite) -> Step {
        let Some(inputs) = self.inputs.clone() else {
            return self.end(Verdict::Failed);
        };
        note.fresh = self.newest(view).unwrap_or_else(|| note.about.clone());
        if !decide::may_note_failure(&note.about.attachment, &note.fresh.attachment, view.driver()) {
            return self.failure_recorded(view, note, FailureNote::Written);
        }
        let current = Observed {
            attachment: &note.fresh.attachment,
            ..inputs.observed(view)
        };
        // A failure is one write.
        let writes = (view.rules().settle)(&current, &note.outcome, view.now());
        let Some(write) = writes.into_iter().next() else {
            return self.failure_recorded(view, note, FailureNote::Written);
        };
        let patch = Patch {
            write,
            copy: note.fresh.clone(),
            resends: 0,
            claims: None,
        };
        self.phase = Phase::Failure(Box::new(note));
        Step::Write(patch)
    }

    /// Once more when somebody else changed the object meanwhile.
    fn failure_refused(&mut self, view: &dyn View, mut note: FailureWrite, error: ApiError) -> Step {
        let target = WriteTarget::AttachmentStatus(self.name.clone());
        if error.kind != ApiErrorKind::Stale || !std::mem::replace(&mut note.may_repeat, false) {
            self.note(Note::FailureNotSaved(error));
            return self.failure_recorded(view, note, FailureNote::Failed);
        }
        if is_newer(view, &note.fresh, &target) {
            return self.make_failure(view, note);
        }
        let read = Read::Again(target, Box::new(note.fresh.clone()));
        note.refused = Some(error);
        self.phase = Phase::Failure(Box::new(note));
        Step::Read(read)
    }

    fn failure_recorded(&mut self, view: &dyn View, note: FailureWrite, noted: FailureNote) -> Step {
        let refused = note.failure.code.is_some_and(decide::is_final);
        let verdict = self.failed(view);
        self.note_failure(note.about, note.failure, note.cause);
        if std::mem::take(&mut self.lacks_capability) {
            // Only now: it ends the engine.
            self.note(Note::CapabilityMissed);
        }
        if self.publish.is_none() {
            return self.end(verdict);
        }
        // A failure that was not to be written is tried again: a driver that fails for thousands must not cost the API server a read
        // for each of the writes that it is spared.
        let may_be_unseen = noted == FailureNote::Failed && !refused;
        // What the driver refused says nothing of a record before that was not answered.
        self.undo(view, End::Over(verdict), !may_be_unseen, noted == FailureNote::Written)
    }

    /// Ends the attempt with a failure that is not written on the object.
    pub(super) fn fail(&mut self, view: &dyn View, about: Snapshot, failure: Failure, cause: FailureCause) -> Step {
        self.note_failure(about, failure, cause);
        let verdict = self.failed(view);
        self.end(verdict)
    }

    fn note_failure(&mut self, about: Snapshot, failure: Failure, cause: FailureCause) {
        self.note(Note::Failed {
            about: Box::new(about),
            failure,
            cause,
        });
    }
}

/// The failure as the VolumeAttachment shows it: with the ID of the trace. The ID is the same for each attempt of a lifecycle, so that
/// the kubelet's Event about it stays one.
pub(super) fn with_trace_id(failure: &Failure, trace: Option<String>) -> Failure {
    let Some(id) = trace else {
        return failure.clone();
    };
    let suffix = format!(" [trace {id}]");
    let message = cut(&failure.message, MAX_ERROR_BYTES.saturating_sub(suffix.len()));
    Failure {
        message: format!("{message}{suffix}"),
        ..failure.clone()
    }
}

/// From 0.75 to 1.25, for each object another one.
fn spread(uid: &str) -> f64 {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(uid);
    0.75 + f64::from(u16::try_from(hash % 512).unwrap_or_default()) / 1024.0
}
