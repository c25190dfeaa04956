//! Attachments that bear on each other: of one volume on several nodes, or of one volume handle on one node.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use super::index::Index;
use super::sharing::{Names, OfVolume, Shared};
use crate::decide::{self, DriverFacts, Neighbours, VolumeOnNode, is_in_use};
use crate::objects::{Attachment, AttachmentSource, CsiSource, VolumeSpec};

/// As many attachments of its volume on other nodes are shown with an attachment at the most.
const MOST_ELSEWHERE: usize = 4;

/// How many PersistentVolumes and in-line volumes have a handle, by its hash: a few bytes for each volume. It may be too
/// high, as when two handles have one hash: that only costs a look that finds nothing.
#[derive(Clone, Default)]
pub(super) struct HandleCounts(HashMap<u64, u32>);

impl HandleCounts {
    fn hash(driver: &str, handle: &str) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one((driver, handle))
    }

    fn count(&self, driver: &str, handle: &str) -> u32 {
        self.0.get(&Self::hash(driver, handle)).copied().unwrap_or_default()
    }

    pub fn add(&mut self, volume: &VolumeSpec) {
        if let Some(source) = volume.csi() {
            *self.0.entry(Self::hash(&source.driver, &source.handle)).or_default() += 1;
        }
    }

    /// Counts the volume of an attachment whose PersistentVolume is gone by force.
    pub fn add_noted(&mut self, attachment: &Attachment) {
        if let Some(note) = &attachment.volume_note {
            *self
                .0
                .entry(Self::hash(&attachment.attacher, &note.handle))
                .or_default() += 1;
        }
    }

    /// Counts the volume of an attachment that describes it itself.
    pub fn add_inline(&mut self, attachment: &Attachment) {
        if let AttachmentSource::Inline(spec) = &attachment.source {
            self.add(spec);
        }
    }

    /// Undoes [`HandleCounts::add_inline`].
    pub fn remove_inline(&mut self, attachment: &Attachment) {
        if let AttachmentSource::Inline(spec) = &attachment.source {
            self.remove(spec);
        }
    }

    pub fn remove(&mut self, volume: &VolumeSpec) {
        let Some(source) = volume.csi() else { return };
        let hash = Self::hash(&source.driver, &source.handle);
        if let Some(count) = self.0.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&hash);
            }
        }
    }
}

impl Index {
    /// The other attachments that bear on this one.
    pub fn neighbours(&self, attachment: &Attachment) -> Neighbours {
        let known = |name: &Arc<str>| self.attachments.get(name).cloned();
        let mut neighbours = Neighbours::default();
        let (driver, node) = (&attachment.attacher, &*attachment.node);
        if let Some(shared) = self.shared(attachment) {
            let leaving = shared.leaving.elsewhere(driver, node).take(1);
            let first = leaving
                .chain(shared.deleting.elsewhere(driver, node))
                .take(MOST_ELSEWHERE + 1);
            for other in first.filter_map(known) {
                if !neighbours.elsewhere.iter().any(|known| known.name == other.name) {
                    neighbours.elsewhere.push(other);
                }
            }
            neighbours.elsewhere.truncate(MOST_ELSEWHERE);
        }
        if attachment.deleting.is_some() {
            neighbours.here = self.in_use_here(attachment);
            // A detach that waits for another attachment asks for no place.
            if neighbours.here.is_none() {
                neighbours.claimed = self.claimed_here(attachment);
            }
        }
        neighbours
    }

    /// The IDs of the node of an attachment: as it is registered, and as it was claimed.
    fn node_ids<'a>(&'a self, attachment: &'a Attachment) -> impl Iterator<Item = &'a str> {
        let machine = self.nodes.get(&attachment.node);
        let registered = machine.and_then(|machine| machine.node_id(&attachment.attacher));
        registered.into_iter().chain(attachment.node_id.as_deref())
    }

    /// The other attachments that are claimed where this one may be: on the same node, or on one that has one of its IDs.
    fn claimed_here(&self, attachment: &Attachment) -> Vec<Arc<Attachment>> {
        let (driver, note) = (&attachment.attacher, attachment.volume_note.as_deref());
        let former = note.map(|note| &note.former[..]).unwrap_or_default();
        let of_volume = self.shared(attachment).into_iter().flat_map(|shared| {
            let former = former.iter().map(|place| &*place.node_id);
            let ids = self.node_ids(attachment).chain(former);
            ids.flat_map(|id| shared.claimed_at.at(driver, id))
        });
        let may_share = !former.is_empty() || self.shares_handle(attachment);
        let on_node = self.by_node.get(&attachment.node).filter(|_| may_share);
        let names = of_volume.chain(on_node.into_iter().flat_map(Names::iter));
        // One that is found twice is shown once.
        let names: BTreeSet<&Arc<str>> = names.filter(|name| **name != attachment.name).collect();
        let is_ours = |handle: &str| {
            self.handle_of(attachment) == Some(handle)
                || note.is_some_and(|note| *note.handle == *handle)
                || former.iter().any(|place| *place.handle == *handle)
        };
        let finalizer = self.finalizer_of(driver);
        let others = names.into_iter().filter_map(|name| self.attachments.get(name));
        let claimed = others.filter(|other| {
            other.attacher == *driver
                && decide::holds_its_place(other, finalizer)
                && match &other.volume_note {
                    Some(noted) => is_ours(&noted.handle),
                    None => other.volume_name().is_some() && other.volume_name() == attachment.volume_name(),
                }
        });
        claimed.cloned().collect()
    }

    /// Another attachment of the same volume handle on the same node, or on one that has the same ID, that is in use.
    fn in_use_here(&self, attachment: &Attachment) -> Option<Arc<Attachment>> {
        let (driver, node) = (&attachment.attacher, &*attachment.node);
        let of_volume = self.shared(attachment).and_then(|shared| {
            // A machine that was registered anew under another name keeps its ID.
            let ids = self.node_ids(attachment);
            let by_id = ids.flat_map(|id| shared.in_use_at.at(driver, id));
            shared
                .in_use
                .at(driver, node)
                .chain(by_id)
                .find(|name| **name != attachment.name)
        });
        if let Some(name) = of_volume {
            return self.attachments.get(name).cloned();
        }
        if !self.shares_handle(attachment) {
            return None;
        }
        let on_node = self.by_node.get(&attachment.node).into_iter().flat_map(Names::iter);
        let records = on_node.filter_map(|name| self.attachments.get(name));
        let mut in_use = records.filter(|other| {
            other.name != attachment.name
                && other.attacher == *driver
                && is_in_use(other)
                && self.same_volume(attachment, other)
        });
        in_use.next().cloned()
    }

    /// What is known of the attachments of the same PersistentVolume, when there are several.
    fn shared(&self, attachment: &Attachment) -> Option<&Shared> {
        self.by_volume.get(attachment.volume_name()?)?.shared()
    }

    /// Whether another attachment on the same node or of the same volume stands for a volume at a place, so that the volume is not
    /// to be taken from there ([`decide::is_claimed_for`]).
    pub fn is_claimed(&self, attachment: &Attachment, driver: &DriverFacts, place: VolumeOnNode<'_>) -> bool {
        let of_volume = self.shared(attachment);
        let of_volume = of_volume.map(|shared| shared.claimed_at.at(&driver.name, place.node_id));
        let on_node = self.by_node.get(&attachment.node).into_iter().flat_map(Names::iter);
        let mut records = of_volume
            .into_iter()
            .flatten()
            .chain(on_node)
            .filter_map(|name| self.attachments.get(name));
        records.any(|other| {
            let volume = other.volume_name().and_then(|name| self.volumes.get(name));
            other.uid != attachment.uid
                && other.attacher == driver.name
                && decide::holds_its_place(other, &driver.finalizer)
                && decide::is_claimed_for(other, volume.map(|volume| &**volume), place, attachment)
        })
    }

    /// Whether more than one volume has the handle of this attachment's. Almost none do, and then the attachments of the
    /// node need not be gone through.
    fn shares_handle(&self, attachment: &Attachment) -> bool {
        let described = self.source_of(attachment).map(|source| &*source.handle);
        let handle = self.handle_of(attachment);
        let itself = u32::from(handle.is_some() && described == handle);
        handle.is_some_and(|handle| self.handles.count(&attachment.attacher, handle) > itself)
    }

    /// The handle of an attachment's volume: of what is attached or being detached, the one that it stands for
    /// ([`decide::published_volume`]); of what is to be attached, that of its PersistentVolume or, when that was removed by force, what
    /// was noted.
    fn handle_of<'a>(&'a self, attachment: &'a Attachment) -> Option<&'a str> {
        let described = self.source_of(attachment).map(|source| &*source.handle);
        let noted = attachment.volume_note.as_ref().map(|note| &*note.handle);
        if attachment.deleting.is_some() || attachment.attached {
            noted.or(described)
        } else {
            described.or(noted)
        }
    }

    fn source_of<'a>(&'a self, attachment: &'a Attachment) -> Option<&'a CsiSource> {
        let spec = match &attachment.source {
            AttachmentSource::Inline(spec) => Some(&**spec),
            AttachmentSource::PersistentVolume(name) => self.volumes.get(name).map(|volume| &volume.spec),
            AttachmentSource::Both(_) | AttachmentSource::Neither => None,
        };
        spec.and_then(VolumeSpec::csi)
    }

    fn same_volume(&self, one: &Attachment, other: &Attachment) -> bool {
        match (self.handle_of(one), self.handle_of(other)) {
            (Some(one), Some(other)) => one == other,
            _ => one.volume_name().is_some() && one.volume_name() == other.volume_name(),
        }
    }

    /// What an attachment means for others as it is now.
    pub(super) fn part(&self, attachment: &Attachment) -> Part {
        let in_use = is_in_use(attachment);
        let twins = if in_use && self.shares_handle(attachment) {
            self.deleting_twins(attachment)
        } else {
            Vec::new()
        };
        Part {
            driver: attachment.attacher.clone(),
            node: attachment.node.clone(),
            name: attachment.name.clone(),
            volume: attachment.volume_name().cloned(),
            leaving: decide::is_leaving(attachment, self.finalizer_of(&attachment.attacher)),
            leaving_nodes: self.leaving_nodes(attachment.volume_name(), &attachment.attacher),
            in_use,
            node_id: attachment.node_id.clone(),
            twins,
        }
    }

    /// How many nodes a volume is leaving; 2 stands for all numbers from there on. Not known of one attachment alone.
    fn leaving_nodes(&self, volume: Option<&Arc<str>>, driver: &Arc<str>) -> usize {
        let of_volume = volume.and_then(|volume| self.by_volume.get(volume));
        let shared = of_volume.and_then(OfVolume::shared);
        shared.map_or(0, |shared| shared.leaving.count(driver))
    }

    /// The attachments of the same handle on the same node that are being deleted.
    fn deleting_twins(&self, attachment: &Attachment) -> Vec<Arc<str>> {
        let on_node = self.by_node.get(&attachment.node).into_iter().flat_map(Names::iter);
        let twins = on_node.filter(|name| {
            let other = self.attachments.get(name);
            other.is_some_and(|other| other.deleting.is_some() && self.same_volume(attachment, other))
        });
        twins.cloned().collect()
    }

    /// The attachments that may have waited for a change of another one: for what it was `before`, and is now.
    ///
    /// An attach waits while some attachment of its volume leaves another node. That is so before and after the change when
    /// there are two such nodes or more, so that a volume that leaves thousands of nodes wakes nobody in between.
    pub(super) fn waiting_for_change(&self, before: Option<Part>, now: Option<&Attachment>) -> Vec<Arc<str>> {
        let now = now.map(|now| self.part(now));
        let stays = match (&before, &now) {
            (Some(before), Some(now)) => before.stays(now),
            _ => false,
        };
        let mut waiting = Vec::new();
        for (part, other) in [(&before, &now), (&now, &before)] {
            let Some(part) = part else { continue };
            let goes_on = |as_before: fn(&Part) -> bool| stays && other.as_ref().is_some_and(as_before);
            let nodes = self.leaving_nodes(part.volume.as_ref(), &part.driver);
            if part.leaving && !goes_on(|other| other.leaving) && part.leaving_nodes.min(nodes) < 2 {
                waiting.extend(self.waiting_attaches(part));
            }
            if part.in_use && !goes_on(|other| other.in_use) {
                waiting.extend(self.waiting_detaches(part));
            }
        }
        if let Some(changed) = before.or(now) {
            waiting.retain(|name| *name != changed.name);
        }
        waiting.sort_unstable();
        waiting.dedup();
        waiting
    }

    /// The attaches that a volume for one node is kept from while it leaves another.
    fn waiting_attaches<'a>(&'a self, part: &'a Part) -> impl Iterator<Item = Arc<str>> + 'a {
        let volume = part.volume.as_ref();
        let shared = volume
            .and_then(|volume| self.by_volume.get(volume))
            .and_then(OfVolume::shared);
        let many = volume.and_then(|volume| self.volumes.get(volume));
        let many = many.is_some_and(|volume| !decide::is_for_one_node(&volume.spec));
        let waiting = shared.filter(|_| !many).map(|shared| shared.waiting.of(&part.driver));
        // Where one is left alone there is nobody known by what it waits for.
        let alone = volume.and_then(|volume| self.by_volume.get(volume));
        let alone = alone.filter(|of_volume| of_volume.shared().is_none());
        let alone = alone.into_iter().flat_map(OfVolume::names);
        waiting.into_iter().flatten().chain(alone).cloned()
    }

    /// The detaches that would have taken the volume away from under this one.
    fn waiting_detaches<'a>(&'a self, part: &'a Part) -> impl Iterator<Item = Arc<str>> + 'a {
        let of_volume = part.volume.as_ref().and_then(|volume| self.by_volume.get(volume));
        let shared = of_volume.and_then(OfVolume::shared);
        let here = shared.into_iter().flat_map(|shared| {
            let by_id = part.node_id.as_deref();
            let by_id = by_id
                .into_iter()
                .flat_map(|id| shared.deleting_from.at(&part.driver, id));
            shared.deleting.at(&part.driver, &part.node).chain(by_id)
        });
        let alone = of_volume.filter(|of_volume| of_volume.shared().is_none());
        let alone = alone.into_iter().flat_map(OfVolume::names);
        here.chain(alone).chain(&part.twins).cloned()
    }
}

/// What an attachment means for others at one moment.
pub(super) struct Part {
    driver: Arc<str>,
    node: Arc<str>,
    name: Arc<str>,
    volume: Option<Arc<str>>,
    /// Whether an attach elsewhere waits for it.
    leaving: bool,
    /// How many nodes its volume leaves, for all we need: 2 stands for all numbers from there on.
    leaving_nodes: usize,
    /// Whether a detach of the same handle from the same machine waits for it.
    in_use: bool,
    node_id: Option<Box<str>>,
    /// Attachments of other volumes that may wait because of `in_use`.
    twins: Vec<Arc<str>>,
}

impl Part {
    /// Whether another one of these is about the same place.
    fn stays(&self, other: &Self) -> bool {
        (&self.driver, &self.node, &self.volume, &self.node_id)
            == (&other.driver, &other.node, &other.volume, &other.node_id)
    }
}
