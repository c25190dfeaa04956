//! What the decisions about a PersistentVolumeClaim and a PersistentVolume are made from.

use std::sync::Arc;

use jiff::Timestamp;

use super::creation::{Creation, Deletion};
use super::driver::ProvisionerFacts;
use super::policy::ProvisionPolicy;
use super::seen::Seen;
use super::topology::{KnownNode, TopologyFacts};
use crate::answer::{ApiError, ApiErrorKind};
use crate::objects::{Claim, ClaimReference, SecretReference, StorageClass, Volume};

/// Whether the Secret of the next call is at hand; its contents never enter a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProvisionerSecretState {
    /// Not read in this attempt.
    #[default]
    NotLoaded,
    /// Read in this attempt.
    Loaded,
    /// A live 404 names it.
    Missing,
    /// The API server refuses to let it be read, or did not answer.
    Unreadable,
}

impl ProvisionerSecretState {
    /// What a read of it says; the error of one that says nothing.
    pub(super) fn of_read(read: Result<(), ApiError>) -> Result<Self, ApiError> {
        match read {
            Ok(()) => Ok(Self::Loaded),
            Err(error) if error.kind == ApiErrorKind::NotFound => Ok(Self::Missing),
            Err(error) if error.is_forbidden() => Ok(Self::Unreadable),
            Err(error) => Err(error),
        }
    }

    /// That of the wanted Secret, where this is the state of the one that was read last.
    pub(super) fn of_wanted(self, read: Option<&SecretReference>, wanted: &SecretReference) -> Self {
        if read == Some(wanted) { self } else { Self::NotLoaded }
    }
}

/// The Secret of a call for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSecret {
    /// Which one it is.
    pub reference: SecretReference,
    /// Whether somebody wants the volume. Where nobody does, a Secret that is gone does not hold the claim: a call that is open is repeated
    /// with what it was made with, as far as this process has it.
    pub is_wanted: bool,
}

impl CallSecret {
    /// The state of this one, where `state` is that of the one that was read last. What could not be had while somebody wanted the volume
    /// is asked for again once nobody does.
    pub(super) fn state(&self, read: Option<&Self>, state: ProvisionerSecretState) -> ProvisionerSecretState {
        let known = state.of_wanted(read.map(|read| &read.reference), &self.reference);
        let was_wanted = read.is_some_and(|read| read.is_wanted);
        match known {
            ProvisionerSecretState::Missing | ProvisionerSecretState::Unreadable if was_wanted && !self.is_wanted => {
                ProvisionerSecretState::NotLoaded
            }
            known => known,
        }
    }
}

/// What the role of a driver is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolePhase {
    /// It serves.
    Serving,
    /// It is switched off (`mode: Disabled`), or its AttacherConfig is being deleted: what is uncertain is finished, and so is the
    /// deletion of PersistentVolumes that are being deleted, with those that have to go first; nothing is begun.
    Disabled,
    /// The role or its process ends: no call is begun, and markers go that nobody needs; the next leader continues.
    Stopping,
}

/// Which waits of a claim are over. The clock is outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each says of one wait that it is over")]
pub struct Waited {
    /// The class has been missing, or that of another provisioner, or what the call is made from not been known as it is, for 10 seconds:
    /// it is told.
    pub for_class: bool,
    /// The selected node has had no Node or no CSINode for half a second: the claim gets another one. Before that the watch of Nodes or CSINodes
    /// may only be behind that of claims.
    pub for_node: bool,
    /// Its PersistentVolume has been saved for 30 seconds: the marker goes, bound or not.
    pub for_binding: bool,
    /// The outcome of a call has not been known for `--stuck-after`, or the marker is as old: a person may ask to let the claim go.
    pub stuck: bool,
}

/// Everything that a decision about one PersistentVolumeClaim reads.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says of one read or write that this process made it"
)]
pub struct ObservedClaim<'a> {
    /// The claim, or the last copy of one that is gone.
    pub claim: &'a Claim,
    /// Whether the claim is gone: its marker was removed by force, or it never had one.
    pub gone: bool,
    /// Whether the claim was read live in this attempt.
    pub claim_is_live: bool,
    /// Whether this process wrote the marker that the claim carries.
    pub marker_is_own: bool,
    /// The class that the claim names.
    pub class: Seen<&'a StorageClass>,
    /// Whether the classes are known as they are, and not as they were when their watch broke.
    pub classes_are_known: bool,
    /// Whether Nodes and CSINodes are; of a driver without topology nobody asks.
    pub nodes_are_known: bool,
    /// The PersistentVolume that has the volume's name. Whose it is, is decided here.
    pub saved: Seen<&'a Volume>,
    /// Whether that was read live since the volume was created.
    pub saved_is_live: bool,
    /// Of a volume that was created: another PersistentVolume of the driver with its handle.
    pub handle_owner: Seen<&'a str>,
    /// The nodes of the VolumeAttachments that name a PersistentVolume of its name, or its handle.
    pub attached_to: Seen<&'a str>,
    /// The selected node; gone where none is selected.
    pub node: &'a KnownNode,
    /// The nodes on which the driver is registered.
    pub topology: &'a TopologyFacts,
    /// The Secret that was read last.
    pub secret: ProvisionerSecretState,
    /// Which one that is: a class or an annotation may name another one since.
    pub secret_of: Option<&'a CallSecret>,
    /// What is known of the volume.
    pub creation: &'a Creation,
    /// Whether the driver said that a call with these inputs cannot succeed, so that it is not made again for a while.
    pub infeasible: bool,
    /// Whether the PersistentVolume could not be saved, the last time that it was tried.
    pub save_failed: bool,
    /// Whether somebody else may have called for the claim and left no marker, as a sidecar does: a call may find its volume.
    pub others_may_have_called: bool,
    /// The driver.
    pub driver: &'a ProvisionerFacts,
    /// Settings.
    pub policy: &'a ProvisionPolicy,
    /// What the role is about to do.
    pub role: RolePhase,
    /// Whether the driver is away: it is not called.
    pub is_away: bool,
    /// Which waits are over.
    pub waited: Waited,
    /// The time, by which requests of people are judged.
    pub now: Timestamp,
}

/// What is known of the claim that a PersistentVolume was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwningClaim {
    /// The cache, which is complete, has no claim of that UID.
    NotCached,
    /// The cache has it, and it was not read live yet.
    Cached,
    /// A live read found it with that UID.
    Live,
    /// A live 404 names it, or a live read found another UID under the name.
    LiveGone,
    /// The list of claims is not complete, or the live read failed.
    Unknown,
}

/// Everything that a decision about one PersistentVolume reads.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says of one thing what a read or the settings have shown"
)]
pub struct ObservedVolume<'a> {
    /// The PersistentVolume.
    pub volume: &'a Volume,
    /// Another PersistentVolume of the driver with the same handle.
    pub sharer: Seen<&'a str>,
    /// The one of these that the volume is left to, where all of them are to be deleted ([`heir`](super::heir)).
    pub heir: Option<&'a Arc<str>>,
    /// Whether that was read live after this one.
    pub heir_is_live: bool,
    /// Whether that is being deleted.
    pub heir_is_deleting: bool,
    /// A VolumeAttachment of any driver that names it, attached or not: its node.
    pub attached_to: Seen<&'a str>,
    /// Whether nothing will be known of these two before the PersistentVolume is read live: its watch is broken, and lists that begin after
    /// that read say what it would have said.
    pub lacks_read: bool,
    /// The claim of `spec.claimRef.uid`.
    pub claim: OwningClaim,
    /// A claim of another name that is bound to it: somebody may have edited `spec.claimRef`.
    pub bound: Seen<&'a ClaimReference>,
    /// Whether a live read found that one so.
    pub bound_is_live: bool,
    /// Whether a live read since it became Released shows what is here: UID, phase, policy, claimRef and handle.
    pub is_live: bool,
    /// What is known of the deletion of its volume.
    pub deletion: Deletion,
    /// The class that it names, for the Secret of volumes that others made.
    pub class: Seen<&'a StorageClass>,
    /// The Secret that was read last.
    pub secret: ProvisionerSecretState,
    /// Which one that is: the annotations may name another one since.
    pub secret_of: Option<&'a SecretReference>,
    /// The driver.
    pub driver: &'a ProvisionerFacts,
    /// Settings.
    pub policy: &'a ProvisionPolicy,
    /// What the role is about to do.
    pub role: RolePhase,
    /// Whether the driver is away: it is not called.
    pub is_away: bool,
}
