//! What a decision is made from.

use std::sync::Arc;

use crate::api::names::finalizer_name;
use crate::objects::{Attachment, Volume};

/// The driver capabilities that change what an attacher does (CSI spec, "ControllerGetCapabilities").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is one capability of the CSI spec")]
pub struct Capabilities {
    /// PUBLISH_UNPUBLISH_VOLUME: without it the driver is trivial, nothing is called and everything counts as attached.
    pub publish_unpublish: bool,
    /// PUBLISH_READONLY: without it `readonly` is never sent as true.
    pub publish_readonly: bool,
    /// SINGLE_NODE_MULTI_WRITER: finer single-node access modes.
    pub single_node_multi_writer: bool,
    /// LIST_VOLUMES.
    pub list_volumes: bool,
    /// LIST_VOLUMES_PUBLISHED_NODES.
    pub list_volumes_published_nodes: bool,
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
}

impl DriverFacts {
    /// Facts of the driver `name`.
    pub fn new(name: &str, capabilities: Capabilities) -> Self {
        Self {
            name: name.into(),
            finalizer: finalizer_name(name).into(),
            capabilities,
        }
    }
}

/// Settings that change what is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Filesystem type for mount volumes that name none.
    pub default_fs_type: Arc<str>,
}

/// What the CSINode of the attachment's node says of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEntry<'a> {
    /// There is no CSINode of that name.
    Missing,
    /// There is one, without the driver.
    WithoutDriver,
    /// The driver registered under this node ID.
    Registered(&'a str),
}

/// Whether the publish secret is at hand; its contents never enter a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Not read in this attempt.
    NotLoaded,
    /// Read in this attempt.
    Loaded,
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
    /// Whether the publish secret is at hand.
    pub credentials: Credentials,
    /// The driver.
    pub driver: &'a DriverFacts,
    /// Settings.
    pub policy: &'a Policy,
}

impl Observed<'_> {
    /// Whether the volume is one of an in-tree plug-in. In-line volumes never count as such, as in the Go sidecar: they
    /// were translated before they came here.
    pub fn is_migrated(&self) -> bool {
        self.volume.is_some_and(|volume| volume.in_tree.is_some())
    }
}
