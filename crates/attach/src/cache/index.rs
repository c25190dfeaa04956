//! What one replica knows, as a value: the tables of all kinds and the links between them, without locks, queues and watches.
//!
//! [`super::Store`] shares one of these. The model checker (`tests/model-check`) explores what becomes of it.

use std::sync::Arc;

use super::links::{Links, handles_of};
use super::routing::AttacherKey;
use super::sharing::{OfHandle, OfVolume, Places, noted};
use super::view::AttachmentView;
use crate::decide::patch::WriteTarget;
use crate::decide::{self, DriverFacts, Snapshot, VolumeOnNode};
use crate::objects::{Attachment, CsiNode, ResourceVersion, Volume};
use crate::reflect::{CachedKind, ObjectTable, Origin, TableContent, TableRules, Tables as _};
use csi_attacher_runtime::EnqueueCause;

/// What a change to the cache concerns.
#[derive(Debug, Default)]
pub struct CacheChange {
    /// The key of the object that changed, and why it has to be enqueued; none of a kind that has no work of its own.
    pub own: Option<(AttacherKey, EnqueueCause)>,
    /// The PersistentVolume that changed, as it is now; its last copy, if it is gone.
    pub volume: Option<Arc<Volume>>,
    /// The attachment that is gone: its object was deleted, or another object has its name now.
    pub gone: Option<Arc<Attachment>>,
    /// The names of the other attachments that may have waited for the change.
    pub attachments: Vec<Arc<str>>,
    /// Why they have to be enqueued.
    pub cause: EnqueueCause,
    /// The node whose CSINode came or went, or has other topology keys than before; another role reads them.
    pub topology_of: Option<Arc<str>>,
}

impl CacheChange {
    /// What has to be enqueued, in this order.
    pub fn keys(&self) -> impl Iterator<Item = (AttacherKey, EnqueueCause)> {
        let others = self.attachments.iter();
        let others = others.map(|name| (AttacherKey::Attachment(name.clone()), self.cause));
        // The volume that the attachment named may be released now.
        let volume = self.gone.as_ref().and_then(|gone| gone.volume_name());
        let volume = volume.map(|name| (AttacherKey::Volume(name.clone()), EnqueueCause::Update));
        self.own.clone().into_iter().chain(others).chain(volume)
    }
}

/// The copies of all kinds, and the links between them.
#[derive(Clone, Default)]
pub struct Index {
    pub(super) attachments: ObjectTable<Attachment>,
    pub(super) volumes: ObjectTable<Volume>,
    pub(super) nodes: ObjectTable<CsiNode>,
    pub(super) links: Links,
}

/// What tells two caches apart: with one content they take in everything alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheContent([TableContent; 3]);

impl Index {
    pub(super) fn with_rules(rules: TableRules) -> Self {
        Self {
            attachments: ObjectTable::with_rules(rules),
            volumes: ObjectTable::with_rules(rules),
            nodes: ObjectTable::with_rules(rules),
            links: Links::default(),
        }
    }

    /// Takes in an object from an answer to a request of ours.
    ///
    /// It may show that our write was the last thing that held the object; it then counts as gone at once. An object
    /// that is not known any more stays unknown: the watch was faster and has reported its deletion, and does not report it again.
    pub fn take_response<R: CachedKind<Self>>(&mut self, record: R) -> Option<CacheChange> {
        R::table(self).get(record.name())?;
        if !record.is_gone() {
            return self.take_copy(record, Origin::Answer);
        }
        let (name, uid) = (record.name().clone(), record.uid().to_owned());
        let freed = self.take_copy(record, Origin::Answer);
        let mut change = self.mark_gone::<R>(&name, &uid)?;
        // Its last version may already have ended what others waited for.
        change
            .attachments
            .extend(freed.into_iter().flat_map(|freed| freed.attachments));
        change.attachments.sort_unstable();
        change.attachments.dedup();
        Some(change)
    }

    /// Takes in that the object of a request is not there, as an answer says (404). The watch may still show it.
    pub fn mark_deleted(&mut self, target: &WriteTarget, uid: &str) -> Option<CacheChange> {
        match target {
            WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => {
                self.mark_gone::<Attachment>(name, uid)
            }
            WriteTarget::Volume(name) => self.mark_gone::<Volume>(name, uid),
        }
    }

    /// What tells this cache apart from others.
    pub fn content(&self) -> CacheContent {
        CacheContent([self.attachments.content(), self.volumes.content(), self.nodes.content()])
    }

    /// An attachment with what is around it; it need not be known.
    pub(super) fn view<'a>(&'a self, attachment: &'a Attachment) -> AttachmentView<'a> {
        AttachmentView {
            index: self,
            attachment,
        }
    }

    /// What is known about an attachment; none when there is no such object.
    pub fn snapshot(&self, name: &str) -> Option<Snapshot> {
        let attachment = self.attachments.get(name)?.clone();
        let view = self.view(&attachment);
        Some(Snapshot {
            volume: view.volume().cloned(),
            node: self.nodes.get(&attachment.node).cloned(),
            neighbours: view.neighbours(),
            attachment,
        })
    }

    /// Whether an attachment other than this one is claimed for a place, whatever its node is called.
    pub fn is_claimed(&self, attachment: &Attachment, driver: &DriverFacts, place: VolumeOnNode<'_>) -> bool {
        self.view(attachment).is_place_of_another(driver, place)
    }

    /// A PersistentVolume and the number of VolumeAttachments of any driver that name it.
    pub fn volume(&self, name: &str) -> Option<(Arc<Volume>, usize)> {
        let volume = self.volumes.get(name)?.clone();
        Some((volume, self.links.of_volume(name).map_or(0, OfVolume::len)))
    }

    /// Version of the known copy of the object that a write goes to.
    pub fn version(&self, target: &WriteTarget) -> Option<ResourceVersion> {
        match target {
            WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => {
                self.attachments.get(name).map(|record| record.resource_version)
            }
            WriteTarget::Volume(name) => self.volumes.get(name).map(|record| record.resource_version),
        }
    }

    pub(super) fn oldest_pending(&self, driver: &str) -> Option<Arc<Attachment>> {
        let oldest = [false, true].map(|detaching| self.oldest_pending_of(driver, detaching));
        oldest.into_iter().flatten().min_by_key(|record| record.pending_since())
    }

    pub(super) fn oldest_pending_of(&self, driver: &str, detaching: bool) -> Option<Arc<Attachment>> {
        self.attachments
            .get(self.links.oldest_pending(driver, detaching)?)
            .cloned()
    }

    /// The names of the PersistentVolumes that carry a finalizer and are not being deleted, in no order.
    pub(super) fn protected<'i>(&'i self, finalizer: &'i str) -> impl Iterator<Item = &'i Arc<str>> {
        let live = self.volumes.values().filter(|volume| !volume.deleting);
        let protected = live.filter(move |volume| volume.finalizers.contains(finalizer));
        protected.map(|volume| &volume.name)
    }

    /// All attachments of a driver, in no order.
    pub(super) fn attachments_of(&self, driver: &str) -> impl Iterator<Item = &Arc<Attachment>> {
        self.attachments
            .values()
            .filter(move |record| &*record.attacher == driver)
    }

    /// The PersistentVolumes of a driver that have a handle, by their names.
    pub(super) fn volumes_of_handle<'i>(
        &'i self,
        driver: &'i str,
        handle: &'i str,
    ) -> impl Iterator<Item = &'i Arc<Volume>> {
        let owners = self.links.owners_of(handle).filter(|owner| !owner.is_inline);
        owners
            .filter_map(move |owner| self.volumes.get(&owner.name))
            .filter(move |volume| {
                let source = volume.spec.csi();
                source.is_some_and(|source| *source.driver == *driver && *source.handle == *handle)
            })
    }

    /// The attachments of a driver that noted or describe a handle.
    pub(super) fn attachments_of_handle<'i>(
        &'i self,
        driver: &'i str,
        handle: &'i str,
    ) -> impl Iterator<Item = &'i Arc<Attachment>> {
        let names = self.links.owners_of(handle).flat_map(move |owner| {
            let inline = owner.is_inline.then_some(&owner.name);
            let of_volume = self.links.of_volume(&owner.name).filter(|_| !owner.is_inline);
            inline
                .into_iter()
                .chain(of_volume.into_iter().flat_map(OfVolume::names))
        });
        names
            .filter_map(move |name| self.attachments.get(name))
            .filter(move |record| *record.attacher == *driver && handles_of(record).any(|noted| *noted == *handle))
    }

    /// Everything of a driver that may need work: a driver that starts must find what piled up before. Attachments come first, each kind in
    /// the order of names, so that two starts over the same objects do the same.
    pub fn work_of(&self, driver: &DriverFacts) -> Vec<AttacherKey> {
        let needs_work = |record: &&Arc<Attachment>| {
            let volume = self.view(record).volume_record();
            decide::needs_work(record, volume, driver)
        };
        let attachments = self.attachments_of(&driver.name).filter(needs_work);
        let volumes = self
            .volumes
            .values()
            .filter(|record| decide::may_release(record, driver));
        let attachments = attachments.map(|record| AttacherKey::Attachment(record.name.clone()));
        let volumes = volumes.map(|record| AttacherKey::Volume(record.name.clone()));
        let mut keys: Vec<AttacherKey> = attachments.chain(volumes).collect();
        keys.sort_unstable();
        keys
    }
}

/// What others wait for because of an attachment, at one moment.
pub(super) struct Influence {
    record: Arc<Attachment>,
    /// Whether an attach on another node waits for its detach.
    leaving: bool,
    /// How many nodes its volume leaves, counted up to 2: more make no difference.
    leaving_nodes: usize,
    /// Whether its detach is not over, so that an attach on another node may fail.
    detaching: bool,
    /// On how many nodes that is so of its volume, counted up to 2.
    detaching_nodes: usize,
    /// Whether a detach of the same handle from the same machine waits until it is not in use any more.
    in_use: bool,
    /// The attachments that may wait because of `in_use`.
    kept: Vec<Arc<str>>,
}

impl Influence {
    pub fn of(index: &Index, record: &Arc<Attachment>) -> Self {
        let in_use = decide::is_in_use(record);
        let kept = if in_use {
            index.view(record).detaches_kept()
        } else {
            Vec::new()
        };
        let finalizer = index.links.finalizer_of(&record.attacher);
        Self {
            leaving: decide::is_leaving(record, finalizer),
            leaving_nodes: leaving_nodes(index, record, |it| &it.leaving),
            detaching: decide::is_detaching(record, finalizer),
            detaching_nodes: leaving_nodes(index, record, |it| &it.detaching),
            in_use,
            kept,
            record: record.clone(),
        }
    }

    /// Whether another one is about the same volume at the same place.
    fn has_same_place(&self, other: &Self) -> bool {
        let (one, other) = (&*self.record, &*other.record);
        one.attacher == other.attacher
            && one.node == other.node
            && one.volume_name() == other.volume_name()
            && noted(one) == noted(other)
            && one.node_id == other.node_id
    }
}

/// How many nodes those attachments of a volume are leaving that noted the same handle, counted up to 2: of the set that `places` says.
/// Not known of one attachment alone.
fn leaving_nodes(index: &Index, record: &Attachment, places: fn(&OfHandle) -> &Places) -> usize {
    let shared = index.view(record).shared();
    let of_handle = shared.and_then(|shared| shared.that_noted(noted(record)));
    of_handle.map_or(0, |it| places(it).count_nodes(&record.attacher))
}

/// The attachments that may have waited for a change of another one: for what it was `before`, and is now.
///
/// An attach waits while some attachment of its volume leaves another node. That is so before and after the change when
/// there are two such nodes or more, so that a volume that leaves thousands of nodes wakes nobody in between. One that failed beside a
/// detach that had failed is woken in the same way when that detach is over at last.
pub(super) fn waiting_for_change(
    index: &Index,
    before: Option<Influence>,
    now: Option<&Arc<Attachment>>,
) -> Vec<Arc<str>> {
    let now = now.map(|now| Influence::of(index, now));
    let stays = match (&before, &now) {
        (Some(before), Some(now)) => before.has_same_place(now),
        _ => false,
    };
    let mut waiting = Vec::new();
    for (influence, other) in [(&before, &now), (&now, &before)] {
        let Some(influence) = influence else { continue };
        let goes_on = |as_before: fn(&Influence) -> bool| stays && other.as_ref().is_some_and(as_before);
        let nodes = |places: fn(&OfHandle) -> &Places| leaving_nodes(index, &influence.record, places);
        let leaves = influence.leaving && !goes_on(|other| other.leaving);
        let detaches = influence.detaching && !goes_on(|other| other.detaching);
        if (leaves && influence.leaving_nodes.min(nodes(|it| &it.leaving)) < 2)
            || (detaches && influence.detaching_nodes.min(nodes(|it| &it.detaching)) < 2)
        {
            waiting.extend(waiting_attaches(index, &influence.record));
        }
        if influence.in_use && !goes_on(|other| other.in_use) {
            waiting.extend(influence.kept.iter().cloned());
        }
    }
    if let Some(changed) = before.or(now) {
        waiting.retain(|name| *name != changed.record.name);
    }
    waiting.sort_unstable();
    waiting.dedup();
    waiting
}

/// The attaches of a volume for one node that wait while an attachment of it leaves another node.
fn waiting_attaches(index: &Index, leaving: &Attachment) -> Vec<Arc<str>> {
    let volume = index.view(leaving).volume_record();
    let for_many_nodes = volume.is_some_and(|volume| !decide::is_for_one_node(volume.spec.access_modes));
    match leaving.volume_name().and_then(|volume| index.links.of_volume(volume)) {
        // What one waits for that is alone now is not kept.
        Some(OfVolume::One(alone)) => vec![alone.clone()],
        Some(OfVolume::Several(shared)) if !for_many_nodes => shared.waiting.of(&leaving.attacher).cloned().collect(),
        _ => Vec::new(),
    }
}

/// The detaches that may have waited because of an ID that a node had, as its CSINode said, and has no more.
pub(super) fn freed_by_node(index: &Index, previous: &CsiNode, current: Option<&CsiNode>) -> Vec<Arc<str>> {
    let mut freed = Vec::new();
    for (driver, id) in previous.node_ids() {
        if current.and_then(|current| current.node_id(driver)) == Some(id) {
            continue;
        }
        let nodes = index.links.nodes_of_id(driver, id);
        let nodes = nodes.filter(|node| **node != previous.name);
        for name in nodes.flat_map(|node| index.links.on_node(node)) {
            let other = index.attachments.get(name);
            if other.is_some_and(|other| *other.attacher == *driver && other.deleting.is_some()) {
                freed.push(name.clone());
            }
        }
    }
    freed
}
