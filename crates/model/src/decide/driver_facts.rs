//! What is known of a running driver: its name and what it can do.

use std::sync::Arc;

use crate::api::names::finalizer_name;

/// The driver capabilities that change what is done (CSI spec, "GetPluginCapabilities" and "ControllerGetCapabilities").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one capability of the CSI spec")]
#[allow(missing_docs, reason = "a field without a comment is a capability of the CSI spec")]
pub struct Capabilities {
    /// PUBLISH_UNPUBLISH_VOLUME: without it the driver is trivial, nothing is called and everything counts as attached.
    pub publish_unpublish: bool,
    /// PUBLISH_READONLY: without it `readonly` is never sent as true.
    pub publish_readonly: bool,
    /// SINGLE_NODE_MULTI_WRITER: finer single-node access modes.
    pub single_node_multi_writer: bool,
    pub list_volumes: bool,
    pub list_volumes_published_nodes: bool,
    /// CREATE_DELETE_VOLUME, and the plug-in capability CONTROLLER_SERVICE: without them nothing is provisioned.
    pub create_delete_volume: bool,
    /// Plug-in capability VOLUME_ACCESSIBILITY_CONSTRAINTS: the driver has topology.
    pub accessibility_constraints: bool,
}

impl Capabilities {
    /// Those of the controller service, by their names in the CSI spec.
    pub fn of_names(names: &[String]) -> Self {
        let has = |name: &str| names.iter().any(|known| known == name);
        Self {
            publish_unpublish: has("PUBLISH_UNPUBLISH_VOLUME"),
            publish_readonly: has("PUBLISH_READONLY"),
            single_node_multi_writer: has("SINGLE_NODE_MULTI_WRITER"),
            list_volumes: has("LIST_VOLUMES"),
            list_volumes_published_nodes: has("LIST_VOLUMES_PUBLISHED_NODES"),
            create_delete_volume: has("CREATE_DELETE_VOLUME"),
            accessibility_constraints: false,
        }
    }

    /// Whether the driver lists at which nodes its volumes are.
    pub const fn lists_published_nodes(self) -> bool {
        self.list_volumes && self.list_volumes_published_nodes
    }

    /// Whether attachments can be compared with what the driver lists.
    pub const fn allow_comparisons(self) -> bool {
        self.publish_unpublish && self.lists_published_nodes()
    }

    /// Those that matter to an attacher: a driver that gains or loses another one is attached for as before.
    #[must_use]
    pub const fn of_attaching(self) -> Self {
        Self {
            create_delete_volume: false,
            accessibility_constraints: false,
            ..self
        }
    }
}

/// Which attachments with our finalizer may be released without ControllerUnpublishVolume. It matters only for a driver that
/// does not have that call. Claimed is what carries our finalizer from a publish (`is_claimed`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReleaseWithoutCall {
    /// None, and everything that is wanted is marked attached, as the Go sidecar does.
    #[default]
    Nothing,
    /// Those that were never claimed. What is claimed is neither released nor marked attached.
    Unclaimed,
    /// All: the CSIDriver says that the driver needs no attach.
    AttachNotRequired,
    /// All: a person confirmed that the driver does not attach any more.
    Confirmed,
}

/// What is known of a running driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFacts {
    /// Name from `GetPluginInfo`; the `spec.attacher` that is served.
    pub name: Arc<str>,
    /// Our finalizer for this driver.
    pub finalizer: Arc<str>,
    /// What it can do.
    pub capabilities: Capabilities,
    /// What may be released without a call, when the driver has none.
    pub release: ReleaseWithoutCall,
}

impl DriverFacts {
    /// Facts of the driver `name`.
    pub fn new(name: &str, capabilities: Capabilities) -> Self {
        Self {
            name: name.into(),
            finalizer: finalizer_name(name).into(),
            capabilities,
            release: ReleaseWithoutCall::default(),
        }
    }

    /// Whether it has no calls, and must not be worked for when it is found to have published something before.
    pub fn stalls(&self) -> bool {
        !self.capabilities.publish_unpublish && self.release == ReleaseWithoutCall::Unclaimed
    }

    /// The same, of which this may be released without a call.
    #[must_use]
    pub fn releasing(self, release: ReleaseWithoutCall) -> Self {
        Self { release, ..self }
    }
}
