//! What is known of a driver that provisions.

use std::sync::Arc;

use crate::decide::Capabilities;

/// What is known of a running driver that provisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProvisionerFacts {
    /// Name from GetPluginInfo.
    pub name: Arc<str>,
    /// Name of the in-tree plug-in that the driver took over, where its objects are served as well.
    pub in_tree: Option<Arc<str>>,
    /// What it can do.
    pub capabilities: Capabilities,
}
