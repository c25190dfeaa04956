//! The nodes of one driver, and the claims that wait for topology which any node may bring.

use parking_lot::Mutex;
use std::collections::BTreeSet;

use crate::key::{ClaimCause, WorkKey};
use crate::nodes::DriverNodes;
use crate::queue::Queue;

/// What a driver has to do with topology.
pub(crate) struct TopologyWaits {
    /// Its nodes.
    pub nodes: DriverNodes,
    /// Those of its claims for which no node is selected, and no topology can be built. Claims with a selected node are found by that.
    waiting: Mutex<BTreeSet<WorkKey>>,
}

impl TopologyWaits {
    pub fn new(nodes: DriverNodes) -> Self {
        Self {
            nodes,
            waiting: Mutex::default(),
        }
    }

    /// Whether a claim waits, at the end of an attempt that began at `generation` of the nodes: it is woken at once where they changed
    /// meanwhile. Each attempt says it anew, so that a claim that has left the queue does not wait.
    pub fn set(&self, queue: &Queue<WorkKey>, key: &WorkKey, waits: bool, generation: u64) {
        if !waits {
            self.waiting.lock().remove(key);
            return;
        }
        self.waiting.lock().insert(key.clone());
        if self.nodes.generation() != generation {
            queue.wake(key, ClaimCause::Node.into());
        }
    }

    /// The claims that wait: almost always none.
    pub fn waiting(&self) -> Vec<WorkKey> {
        self.waiting.lock().iter().cloned().collect()
    }
}
