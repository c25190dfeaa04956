//! What an attempt asks of the shell, and what the shell answers.

use jiff::Timestamp;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

use super::super::action::ClaimReason;
use super::super::creation::Creation;
use super::super::driver::ProvisionerFacts;
use super::super::observed::{CallSecret, RolePhase};
use super::super::patch::ClaimWrite;
use super::super::plan::{CreatePlan, DeletePlan};
use super::super::policy::ProvisionPolicy;
use super::super::refusal::{ProvisionRefusal, cut_handle};
use super::super::response::{AnsweredVolume, InvalidAnswer, NewVolume, VolumeFault};
use super::super::seen::Seen;
use super::super::settle::CreateOutcome;
use super::super::topology::{KnownNode, TopologyFacts};
use crate::answer::ApiError;
use crate::attempt::{CallEnd, LeaseLost};
use crate::decide::{Failure, ReleaseRefusal};
use crate::objects::{Claim, SecretReference, StorageClass, Volume};

/// A moment, by the numbers of those who list: what a list shows that begins later is newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListMoment {
    /// Of StorageClasses.
    pub classes: u64,
    /// Of Nodes.
    pub nodes: u64,
    /// Of CSINodes.
    pub csi_nodes: u64,
}

/// What an attempt for a claim or a PersistentVolume sees at a moment: the cache, the Lease, the settings. To read it
/// changes nothing.
pub trait RoleView {
    /// The driver.
    fn driver(&self) -> &ProvisionerFacts;
    /// Settings.
    fn policy(&self) -> &ProvisionPolicy;
    /// What the role is about to do.
    fn role(&self) -> RolePhase;
    /// Whether the driver is away: nothing is called until it is back, which wakes everything.
    fn is_away(&self) -> bool;
    /// Whether a call or a write may be begun: the Lease is held.
    fn may_start(&self) -> bool;
    /// A class.
    fn class(&self, name: &str) -> Seen<Arc<StorageClass>>;
    /// The name of another PersistentVolume of the driver than `except` that has this handle. Of two that are saved, the one that is saved
    /// last sees the other one.
    fn handle_owner(&self, handle: &str, except: &str) -> Seen<Arc<str>>;
    /// The nodes of the VolumeAttachments that name a PersistentVolume of this name, whether that is there or not, and of those of the
    /// driver that name this handle, in words.
    fn attached_to(&self, name: &str, handle: &str) -> Seen<Arc<str>>;
}

/// What an attempt for a claim sees.
pub trait ClaimView: RoleView {
    /// The time, for what is written on objects.
    fn now(&self) -> Timestamp;
    /// How long the outcome of a call has to be unknown before a person may let a claim go.
    fn stuck_after(&self) -> Duration;
    /// Counts changes of the settings and of the connection: after one, what the driver refused may succeed.
    fn epoch(&self) -> u64;
    /// The longest wait after failures.
    fn longest_backoff(&self) -> Duration;
    /// The claim that the attempt is for.
    fn claim(&self) -> Seen<Arc<Claim>>;
    /// The PersistentVolume of a name.
    fn volume(&self, name: &str) -> Seen<Arc<Volume>>;
    /// The name of any PersistentVolume of the driver that has this handle, else of a volume that is about to be saved for another claim
    /// with it. Without other claims, that of a PersistentVolume.
    fn handle_owner_or_creator(&self, handle: &str) -> Seen<Arc<str>> {
        self.handle_owner(handle, "")
    }
    /// The nodes of the driver. Asked for only where that has topology.
    fn topology(&self) -> Arc<TopologyFacts>;
    /// What is known of a node; gone only when complete lists do not have it and their watches work. Asked for only where the driver has
    /// topology.
    fn node(&self, name: &str) -> KnownNode;
    /// This moment, for the next two.
    fn moment(&self) -> ListMoment;
    /// Whether the classes are known as they are: their watch works, or they were listed after this moment.
    fn knows_classes(&self, since: Option<ListMoment>) -> bool;
    /// The same of Nodes and CSINodes. Asked for only where the driver has topology.
    fn knows_nodes(&self, since: Option<ListMoment>) -> bool;
    /// `traceparent` for the PersistentVolume.
    fn traceparent(&self) -> Option<String>;
}

/// What the shell does next. Each but the last is answered by a [`ClaimEvent`].
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimStep {
    /// Patch the claim, and take the answer into the cache; by [`ClaimEvent::Patched`].
    Patch(ClaimWrite),
    /// Read the claim live into the cache; by [`ClaimEvent::Read`].
    ReadClaim,
    /// Read the PersistentVolume of this name live into the cache; by [`ClaimEvent::Read`].
    ReadVolume(Box<str>),
    /// Read a Secret and keep its contents for the calls of this attempt; by [`ClaimEvent::Read`]. Where nobody wants the volume and the
    /// Secret cannot be had, what the open call was made with takes its place.
    Secret(CallSecret),
    /// Call CreateVolume; by [`ClaimEvent::Created`].
    Create(Arc<CreatePlan>),
    /// Call DeleteVolume; by [`ClaimEvent::Deleted`].
    Delete(DeletePlan),
    /// Create this PersistentVolume, and take what the API server made of it into the cache; by [`ClaimEvent::Saved`].
    Save(Value),
    /// The attempt is over.
    End(Verdict),
}

/// What came of a step.
#[derive(Clone, Debug)]
pub enum ClaimEvent {
    /// Nothing was asked for yet.
    Begin,
    /// A patch of the claim: the claim as the API server answered it; none where it went with it. The cache may have a newer copy.
    Patched(Result<Option<Arc<Claim>>, ApiError>),
    /// A read.
    Read(Result<(), ApiError>),
    /// A CreateVolume: what the driver says of the volume, if anything.
    Created(Result<Option<AnsweredVolume>, CallEnd>),
    /// A DeleteVolume.
    Deleted(Result<(), CallEnd>),
    /// A PersistentVolume that was created.
    Saved(Result<(), ApiError>),
}

/// How an attempt for a claim or a PersistentVolume ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is nothing to do, and nothing to remember.
    Done,
    /// A change wakes it, or so much time.
    Rest(Duration),
    /// It is tried again after its backoff, or after a change of the inputs, which have this [`fingerprint`](super::fingerprint) now.
    Failed(u64),
    /// Nothing failed: it waits for something that is missing, or for a person. That wakes it, as a change of the inputs, which have this
    /// fingerprint now, or as something that is followed for it; else it is looked at again now and then.
    Waits(u64),
    /// The Lease was lost.
    LeaseLost,
}

/// What happened, for Events, logs, metrics and spans.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimNote {
    /// CreateVolume is called, by this rule.
    Calls(ClaimReason, Arc<CreatePlan>),
    /// It ended without a volume that can be used; and whether it is made again after its time.
    CallFailed(Box<CreateOutcome>, Failure, bool),
    /// There is a volume, and the answer has no ID of it that can be used.
    InvalidAnswer(InvalidAnswer),
    /// There is a volume, and something is wrong with it.
    Faulty(VolumeFault),
    /// The Secret of the call that made a volume which nobody wants is not there: DeleteVolume is called without it.
    WithoutSecret(SecretReference),
    /// The volume with this handle, which nobody wants, is deleted. The failure is one that the settings take for that.
    Undone(Box<str>, Option<Failure>),
    /// It was not.
    UndoFailed(UndoFailure),
    /// The PersistentVolume of this name is saved, with this handle.
    Saved(Box<str>, Box<str>),
    /// It is not. Where the API server refuses it, and that is told: how long until it is saved again.
    SaveFailed(ApiError, Option<Duration>),
    /// The PersistentVolume of this name is saved, with this handle, for a volume that nobody wants: that is deleted or kept with it, as this
    /// rule says.
    Recorded(ClaimReason, Box<str>, Box<str>),
    /// The volume of the PersistentVolume of this name, which was just saved, is that of another one as well, as this cause says.
    HandleShared(Box<str>, Box<ProvisionRefusal>),
    /// Nothing can be done, for this cause.
    Waits(ClaimReason, Box<ProvisionRefusal>),
    /// Nobody wants the volume, and it is not deleted, for this cause.
    LeftAlone(Box<ProvisionRefusal>),
    /// Nobody wants a volume any more, and there is none.
    Cancelled,
    /// A volume populator provisions the claim.
    Populator,
    /// The selected node of this name was taken off, because of this.
    Rescheduled(Arc<str>, RescheduleCause),
    /// A person let the claim go, in these words; the volume of this name may be left.
    LetGo(String, Box<str>),
    /// A person asked for that, and it was refused.
    ReleaseRefused(ReleaseRefusal),
    /// Something in the marker of an open call is not what this version of the operator writes there: somebody else wrote it.
    MarkerIgnored,
    /// A volume of this name may be left in the storage system, because of this.
    PossiblyLeaked(Box<str>, &'static str),
    /// The driver made two volumes: the PersistentVolume of this name, the handle that it has, and the one that was answered.
    TwoVolumes {
        /// Name of the PersistentVolume.
        volume: Box<str>,
        /// Its handle.
        saved: Box<str>,
        /// The handle that no PersistentVolume names.
        lost: Box<str>,
    },
    /// The API server did not do what was asked.
    RequestFailed(ApiError),
    /// A call was not made, or was cut off.
    LeaseLost(LeaseLost),
}

impl ClaimNote {
    /// Whether it tells of a volume that may be left in the storage system.
    pub const fn is_possible_leak(&self) -> bool {
        matches!(
            self,
            Self::PossiblyLeaked(..) | Self::TwoVolumes { .. } | Self::LetGo(..)
        )
    }
}

/// A DeleteVolume that failed, of a volume which has no PersistentVolume that would tell of it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("DeleteVolume of {}: {}", cut_handle(.handle), .failure.message)]
pub struct UndoFailure {
    /// The ID of the volume.
    pub handle: Box<str>,
    /// What the driver answered.
    pub failure: Failure,
}

/// Why the selected node was taken off a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RescheduleCause {
    /// There is no Node or no CSINode of its name.
    NodeGone,
    /// The driver has no room where it is (RESOURCE_EXHAUSTED).
    Exhausted,
}

/// What comes before the next decision.
#[derive(Clone, Debug)]
pub(super) enum Due {
    /// The patch that takes the selected node off, as the driver has no room there.
    Reschedule(ClaimWrite),
    /// A read of the claim, for this patch.
    ReadClaim(StalePatch),
    /// A read of the PersistentVolume of this name, with the failure to save it.
    ReadVolume(Box<str>, ApiError),
}

/// A patch of the claim that was refused as made from a stale copy. A read shows whether it was.
#[derive(Clone, Debug)]
pub(super) struct StalePatch {
    pub of: Box<Pending>,
    pub error: ApiError,
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    Mark,
    /// With what is told once the marker is off.
    Unmark(Option<Box<ClaimNote>>),
    Reschedule(Arc<str>, RescheduleCause),
    LetGo(String, Box<str>),
    RefuseRelease(ReleaseRefusal),
    /// With the patch that it is read for, if it is.
    ReadClaim(Option<StalePatch>),
    /// With the failure to save that it is read for, if it is.
    ReadVolume(Option<ApiError>),
    Secret(CallSecret),
    /// With what was known before.
    Create(Arc<CreatePlan>, Box<Creation>),
    /// With the volume as it was before.
    Delete(Box<NewVolume>),
    /// The name.
    Save(Box<str>),
}

impl Pending {
    /// Whether it puts the marker on.
    pub fn marks(&self) -> bool {
        match self {
            Self::Mark => true,
            Self::ReadClaim(Some(patch)) => patch.of.marks(),
            _ => false,
        }
    }
}
