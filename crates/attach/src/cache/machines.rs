//! Which nodes have a node ID, and which volumes a handle: the driver knows machines and volumes by these, whatever they are called in
//! the cluster.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::Arc;

use super::counted::Counted;
use crate::objects::{Attachment, AttachmentSource, CsiNode, Volume};

/// Keys by a hash of what they are found by: a few bytes for each. Where two have one hash, a look finds what does not belong
/// there, and has to tell.
#[derive(Clone)]
struct ByHash<K>(HashMap<u64, Counted<K>>);

impl<K> Default for ByHash<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

fn hash(of: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(of)
}

impl<K: Ord + Clone> ByHash<K> {
    fn add(&mut self, of: impl Hash, key: K) {
        match self.0.entry(hash(of)) {
            Entry::Occupied(mut known) => known.get_mut().add(key),
            Entry::Vacant(vacant) => {
                vacant.insert(Counted::One(key, 1));
            }
        }
    }

    fn remove(&mut self, of: impl Hash, key: &K) {
        if let Entry::Occupied(mut known) = self.0.entry(hash(of))
            && known.get_mut().remove(key)
        {
            known.remove();
        }
    }

    fn keys(&self, of: impl Hash) -> impl Iterator<Item = &K> {
        let known = self.0.get(&hash(of));
        known.into_iter().flat_map(Counted::keys)
    }
}

/// The names of the nodes that have a node ID of a driver, as their CSINodes say, or had it when an attachment was claimed there. A
/// machine that is registered anew under another name keeps its ID. Almost always there is one.
#[derive(Clone, Default)]
pub(super) struct Machines(ByHash<Arc<str>>);

impl Machines {
    pub fn add(&mut self, record: &Attachment) {
        if let Some(id) = &record.node_id {
            self.0.add((&*record.attacher, &**id), record.node.clone());
        }
    }

    pub fn remove(&mut self, record: &Attachment) {
        if let Some(id) = &record.node_id {
            self.0.remove((&*record.attacher, &**id), &record.node);
        }
    }

    pub fn add_node(&mut self, node: &CsiNode) {
        for (driver, id) in node.node_ids() {
            self.0.add((driver, id), node.name.clone());
        }
    }

    pub fn remove_node(&mut self, node: &CsiNode) {
        for (driver, id) in node.node_ids() {
            self.0.remove((driver, id), &node.name);
        }
    }

    /// The names of the nodes of an ID, perhaps with others.
    pub fn nodes(&self, driver: &str, id: &str) -> impl Iterator<Item = &Arc<str>> {
        self.0.keys((driver, id))
    }
}

/// Which volumes have a handle, of whatever driver: PersistentVolumes that are there, those that attachments name which noted the handle, and in-line
/// volumes; each by a hash of its name. A PersistentVolume that was removed by force or made again has what was noted as well.
#[derive(Clone, Default)]
pub(super) struct Handles(ByHash<u64>);

const PERSISTENT_VOLUME: &str = "PersistentVolume";

/// A volume as it is called in the cluster.
fn name_of(record: &Attachment) -> u64 {
    match record.volume_name() {
        Some(name) => hash((PERSISTENT_VOLUME, name)),
        None => hash(("VolumeAttachment", &record.name)),
    }
}

/// The handles that an attachment tells.
fn told(record: &Attachment) -> impl Iterator<Item = &str> {
    let noted = record.volume_note.as_ref().map(|note| &*note.handle);
    let described = match &record.source {
        AttachmentSource::Inline(spec) => spec.csi().map(|source| &*source.handle),
        _ => None,
    };
    noted.into_iter().chain(described)
}

impl Handles {
    pub fn add(&mut self, record: &Attachment) {
        for handle in told(record) {
            self.0.add(handle, name_of(record));
        }
    }

    pub fn remove(&mut self, record: &Attachment) {
        for handle in told(record) {
            self.0.remove(handle, &name_of(record));
        }
    }

    pub fn add_volume(&mut self, volume: &Volume) {
        if let Some(source) = volume.spec.csi() {
            self.0.add(&*source.handle, hash((PERSISTENT_VOLUME, &volume.name)));
        }
    }

    pub fn remove_volume(&mut self, volume: &Volume) {
        if let Some(source) = volume.spec.csi() {
            self.0.remove(&*source.handle, &hash((PERSISTENT_VOLUME, &volume.name)));
        }
    }

    /// Whether another volume than that of an attachment has a handle.
    pub fn has_others(&self, record: &Attachment, handle: &str) -> bool {
        let own = name_of(record);
        self.0.keys(handle).any(|name| *name != own)
    }
}
