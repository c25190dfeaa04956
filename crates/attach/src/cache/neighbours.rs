//! Attachments that bear on each other: of one volume on several nodes, or of one volume at one machine.
//!
//! Which volume it is, its handle tells, and which machine, its node ID: two PersistentVolumes can carry one handle, and a machine can
//! be registered anew under another name ([`super::machines`]).

use std::collections::BTreeSet;
use std::iter::once;
use std::sync::Arc;

use super::index::Index;
use super::sharing::{OfVolume, Shared, noted};
use crate::decide::{self, Claimant, DriverFacts, Neighbours, VolumeOnNode, is_in_use};
use crate::objects::{Attachment, CsiNode, Volume};

/// As many attachments of its volume on other nodes are shown with an attachment at the most.
const MOST_ELSEWHERE: usize = 4;

impl Index {
    /// The other attachments that bear on this one.
    pub fn neighbours(&self, attachment: &Attachment) -> Neighbours {
        let known = |name: &Arc<str>| self.attachments.get(name).cloned();
        let mut neighbours = Neighbours::default();
        let (driver, node) = (&attachment.attacher, &*attachment.node);
        let volume = self.volume_of(attachment).map(|volume| &**volume);
        let handle = decide::wanted_handle(attachment, volume);
        if let Some(shared) = self.shared(attachment) {
            let leaving = shared
                .of_handle(handle)
                .flat_map(|it| it.leaving.elsewhere(driver, node));
            let deleting = shared
                .of_handle(handle)
                .flat_map(|it| it.deleting.elsewhere(driver, node));
            let first = leaving.take(1).chain(deleting).take(MOST_ELSEWHERE + 1);
            for other in first.filter_map(known) {
                let is_known = neighbours.elsewhere.iter().any(|known| known.name == other.name);
                if !is_known && decide::is_same_volume((attachment, volume), (&other, volume)) {
                    neighbours.elsewhere.push(other);
                }
            }
            neighbours.elsewhere.truncate(MOST_ELSEWHERE);
        }
        if attachment.deleting.is_some() {
            neighbours.here = self.in_use_here(attachment, handle);
            // A detach that waits for another attachment asks for no place.
            if neighbours.here.is_none() {
                neighbours.claimed = self.claimed_here(attachment, handle);
            }
        }
        neighbours
    }

    /// The ID that the CSINode of an attachment's node says now.
    fn registered(&self, attachment: &Attachment) -> Option<&str> {
        self.nodes.get(&attachment.node)?.node_id(&attachment.attacher)
    }

    /// The IDs of the node of an attachment: as it is registered, and as it was claimed.
    fn node_ids<'a>(&'a self, attachment: &'a Attachment) -> impl Iterator<Item = &'a str> {
        let registered = self.registered(attachment).into_iter();
        registered.chain(attachment.node_id.as_deref())
    }

    /// The names of the nodes where those may be that are at the same machine as an attachment: of its own node first, then of those with
    /// one of its IDs. Some may be named twice, or have nothing to do with it.
    fn machine<'a>(&'a self, attachment: &'a Attachment) -> impl Iterator<Item = &'a Arc<str>> {
        let by_id = self
            .node_ids(attachment)
            .flat_map(|id| self.machines.nodes(&attachment.attacher, id));
        once(&attachment.node).chain(by_id)
    }

    fn is_same_machine(&self, one: &Attachment, other: &Attachment) -> bool {
        let is_one = |id: &str| self.node_ids(one).any(|known| known == id);
        one.node == other.node || self.node_ids(other).any(is_one)
    }

    /// The other attachments that are claimed where this one may be: on the same node, or on one that has one of its IDs.
    fn claimed_here(&self, attachment: &Attachment, wanted: Option<&str>) -> Vec<Claimant> {
        let (driver, note) = (&attachment.attacher, attachment.volume_note.as_deref());
        let former = note.map(|note| &note.former[..]).unwrap_or_default();
        let former_nodes = former
            .iter()
            .flat_map(|place| self.machines.nodes(driver, &place.node_id));
        let nodes: BTreeSet<&Arc<str>> = self.machine(attachment).chain(former_nodes).collect();
        let may_share = !former.is_empty() || self.shares_handle(attachment, wanted);
        let shared = self.shared(attachment);
        let names = nodes.into_iter().flat_map(|node| {
            let by_note = shared.into_iter().flat_map(|shared| shared.of_handle(None));
            let of_volume = by_note.flat_map(|it| it.claimed.at(driver, node));
            let on_node = may_share.then(|| self.on_node(node)).into_iter().flatten();
            of_volume.chain(on_node)
        });
        // One that is found twice is shown once.
        let names: BTreeSet<&Arc<str>> = names.filter(|name| **name != attachment.name).collect();
        let is_ours = |handle: &str| wanted == Some(handle) || former.iter().any(|place| *place.handle == *handle);
        let was_here = |other: &Attachment| {
            let is_former = |id: &str| former.iter().any(|place| *place.node_id == *id);
            self.is_same_machine(attachment, other) || self.node_ids(other).any(is_former)
        };
        let finalizer = self.finalizer_of(driver);
        let others = names.into_iter().filter_map(|name| self.attachments.get(name));
        let claimed = others.filter(|other| {
            let volume = self.volume_of(other).map(|volume| &**volume);
            let known = decide::known_handle(other, volume);
            let described = || Some(&*volume?.spec.csi()?.handle);
            other.attacher == *driver
                && decide::holds_its_place(other, finalizer)
                && was_here(other)
                && (known.or_else(described).is_some_and(is_ours)
                    || (known.is_none() && self.is_same_volume(attachment, other)))
        });
        claimed.map(|other| self.claimant(other)).collect()
    }

    fn claimant(&self, attachment: &Arc<Attachment>) -> Claimant {
        Claimant {
            attachment: attachment.clone(),
            volume: self.volume_of(attachment).cloned(),
            registered: self.registered(attachment).map(Box::from),
        }
    }

    /// Another attachment of the same volume on the same node, or on one that has the same ID, that is in use.
    fn in_use_here(&self, attachment: &Attachment, handle: Option<&str>) -> Option<Arc<Attachment>> {
        let driver = &attachment.attacher;
        let shares_handle = self.shares_handle(attachment, handle);
        let shared = self.shared(attachment).into_iter();
        let by_note = shared.flat_map(|shared| shared.of_handle(handle));
        let in_use: Vec<_> = by_note.map(|it| &it.in_use).filter(|these| !these.is_empty()).collect();
        if in_use.is_empty() && !shares_handle {
            return None;
        }
        self.machine(attachment).find_map(|node| {
            let of_volume = in_use.iter().flat_map(|these| these.at(driver, node));
            let on_node = shares_handle.then(|| self.on_node(node)).into_iter().flatten();
            let mut records = of_volume.chain(on_node).filter_map(|name| self.attachments.get(name));
            let found = records.find(|other| {
                other.name != attachment.name
                    && other.attacher == *driver
                    && is_in_use(other)
                    && self.is_same_volume(attachment, other)
                    && self.is_same_machine(attachment, other)
            });
            found.cloned()
        })
    }

    /// Another attachment of the same PersistentVolume and the same volume on another node that is in use.
    pub(super) fn in_use_elsewhere(&self, attachment: &Attachment) -> Option<&Arc<Attachment>> {
        let by_note = self.shared(attachment)?.of_handle(self.handle_of(attachment));
        let mut others = by_note
            .flat_map(|it| it.in_use.elsewhere(&attachment.attacher, &attachment.node))
            .filter_map(|name| self.attachments.get(name));
        others.find(|other| self.is_same_volume(attachment, other))
    }

    /// What is known of the attachments of the same PersistentVolume, when there are several.
    fn shared(&self, attachment: &Attachment) -> Option<&Shared> {
        self.by_volume.get(attachment.volume_name()?)?.shared()
    }

    /// Whether another attachment stands for a volume at a place, so that the volume is not to be taken from there
    /// ([`decide::is_claimed_for`]): one on the same node, or on one that has the node ID.
    pub fn is_claimed(&self, attachment: &Attachment, driver: &DriverFacts, place: VolumeOnNode<'_>) -> bool {
        let by_id = self.machines.nodes(&driver.name, place.node_id);
        let mut records = once(&attachment.node)
            .chain(by_id)
            .flat_map(|node| self.on_node(node))
            .filter_map(|name| self.attachments.get(name));
        records.any(|other| {
            let volume = self.volume_of(other).map(|volume| &**volume);
            other.uid != attachment.uid
                && other.attacher == driver.name
                && decide::holds_its_place(other, &driver.finalizer)
                && decide::is_claimed_for(other, volume, self.registered(other), place, attachment)
        })
    }

    /// Whether more than one volume has the handle, which is that of this attachment's. Almost none do, and then the attachments of the
    /// node need not be gone through.
    fn shares_handle(&self, attachment: &Attachment, handle: Option<&str>) -> bool {
        handle.is_some_and(|handle| self.handles.has_others(attachment, handle))
    }

    fn volume_of(&self, attachment: &Attachment) -> Option<&Arc<Volume>> {
        self.volumes.get(attachment.volume_name()?)
    }

    /// The handle of an attachment's volume ([`decide::wanted_handle`]).
    fn handle_of<'a>(&'a self, attachment: &'a Attachment) -> Option<&'a str> {
        decide::wanted_handle(attachment, self.volume_of(attachment).map(|volume| &**volume))
    }

    fn is_same_volume(&self, one: &Attachment, other: &Attachment) -> bool {
        let volume = self.volume_of(one);
        let others = if one.volume_name() == other.volume_name() {
            volume
        } else {
            self.volume_of(other)
        };
        decide::is_same_volume(
            (one, volume.map(|volume| &**volume)),
            (other, others.map(|volume| &**volume)),
        )
    }

    /// What an attachment means for others as it is now.
    pub(super) fn part(&self, attachment: &Attachment) -> Part {
        let in_use = is_in_use(attachment);
        Part {
            driver: attachment.attacher.clone(),
            node: attachment.node.clone(),
            name: attachment.name.clone(),
            volume: attachment.volume_name().cloned(),
            noted: noted(attachment).map(Box::from),
            leaving: decide::is_leaving(attachment, self.finalizer_of(&attachment.attacher)),
            leaving_nodes: self.leaving_nodes(attachment.volume_name(), noted(attachment), &attachment.attacher),
            in_use,
            node_id: attachment.node_id.clone(),
            kept: if in_use {
                self.detaches_kept_by(attachment)
            } else {
                Vec::new()
            },
        }
    }

    /// How many nodes those attachments of a volume are leaving that noted the same handle, or none; 2 stands for all numbers from there
    /// on. Not known of one attachment alone.
    fn leaving_nodes(&self, volume: Option<&Arc<str>>, noted: Option<&str>, driver: &Arc<str>) -> usize {
        let of_volume = volume.and_then(|volume| self.by_volume.get(volume));
        let shared = of_volume.and_then(OfVolume::shared);
        let of_handle = shared.and_then(|shared| shared.that_noted(noted));
        of_handle.map_or(0, |it| it.leaving.count(driver))
    }

    /// The detaches that would take the volume away from under an attachment.
    fn detaches_kept_by(&self, attachment: &Attachment) -> Vec<Arc<str>> {
        let driver = &attachment.attacher;
        let described = || Some(&*self.volume_of(attachment)?.spec.csi()?.handle);
        let handle = self.handle_of(attachment).or_else(described);
        let shares_handle = self.shares_handle(attachment, handle);
        let shared = self.shared(attachment).into_iter();
        let by_note = shared.flat_map(|shared| shared.of_handle(None));
        let deleting: Vec<_> = by_note
            .map(|it| &it.deleting)
            .filter(|these| !these.is_empty())
            .collect();
        if deleting.is_empty() && !shares_handle {
            return Vec::new();
        }
        let nodes: BTreeSet<&Arc<str>> = self.machine(attachment).collect();
        let names = nodes.into_iter().flat_map(|node| {
            let of_volume = deleting.iter().flat_map(|these| these.at(driver, node));
            let on_node = shares_handle.then(|| self.on_node(node)).into_iter().flatten();
            of_volume.chain(on_node)
        });
        let names = names.filter(|name| {
            let other = self.attachments.get(name).filter(|other| other.attacher == *driver);
            other.is_some_and(|other| other.deleting.is_some() && self.is_same_volume(attachment, other))
        });
        names.cloned().collect()
    }

    /// The detaches that may have waited because of an ID that a node had, as its CSINode said, and has no more.
    pub(super) fn freed_by_node(&self, previous: &CsiNode, current: Option<&CsiNode>) -> Vec<Arc<str>> {
        let mut freed = Vec::new();
        for (driver, id) in previous.node_ids() {
            if current.and_then(|current| current.node_id(driver)) == Some(id) {
                continue;
            }
            let nodes = self.machines.nodes(driver, id).filter(|node| **node != previous.name);
            for name in nodes.flat_map(|node| self.on_node(node)) {
                let other = self.attachments.get(name);
                if other.is_some_and(|other| *other.attacher == *driver && other.deleting.is_some()) {
                    freed.push(name.clone());
                }
            }
        }
        freed
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
            let nodes = self.leaving_nodes(part.volume.as_ref(), part.noted.as_deref(), &part.driver);
            if part.leaving && !goes_on(|other| other.leaving) && part.leaving_nodes.min(nodes) < 2 {
                waiting.extend(self.waiting_attaches(part));
            }
            if part.in_use && !goes_on(|other| other.in_use) {
                waiting.extend(part.kept.iter().cloned());
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
}

/// What an attachment means for others at one moment.
pub(super) struct Part {
    driver: Arc<str>,
    node: Arc<str>,
    name: Arc<str>,
    volume: Option<Arc<str>>,
    /// The handle that it noted.
    noted: Option<Box<str>>,
    /// Whether an attach elsewhere waits for it.
    leaving: bool,
    /// How many nodes its volume leaves, for all we need: 2 stands for all numbers from there on.
    leaving_nodes: usize,
    /// Whether a detach of the same handle from the same machine waits for it.
    in_use: bool,
    node_id: Option<Box<str>>,
    /// Attachments that may wait because of `in_use`.
    kept: Vec<Arc<str>>,
}

impl Part {
    /// Whether another one of these is about the same volume at the same place.
    fn stays(&self, other: &Self) -> bool {
        let is_about = |it: &Self| {
            (
                it.driver.clone(),
                it.node.clone(),
                it.volume.clone(),
                it.noted.clone(),
                it.node_id.clone(),
            )
        };
        is_about(self) == is_about(other)
    }
}
