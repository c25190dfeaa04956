//! What follows from a complete list: objects that it does not show are gone.

use std::collections::HashSet;
use std::sync::Arc;

use super::index::{CacheChange, Index};

impl Index {
    pub fn finish_attachment_list(&mut self, seen: &HashSet<Arc<str>>) -> Vec<CacheChange> {
        let gone = self.attachments.finish_list(seen);
        gone.iter()
            .map(|record| self.remove_attachment(&record.name, &record.uid))
            .collect()
    }

    pub fn finish_volume_list(&mut self, seen: &HashSet<Arc<str>>) -> Vec<CacheChange> {
        let gone = self.volumes.finish_list(seen);
        gone.iter()
            .map(|record| self.remove_volume(&record.name, &record.uid))
            .collect()
    }

    pub fn finish_node_list(&mut self, seen: &HashSet<Arc<str>>) -> Vec<CacheChange> {
        let gone = self.nodes.finish_list(seen);
        gone.iter()
            .map(|record| self.remove_node(&record.name, &record.uid))
            .collect()
    }
}
