//! The kinds that the cache keeps: where their records are, and what a change of one of them concerns.

use std::sync::Arc;

use super::index::{CacheChange, Index, Influence, freed_by_node, waiting_for_change};
use super::routing::AttacherKey;
use super::sharing::OfVolume;
use crate::decide::NodeEntry;
use crate::objects::{
    Attachment, AttachmentSource, CsiNode, CsiNodeWire, PersistentVolumeWire, Volume, VolumeAttachmentWire,
};
use crate::reflect::{CacheRecord, CachedKind, Kind, ObjectTable, Tables};
use csi_attacher_runtime::EnqueueCause;

/// The kinds by their plural names. A new kind has a table in [`Index`], a name here, and one [`CachedKind`].
pub const KINDS: [&str; 3] = [
    VolumeAttachmentWire::PLURAL,
    PersistentVolumeWire::PLURAL,
    CsiNodeWire::PLURAL,
];

/// Those of which only calls of the driver need anything: the ID of a node.
const OF_CALLS: [&str; 1] = [CsiNodeWire::PLURAL];

/// The kinds of which nothing is read for a driver, by whether it has ControllerPublishVolume. Its sidecar does not list them either without
/// that call, and may have no permission for it.
pub const fn unread_kinds(publishes: bool) -> &'static [&'static str] {
    if publishes { &[] } else { &OF_CALLS }
}

impl Tables for Index {
    type Change = CacheChange;
}

impl CachedKind<Index> for Attachment {
    fn table(index: &Index) -> &ObjectTable<Self> {
        &index.attachments
    }

    fn table_mut(index: &mut Index) -> &mut ObjectTable<Self> {
        &mut index.attachments
    }

    fn share_names(&mut self, index: &mut Index) {
        if let Some(known) = index.attachments.get(&self.name) {
            self.name = known.name.clone();
        }
        index.links.share_names(self);
        if let AttachmentSource::PersistentVolume(name) = &mut self.source
            && let Some(volume) = index.volumes.get(name)
        {
            *name = volume.name.clone();
        }
    }

    fn is_gone(&self) -> bool {
        Attachment::is_gone(self)
    }

    fn relink(index: &mut Index, previous: Option<&Arc<Self>>, current: Option<&Arc<Self>>) -> CacheChange {
        let before = previous.map(|previous| Influence::of(index, previous));
        let Index { links, attachments, .. } = index;
        links.replace_attachment(previous.map(|it| &**it), current.map(|it| &**it), attachments);
        let own = current
            .or(previous)
            .map(|record| AttacherKey::Attachment(record.name.clone()));
        let gone = previous.filter(|previous| current.is_none_or(|current| current.uid != previous.uid));
        CacheChange {
            own: own.map(|key| (key, cause(previous, current, |record| record.deleting.is_some()))),
            gone: gone.cloned(),
            attachments: waiting_for_change(index, before, current),
            cause: EnqueueCause::Update,
            ..CacheChange::default()
        }
    }
}

impl CachedKind<Index> for Volume {
    fn table(index: &Index) -> &ObjectTable<Self> {
        &index.volumes
    }

    fn table_mut(index: &mut Index) -> &mut ObjectTable<Self> {
        &mut index.volumes
    }

    fn share_names(&mut self, index: &mut Index) {
        if let Some(known) = index.volumes.get(&self.name) {
            self.name = known.name.clone();
        }
        if let Some(kept) = index.links.lifecycles.kept(&self.lifecycle) {
            self.lifecycle = kept;
        }
    }

    fn is_gone(&self) -> bool {
        Volume::is_gone(self)
    }

    fn relink(index: &mut Index, previous: Option<&Arc<Self>>, current: Option<&Arc<Self>>) -> CacheChange {
        let links = &mut index.links;
        links.replace_volume(previous.map(|it| &**it), current.map(|it| &**it));
        let name = current.or(previous).map(|record| &record.name);
        let attachments = name.and_then(|name| links.of_volume(name));
        let attachments = attachments.into_iter().flat_map(OfVolume::names).cloned();
        CacheChange {
            own: name.map(|name| {
                let key = AttacherKey::Volume(name.clone());
                (key, cause(previous, current, |record| record.deleting))
            }),
            volume: current.or(previous).cloned(),
            attachments: attachments.collect(),
            cause: EnqueueCause::Volume,
            ..CacheChange::default()
        }
    }
}

impl CachedKind<Index> for CsiNode {
    fn table(index: &Index) -> &ObjectTable<Self> {
        &index.nodes
    }

    fn table_mut(index: &mut Index) -> &mut ObjectTable<Self> {
        &mut index.nodes
    }

    fn share_names(&mut self, index: &mut Index) {
        let kept = self.topology().and_then(|keys| index.links.topologies.kept(keys));
        if let Some(kept) = kept {
            self.share_topology(kept);
        }
    }

    fn relink(index: &mut Index, previous: Option<&Arc<Self>>, current: Option<&Arc<Self>>) -> CacheChange {
        let (before, now) = (previous.map(|it| &**it), current.map(|it| &**it));
        index.links.replace_node(before, now);
        let name = current.or(previous).map(|record| &record.name);
        let on_node = name.into_iter().flat_map(|name| index.links.on_node(name));
        // Of a node with many drivers one registers or goes at a time: that is nothing to the attachments of the others.
        let is_concerned = |name: &&Arc<str>| {
            let attachment = index.attachments.get(name);
            attachment.is_some_and(|it| NodeEntry::of(before, &it.attacher) != NodeEntry::of(now, &it.attacher))
        };
        let attachments = on_node.filter(is_concerned).cloned();
        let freed = before.map(|before| freed_by_node(index, before, now));
        // A CSINode that comes or goes counts, be it without keys: whether there is one is read as well.
        let topology = |node: Option<&Arc<Self>>| node.map(|node| node.topology().cloned());
        let changes_topology = topology(previous) != topology(current);
        CacheChange {
            topology_of: name.filter(|_| changes_topology).cloned(),
            attachments: attachments.chain(freed.unwrap_or_default()).collect(),
            cause: EnqueueCause::Update,
            ..CacheChange::default()
        }
    }
}

/// Why an object has to be enqueued that changed, is new or is gone.
fn cause<R: CacheRecord>(
    previous: Option<&Arc<R>>,
    current: Option<&Arc<R>>,
    is_deleting: impl Fn(&R) -> bool,
) -> EnqueueCause {
    let Some(current) = current else {
        return EnqueueCause::Update;
    };
    let former = previous.filter(|previous| previous.uid() == current.uid());
    EnqueueCause::of_change(former.map(|former| is_deleting(former)), is_deleting(current))
}
