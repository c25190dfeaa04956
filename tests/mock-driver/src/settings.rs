//! What the mock driver pretends to be. All of it can change while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use tonic::Status;

use super::facts::Method;
use csi_attacher_proto::redact::Redacted;
use csi_attacher_proto::v1::VolumeCapability;
pub use csi_attacher_proto::v1::controller_service_capability::rpc::Type as ControllerCapability;
use csi_attacher_proto::v1::volume_capability::AccessType;

/// The controller capabilities the mock driver implements, in the order of their numbers: all of version 1.12.
pub const ALL_CAPABILITIES: [ControllerCapability; 15] = [
    ControllerCapability::CreateDeleteVolume,
    ControllerCapability::PublishUnpublishVolume,
    ControllerCapability::ListVolumes,
    ControllerCapability::GetCapacity,
    ControllerCapability::CreateDeleteSnapshot,
    ControllerCapability::ListSnapshots,
    ControllerCapability::CloneVolume,
    ControllerCapability::PublishReadonly,
    ControllerCapability::ExpandVolume,
    ControllerCapability::ListVolumesPublishedNodes,
    ControllerCapability::VolumeCondition,
    ControllerCapability::GetVolume,
    ControllerCapability::SingleNodeMultiWriter,
    ControllerCapability::ModifyVolume,
    ControllerCapability::GetSnapshot,
];

/// Secrets by their keys; `Debug` shows neither keys nor values.
#[derive(Clone, PartialEq, Eq)]
pub struct MockCredentials(pub BTreeMap<String, String>);

impl fmt::Debug for MockCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Redacted(self.0.len()).fmt(f)
    }
}

/// What the mock driver pretends to be.
// Each switch stands for itself; an enum for each would hide that.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug)]
pub struct MockSettings {
    /// Driver name that GetPluginInfo answers.
    pub driver_name: String,
    /// Version that GetPluginInfo answers.
    pub vendor_version: String,
    /// What Probe answers.
    pub ready: bool,
    /// Whether there is a Controller service at all; without it all its calls are UNIMPLEMENTED.
    pub controller_service: bool,
    /// The topology keys of the driver; with any it announces VOLUME_ACCESSIBILITY_CONSTRAINTS, and answers where volumes are reachable
    /// from: the first topology that is preferred.
    pub topology_keys: Vec<String>,
    /// Where new volumes are reachable from, whatever is asked for.
    pub answered_topology: Option<Vec<BTreeMap<String, String>>>,
    /// The controller capabilities that are on; calls that need another one are UNIMPLEMENTED.
    pub capabilities: BTreeSet<ControllerCapability>,
    /// The node ids that exist; `None` accepts every id.
    pub nodes: Option<BTreeSet<String>>,
    /// The id NodeGetInfo answers.
    pub node_id: String,
    /// Most volumes on a node; `None` is no limit.
    pub attach_limit: Option<usize>,
    /// Limits of single nodes; they win over `attach_limit`.
    pub node_attach_limits: BTreeMap<String, usize>,
    /// Whether a volume springs into being when it is published or asked for by an id nobody created.
    pub accept_any_volume: bool,
    /// Whether a volume that may be at one node only is refused at a second; a driver that does not look publishes it there too.
    pub refuse_second_node: bool,
    /// Whether ControllerUnpublishVolume answers NOT_FOUND for a volume or node it does not know; otherwise OK.
    pub unpublish_unknown_is_not_found: bool,
    /// Whether a call for a volume and node that has another call running is answered with ABORTED.
    pub abort_overlapping: bool,
    /// Whether CreateVolume of a volume that is there is spared scripted failures that say that there is none, which are those after which
    /// CSI lets a caller forget the volume.
    pub refuse_truly: bool,
    /// Most entries of a list page whatever the caller asks for; `None` is no limit.
    pub list_page_limit: Option<usize>,
    /// Bytes of padding in the context of each listed volume: makes answers as large as wanted.
    pub list_padding_bytes: usize,
    /// Bytes all volumes together may have.
    pub capacity_bytes: i64,
    /// Publish contexts of single volumes, answered instead of the usual one.
    pub publish_contexts: BTreeMap<String, BTreeMap<String, String>>,
    /// Volumes that want exactly these secrets for attaching and detaching, and answer UNAUTHENTICATED otherwise. Has no place in any
    /// output.
    pub volume_secrets: BTreeMap<String, MockCredentials>,
    /// Volumes that want exactly these mount flags, in this order, and answer INVALID_ARGUMENT otherwise. They may be sensitive:
    /// no output tells more than how many there were.
    pub volume_mount_flags: BTreeMap<String, Vec<String>>,
    /// How long each call of a method takes before the work is done.
    pub delays: BTreeMap<Method, Duration>,
}

impl MockSettings {
    /// A ready driver of that name with all capabilities except VOLUME_CONDITION (left out of the interface again after 1.12), that
    /// knows no volumes and accepts all nodes.
    pub fn new(driver_name: impl Into<String>) -> Self {
        Self {
            driver_name: driver_name.into(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: true,
            controller_service: true,
            topology_keys: Vec::new(),
            answered_topology: None,
            capabilities: ALL_CAPABILITIES
                .into_iter()
                .filter(|capability| *capability != ControllerCapability::VolumeCondition)
                .collect(),
            nodes: None,
            node_id: "mock-node-0".to_owned(),
            attach_limit: None,
            node_attach_limits: BTreeMap::new(),
            accept_any_volume: false,
            refuse_second_node: true,
            unpublish_unknown_is_not_found: false,
            abort_overlapping: false,
            refuse_truly: false,
            list_page_limit: None,
            list_padding_bytes: 0,
            capacity_bytes: 1 << 50,
            publish_contexts: BTreeMap::new(),
            volume_secrets: BTreeMap::new(),
            volume_mount_flags: BTreeMap::new(),
            delays: BTreeMap::new(),
        }
    }

    /// Whether that capability is on.
    pub fn has(&self, capability: ControllerCapability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// Refuses a call of the Controller service when there is no such service.
    pub(super) fn require_controller(&self) -> Result<(), Status> {
        if self.controller_service {
            Ok(())
        } else {
            Err(Status::unimplemented("unknown service csi.v1.Controller"))
        }
    }

    /// Refuses a call whose capability is off.
    pub(super) fn require(&self, capability: ControllerCapability) -> Result<(), Status> {
        self.require_controller()?;
        if self.has(capability) {
            Ok(())
        } else {
            Err(Status::unimplemented(format!(
                "{} is not supported",
                capability.as_str_name()
            )))
        }
    }

    /// Refuses secrets that are not those which the volume wants, if it wants any.
    pub(super) fn authenticate(&self, volume: &str, secrets: &BTreeMap<String, String>) -> Result<(), Status> {
        match self.volume_secrets.get(volume) {
            Some(wanted) if wanted.0 != *secrets => Err(Status::unauthenticated(format!(
                "these are not the secrets of volume {volume:?}"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses mount flags that are not those which the volume wants, if it wants any.
    pub(super) fn check_mount_flags(&self, volume: &str, capability: Option<&VolumeCapability>) -> Result<(), Status> {
        let Some(wanted) = self.volume_mount_flags.get(volume) else {
            return Ok(());
        };
        match capability.and_then(|capability| capability.access_type.as_ref()) {
            Some(AccessType::Mount(mount)) if mount.mount_flags == *wanted => Ok(()),
            _ => Err(Status::invalid_argument(format!(
                "these are not the mount flags of volume {volume:?}"
            ))),
        }
    }

    /// Whether a node of that id exists.
    pub(super) fn knows_node(&self, node: &str) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains(node))
    }

    /// Most volumes on that node.
    pub(super) fn limit_of(&self, node: &str) -> Option<usize> {
        self.node_attach_limits.get(node).copied().or(self.attach_limit)
    }
}
