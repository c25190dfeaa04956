//! What can be decided, and the reasons: each "no" carries its cause, which becomes a log field, a status message and
//! the name of a test.

use std::sync::Arc;

use super::calls::{PublishRequest, UnpublishRequest};
use super::patch::Write;
use super::refusal::Refusal;
use super::release_request::{ReleasePlan, ReleaseRefusal};
use crate::objects::SecretReference;

/// The next step for a VolumeAttachment.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<'a> {
    /// Nothing to do.
    Ignore(IgnoreReason),
    /// Put our finalizer on the PersistentVolume, so that it cannot vanish while it is attached.
    ProtectVolume(Write),
    /// Read the publish secret. It comes before the claim: a claimed attachment cannot be deleted without an Unpublish,
    /// which would need the very secret that is missing.
    LoadCredentials(&'a SecretReference),
    /// Put our finalizer and the node ID on the attachment, in one write.
    Claim(Write),
    /// Wait for the detach of the same volume from another node, which is under way. The volume can be on one node
    /// only; a call now would be refused, or worse. It is a preference, not a condition: see `DetachWait`.
    AwaitDetach(Arc<str>),
    /// Call ControllerPublishVolume.
    Publish(PublishRequest<'a>),
    /// Call ControllerUnpublishVolume.
    Unpublish(UnpublishRequest<'a>),
    /// Record as attached without a call: the driver has none.
    MarkAttached(Write),
    /// Take our finalizer off without a call, which the driver does not have: see `ReleaseWithoutCall`.
    Release(Write),
    /// A person asks to let it go without the driver's confirmation: collect evidence, and ask `judge_release`.
    JudgeRelease(ReleasePlan<'a>),
    /// Such a request cannot be granted, whatever the evidence: answer it on the object.
    RefuseRelease(ReleaseRefusal),
    /// It cannot be done as things are; recorded on the attachment and tried again.
    Refuse(Refusal),
}

/// Why nothing is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoreReason {
    /// `spec.attacher` names another driver.
    OtherAttacher,
    /// It is attached.
    AlreadyAttached,
    /// It is being deleted and does not carry our finalizer: nothing was published, or it was detached before.
    NothingToDetach,
}
