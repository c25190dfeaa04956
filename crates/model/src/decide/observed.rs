//! What a decision is made from.

use std::sync::Arc;

use super::driver_facts::DriverFacts;
use super::refusal::Refusal;
pub use crate::api::OrphanPolicy;
pub use crate::api::validated::PublishSecrets;
use crate::objects::{Attachment, CsiNode, SecretReference, Volume};

/// Settings that change what is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Filesystem type for mount volumes that name none.
    pub default_fs_type: Arc<str>,
    /// Whether only OK means detached.
    pub orphans: OrphanPolicy,
    /// Whether the AttacherConfig is being deleted and waits for its volumes, and nothing new is claimed.
    pub leaving: bool,
    /// The publish secrets that the driver may be given.
    pub publish_secrets: PublishSecrets,
    /// Name of the AttacherConfig that says so, for messages.
    pub config: Arc<str>,
}

/// What the CSINode of the attachment's node says of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeEntry<'a> {
    /// There is no CSINode of that name.
    Missing,
    /// There is one, without the driver.
    WithoutDriver,
    /// There is one, with a blank node ID for the driver.
    BlankId,
    /// The driver registered under this node ID.
    Registered(&'a str),
}

impl<'a> NodeEntry<'a> {
    /// What the CSINode says of a driver, if there is one.
    pub fn of(node: Option<&'a CsiNode>, driver: &str) -> Self {
        let Some(node) = node else { return Self::Missing };
        match node.node_id(driver) {
            Some(node_id) => Self::Registered(node_id),
            None if node.has_driver(driver) => Self::BlankId,
            None => Self::WithoutDriver,
        }
    }

    /// The node ID of the driver, if it registered with one.
    pub fn registered(self) -> Option<&'a str> {
        match self {
            Self::Registered(node_id) => Some(node_id),
            Self::Missing | Self::WithoutDriver | Self::BlankId => None,
        }
    }
}

/// Whether the publish secret is at hand; its contents never enter a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretState {
    /// Not read in this attempt.
    NotLoaded,
    /// Read in this attempt.
    Loaded,
}

/// Other attachments of the same driver that bear on one; mostly there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// Some of those of the same volume that name the same PersistentVolume, on other nodes, and are being deleted: first one that is leaving
    /// (`is_leaving`), and one that is not detached yet (`is_detaching`), if there is any.
    pub elsewhere: Vec<Arc<Attachment>>,
    /// Of those of the same volume handle on the same node, or on one that has its ID: one that is in use (`is_in_use`). Looked for
    /// only when the attachment is being deleted.
    pub here: Option<Arc<Attachment>>,
    /// Those of the same volume handle that are claimed for a place where this one may be, present or former. Looked for only when
    /// the attachment is being deleted and none is in use.
    pub claimed: Vec<Claimant>,
    /// Another one of the volume is in use (`is_in_use`) on another node. Looked for only when the attachment is attached and wanted.
    pub in_use_elsewhere: bool,
}

/// Another attachment that may hold a place of this one, with what says which volume it stands for, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// The attachment.
    pub attachment: Arc<Attachment>,
    /// The PersistentVolume that it names, if that is known.
    pub volume: Option<Arc<Volume>>,
    /// The ID that the CSINode of its node says, if it does.
    pub registered: Option<Box<str>>,
}

/// Whether an attach may still be held back for the detach of its volume from another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DetachWait {
    /// It may.
    #[default]
    Allowed,
    /// It was held back for as long as is good.
    Expired,
}

impl Observed<'_> {
    /// Whether the driver may be given a Secret.
    pub(super) fn may_give(&self, secret: &SecretReference) -> bool {
        self.policy.publish_secrets.allows(&secret.namespace, &secret.name)
    }

    pub(super) fn secret_refusal(&self, secret: &SecretReference) -> Refusal {
        Refusal::SecretNotAllowed {
            secret: secret.clone(),
            config: self.policy.config.clone(),
            driver: self.driver.name.clone(),
        }
    }
}

/// Everything that a decision about one VolumeAttachment reads.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The attachment.
    pub attachment: &'a Attachment,
    /// The PersistentVolume that it names, if it is in the cache.
    pub volume: Option<&'a Volume>,
    /// The node's entry for the driver.
    pub node: NodeEntry<'a>,
    /// Other attachments of the same volume.
    pub neighbours: &'a Neighbours,
    /// Whether the attach may wait for a detach of its volume.
    pub detach_wait: DetachWait,
    /// Whether to act though the attachment looks settled: the driver lists its volume otherwise (`reconcile`).
    pub forced: bool,
    /// Whether the publish secret is at hand.
    pub credentials: SecretState,
    /// Whether the request to release the attachment counts as answered: it was refused in this attempt, and the answer cannot be
    /// written.
    pub release_answered: bool,
    /// The driver.
    pub driver: &'a DriverFacts,
    /// Settings.
    pub policy: &'a Policy,
}
