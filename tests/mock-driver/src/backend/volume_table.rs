//! The volumes by ID, with a count of how many were looked at.

use std::collections::BTreeMap;

use super::MockVolume;

#[derive(Default)]
pub(super) struct VolumeTable {
    by_id: BTreeMap<String, MockVolume>,
    /// How many volumes were looked at: what a call costs, whatever the machine does.
    looks: std::cell::Cell<usize>,
}

impl VolumeTable {
    fn look(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    #[cfg(test)]
    pub fn looks(&self) -> usize {
        self.looks.get()
    }

    pub fn get(&self, id: &str) -> Option<&MockVolume> {
        self.look();
        self.by_id.get(id)
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut MockVolume> {
        self.look();
        self.by_id.get_mut(id)
    }

    pub fn insert(&mut self, id: String, volume: MockVolume) {
        self.look();
        self.by_id.insert(id, volume);
    }

    pub fn remove(&mut self, id: &str) -> Option<MockVolume> {
        self.look();
        self.by_id.remove(id)
    }

    /// All of them, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &MockVolume)> {
        self.by_id.iter().inspect(|_| self.look())
    }
}
