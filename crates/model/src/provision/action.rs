//! What can be decided about a PersistentVolumeClaim and a PersistentVolume, each with its reason.

use serde_json::Value;
use std::sync::Arc;

use super::observed::CallSecret;
use super::patch::ClaimWrite;
use super::plan::{CreatePlan, DeletePlan};
use super::refusal::ProvisionRefusal;
use crate::decide::{ReleaseRefusal, Write};
use crate::objects::{ClaimReference, SecretReference};

/// The next step for an object, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<R, A> {
    /// Which rule decided.
    pub reason: R,
    /// What is to be done.
    pub action: A,
}

/// The next step for a claim, and why.
pub type ClaimDecision = Decision<ClaimReason, ClaimAction>;
/// The next step for a PersistentVolume, and why.
pub type VolumeDecision = Decision<VolumeReason, ProvisionedVolumeAction>;

pub(super) fn decided<R, A>(reason: R, action: A) -> Decision<R, A> {
    Decision { reason, action }
}

/// The next step for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAction {
    /// Nothing to do.
    Ignore,
    /// Nothing can be done now; a change of what is observed wakes it. With a cause, an Event says it.
    Wait(Option<Box<ProvisionRefusal>>),
    /// It cannot be done as things are: an Event says it, and it is retried after a change or the longest backoff.
    Refuse(Box<ProvisionRefusal>),
    /// Read the claim live.
    ReadClaim,
    /// Read the PersistentVolume of this name live.
    ReadVolume(Box<str>),
    /// Read the Secret of the call. It comes before the marker: a marked claim cannot be deleted without an answer of the driver, and
    /// the call would need the very Secret that is missing.
    LoadCredentials(CallSecret),
    /// Put the marker on, or write it anew, as one patch.
    Mark(ClaimWrite),
    /// Call CreateVolume.
    Create(Arc<CreatePlan>),
    /// POST this PersistentVolume.
    Save(Value),
    /// Call DeleteVolume for a volume that this process created and no PersistentVolume names.
    Undo(DeletePlan),
    /// Take the marker off.
    Unmark(ClaimWrite),
    /// Take the selected node off, and the marker with it.
    Reschedule(ClaimWrite),
    /// Take the marker off because a person asked for it, in these words.
    LetGo(ClaimWrite, String),
    /// Answer such a request on the object.
    RefuseRelease(ClaimWrite, ReleaseRefusal),
}

impl ClaimAction {
    /// Whether it only looks: after that it may still be that something is not known, and a row of rests goes on.
    pub(super) fn is_look(&self) -> bool {
        matches!(self, Self::ReadClaim | Self::ReadVolume(_) | Self::LoadCredentials(_))
    }
}

named! {
    /// Which rule decided about a claim.
    #[allow(missing_docs, reason = "the names of the others say it")]
    pub enum ClaimReason {
        /// The claim is another driver's, and carries no marker of this one.
        NotOwn,
        /// The claim is bound, or names a PersistentVolume or no class.
        NotNeeded,
        /// The PersistentVolume of the claim is saved, and the marker is not needed any more.
        Saved,
        /// The PersistentVolume of the claim is saved, and kube-controller-manager binds it.
        WaitForBinding,
        /// The PersistentVolume of the claim has another handle than the volume that was created: the driver made two, and one is lost.
        TwoVolumes,
        VolumeGoing,
        /// A PersistentVolume of that name is not the claim's.
        NameTaken,
        SaveVolume,
        /// The volume was created, nobody wants it, and the class says to keep it.
        KeepVolume,
        /// The ID that the driver answered is that of another PersistentVolume.
        HandleShared,
        /// The volume was created, and nobody wants it; or something is wrong with it.
        UndoVolume,
        /// The volume is to be deleted, and deletions are held.
        Held,
        /// The volume is to be deleted, and a VolumeAttachment names it.
        StillAttached,
        /// Nobody wants a volume, and there is none.
        Cancelled,
        LetGo,
        /// Nobody wants a volume, and there may be one.
        FindOut,
        /// The role ends.
        Draining,
        /// The driver is away: what needs no call goes on.
        DriverAway,
        ClassMissing,
        /// The class of the claim is another provisioner's.
        ClassMismatch,
        /// The class was replaced while the outcome of a call was unknown.
        ClassReplaced,
        /// What the first call is made from may have changed since its watch broke.
        Unconfirmed,
        /// No node is selected yet.
        WaitForConsumer,
        Populator,
        /// Claim or class ask for something that cannot be done.
        Invalid,
        /// The driver said that a call with these inputs cannot succeed, and its time is not over.
        Infeasible,
        SecretMissing,
        /// The Secret of the call cannot be read.
        SecretForbidden,
        LoadSecret,
        NodeGone,
        /// The topology of the volume is not known.
        TopologyMissing,
        Mark,
        MarkerOfAnotherDriver,
        Create,
        /// The lists are not complete yet.
        Syncing,
    }
}

/// The next step for a PersistentVolume.
#[derive(Clone, Debug, PartialEq)]
pub enum ProvisionedVolumeAction {
    /// Nothing to do.
    Ignore,
    /// Nothing can be done now; a change of what is observed wakes it.
    Wait(Option<Box<ProvisionRefusal>>),
    /// Put our finalizer on.
    Protect(Write),
    /// Read the claim of `spec.claimRef` live.
    ReadClaim(ClaimReference),
    /// Read the PersistentVolume live.
    ReadVolume,
    /// Read the one live that the volume is left to.
    ReadHeir(Arc<str>),
    /// Read the Secret of the call.
    LoadCredentials(SecretReference),
    /// Call DeleteVolume.
    Delete(DeletePlan),
    /// DELETE the PersistentVolume, on condition that it has this UID.
    Remove(Box<str>),
    /// Take our finalizer off. That of the attacher is taken off where volumes are attached, in a write of its own.
    Release(Write),
}

impl ProvisionedVolumeAction {
    /// As [`ClaimAction::is_look`].
    pub(super) fn is_look(&self) -> bool {
        matches!(
            self,
            Self::ReadVolume | Self::ReadHeir(_) | Self::ReadClaim(_) | Self::LoadCredentials(_)
        )
    }
}

named! {
    /// Which rule decided about a PersistentVolume.
    #[allow(missing_docs, reason = "the names of the others say it")]
    pub enum VolumeReason {
        /// It is another driver's.
        NotOwn,
        /// The policy keeps the volume.
        Retained,
        /// It is bound, and has no finalizer of ours.
        Protect,
        /// It is being deleted while no claim is bound to it: a person has to decide.
        NeedsDecision,
        /// It is in use, or not ours to delete.
        NotReleased,
        Held,
        /// Another PersistentVolume has the same handle.
        HandleShared,
        /// A VolumeAttachment names it.
        StillAttached,
        /// Its claim is there.
        ReleasedWhileBound,
        /// It is read live before its volume is deleted.
        Confirm,
        /// The Secret of the call may not be given, or cannot be read.
        SecretForbidden,
        LoadSecret,
        Delete,
        /// Its volume is gone, and it goes.
        RemoveVolume,
        /// It goes without a call: its volume is deleted with another PersistentVolume.
        LeftToAnother,
        /// The role ends, or begins nothing.
        Draining,
        /// The driver is away: what needs no call goes on.
        DriverAway,
        NotSupported,
        /// Its volume is gone, and our finalizer is the last thing of ours.
        Release,
        /// It has no handle that DeleteVolume could be called for.
        NotCsi,
        /// The lists are not complete yet.
        Syncing,
    }
}
