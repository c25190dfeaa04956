//! One attachment with what is around it: its volume, its node, and the attachments that it concerns or that concern it.
//!
//! Those are attachments of one volume on several nodes, or of one volume at one machine. The handle says which volume it is, and the node
//! ID which machine: two PersistentVolumes can carry one handle, and a machine can be registered anew under another name.

use std::collections::BTreeSet;
use std::iter::once;
use std::sync::Arc;

use super::index::Index;
use super::sharing::{OfHandle, OfVolume, Places, SharedVolume};
use crate::decide::{self, Claimant, DriverFacts, Neighbours, NodeEntry, VolumeOnNode};
use crate::objects::{Attachment, AttachmentSource, Volume};

/// So many attachments of its volume on other nodes are shown with an attachment at most.
const MAX_ELSEWHERE: usize = 4;

/// A handle by which attachments of its PersistentVolume are told apart. That of an in-tree volume is none, as it is another one when the
/// labels of the volume are: each attachment may be of the same volume.
fn lasting_handle<'a>(handle: Option<&'a str>, volume: Option<&Volume>) -> Option<&'a str> {
    handle.filter(|_| volume.is_none_or(|volume| volume.in_tree.is_none()))
}

/// An attachment with what is around it.
#[derive(Clone, Copy)]
pub struct AttachmentView<'a> {
    pub(super) index: &'a Index,
    /// The attachment itself; the cache need not know it.
    pub attachment: &'a Attachment,
}

impl<'a> AttachmentView<'a> {
    /// The PersistentVolume that it names, if there is one.
    pub fn volume(&self) -> Option<&'a Arc<Volume>> {
        self.index.volumes.get(self.attachment.volume_name()?)
    }

    /// What the node's CSINode says of its driver.
    pub fn node(&self) -> NodeEntry<'a> {
        let node = self.index.nodes.get(&self.attachment.node);
        NodeEntry::of(node.map(|node| &**node), &self.attachment.attacher)
    }

    /// Another node to which its volume is attached, and not being detached from: by the same PersistentVolume, or by
    /// one of `others`, which share its handle ([`AttachmentView::shared_handle`]).
    pub fn attached_at(&self, others: &[Arc<str>]) -> Option<&'a str> {
        let attachments = &self.index.attachments;
        let volume = self.volume_record();
        let handle = lasting_handle(decide::wanted_handle(self.attachment, volume), volume);
        let in_use = self.sets_of(handle, |it| &it.in_use).into_iter();
        let names = in_use.flat_map(|places| places.elsewhere(&self.attachment.attacher, &self.attachment.node));
        let mut of_volume = names.filter_map(|name| attachments.get(name));
        let mut others = others.iter().filter_map(|name| attachments.get(name));
        let other = of_volume
            .find(|other| self.is_in_use_elsewhere(other))
            .or_else(|| others.find(|other| self.is_in_use_elsewhere(other)));
        other.map(|other| &*other.node)
    }

    fn is_in_use_elsewhere(&self, other: &Attachment) -> bool {
        other.attacher == self.attachment.attacher
            && other.node != self.attachment.node
            && decide::is_in_use(other)
            && self.is_same_volume(other)
    }

    /// The handle of its volume, if something else has it as well, which almost never happens: another PersistentVolume,
    /// or an in-line volume of another attachment.
    pub fn shared_handle(&self) -> Option<&'a str> {
        let handle = self.handle().or_else(|| self.described_handle());
        handle.filter(|_| self.shares_handle(handle))
    }

    /// Whether it describes its volume itself.
    pub fn is_inline(&self) -> bool {
        matches!(self.attachment.source, AttachmentSource::Inline(_))
    }

    pub(super) fn volume_record(&self) -> Option<&'a Volume> {
        self.volume().map(|volume| &**volume)
    }

    /// The handle of its volume ([`decide::wanted_handle`]).
    fn handle(&self) -> Option<&'a str> {
        decide::wanted_handle(self.attachment, self.volume_record())
    }

    fn described_handle(&self) -> Option<&'a str> {
        Some(&*self.volume_record()?.spec.csi()?.handle)
    }

    /// The ID that the CSINode of its node says now.
    fn registered(&self) -> Option<&'a str> {
        self.index
            .nodes
            .get(&self.attachment.node)?
            .node_id(&self.attachment.attacher)
    }

    /// The IDs of its node: as it is registered, and as it was claimed.
    fn node_ids(&self) -> impl Iterator<Item = &'a str> {
        self.registered().into_iter().chain(self.attachment.node_id.as_deref())
    }

    /// The names of the nodes that attachments at the same machine may name: its own node first, then the nodes with
    /// one of its IDs. Some may come twice, or have nothing to do with it.
    fn machine(&self) -> impl Iterator<Item = &'a Arc<str>> {
        let (index, driver) = (self.index, &self.attachment.attacher);
        let by_id = self.node_ids().flat_map(|id| index.links.nodes_of_id(driver, id));
        once(&self.attachment.node).chain(by_id)
    }

    /// Whether another attachment is on its node, or on one with an ID of which `is_one` is true.
    fn is_on_machine(&self, other: &Attachment, is_one: impl Fn(&str) -> bool) -> bool {
        self.attachment.node == other.node || self.index.view(other).node_ids().any(is_one)
    }

    fn is_same_volume(&self, other: &Attachment) -> bool {
        let volume = self.volume_record();
        let others = if self.attachment.volume_name() == other.volume_name() {
            volume
        } else {
            self.index.view(other).volume_record()
        };
        decide::is_same_volume((self.attachment, volume), (other, others))
    }

    /// What is known of the attachments of the same PersistentVolume, when there are several.
    pub(super) fn shared(&self) -> Option<&'a SharedVolume> {
        let of_volume = self.index.links.of_volume(self.attachment.volume_name()?);
        of_volume.and_then(OfVolume::shared)
    }

    /// Whether more than one volume has the handle, which is that of its volume. Almost none do, and then the attachments of the
    /// node need not be gone through.
    fn shares_handle(&self, handle: Option<&str>) -> bool {
        handle.is_some_and(|handle| self.index.links.has_other_volumes(self.attachment, handle))
    }

    /// The names of the attachments on some nodes that may be of the same volume: those in sets of the same PersistentVolume, and all of the
    /// node when others may share the handle.
    fn names_on<'b>(
        &self,
        nodes: impl Iterator<Item = &'a Arc<str>> + 'b,
        of_volume: &'b [&'a Places],
        may_share: bool,
    ) -> impl Iterator<Item = &'a Arc<str>> + 'b
    where
        'a: 'b,
    {
        let (index, driver) = (self.index, &self.attachment.attacher);
        nodes.flat_map(move |node| {
            let of_volume = of_volume.iter().flat_map(|places| places.at(driver, node));
            let on_node = may_share.then(|| index.links.on_node(node)).into_iter().flatten();
            of_volume.chain(on_node)
        })
    }

    /// The other attachments that bear on this one.
    pub(super) fn neighbours(&self) -> Neighbours {
        let volume = self.volume_record();
        let handle = decide::wanted_handle(self.attachment, volume);
        let lasting = lasting_handle(handle, volume);
        let mut neighbours = Neighbours {
            elsewhere: self.leaving_elsewhere(lasting, volume),
            ..Neighbours::default()
        };
        if self.attachment.deleting.is_some() {
            neighbours.here = self.in_use_here(handle, lasting);
            // A detach that waits for another attachment asks for no place.
            if neighbours.here.is_none() {
                neighbours.claimed = self.claimed_here(handle);
            }
        } else if self.attachment.attached {
            neighbours.in_use_elsewhere = self.attached_at(&[]).is_some();
        }
        neighbours
    }

    /// Some attachments of the same volume on other nodes that are to be detached: first one that others wait for, and one that is not
    /// detached yet. `handle` is the [lasting](lasting_handle) one.
    fn leaving_elsewhere(&self, handle: Option<&'a str>, volume: Option<&Volume>) -> Vec<Arc<Attachment>> {
        let mut elsewhere: Vec<Arc<Attachment>> = Vec::new();
        let Some(shared) = self.shared() else { return elsewhere };
        let (driver, node) = (&self.attachment.attacher, &*self.attachment.node);
        let names = |places: fn(&OfHandle) -> &Places| {
            let sets = shared.of_handle(handle).map(places).filter(|places| !places.is_empty());
            sets.flat_map(move |places| places.elsewhere(driver, node))
        };
        let first = names(|it| &it.leaving).take(1).chain(names(|it| &it.detaching).take(1));
        let names = first.chain(names(|it| &it.deleting));
        for name in names.take(MAX_ELSEWHERE + 2) {
            let Some(other) = self.index.attachments.get(name) else {
                continue;
            };
            let is_known = elsewhere.iter().any(|known| known.name == other.name);
            if !is_known && decide::is_same_volume((self.attachment, volume), (other, volume)) {
                elsewhere.push(other.clone());
            }
        }
        elsewhere.truncate(MAX_ELSEWHERE);
        elsewhere
    }

    /// The other attachments that are claimed where this one may be: on the same node, or on one that has one of its IDs.
    fn claimed_here(&self, wanted: Option<&str>) -> Vec<Claimant> {
        let (index, attachment) = (self.index, self.attachment);
        let driver = &attachment.attacher;
        let former = attachment.volume_note.as_deref().map(|note| &note.former[..]);
        let former = former.unwrap_or_default();
        let former_nodes = former
            .iter()
            .flat_map(|place| index.links.nodes_of_id(driver, &place.node_id));
        let nodes: BTreeSet<&Arc<str>> = self.machine().chain(former_nodes).collect();
        let beside = decide::published_beside_note(attachment, self.volume_record());
        let may_share = !former.is_empty() || self.shares_handle(wanted) || self.shares_handle(beside);
        let of_volume = self.sets_of(None, |it| &it.claimed);
        let names = self.names_on(nodes.into_iter(), &of_volume, may_share);
        // One that is found twice is shown once.
        let names: BTreeSet<&Arc<str>> = names.filter(|name| **name != attachment.name).collect();
        let is_ours = |handle: &str| {
            wanted == Some(handle) || beside == Some(handle) || former.iter().any(|place| *place.handle == *handle)
        };
        let is_one =
            |id: &str| self.node_ids().any(|known| known == id) || former.iter().any(|place| *place.node_id == *id);
        let finalizer = index.links.finalizer_of(driver);
        let others = names.into_iter().filter_map(|name| index.attachments.get(name));
        let claimed = others.filter(|other| {
            let view = index.view(other);
            let known = decide::known_handle(other, view.volume_record());
            other.attacher == *driver
                && decide::holds_its_place(other, finalizer)
                && self.is_on_machine(other, is_one)
                && (known.or_else(|| view.described_handle()).is_some_and(is_ours)
                    || decide::published_beside_note(other, view.volume_record()).is_some_and(is_ours)
                    || self.is_same_volume(other))
        });
        let claimants = claimed.map(|other| Claimant {
            attachment: other.clone(),
            volume: index.view(other).volume().cloned(),
            registered: index.view(other).registered().map(Box::from),
        });
        claimants.collect()
    }

    /// Those sets of the attachments of the same PersistentVolume that are not empty, of a handle or of all.
    fn sets_of(&self, handle: Option<&'a str>, places: fn(&OfHandle) -> &Places) -> Vec<&'a Places> {
        let of_handles = self.shared().into_iter().flat_map(|shared| shared.of_handle(handle));
        of_handles.map(places).filter(|places| !places.is_empty()).collect()
    }

    /// Another attachment of the same volume on the same node, or on one that has the same ID, that is in use. `lasting` is its handle if
    /// that is a [lasting](lasting_handle) one. The ID that the node had before is a place that a detach leaves to who is there.
    fn in_use_here(&self, handle: Option<&str>, lasting: Option<&'a str>) -> Option<Arc<Attachment>> {
        let shares_handle = self.shares_handle(handle);
        let in_use = self.sets_of(lasting, |it| &it.in_use);
        if in_use.is_empty() && !shares_handle {
            return None;
        }
        let names = self.names_on(self.machine(), &in_use, shares_handle);
        let mut records = names.filter_map(|name| self.index.attachments.get(name));
        let now = self.node_ids().next();
        let found = records.find(|other| {
            other.name != self.attachment.name
                && other.attacher == self.attachment.attacher
                && decide::is_in_use(other)
                && self.is_same_volume(other)
                && self.is_on_machine(other, |id| now == Some(id))
        });
        found.cloned()
    }

    /// The detaches that would take the volume away while this one uses it.
    pub(super) fn detaches_kept(&self) -> Vec<Arc<str>> {
        let shares_handle = self.shared_handle().is_some();
        let deleting = self.sets_of(None, |it| &it.deleting);
        if deleting.is_empty() && !shares_handle {
            return Vec::new();
        }
        let nodes: BTreeSet<&Arc<str>> = self.machine().collect();
        let names = self.names_on(nodes.into_iter(), &deleting, shares_handle);
        let kept = names.filter(|name| {
            let other = self.index.attachments.get(name);
            let other = other.filter(|other| other.attacher == self.attachment.attacher);
            other.is_some_and(|other| other.deleting.is_some() && self.is_same_volume(other))
        });
        kept.cloned().collect()
    }

    /// Whether another attachment stands for a volume at a place, so that the volume must not be taken from there
    /// ([`decide::is_claimed_for`]): one on the same node, or on one that has the node ID.
    pub(super) fn is_place_of_another(&self, driver: &DriverFacts, place: VolumeOnNode<'_>) -> bool {
        let (index, attachment) = (self.index, self.attachment);
        let by_id = index.links.nodes_of_id(&driver.name, place.node_id);
        let nodes = once(&attachment.node).chain(by_id);
        let names = nodes.flat_map(|node| index.links.on_node(node));
        let mut records = names.filter_map(|name| index.attachments.get(name));
        records.any(|other| {
            let view = index.view(other);
            other.uid != attachment.uid
                && other.attacher == driver.name
                && decide::holds_its_place(other, &driver.finalizer)
                && decide::is_claimed_for(other, view.volume_record(), view.registered(), place, attachment)
        })
    }
}
