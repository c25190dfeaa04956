//! What CSINodes say of topology, for provisioning: attaching does not read it.

use std::sync::Arc;

use super::store::{Store, TopologyListener};
use crate::objects::CsiNode;

impl Store {
    /// Tells of each CSINode whose topology changes from now on, instead of whoever was told before.
    pub fn listen_to_topology(&self, listener: TopologyListener) {
        *self.inner.topology_listener.write() = Some(listener);
    }

    /// The CSINode of a name.
    pub fn csi_node(&self, name: &str) -> Option<Arc<CsiNode>> {
        self.inner.index.read().nodes.get(name).cloned()
    }

    /// All CSINodes, in no order.
    pub fn csi_nodes(&self) -> Vec<Arc<CsiNode>> {
        self.inner.index.read().nodes.values().cloned().collect()
    }

    /// Whether some driver registered a topology key of this name on some node.
    pub fn is_topology_key(&self, key: &str) -> bool {
        let index = self.inner.index.read();
        index.links.topologies.keys().any(|keys| keys.has_key(key))
    }
}
