//! The CSINodes that attaching watches, for provisioning.

use std::sync::Arc;

use csi_attacher_model::provision::Seen;
use csi_attacher_provision::{CsiNodeCache, DriverKeys, NodeListener};

use crate::cache::Store;
use crate::objects::{CsiNode, CsiNodeWire};

/// The cache of attaching, as provisioning sees it.
pub(super) struct AttachNodes(pub Store);

impl CsiNodeCache for AttachNodes {
    fn is_listed(&self) -> bool {
        self.0.lists().is_synced()
    }

    fn keys(&self, node: &str, driver: &str) -> Seen<DriverKeys> {
        match self.0.csi_node(node) {
            Some(known) => Seen::Here(known.topology_keys(driver).cloned().unwrap_or_default()),
            None if self.is_listed() && self.0.lists().is_watched::<CsiNodeWire>() => Seen::Gone,
            None => Seen::Unknown,
        }
    }

    fn registered(&self, driver: &str) -> Vec<(Arc<str>, DriverKeys)> {
        let keys = |node: &Arc<CsiNode>| Some((node.name.clone(), node.topology_keys(driver)?.clone()));
        self.0.csi_nodes().iter().filter_map(keys).collect()
    }

    fn is_topology_key(&self, key: &str) -> bool {
        self.0.is_topology_key(key)
    }

    fn moment(&self) -> u64 {
        self.0.lists().now()
    }

    fn is_known_since(&self, moment: Option<u64>) -> bool {
        self.0.lists().is_known_since::<CsiNodeWire>(moment)
    }

    fn doubt_unwatched(&self, why: &str) {
        self.0.lists().doubt_unwatched::<CsiNodeWire>(why);
    }

    fn listen(&self, listener: NodeListener) {
        self.0.listen_to_topology(listener);
    }
}
