//! What happened in an attempt: for logs, Events, metrics, spans, the status of the driver, and what the process remembers.

use std::time::Duration;

use super::cause::FailureCause;
use super::step::LeaseLost;
use crate::answer::ApiError;
use crate::decide::patch::WriteTarget;
use crate::decide::{Failure, IgnoreReason, OwnedVolumeOnNode, ReleaseRefusal, Snapshot};

/// What happened. The shell takes it in before it performs the next step.
#[derive(Clone, Debug)]
pub enum Note {
    /// Nothing is to be done.
    NothingToDo(IgnoreReason),
    /// The Lease was lost.
    LeaseLost(LeaseLost),
    /// A write on the way to a call was taken.
    Prepared(WriteTarget),
    /// ControllerUnpublishVolume was called at the place of an earlier try; with the driver's failure, if it is one.
    Retracted(OwnedVolumeOnNode, Option<String>),
    /// A volume is to be detached at these places.
    Detaches(Vec<OwnedVolumeOnNode>),
    /// The driver does not find the volume or the node, and that counts as detached by `spec.orphanPolicy`.
    Orphaned(OwnedVolumeOnNode, Failure),
    /// A person confirmed that the volume is not at this former place, and nothing was called for it.
    Confirmed(OwnedVolumeOnNode),
    /// The driver confirmed that the volume is detached from all places.
    Detached,
    /// An attach or detach came to its end.
    Succeeded(Box<Snapshot>),
    /// What was attached long ago was published once more, as ListVolumes contradicted it: nobody asked for an attach.
    Repaired,
    /// A VolumeAttachment that may have been published was let go without a call.
    Released(Box<Snapshot>),
    /// It was let go without the driver's confirmation, as a person asked: the request, and what allows it.
    ReleasedOnRequest(String, &'static str),
    /// That was refused.
    ReleaseRefused(ReleaseRefusal),
    /// The API server does not take the answer to such a request.
    AnswerNotSaved(Failure),
    /// The attempt failed and will be made again.
    Failed {
        /// What it is about.
        about: Box<Snapshot>,
        /// The failure.
        failure: Failure,
        /// Why, beside what the driver answered.
        cause: FailureCause,
    },
    /// The volume of what is attached could not be protected or noted, which will be tried again.
    UpkeepFailed(Box<Snapshot>, Failure),
    /// The failure could not be written on the VolumeAttachment.
    FailureNotSaved(ApiError),
    /// Something was met that was published before the driver lost the calls.
    CapabilityMissed,
    /// The VolumeAttachment is being recorded as attached from here on.
    RecordBegins,
    /// It is known whether it is recorded as attached.
    RecordKnown,
    /// The VolumeAttachment of a Publish may be gone: what came of that.
    Undo(Undone),
}

/// What became of a Publish whose VolumeAttachment may be gone.
#[derive(Clone, Debug)]
pub enum Undone {
    /// It cannot be read; the next try is after this pause.
    CannotRead(ApiError, Duration),
    /// It is there, though it was believed to be gone.
    IsThere,
    /// It was created again, and its volume is attached for it.
    CreatedAgain,
    /// The driver does not detach the volume; the next try is after this pause.
    CannotDetach(Failure, Duration),
    /// It is over.
    Vanished(Vanished),
}

/// What became of a volume whose VolumeAttachment vanished during the attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vanished {
    /// It was detached again.
    Detached,
    /// The driver did not detach it.
    Stays,
    /// This replica lost the Lease before it could be detached.
    LeaseLost,
    /// It was left alone, because the API server did not confirm that the VolumeAttachment is gone.
    Unconfirmed,
    /// It was left alone, because the VolumeAttachment may have been recorded before it vanished.
    MaybeInUse,
}
