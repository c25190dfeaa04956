//! What ControllerPublishVolume and ControllerUnpublishVolume are called with.

use std::sync::Arc;

use crate::objects::{Attachment, FormerVolumeOnNode, StringMap, is_blank};

/// What ControllerPublishVolume is called with, but for the secret's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "a field without a comment is the field of the request with this name; the place is volume_id and node_id"
)]
pub struct PublishRequest<'a> {
    pub place: VolumeOnNode<'a>,
    pub capability: Capability<'a>,
    pub read_only: bool,
    pub volume_context: &'a StringMap,
    /// Where the volume may still be from an earlier try under another node ID or handle: to be taken back first, as
    /// far as that works. It stays noted, so that the detach insists on it.
    pub former: Vec<VolumeOnNode<'a>>,
}

/// Where a volume is to be taken back from: ControllerUnpublishVolume is called for each place, in this order, and only
/// when all were answered OK is it detached. There is one place unless the node ID changed under the attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpublishRequest<'a> {
    /// The places, no two the same; the first is where the node is now.
    pub places: Vec<VolumeOnNode<'a>>,
    /// Former places where the volume is not any more, as a person confirmed; nothing is called for them.
    pub confirmed: Vec<VolumeOnNode<'a>>,
    /// Other attachments that are claimed for one of the places and not attached. Their claims are renewed before the first call:
    /// an operator that has died may have published the volume for one of them, and its record may arrive after the detach.
    pub renew: Vec<&'a Arc<Attachment>>,
}

/// A volume at a node, as the driver knows them: what each call about a volume is for.
///
/// There is none with a blank ID. By the CSI specification ("ControllerUnpublishVolume") a request without `node_id` takes the
/// volume from every node, and `volume_id` must be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    clippy::manual_non_exhaustive,
    reason = "that attribute would not hold inside this crate"
)]
pub struct VolumeOnNode<'a> {
    /// `volume_id`.
    pub volume_id: &'a str,
    /// `node_id`.
    pub node_id: &'a str,
    /// Only [`VolumeOnNode::new`] makes one, which checks the IDs.
    checked: (),
}

impl<'a> VolumeOnNode<'a> {
    /// A volume at a node; none when one of the IDs is blank.
    pub fn new(volume_id: &'a str, node_id: &'a str) -> Option<Self> {
        let known = !is_blank(volume_id) && !is_blank(node_id);
        known.then_some(Self {
            volume_id,
            node_id,
            checked: (),
        })
    }

    /// The place that was noted; none when one of its IDs is blank.
    pub fn of_former(place: &'a FormerVolumeOnNode) -> Option<Self> {
        Self::new(&place.handle, &place.node_id)
    }
}

/// A [`VolumeOnNode`] that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedVolumeOnNode {
    volume_id: Box<str>,
    node_id: Box<str>,
}

impl OwnedVolumeOnNode {
    /// The place.
    pub fn borrow(&self) -> VolumeOnNode<'_> {
        VolumeOnNode {
            volume_id: &self.volume_id,
            node_id: &self.node_id,
            checked: (),
        }
    }
}

impl From<VolumeOnNode<'_>> for OwnedVolumeOnNode {
    fn from(place: VolumeOnNode<'_>) -> Self {
        Self {
            volume_id: place.volume_id.into(),
            node_id: place.node_id.into(),
        }
    }
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
#[allow(missing_docs, reason = "the variants are the names of the CSI spec")]
pub enum AccessMode {
    SingleNodeWriter,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
    MultiNodeReaderOnly,
    MultiNodeMultiWriter,
}

impl AccessMode {
    /// Whether the volume may be published to one node at a time only.
    pub fn is_for_one_node(self) -> bool {
        !matches!(self, Self::MultiNodeReaderOnly | Self::MultiNodeMultiWriter)
    }
}
