//! What is known of a driver that provisions.

use std::sync::Arc;

/// The driver capabilities that change what a provisioner does (CSI spec, "GetPluginCapabilities" and "ControllerGetCapabilities").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProvisionerCapabilities {
    /// CREATE_DELETE_VOLUME, and the plug-in capability CONTROLLER_SERVICE: without them nothing is provisioned.
    pub create_delete_volume: bool,
    /// Plug-in capability VOLUME_ACCESSIBILITY_CONSTRAINTS: the driver has topology.
    pub accessibility_constraints: bool,
    /// SINGLE_NODE_MULTI_WRITER: finer single-node access modes.
    pub single_node_multi_writer: bool,
}

/// What is known of a running driver that provisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProvisionerFacts {
    /// Name from GetPluginInfo.
    pub name: Arc<str>,
    /// Name of the in-tree plug-in that the driver took over, where its objects are served as well.
    pub in_tree: Option<Arc<str>>,
    /// What it can do.
    pub capabilities: ProvisionerCapabilities,
}
