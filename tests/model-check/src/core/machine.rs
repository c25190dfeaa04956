//! The production attempt as the model runs it: by its number, each step made once, and the world as it sees it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use csi_attacher_attach::cache::Index;
use csi_attacher_model::answer::{ApiError, ApiErrorKind};
use csi_attacher_model::attempt::{
    self, Attempt, Call, CallEnd, Event, LeaseLost, Note, Read, ReadTarget, RunningWatches, Step, Verdict, View,
};
use csi_attacher_model::decide::patch::WriteTarget;
use csi_attacher_model::decide::{DetachWait, DriverFacts, OwnedVolumeOnNode, Snapshot, VolumeOnNode};
use csi_attacher_model::objects::{Attachment, ResourceVersion, StringMap};
use jiff::Timestamp;

use super::objects::Record;
use super::state::{End, NOBODY, NONE};
use super::universe::{NOW, Universe, context_of, uid_number};
use crate::hash::of_debug;

/// An attempt, and where nobody else may call meanwhile.
pub struct Machine {
    attempt: Attempt,
    places: u16,
    /// Where the outcome of a Publish is not on record.
    publish: u8,
}

/// What a step is made from: all that can make it another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Glance {
    /// The attempt.
    pub machine: u32,
    /// Its key.
    pub slot: u8,
    /// The cache.
    pub cache: u32,
    /// The answer to the last step.
    pub received: Received,
    /// The Lease is held.
    pub may_start: bool,
    /// The driver has ControllerPublishVolume.
    pub capable: bool,
    /// The attach was held back for as long as is good.
    pub expired: bool,
    /// The run of the queue is one for a detach.
    pub of_detach: bool,
    /// The number of the UID that may be recorded as attached.
    pub recorded: u8,
}

/// The answer to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Received {
    /// The attempt begins, or what it waited for is over.
    Done,
    /// A write was answered.
    Wrote(Answer),
    /// A read was answered; its object is in the cache.
    Read(Answer),
    /// A live read was answered by this object.
    Live(u32),
    /// The Secret is there, or not.
    Secret(bool),
    /// The places are taken.
    Taken,
    /// Another call is in the way, at the place or at another node.
    Occupied { elsewhere: bool },
    /// ControllerPublishVolume was answered with this publish context.
    Published(u8),
    /// ControllerUnpublishVolume was answered with OK.
    Unpublished,
    /// The driver has answered with this failure.
    Failed(u16),
    /// The Lease was lost, before the call or during it.
    LeaseLost { started: bool },
    /// The failure is to be written.
    Turn,
}

/// What a request was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// OK.
    Taken,
    /// OK, and the object went with it.
    Gone,
    /// It is not there.
    NotFound,
    /// The write was made from a stale copy.
    Stale,
    /// There was no answer that counts.
    Lost,
}

/// What the attempt does next.
#[derive(Clone, Debug)]
pub enum Doing {
    /// Something that is answered at once.
    Answered(Received),
    /// It reads an object that the cache does not know.
    Fetch(u8),
    /// It reads the Secret.
    Secret,
    /// It takes places: for a Publish of a volume that may be at one node only, `alone`.
    Take { places: Vec<u8>, alone: bool },
    /// It sends a write. A 404 is about the object with the UID of this number.
    Write { write: u32, uid: u8 },
    /// It reads an object again, or, live, that of a Publish.
    Read { slot: u8, uid: u8, live: bool },
    /// It calls ControllerPublishVolume.
    Publish { place: u8, read_only: bool },
    /// It calls ControllerUnpublishVolume.
    Unpublish(u8),
    /// It is over.
    End(End),
}

/// What came of a step.
pub struct Advance {
    /// The attempt after it.
    pub machine: u32,
    /// What happened, with the number of the UID of the attachment that it is about.
    pub notes: Vec<(u8, Note)>,
    /// What is next.
    pub doing: Doing,
}

/// The world as an attempt sees it.
struct InWorld<'a> {
    rules: &'a attempt::Rules,
    facts: DriverFacts,
    cache: Rc<Index>,
    glance: Glance,
}

impl View for InWorld<'_> {
    fn rules(&self) -> &attempt::Rules {
        self.rules
    }

    fn driver(&self) -> &DriverFacts {
        &self.facts
    }

    fn now(&self) -> Timestamp {
        NOW
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn may_start(&self) -> bool {
        self.glance.may_start
    }

    fn is_leaving(&self) -> bool {
        false
    }

    fn attachment(&self, name: &str) -> Option<Snapshot> {
        self.cache.snapshot(name)
    }

    fn version(&self, target: &WriteTarget) -> Option<ResourceVersion> {
        self.cache.version(target)
    }

    fn is_of_one_state(&self) -> bool {
        true
    }

    fn watched(&self) -> RunningWatches {
        RunningWatches {
            volumes: true,
            nodes: true,
        }
    }

    fn detach_wait(&self) -> DetachWait {
        if self.glance.expired {
            DetachWait::Expired
        } else {
            DetachWait::Allowed
        }
    }

    fn is_forced(&self, _: &Snapshot) -> bool {
        false
    }

    fn is_of_this_run(&self, attachment: &Attachment, _: bool) -> bool {
        attachment.deleting.is_some() == self.glance.of_detach
    }

    fn is_wanted_by_another(&self, snapshot: &Snapshot, place: VolumeOnNode<'_>) -> bool {
        self.cache.is_claimed(&snapshot.attachment, &self.facts, place)
    }

    fn may_be_recorded(&self, attachment: &Attachment) -> bool {
        uid_number(&attachment.uid) == self.glance.recorded
    }

    fn traceparent(&self) -> Option<String> {
        None
    }

    fn trace_id(&self) -> Option<String> {
        None
    }
}

impl Universe {
    fn number_of_attempt(&mut self, attempt: Attempt) -> u32 {
        let mask =
            |mask, place: &OwnedVolumeOnNode| self.number_of_place(place).map_or(mask, |place| mask | 1 << place);
        let places = attempt.places().iter().fold(0, mask);
        let publish = attempt
            .publish()
            .and_then(|publish| self.number_of_place(&publish.place));
        self.machines.number(of_debug(&attempt), || Machine {
            attempt,
            places,
            publish: publish.unwrap_or(NOBODY),
        })
    }

    fn number_of_place(&self, place: &OwnedVolumeOnNode) -> Option<u8> {
        let place = place.borrow();
        self.place(place.volume_id, place.node_id)
    }

    /// An attempt at a VolumeAttachment that has not begun.
    pub fn new_attempt(&mut self, slot: u8) -> u32 {
        let attempt = Attempt::new(self.name(slot), self.policy.clone());
        self.number_of_attempt(attempt)
    }

    /// The attempt that finds out what became of the Publish of another one, and where that is; none when its outcome is known.
    pub fn resumed(&mut self, machine: u32) -> Option<(u32, u8)> {
        if machine == NONE {
            return None;
        }
        let former = self.machines.get(machine);
        let (publish, place) = (former.attempt.publish()?.clone(), former.publish);
        let attempt = Attempt::resume(publish, self.policy.clone());
        Some((self.number_of_attempt(attempt), place))
    }

    /// Where nobody else may call during an attempt, and whether it publishes there.
    pub fn places_of(&self, machine: u32) -> impl Iterator<Item = (u8, bool)> + use<> {
        let known = (machine != NONE).then(|| self.machines.get(machine));
        let (places, publish) = known.map_or((0, NOBODY), |machine| (machine.places, machine.publish));
        let held = (0..16_u8).filter(move |place| places & (1 << place) != 0);
        let held = held.map(|place| (place, false));
        held.chain((publish != NOBODY).then_some((publish, true)))
    }

    /// Makes a step of an attempt. The same step is made once.
    pub fn advance(&mut self, glance: Glance) -> Rc<Advance> {
        if let Some(known) = self.advances.get(&glance) {
            return known.clone();
        }
        let mut attempt = self.machines.get(glance.machine).attempt.clone();
        let event = self.event(glance.received);
        let rules = self.rules().attempt;
        let view = InWorld {
            rules: &rules,
            facts: self.facts(glance.capable),
            cache: self.cache(glance.cache),
            glance,
        };
        let step = attempt.next(&view, event);
        let notes = attempt.take_notes().into_iter();
        let uid = |about: Option<Snapshot>| about.map_or(0, |about| uid_number(&about.attachment.uid));
        let notes = notes.map(|(about, note)| (uid(about), note)).collect();
        let read_only = attempt.publish_request(&view).is_some_and(|request| request.read_only);
        let doing = self.doing(step, read_only);
        let advance = Rc::new(Advance {
            machine: self.number_of_attempt(attempt),
            notes,
            doing,
        });
        self.advances.insert(glance, advance.clone());
        advance
    }

    fn event(&self, received: Received) -> Event {
        match received {
            Received::Done => Event::Done,
            Received::Wrote(Answer::Taken) => Event::Wrote(Ok(false)),
            Received::Wrote(Answer::Gone) => Event::Wrote(Ok(true)),
            Received::Wrote(answer) => Event::Wrote(Err(error_of(answer))),
            Received::Read(Answer::Taken | Answer::Gone) => Event::Read(Ok(None)),
            Received::Read(answer) => Event::Read(Err(error_of(answer))),
            Received::Live(object) => Event::Read(Ok(match &self.object(object).record {
                Record::Attachment(record) => Some(Box::new((**record).clone())),
                Record::Volume(_) | Record::Node(_) => None,
            })),
            Received::Secret(true) => Event::Secret(Ok(())),
            Received::Secret(false) => Event::Secret(Err(error_of(Answer::NotFound))),
            Received::Taken => Event::Taken,
            Received::Occupied { elsewhere } => Event::Occupied(elsewhere.then(|| Arc::from("another"))),
            Received::Published(context) => Event::Called(Ok(context_of(context))),
            Received::Unpublished => Event::Called(Ok(StringMap::default())),
            Received::Failed(failure) => Event::Called(Err(CallEnd::Failed(self.failure(failure).clone()))),
            Received::LeaseLost { started } => Event::Called(Err(CallEnd::LeaseLost(if started {
                LeaseLost::Cancelled
            } else {
                LeaseLost::NotStarted
            }))),
            Received::Turn => Event::Turn(true),
        }
    }

    fn doing(&mut self, step: Step, read_only: bool) -> Doing {
        match step {
            // No world has a release on request, nor one of a live volume.
            Step::Open | Step::Rest(_) | Step::Place | Step::AwaitLiveRelease | Step::Evidence => {
                Doing::Answered(Received::Done)
            }
            Step::Turn(_) => Doing::Answered(Received::Turn),
            Step::Secret(_) => Doing::Secret,
            Step::Write(patch) => Doing::Write {
                uid: uid_number(patch.copy.uid(&patch.write.target)),
                write: self.number_of_write(patch.write),
            },
            Step::Read(Read::Unwatched(ReadTarget::Volume(name) | ReadTarget::Node(name), _)) => {
                Doing::Fetch(self.slot(&name))
            }
            Step::Read(Read::Again(target, copy)) => Doing::Read {
                slot: self.slot_of(&target),
                uid: uid_number(copy.uid(&target)),
                live: false,
            },
            Step::Read(Read::Live(copy)) => Doing::Read {
                slot: self.slot(&copy.attachment.name),
                uid: uid_number(&copy.attachment.uid),
                live: true,
            },
            Step::Take(take) => Doing::Take {
                places: take
                    .places
                    .iter()
                    .filter_map(|place| self.number_of_place(place))
                    .collect(),
                alone: take.publish == Some(true),
            },
            Step::Call(Call::Publish(place)) => Doing::Publish {
                place: self.number_of_place(&place).unwrap_or(NOBODY),
                read_only,
            },
            Step::Call(Call::Unpublish { place, .. }) => {
                Doing::Unpublish(self.number_of_place(&place).unwrap_or(NOBODY))
            }
            Step::End(Verdict::Done) => Doing::End(End::Done),
            Step::End(Verdict::AwaitDetach(_) | Verdict::AwaitCall(Some(_))) => Doing::End(End::HeldBack),
            Step::End(_) => Doing::End(End::Failed),
        }
    }
}

fn error_of(answer: Answer) -> ApiError {
    let kind = match answer {
        Answer::NotFound => ApiErrorKind::NotFound,
        Answer::Stale => ApiErrorKind::Stale,
        Answer::Taken | Answer::Gone | Answer::Lost => ApiErrorKind::Unknown,
    };
    ApiError::without_answer(kind, "as the model has it")
}
