//! Reads of objects that the cache does not know, as their watch may be behind.

use std::sync::Arc;

use crate::reflect::Origin;

use super::index::Index;
use super::store::Store;
use crate::objects::{CsiNode, Volume};

/// What is read.
#[derive(Clone, Copy, Debug)]
enum ReadKind {
    Volume,
    Node,
}

impl ReadKind {
    fn end(self, index: &mut Index, read: u64) -> bool {
        match self {
            Self::Volume => index.volumes.end_read(read),
            Self::Node => index.nodes.end_read(read),
        }
    }
}

/// A read of one object, from before the request is sent. When the watch tells the end of an object of that name meanwhile,
/// or a list comes in that does not show it, nothing is taken in: that end would not be told again.
pub struct Reading<'s> {
    store: &'s Store,
    kind: ReadKind,
    number: u64,
}

impl Store {
    /// A PersistentVolume is going to be read.
    pub fn read_volume(&self, name: &Arc<str>) -> Reading<'_> {
        let number = self.inner.index.write().volumes.begin_read(name);
        self.reading(ReadKind::Volume, number)
    }

    /// A CSINode is going to be read.
    pub fn read_node(&self, name: &Arc<str>) -> Reading<'_> {
        let number = self.inner.index.write().nodes.begin_read(name);
        self.reading(ReadKind::Node, number)
    }

    fn reading(&self, kind: ReadKind, number: u64) -> Reading<'_> {
        Reading {
            store: self,
            kind,
            number,
        }
    }
}

impl Reading<'_> {
    /// Takes in the volume that was read.
    pub fn volume(self, record: Volume) {
        let mut index = self.store.inner.index.write();
        if self.kind.end(&mut index, self.number) {
            let change = index.take_volume(record, Origin::Answer);
            drop(index);
            self.store.dispatch_change(&change);
        }
    }

    /// Takes in the CSINode that was read.
    pub fn node(self, record: CsiNode) {
        let mut index = self.store.inner.index.write();
        if self.kind.end(&mut index, self.number) {
            let change = index.take_node(record, Origin::Answer);
            drop(index);
            self.store.dispatch_change(&change);
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.kind.end(&mut self.store.inner.index.write(), self.number);
    }
}
