//! A person asks to let a VolumeAttachment go, though its driver does not confirm the detach.
//!
//! A wrong answer destroys data: the finalizer is what keeps a volume, which may still be written to at its node, from being attached
//! elsewhere. So a request counts only for the object and the deletion that it names, the driver is asked to detach first, and
//! whatever is in doubt is a refusal. Proof is what the driver lists, or a taint by which a person confirmed that the machine is off.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use thiserror::Error;

use super::calls::VolumeOnNode;
use super::message::{cut, plain};

/// How far the time of a request may be from the clock of the replica that judges it.
const MAX_REQUEST_AGE: SignedDuration = SignedDuration::from_mins(15);
/// Longest part of a request that is repeated in Events and logs, in bytes.
pub(super) const MAX_TEXT: usize = 200;

/// As much of a text as is repeated in Events and logs, 200 bytes, on one line.
pub fn quoted(text: &str) -> String {
    plain(cut(text, MAX_TEXT)).into_owned()
}

/// What the annotation `attacher.csi.dev/release` holds as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseRequest {
    /// `metadata.uid` of the object: names come back.
    pub uid: String,
    /// `metadata.deletionTimestamp` of the object, so that a request from before the deletion does not count.
    pub deleted: Timestamp,
    /// When it was made. No two requests have the same time, and an old one does not count: the node may be back since.
    pub at: Timestamp,
    /// Who asks, as the API server knows them.
    #[serde(default)]
    pub by: String,
    /// Why, in the words of the person; may be empty.
    #[serde(default)]
    pub reason: String,
    /// What makes it safe, if it is not what the driver lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<ReleaseProof>,
}

/// What a person vouches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReleaseProof {
    /// The node had the taint `node.kubernetes.io/out-of-service` at the moment of the request: the machine is off.
    OutOfServiceTaint,
    /// The volume is attached nowhere, as a person knows.
    Confirmed,
}

impl ReleaseRequest {
    /// Reads the annotation of an object.
    pub(crate) fn read(text: &str) -> Result<Self, ReleaseRefusal> {
        // An error quotes what it does not expect.
        serde_json::from_str(text).map_err(|error| ReleaseRefusal::Unreadable(quoted(&error.to_string())))
    }

    /// Whether it is for the object of this kind and UID, and for this deletion of it.
    pub(crate) fn check(
        &self,
        kind: &'static str,
        uid: &str,
        deleting: Option<Timestamp>,
    ) -> Result<(), ReleaseRefusal> {
        if *self.uid != *uid || uid.is_empty() {
            return Err(ReleaseRefusal::OtherObject(quoted(&self.uid), kind));
        }
        if deleting != Some(self.deleted) {
            return Err(ReleaseRefusal::OtherDeletion(self.deleted, kind));
        }
        Ok(())
    }

    /// Whether it is recent enough to count. For a VolumeAttachment that is asked before the driver is asked to list its volumes, which costs
    /// the more the more it has, and again with the evidence: a listing takes its time.
    pub fn check_age(&self, now: Timestamp) -> Result<(), ReleaseRefusal> {
        if now.duration_since(self.at).abs() > MAX_REQUEST_AGE {
            return Err(ReleaseRefusal::Expired(self.at));
        }
        Ok(())
    }

    /// Who asks and why, on one line.
    pub fn words(&self) -> String {
        let by = quoted(&self.by);
        let by = if by.is_empty() { "somebody" } else { &by };
        match quoted(&self.reason) {
            reason if reason.is_empty() => format!("requested by {by}, without a reason"),
            reason => format!("requested by {by}: {reason}"),
        }
    }
}

/// What the annotation `attacher.csi.dev/release-refused` holds as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseAnswer {
    /// `at` of the request; of one that cannot be read, its beginning.
    pub request: String,
    /// Stable name of the refusal.
    pub reason: String,
    /// Why, for people.
    pub message: String,
}

impl ReleaseAnswer {
    /// The answer that stands on an object, if it can be read.
    pub fn read(text: Option<&str>) -> Option<Self> {
        serde_json::from_str(text?).ok()
    }
}

/// What differs between two requests: the time, or the beginning of the text.
pub(super) fn key(request: &str) -> String {
    match serde_json::from_str::<ReleaseRequest>(request) {
        Ok(request) => request.at.to_string(),
        Err(_) => cut(request, MAX_TEXT).to_owned(),
    }
}

/// Why a request about a VolumeAttachment or a PersistentVolumeClaim is not granted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum ReleaseRefusal {
    #[error("the annotation attacher.csi.dev/release cannot be read: {0}")]
    Unreadable(String),
    #[error("the request is for an object with UID {0}, which is not that of this {1}")]
    OtherObject(String, &'static str),
    #[error("the request is for a deletion at {0}, which is not that of this {1}")]
    OtherDeletion(Timestamp, &'static str),
    #[error("the request of {0} is more than 15 minutes from the time of the operator; ask again")]
    Expired(Timestamp),
    #[error("VolumeAttachment {0} has the same volume on the same node")]
    InUseOnNode(Arc<str>),
    #[error("the driver lists the volume as attached to the node (node ID {0})")]
    ListedAtNode(String),
    #[error(
        "VolumeAttachment {0} has the volume on another node, so the confirmation that it is attached nowhere is wrong"
    )]
    AttachedElsewhere(Arc<str>),
    #[error(
        "the out-of-service taint is that of the machine that is registered now, and the volume may be at node ID {0}: if it is not \
         attached there, say so with the annotation attacher.csi.dev/not-attached-at, and ask again"
    )]
    OtherMachine(String),
    /// Nothing proves that the volume is not at the node.
    #[error("nothing proves that the volume is detached: {0}, and the node does not have the out-of-service taint")]
    NoProof(String),
    #[error("the PersistentVolumeClaim is not being deleted: delete it first")]
    NotDeleted,
    #[error("the outcome of CreateVolume has not been unknown for long: ask again after the time of --stuck-after")]
    TooEarly,
    #[error("a call for its volume is under way: ask again once it has ended")]
    CallUnderWay,
}

impl ReleaseRefusal {
    /// Stable name, for the answer on the object.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "Unreadable",
            Self::OtherObject(..) => "OtherObject",
            Self::OtherDeletion(..) => "OtherDeletion",
            Self::Expired(_) => "Expired",
            Self::InUseOnNode(_) => "InUseOnNode",
            Self::ListedAtNode(_) => "ListedAtNode",
            Self::AttachedElsewhere(_) => "AttachedElsewhere",
            Self::OtherMachine(_) => "OtherMachine",
            Self::NoProof(_) => "NoProof",
            Self::NotDeleted => "NotDeleted",
            Self::TooEarly => "TooEarly",
            Self::CallUnderWay => "CallUnderWay",
        }
    }
}

/// A request that may be granted, if the evidence allows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleasePlan<'a> {
    /// The request.
    pub request: ReleaseRequest,
    /// Every place where the volume may be; empty when that is not known.
    pub places: Vec<VolumeOnNode<'a>>,
}

/// What the driver lists about the places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedEvidence {
    /// The driver cannot list where its volumes are.
    CannotList,
    /// The listing failed.
    Failed(String),
    /// The volume is not listed, or without its nodes.
    Silent,
    /// The volume is listed at this node ID.
    At(String),
    /// The volume is listed at this node ID, which no node of the cluster has, and not at any of the places.
    AtUnknown(String),
    /// The volume is listed, and not at any of the places.
    NotThere,
    /// The same, and it proves nothing.
    NotThereDoubtful(ListingDoubt),
}

impl ListedEvidence {
    /// What is left of it when what the driver lists contradicts another VolumeAttachment: that the volume is absent proves nothing then.
    /// Where the driver says that it is counts.
    #[must_use]
    pub fn doubted_for(self, contradicted: Option<Arc<str>>) -> Self {
        match (self, contradicted) {
            (Self::NotThere, Some(name)) => Self::NotThereDoubtful(ListingDoubt::Contradicts(name)),
            (evidence, _) => evidence,
        }
    }
}

/// Why the absence of a volume from what the driver lists proves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingDoubt {
    /// What it lists contradicts this VolumeAttachment, for which it answered OK last.
    Contradicts(Arc<str>),
    /// `spec.reconcileSync.mode` is `Disabled`.
    Disabled,
    /// The volume may have been translated from an in-tree one, and be listed under another handle.
    Translated,
}

impl ListingDoubt {
    pub(super) fn words(&self) -> String {
        match self {
            Self::Contradicts(name) => {
                format!("what the driver lists contradicts VolumeAttachment {name}, for which it answered OK")
            }
            Self::Disabled => {
                "spec.reconcileSync.mode is Disabled, so what the driver lists is not believed".to_owned()
            }
            Self::Translated => "the driver may list a volume that was an in-tree one under another handle".to_owned(),
        }
    }
}

/// What was found out while no call was in flight for the volume at any of the places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseEvidence {
    /// When it was found out.
    pub now: Timestamp,
    /// What the driver lists.
    pub listed: ListedEvidence,
    /// Another attachment of the volume on the same machine that is claimed or attached.
    pub here: Option<Arc<str>>,
    /// Another attachment of the volume on another node that is claimed or attached.
    pub elsewhere: Option<Arc<str>>,
}

/// What a release rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseBasis {
    /// The driver lists the volume, and not at the node.
    Listing,
    /// The node has the out-of-service taint.
    OutOfServiceTaint,
    /// A person confirmed that the volume is attached nowhere.
    Confirmed,
}

impl ReleaseBasis {
    /// For Events and logs.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Listing => "the driver lists the volume, and not at the node",
            Self::OutOfServiceTaint => "the node has the out-of-service taint",
            Self::Confirmed => "the person confirmed that the volume is attached nowhere",
        }
    }
}
