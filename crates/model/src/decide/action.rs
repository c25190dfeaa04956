//! What can be decided, and the reasons: each "no" carries its cause, which becomes a log field, a status message and
//! the name of a test.

use std::sync::Arc;
use thiserror::Error;

use super::patch::Write;
use super::release_request::ReleasePlan;
use crate::objects::{FormerVolumeOnNode, SecretReference, StringMap, TranslationError};

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
    /// only; a call now would be refused, or worse. It is a preference, not a condition: see [`super::DetachWait`].
    AwaitDetach(Arc<str>),
    /// Call ControllerPublishVolume.
    Publish(PublishRequest<'a>),
    /// Call ControllerUnpublishVolume.
    Unpublish(UnpublishRequest<'a>),
    /// Record as attached without a call: the driver has none.
    MarkAttached(Write),
    /// Take our finalizer off without a call, which the driver does not have: see [`super::ReleaseWithoutCall`].
    Release(Write),
    /// A person asks to let it go without the driver's confirmation: collect evidence, and ask [`super::judge_release`].
    JudgeRelease(ReleasePlan<'a>),
    /// Such a request cannot be granted, whatever the evidence: answer it on the object.
    RefuseRelease(super::ReleaseRefusal),
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

/// `VolumeCapability` of the CSI spec, as far as a PersistentVolume can express it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability<'a> {
    /// How the volume is accessed on the node.
    pub access: VolumeAccessType<'a>,
    /// By how many, and how.
    pub mode: AccessMode,
}

/// How a volume is accessed on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAccessType<'a> {
    /// As a block device.
    Block,
    /// As a filesystem.
    Mount {
        /// Filesystem type, may be empty.
        fs_type: &'a str,
        /// Mount options.
        flags: &'a [Box<str>],
    },
}

/// `VolumeCapability.AccessMode.Mode` of the CSI spec, as far as Kubernetes uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// SINGLE_NODE_WRITER.
    SingleNodeWriter,
    /// SINGLE_NODE_SINGLE_WRITER.
    SingleNodeSingleWriter,
    /// SINGLE_NODE_MULTI_WRITER.
    SingleNodeMultiWriter,
    /// MULTI_NODE_READER_ONLY.
    MultiNodeReaderOnly,
    /// MULTI_NODE_MULTI_WRITER.
    MultiNodeMultiWriter,
}

impl AccessMode {
    /// Whether the volume may be published to one node at a time only.
    pub fn is_for_one_node(self) -> bool {
        match self {
            Self::SingleNodeWriter | Self::SingleNodeSingleWriter | Self::SingleNodeMultiWriter => true,
            Self::MultiNodeReaderOnly | Self::MultiNodeMultiWriter => false,
        }
    }
}

/// What ControllerPublishVolume is called with, but for the secret's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishRequest<'a> {
    /// `volume_id`.
    pub volume_id: &'a str,
    /// `node_id`.
    pub node_id: &'a str,
    /// `volume_capability`.
    pub capability: Capability<'a>,
    /// `readonly`.
    pub read_only: bool,
    /// `volume_context`.
    pub volume_context: &'a StringMap,
    /// Where the volume may still be from an earlier try under another node ID or handle: to be taken back first, as
    /// far as that works. It stays noted, so that the detach insists on it.
    pub former: Vec<VolumeOnNode<'a>>,
}

/// A volume at a node, as the driver knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolumeOnNode<'a> {
    /// `volume_id`.
    pub volume_id: &'a str,
    /// `node_id`.
    pub node_id: &'a str,
}

impl<'a> From<&'a FormerVolumeOnNode> for VolumeOnNode<'a> {
    fn from(place: &'a FormerVolumeOnNode) -> Self {
        Self {
            volume_id: &place.handle,
            node_id: &place.node_id,
        }
    }
}

/// Where a volume is to be taken back from: ControllerUnpublishVolume is called for each place, in this order, and only
/// when all were answered OK is it detached. There is one place unless the node ID changed under the attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpublishRequest<'a> {
    /// The places, no two the same; the first is where the node is now.
    pub places: Vec<VolumeOnNode<'a>>,
    /// Former places where the volume is not any more, as a person confirmed; nothing is called for them.
    pub confirmed: Vec<VolumeOnNode<'a>>,
}

/// Why something cannot be done as things are. The texts of the first group are those that users of the Go sidecar
/// search for; they are kept word for word.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The source names a PersistentVolume and carries a spec.
    #[error("both InlineCSIVolumeSource and PersistentVolumeName specified in VA source")]
    SourceTwice,
    /// The source is empty.
    #[error("neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source")]
    SourceMissing,
    /// The PersistentVolume is not there.
    #[error("persistentvolume {0:?} not found")]
    VolumeNotFound(Arc<str>),
    /// The PersistentVolume is being deleted.
    #[error("PersistentVolume {0:?} is marked for deletion")]
    VolumeDeleting(Arc<str>),
    /// The PersistentVolume is not a CSI volume.
    #[error("pv spec contained non-csi source that was not migrated")]
    NotCsi,
    /// The in-line spec is not a CSI volume.
    #[error("inline volume spec contains nil CSI source")]
    InlineNotCsi,
    /// There is no CSINode for the node.
    #[error("csinode.storage.k8s.io {0:?} not found")]
    NodeNotFound(Arc<str>),
    /// The driver did not register on the node.
    #[error("CSINode {node} does not contain driver {driver}")]
    DriverNotOnNode {
        /// The node.
        node: Arc<str>,
        /// The driver.
        driver: Arc<str>,
    },
    /// The access modes cannot be expressed in CSI.
    #[error("CSI does not support the combination of access modes of this volume: {0}")]
    AccessModes(&'static str),
    /// The volume belongs to an in-tree plug-in, and its CSI successor cannot take it.
    #[error("failed to translate in tree pv to CSI: {0}")]
    Untranslated(TranslationError),
    /// Another attachment wants the same volume on the same node.
    #[error(
        "VolumeAttachment {attachment} has the same volume on node {node} attached; a detach now would remove it there"
    )]
    SharedOnNode {
        /// The other attachment.
        attachment: Arc<str>,
        /// The node of both.
        node: Arc<str>,
    },
    /// The driver cannot be asked any more, and what it may have published is not let go for that.
    #[error(
        "CSI driver {0} does not announce PUBLISH_UNPUBLISH_VOLUME any more, so that the volume, which it may have published, \
         cannot be attached or detached; check that the attacher is connected to the controller plugin of the driver"
    )]
    CapabilityLost(Arc<str>),
    /// Nobody would be left to detach it.
    #[error(
        "the AttacherConfig of driver {0} is being deleted (spec.deletionPolicy: WaitForDetach) and attaches no further volumes; create \
         an AttacherConfig for the driver once it is gone"
    )]
    Leaving(Arc<str>),
    /// The AttacherConfig does not list the publish secret. The Go sidecar has no such list: it reads with the rights of one
    /// driver, and this operator with those of all.
    #[error(
        "the volume names Secret {}/{}, which spec.publishSecrets of AttacherConfig {config} does not list; if driver \
         {driver} may receive this Secret, add {{namespace: {}, names: [{}]}}",
        secret.namespace, secret.name, secret.namespace, secret.name
    )]
    SecretNotAllowed {
        /// The Secret.
        secret: SecretReference,
        /// The AttacherConfig.
        config: Arc<str>,
        /// The driver.
        driver: Arc<str>,
    },
    /// The volume belongs to another driver than the attachment names. The Go sidecar does not check this and would
    /// hand the handle to the wrong backend.
    #[error("the volume belongs to CSI driver {volume} but the VolumeAttachment names {attacher}")]
    OtherDriver {
        /// Driver in the volume's source.
        volume: Arc<str>,
        /// Driver in the attachment.
        attacher: Arc<str>,
    },
}

impl Refusal {
    /// Stable name for metrics and `error.type` on spans.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::VolumeNotFound(_) => "pv_not_found",
            Self::VolumeDeleting(_) => "pv_deleting",
            Self::NodeNotFound(_) | Self::DriverNotOnNode { .. } => "csinode_missing",
            Self::SharedOnNode { .. } => "volume_shared",
            Self::CapabilityLost(_) => "capability_lost",
            Self::Leaving(_) => "config_deleting",
            Self::SecretNotAllowed { .. } => "secret_not_allowed",
            Self::SourceTwice
            | Self::SourceMissing
            | Self::NotCsi
            | Self::InlineNotCsi
            | Self::AccessModes(_)
            | Self::Untranslated(_)
            | Self::OtherDriver { .. } => "invalid_spec",
        }
    }
}

/// Something that did not work, in the words that go onto the attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The text, free of secrets.
    pub message: String,
    /// The gRPC status number when the driver answered one.
    pub code: Option<i32>,
}

impl Failure {
    /// A failure that is no gRPC status.
    pub fn plain(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: None,
        }
    }
}

/// How an effect ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// ControllerPublishVolume answered OK with this publish context.
    Published(StringMap),
    /// ControllerUnpublishVolume answered OK.
    Unpublished,
    /// An attach could not be done.
    AttachFailed(Failure),
    /// A detach could not be done.
    DetachFailed(Failure),
}
