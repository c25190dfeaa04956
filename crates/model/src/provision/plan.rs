//! What CreateVolume and DeleteVolume are called with, as plain data (CSI spec, "CreateVolumeRequest" and "DeleteVolumeRequest").

use std::collections::BTreeMap;
use std::sync::Arc;

use super::secrets::SecretFamily;
use super::topology::{Segment, TopologyRequirement};
use crate::decide::AccessMode;
use crate::objects::{ClaimAccessMode, ReclaimPolicy, SecretReference, StringMap, VolumeMode};

/// What CreateVolume is called with, but for the contents of the Secret; and what of the class and the claim the PersistentVolume will
/// say. An uncertain call is repeated with the plan that it was made with.
///
/// Slice P3 adds the content source and the mutable parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatePlan {
    /// `name`, which is that of the PersistentVolume as well.
    pub name: Box<str>,
    /// `capacity_range.required_bytes`; no limit is sent.
    pub required_bytes: i64,
    /// `volume_capabilities`: one for each access mode of the claim, in their order.
    pub capabilities: Vec<VolumeCapability>,
    /// `parameters`.
    pub parameters: StringMap,
    /// The Secret whose contents are sent.
    pub secret: Option<SecretReference>,
    /// Whether the driver announced topology when the call was made: then its answer says where the volume can be reached from (CSI spec,
    /// "CreateVolumeResponse"). It may announce it no more by the time that the PersistentVolume is saved.
    pub has_topology: bool,
    /// `accessibility_requirements`.
    pub accessibility: Option<TopologyRequirement>,
    /// Topology of the selected node.
    pub segment: Option<Segment>,
    /// Name of the selected node.
    pub node: Option<Arc<str>>,
    /// What the PersistentVolume will say.
    pub volume: VolumeTemplate,
}

impl CreatePlan {
    /// How the topology is asked for, for spans: `none`, `immediate`, and for a selected node `strict` where its topology is the only one,
    /// else `preferred`.
    pub fn topology_mode(&self) -> &'static str {
        match (&self.accessibility, &self.segment) {
            (None, _) => "none",
            (Some(_), None) => "immediate",
            (Some(required), Some(own)) if required.requisite.iter().eq([own]) => "strict",
            (Some(_), Some(_)) => "preferred",
        }
    }
}

/// `VolumeCapability` of the CSI spec, as far as a claim can express it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCapability {
    /// How the volume is accessed on the node.
    pub access: ClaimAccessType,
    /// By how many, and how.
    pub mode: AccessMode,
}

/// How a volume is accessed on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAccessType {
    /// As a block device.
    Block,
    /// As a file system.
    Mount {
        /// File system type, may be empty.
        fs_type: Box<str>,
        /// Mount options of the class.
        flags: Box<[Box<str>]>,
    },
}

/// What the PersistentVolume of a claim says, beside what the driver answers and who the claim is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeTemplate {
    /// The class's provisioner.
    pub provisioner: Arc<str>,
    /// Name of the class.
    pub class: Arc<str>,
    /// `metadata.uid` of the class.
    pub class_uid: Box<str>,
    /// Hash of what the driver is told of the class.
    pub class_hash: Arc<str>,
    /// Hash of its allowedTopologies.
    pub allowed_hash: Arc<str>,
    /// Policy of the class.
    pub reclaim_policy: Option<ReclaimPolicy>,
    /// Access modes of the claim.
    pub access_modes: Box<[ClaimAccessMode]>,
    /// Volume mode of the claim.
    pub volume_mode: Option<VolumeMode>,
    /// Mount options of the class.
    pub mount_options: Box<[Box<str>]>,
    /// File system type as it was sent; empty for a block device.
    pub fs_type: Box<str>,
    /// Whether it is published read-only.
    pub read_only: bool,
    /// References of the other Secrets; the provisioner's own stands in [`CreatePlan::secret`].
    pub secrets: BTreeMap<SecretFamily, SecretReference>,
}

/// What DeleteVolume is called with, but for the contents of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletePlan {
    /// `volume_id`.
    pub handle: Box<str>,
    /// The Secret whose contents are sent.
    pub secret: Option<SecretReference>,
    /// Whether the driver took the volume over from an in-tree plug-in, as the metrics say.
    pub migrated: bool,
}
