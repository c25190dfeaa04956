//! The ways from a volume, a node, a node ID, a handle and a driver to attachments, and how many attachments a driver has.
//!
//! The driver knows machines by node IDs and volumes by handles, whatever they are called in the cluster. Both are found by a hash: a few
//! bytes for each. Where two have one hash, what is found may not belong there, and the caller has to check.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use super::sharing::OfVolume;
use crate::api::names::finalizer_name;
use crate::objects::{Attachment, AttachmentSource, CsiNode, TopologyKeys, Volume, VolumeLifecycle};
use crate::reflect::{CountedMap, ObjectTable, hash};

/// How many attachments of a driver are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attached, and not to be detached.
    pub attached: usize,
    /// Wanted and not attached yet.
    pub attaching: usize,
    /// To be detached, whether attached or not.
    pub detaching: usize,
}

/// What is known of a driver that attachments name, whether it is served or not.
#[derive(Clone, Default)]
struct OfDriver {
    finalizer: Box<str>,
    attached: usize,
    /// The attachments that wait to be attached and to be detached, by the time since when they wait.
    attaching: BTreeSet<(Option<Timestamp>, Arc<str>)>,
    detaching: BTreeSet<(Option<Timestamp>, Arc<str>)>,
}

impl OfDriver {
    /// The pending attachments that this one belongs to; none when it is attached.
    fn pending(&mut self, record: &Attachment) -> Option<&mut BTreeSet<(Option<Timestamp>, Arc<str>)>> {
        match (record.deleting.is_some(), record.attached) {
            (true, _) => Some(&mut self.detaching),
            (false, false) => Some(&mut self.attaching),
            (false, true) => None,
        }
    }
}

/// A volume that has a handle: by the name of its PersistentVolume; an inline one by that of its attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HandleOwner {
    pub is_inline: bool,
    pub name: Arc<str>,
}

impl HandleOwner {
    fn of(record: &Attachment) -> Self {
        let volume = record.volume_name();
        Self {
            is_inline: volume.is_none(),
            name: volume.unwrap_or(&record.name).clone(),
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Links {
    by_volume: HashMap<Arc<str>, OfVolume>,
    by_node: CountedMap<Arc<str>, Arc<str>>,
    /// Names of nodes by the hash of a driver and a node ID: of nodes whose CSINode says so, and of nodes where an attachment was claimed
    /// under that ID. A machine that is registered anew under another name keeps its ID. Almost always there is one.
    machines: CountedMap<u64, Arc<str>>,
    /// Volumes by the hash of a handle, whatever the driver: PersistentVolumes that are there, those whose attachments noted the handle, and
    /// inline volumes. A PersistentVolume that was removed by force or made again has what was noted as well.
    handles: CountedMap<u64, HandleOwner>,
    drivers: HashMap<Arc<str>, OfDriver>,
    /// The topology keys that CSINodes have, each once: they are the same on most nodes.
    pub(super) topologies: CountedMap<Arc<TopologyKeys>, ()>,
    /// How PersistentVolumes came and go, each once: almost all of a driver say the same.
    pub(super) lifecycles: CountedMap<Arc<VolumeLifecycle>, ()>,
}

impl Links {
    /// An attachment changed, is new or is gone. `attachments` are all of them now.
    pub fn replace_attachment(
        &mut self,
        previous: Option<&Attachment>,
        current: Option<&Attachment>,
        attachments: &ObjectTable<Attachment>,
    ) {
        self.count(previous, current);
        self.replace_of_volume(previous, current, attachments);
        let node = |record: &Attachment| (record.node.clone(), record.name.clone());
        self.by_node.replace(previous.map(node), current.map(node));
        self.machines
            .replace(previous.and_then(claimed_machine), current.and_then(claimed_machine));
        self.handles.replace(
            previous.into_iter().flat_map(named_handles),
            current.into_iter().flat_map(named_handles),
        );
    }

    pub fn replace_volume(&mut self, previous: Option<&Volume>, current: Option<&Volume>) {
        let handle = |volume: &Volume| {
            let owner = HandleOwner {
                is_inline: false,
                name: volume.name.clone(),
            };
            Some((hash(&*volume.spec.csi()?.handle), owner))
        };
        self.handles
            .replace(previous.and_then(handle), current.and_then(handle));
        let lifecycle = |volume: &Volume| (volume.lifecycle.clone(), ());
        self.lifecycles.replace(previous.map(lifecycle), current.map(lifecycle));
    }

    pub fn replace_node(&mut self, previous: Option<&CsiNode>, current: Option<&CsiNode>) {
        let machines = |node: &CsiNode| {
            let name = node.name.clone();
            let ids: Vec<u64> = node.node_ids().map(hash).collect();
            ids.into_iter().map(move |id| (id, name.clone()))
        };
        self.machines.replace(
            previous.into_iter().flat_map(machines),
            current.into_iter().flat_map(machines),
        );
        let topology = |node: &CsiNode| Some((node.topology()?.clone(), ()));
        self.topologies
            .replace(previous.and_then(topology), current.and_then(topology));
    }

    fn count(&mut self, previous: Option<&Attachment>, current: Option<&Attachment>) {
        if let Some(record) = previous
            && let Some(driver) = self.drivers.get_mut(&record.attacher)
        {
            match driver.pending(record) {
                Some(pending) => {
                    pending.remove(&(record.pending_since(), record.name.clone()));
                }
                None => driver.attached = driver.attached.saturating_sub(1),
            }
        }
        let Some(record) = current else { return };
        let driver = self.drivers.entry(record.attacher.clone()).or_insert_with(|| OfDriver {
            finalizer: finalizer_name(&record.attacher).into(),
            ..OfDriver::default()
        });
        match driver.pending(record) {
            Some(pending) => {
                pending.insert((record.pending_since(), record.name.clone()));
            }
            None => driver.attached += 1,
        }
    }

    fn replace_of_volume(
        &mut self,
        previous: Option<&Attachment>,
        current: Option<&Attachment>,
        attachments: &ObjectTable<Attachment>,
    ) {
        let Self { by_volume, drivers, .. } = self;
        let finalizer = |record: &Attachment| drivers.get(&record.attacher).map_or("", |driver| &driver.finalizer);
        if let Some(previous) = previous
            && let Some(volume) = previous.volume_name()
            && let Some(of_volume) = by_volume.get_mut(volume)
        {
            if let Some(current) = current.filter(|current| current.volume_name() == Some(volume)) {
                of_volume.replace((previous, finalizer(previous)), (current, finalizer(current)));
                return;
            }
            if of_volume.remove(previous, finalizer(previous)) {
                by_volume.remove(volume);
            }
        }
        let Some(current) = current else { return };
        let Some(volume) = current.volume_name() else { return };
        let Some(of_volume) = by_volume.get_mut(volume) else {
            by_volume.insert(volume.clone(), OfVolume::One(current.name.clone()));
            return;
        };
        let first = match of_volume {
            OfVolume::One(name) => attachments.get(name),
            OfVolume::Several(_) => None,
        };
        let first = first.map(|first| (&**first, finalizer(first)));
        of_volume.add((current, finalizer(current)), first);
    }

    /// Names as they are kept: thousands of attachments name the same few drivers and nodes, and one copy of each name serves all.
    pub fn share_names(&self, record: &mut Attachment) {
        if let Some((shared, _)) = self.drivers.get_key_value(&record.attacher) {
            record.attacher = shared.clone();
        }
        if let Some(shared) = self.by_node.kept(&record.node) {
            record.node = shared;
        }
    }

    /// The attachments of a volume, of any driver.
    pub fn of_volume(&self, volume: &str) -> Option<&OfVolume> {
        self.by_volume.get(volume)
    }

    /// The attachments of a node, in the order of their names.
    pub fn on_node<'a>(&'a self, node: &Arc<str>) -> impl Iterator<Item = &'a Arc<str>> + use<'a> {
        self.by_node.entries(node.clone()).map(|(_, name)| name)
    }

    /// The names of the nodes of an ID, perhaps with others.
    pub fn nodes_of_id<'a>(&'a self, driver: &str, id: &str) -> impl Iterator<Item = &'a Arc<str>> + use<'a> {
        self.machines.entries(hash((driver, id))).map(|(_, node)| node)
    }

    /// Whether another volume than that of an attachment has a handle.
    pub fn has_other_volumes(&self, record: &Attachment, handle: &str) -> bool {
        let own = HandleOwner::of(record);
        self.owners_of(handle).any(|owner| *owner != own)
    }

    /// The volumes that have a handle, of any driver, perhaps with others; in their order, each once.
    pub fn owners_of<'a>(&'a self, handle: &str) -> impl Iterator<Item = &'a HandleOwner> + use<'a> {
        self.handles.entries(hash(handle)).map(|(_, owner)| owner)
    }

    /// The finalizer of a driver that some attachment names.
    pub fn finalizer_of(&self, driver: &str) -> &str {
        self.drivers.get(driver).map_or("", |driver| &driver.finalizer)
    }

    pub fn counts(&self, driver: &str) -> Counts {
        let driver = self.drivers.get(driver);
        driver.map_or_else(Counts::default, |driver| Counts {
            attached: driver.attached,
            attaching: driver.attaching.len(),
            detaching: driver.detaching.len(),
        })
    }

    /// The attachment of a driver that has waited longest to be attached, or to be detached.
    pub fn oldest_pending(&self, driver: &str, detaching: bool) -> Option<&Arc<str>> {
        let driver = self.drivers.get(driver)?;
        let pending = if detaching {
            &driver.detaching
        } else {
            &driver.attaching
        };
        pending.first().map(|(_, name)| name)
    }
}

/// The machine under whose ID an attachment was claimed.
fn claimed_machine(record: &Attachment) -> Option<(u64, Arc<str>)> {
    let id = record.node_id.as_deref()?;
    Some((hash((&*record.attacher, id)), record.node.clone()))
}

/// The handles that an attachment noted or describes; former ones too, as their volumes may be at a node yet.
pub(crate) fn handles_of(record: &Attachment) -> impl Iterator<Item = &str> {
    let noted = record.volume_note.iter().flat_map(|note| {
        let former = note.former.iter().map(|place| &*place.handle);
        std::iter::once(&*note.handle).chain(former)
    });
    let described = match &record.source {
        AttachmentSource::Inline(spec) => spec.csi().map(|source| &*source.handle),
        _ => None,
    };
    noted.chain(described)
}

/// The same, each with its volume.
fn named_handles(record: &Attachment) -> impl Iterator<Item = (u64, HandleOwner)> {
    let owner = HandleOwner::of(record);
    handles_of(record).map(move |handle| (hash(handle), owner.clone()))
}
