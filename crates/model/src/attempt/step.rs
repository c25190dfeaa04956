//! What an attempt asks of the shell, and what the shell answers.

use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

use crate::answer::ApiError;
use crate::decide::patch::WriteTarget;
use crate::decide::{
    self, Action, DetachWait, DriverFacts, Failure, Observed, Outcome, OwnedVolumeOnNode, ReleaseEvidence, Snapshot,
    VolumeOnNode, Write,
};
use crate::objects::{Attachment, Operation, ResourceVersion, SecretReference, StringMap};

/// The rules that attempts go by, as values: a test of the tests hands in wrong ones.
#[derive(Clone, Copy)]
pub struct Rules {
    /// The next step for a VolumeAttachment.
    pub attachment: for<'a> fn(&Observed<'a>) -> Action<'a>,
    /// The writes that record an outcome.
    pub settle: fn(&Observed<'_>, &Outcome, Timestamp) -> Vec<Write>,
}

impl Default for Rules {
    /// [`decide::attachment`] and [`decide::settle`].
    fn default() -> Self {
        Self {
            attachment: decide::attachment,
            settle: decide::settle,
        }
    }
}

/// What an attempt sees at a moment: the cache, the Lease, the settings. To read it changes nothing.
pub trait View {
    /// The rules to go by.
    fn rules(&self) -> &Rules;
    /// The driver.
    fn driver(&self) -> &DriverFacts;
    /// The time, for what is written on objects.
    fn now(&self) -> Timestamp;
    /// How long the attempt has lasted.
    fn elapsed(&self) -> Duration;
    /// Whether a call or a write may be begun: the Lease is held.
    fn may_start(&self) -> bool;
    /// Whether the AttacherConfig is being deleted and waits for its volumes.
    fn is_leaving(&self) -> bool;
    /// What the cache knows of a VolumeAttachment.
    fn attachment(&self, name: &str) -> Option<Snapshot>;
    /// Version of the copy that the cache has of an object.
    fn version(&self, target: &WriteTarget) -> Option<ResourceVersion>;
    /// Whether all lists are of one state of the API server.
    fn is_of_one_state(&self) -> bool;
    /// Which watches keep the copies in the cache up to date.
    fn watched(&self) -> RunningWatches;
    /// Whether the attach may be held back still for a detach elsewhere.
    fn detach_wait(&self) -> DetachWait;
    /// Whether the VolumeAttachment is to be worked on though it looks settled.
    fn is_forced(&self, snapshot: &Snapshot) -> bool;
    /// Whether the run of the queue is the one for what the VolumeAttachment asks for by now.
    fn is_of_this_run(&self, attachment: &Attachment, forced: bool) -> bool;
    /// Whether another VolumeAttachment than that of the snapshot is claimed for a place.
    fn is_wanted_by_another(&self, snapshot: &Snapshot, place: VolumeOnNode<'_>) -> bool;
    /// Whether a write that records this VolumeAttachment as attached may have been taken in before.
    fn may_be_recorded(&self, attachment: &Attachment) -> bool;
    /// `traceparent` of the trace of the attach, where it goes onto the VolumeAttachment.
    fn traceparent(&self) -> Option<String>;
    /// The ID of the trace, where failures on the VolumeAttachment name it.
    fn trace_id(&self) -> Option<String>;
}

/// Which watches are at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningWatches {
    /// That of PersistentVolumes.
    pub volumes: bool,
    /// That of CSINodes.
    pub nodes: bool,
}

/// What the shell does next. Each but the last is answered by an [`Event`].
#[derive(Clone, Debug)]
pub enum Step {
    /// Open the span of the attempt; by [`Event::Done`], or by [`Event::Wrote`] when the VolumeAttachment was written to for it.
    Open,
    /// Send a write; by [`Event::Wrote`].
    Write(Patch),
    /// Read an object; by [`Event::Read`].
    Read(Read),
    /// Read a Secret and keep its contents for the calls of this attempt; by [`Event::Secret`].
    Secret(SecretReference),
    /// Take places, all or none; by [`Event::Taken`] or [`Event::Occupied`].
    Take(Take),
    /// Call the driver; by [`Event::Called`].
    Call(Call),
    /// Collect the evidence about a request to release; by [`Event::Evidence`].
    Evidence,
    /// Wait until the live volume is not being released; by [`Event::Done`].
    AwaitLiveRelease,
    /// Wait for a place among the calls to the driver, until the next one has ended; by [`Event::Done`].
    Place,
    /// Wait for the turn of one more failure that is written on a VolumeAttachment; by [`Event::Turn`].
    Turn(Operation),
    /// Wait; by [`Event::Done`].
    Rest(Duration),
    /// The attempt is over.
    End(Verdict),
}

/// A write.
#[derive(Clone, Debug)]
pub struct Patch {
    /// What is written.
    pub write: Write,
    /// The copies that it was made from.
    pub copy: Snapshot,
    /// How often it was sent before.
    pub resends: u32,
    /// It claims a place, and was decided on while the AttacherConfig was being left or not. It is not sent when that has changed,
    /// which [`Event::Done`] says.
    pub claims: Option<bool>,
}

/// A read.
#[derive(Clone, Debug)]
pub enum Read {
    /// Of an object for which what the cache has is not enough: with the UID of its copy, if there is one that no watch keeps. The
    /// answer goes into the cache as what no watch has shown.
    Unwatched(ReadTarget, Option<Box<str>>),
    /// Of the object of a write that was refused as stale, into the cache; with the copies that the write was made from.
    Again(WriteTarget, Box<Snapshot>),
    /// Of the VolumeAttachment of a Publish. Only a 404 goes into the cache.
    Live(Box<Snapshot>),
}

/// An object that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadTarget {
    /// A PersistentVolume.
    Volume(Arc<str>),
    /// A CSINode.
    Node(Arc<str>),
}

/// Places that nobody else may call for.
#[derive(Clone, Debug)]
pub struct Take {
    /// Where.
    pub places: Vec<OwnedVolumeOnNode>,
    /// For a Publish; of a volume that may be at one node only, none may be in flight anywhere if this is true.
    pub publish: Option<bool>,
}

/// A call to the driver.
#[derive(Clone, Debug)]
pub enum Call {
    /// ControllerPublishVolume, with [`super::Attempt::publish_request`].
    Publish(OwnedVolumeOnNode),
    /// ControllerUnpublishVolume.
    Unpublish {
        /// Where.
        place: OwnedVolumeOnNode,
        /// Over a connection that is chosen anew: that of the attempt may be the one whose loss started this.
        anew: bool,
    },
}

/// Why the driver's answer is missing.
#[derive(Clone, Debug)]
pub enum CallEnd {
    /// The driver, or the connection to it, says no.
    Failed(Failure),
    /// The Lease was lost, or the connection before the call was sent. Nothing failed.
    LeaseLost(LeaseLost),
}

/// What the loss of the Lease did to a call, or that of the connection before it was sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LeaseLost {
    /// The driver was not asked.
    #[error("the call was not sent: the Lease of the driver was lost, or the connection took no more calls")]
    NotStarted,
    /// The driver may still do what it was asked to, as after a broken connection.
    #[error("the Lease of the driver is over, so that the call was cancelled")]
    Cancelled,
}

/// The answer to a step.
#[derive(Clone, Debug)]
pub enum Event {
    /// The attempt begins, or what was waited for is over.
    Done,
    /// A write was answered; true when the object went with it. The cache knows the answer.
    Wrote(Result<bool, ApiError>),
    /// A read was answered. The cache knows the answer.
    Read(Answer),
    /// A Secret was read.
    Secret(Result<(), ApiError>),
    /// The places are taken.
    Taken,
    /// Another call is in the way: that of this VolumeAttachment, if it is a Publish at another node.
    Occupied(Option<Arc<str>>),
    /// The driver has answered, to a Publish with its publish context.
    Called(Result<StringMap, CallEnd>),
    /// The evidence about a request to release.
    Evidence(Result<Box<ReleaseEvidence>, LeaseLost>),
    /// Whether the failure is to be written.
    Turn(bool),
}

/// The answer to a read: the VolumeAttachment, where that was asked for.
pub type Answer = Result<Option<Box<Attachment>>, ApiError>;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// There is nothing to do any more.
    Done,
    /// It failed.
    Failed,
    /// It failed with the inputs of this fingerprint.
    FailedWith(u64),
    /// It failed with these inputs before the driver was called.
    Waits(u64),
    /// The VolumeAttachment asks for something else by now, which has a run of its own.
    OfAnotherRun,
    /// Not all lists are of one state of the API server.
    AwaitLists,
    /// The volume is being detached from another node, for this VolumeAttachment.
    AwaitDetach(Arc<str>),
    /// Another call is in the way, as [`Event::Occupied`] has it.
    AwaitCall(Option<Arc<str>>),
    /// The Lease was lost, or the connection before a call was sent.
    LeaseLost,
}
