//! The devices of one node.

use std::collections::BTreeSet;

/// Numbers of devices, of which the lowest free one is next. Each operation is O(log n) in the devices of this node, whatever
/// other nodes have.
#[derive(Debug, Default)]
pub(super) struct NodeSlots {
    /// Each number below this was taken.
    end: usize,
    /// Those of them that are free again.
    free: BTreeSet<usize>,
}

impl NodeSlots {
    /// How many are in use.
    pub fn used(&self) -> usize {
        self.end - self.free.len()
    }

    /// Takes the lowest free number.
    pub fn take(&mut self) -> usize {
        self.free.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        })
    }

    /// Gives a number back that was taken.
    pub fn free(&mut self, slot: usize) {
        if slot < self.end {
            self.free.insert(slot);
        }
    }
}
