//! [`Store`]: the handle to the cache, what it reads and what it takes in.

use parking_lot::RwLock;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::watch;

use crate::reflect::{Kind, Lists, Origin};

use super::cause::EnqueueCause;
use super::counts::Counts;
use super::index::{CacheChange, Index};
use super::reflected::KINDS;
use super::routing::{AttacherKey, Routes};
use super::rules::CacheRules;
use crate::decide::patch::WriteTarget;
use crate::decide::{self, DriverFacts, Snapshot};
use crate::objects::{
    Attachment, CsiNode, CsiNodeWire, PersistentVolumeWire, ResourceVersion, Volume, VolumeAttachmentWire,
};

/// Attachments with the reason to look at them.
pub(super) type Backlog = VecDeque<(Arc<str>, EnqueueCause)>;

/// Handle to the cache.
#[derive(Clone)]
pub struct Store {
    pub(super) inner: Arc<StoreInner>,
}

pub(super) struct StoreInner {
    pub(super) index: RwLock<Index>,
    pub(super) routes: RwLock<Routes>,
    pub(super) lists: Lists,
    /// Attachments that are still to be looked at for a change that the watches brought.
    pub(super) backlog: parking_lot::Mutex<Backlog>,
    pub(super) vacancies: watch::Sender<()>,
    pub(super) arrivals: watch::Sender<()>,
    /// Counts the changes.
    pub(super) generation: AtomicU64,
    pub(super) rules: CacheRules,
}

/// Of which kinds the cache is only as old as their watch is slow. A copy of another kind may be of any age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// PersistentVolumes.
    pub volumes: bool,
    /// CSINodes.
    pub nodes: bool,
}

impl Watched {
    /// Whether that is so for all of them.
    pub fn all(self) -> bool {
        self.volumes && self.nodes
    }
}

impl Default for Store {
    fn default() -> Self {
        Self::with_rules(CacheRules::default())
    }
}

impl Store {
    /// One that works by these rules.
    pub fn with_rules(rules: CacheRules) -> Self {
        let inner = StoreInner {
            index: RwLock::new(Index::with_rules(rules.tables)),
            routes: RwLock::default(),
            lists: Lists::new(&KINDS, rules.lists_anew),
            backlog: parking_lot::Mutex::default(),
            vacancies: watch::Sender::default(),
            arrivals: watch::Sender::default(),
            generation: AtomicU64::new(0),
            rules,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Which lists of the three kinds are complete.
    pub fn lists(&self) -> &Lists {
        &self.inner.lists
    }

    /// Whether the cache knows of all attachments that name a PersistentVolume, as it knows that volume.
    pub fn knows_who_names_volumes(&self) -> bool {
        self.lists()
            .is_as_new(VolumeAttachmentWire::PLURAL, PersistentVolumeWire::PLURAL)
    }

    /// Of which kinds the watch is at work.
    pub fn watched(&self) -> Watched {
        Watched {
            volumes: self.lists().is_watched::<PersistentVolumeWire>(),
            nodes: self.lists().is_watched::<CsiNodeWire>(),
        }
    }

    /// A read of a PersistentVolume has shown the copy that is known.
    pub fn confirm_volume(&self, volume: &Volume) {
        let now = self.lists().now();
        let mut index = self.inner.index.write();
        index
            .volumes
            .confirm(&volume.name, &volume.uid, volume.resource_version, now);
    }

    /// When a PersistentVolume was read as it is known.
    pub fn confirmed_at(&self, volume: &str) -> Option<u64> {
        self.inner.index.read().volumes.read_at(volume)
    }

    /// Waits until the cache knows of all attachments that name a PersistentVolume that was read at a moment: until attachments were
    /// listed afterwards. What the watch of volumes does meanwhile does not matter; a write must have the version of what was
    /// read as its condition. False when that takes longer than `limit`.
    pub async fn attachments_listed_after(&self, moment: u64, limit: Duration) -> bool {
        self.lists()
            .listed_after(VolumeAttachmentWire::PLURAL, moment, limit)
            .await
    }

    /// What is known about an attachment; none when there is no such object.
    pub fn attachment(&self, name: &str) -> Option<Snapshot> {
        self.inner.index.read().snapshot(name)
    }

    /// Whether an attachment other than that of `snapshot` is claimed for a place, whatever its node is called.
    pub fn is_claimed(&self, driver: &DriverFacts, snapshot: &Snapshot, place: decide::VolumeOnNode<'_>) -> bool {
        self.inner.index.read().is_claimed(&snapshot.attachment, driver, place)
    }

    /// A PersistentVolume and the number of VolumeAttachments of any driver that name it.
    pub fn volume(&self, name: &str) -> Option<(Arc<Volume>, usize)> {
        self.inner.index.read().volume(name)
    }

    /// How many attachments of a driver are in which state.
    pub fn counts(&self, attacher: &str) -> Counts {
        self.inner.index.read().counts(attacher)
    }

    /// The attachment of a driver that has waited longest to be attached or detached.
    pub fn oldest_pending(&self, attacher: &str) -> Option<Arc<Attachment>> {
        self.inner.index.read().oldest_pending(attacher)
    }

    /// As [`Store::oldest_pending`], of one direction only.
    pub fn oldest_pending_of(&self, attacher: &str, detaching: bool) -> Option<Arc<Attachment>> {
        self.inner.index.read().oldest_pending_of(attacher, detaching)
    }

    /// How many attachments of a driver carry a finalizer.
    pub fn claimed(&self, attacher: &str, finalizer: &str) -> usize {
        self.inner.index.read().claimed(attacher, finalizer)
    }

    /// Names of the attachments of a driver, in their order.
    pub fn attachments_of(&self, attacher: &str) -> Vec<Arc<str>> {
        let mut names = self.inner.index.read().attachments_of(attacher);
        names.sort_unstable();
        names
    }

    /// Hands an attachment to its driver's queue, if it may need work; see [`ForcedAttachments`](super::ForcedAttachments).
    pub fn enqueue(&self, name: &str, cause: EnqueueCause) {
        self.enqueue_attachment(name, cause);
    }

    /// How long ago the known copy of an object came in.
    pub fn age(&self, key: &AttacherKey) -> Option<Duration> {
        let index = self.inner.index.read();
        match key {
            AttacherKey::Attachment(name) => index.attachments.age(name),
            AttacherKey::Volume(name) => index.volumes.age(name),
        }
    }

    /// Takes in an object of a watch or a list by `take`, which answers what changed, whether the object is said to be gone,
    /// and whether the table went back.
    fn take(&self, take: impl FnOnce(&mut Index) -> (CacheChange, bool, bool)) {
        let (change, haunted, went_back) = take(&mut self.inner.index.write());
        if went_back {
            self.lists().distrust();
        }
        self.react_in_pieces(change);
        if haunted {
            self.lists().doubt("the watch shows an object that is said to be gone");
        }
    }

    /// Takes in an attachment from the watch.
    pub fn apply_attachment(&self, record: Attachment) {
        self.take_attachment(record, Origin::News);
    }

    pub(super) fn take_attachment(&self, record: Attachment, origin: Origin) {
        self.take(|index| {
            let change = index.take_attachment(record, origin);
            (change, index.attachments.is_haunted(), index.attachments.went_back())
        });
    }

    /// Takes in an attachment from an answer to a request of ours.
    ///
    /// It may show that our write was the last thing that held the object; it then counts as gone at once. An object
    /// that is not known any more stays unknown: the watch was faster and has told its end, and will not tell it again.
    pub fn apply_attachment_response(&self, record: Attachment) {
        let change = self.inner.index.write().answered_attachment(record);
        self.dispatch_change(&change);
    }

    /// Takes in a CSINode from the watch.
    pub fn apply_node(&self, record: CsiNode) {
        self.take_node(record, Origin::News);
    }

    pub(super) fn take_node(&self, record: CsiNode, origin: Origin) {
        self.take(|index| {
            let change = index.take_node(record, origin);
            (change, index.nodes.is_haunted(), index.nodes.went_back())
        });
    }

    /// Takes in a PersistentVolume from the watch.
    pub fn apply_volume(&self, record: Volume) {
        self.take_volume(record, Origin::News);
    }

    pub(super) fn take_volume(&self, record: Volume, origin: Origin) {
        self.take(|index| {
            let change = index.take_volume(record, origin);
            (change, index.volumes.is_haunted(), index.volumes.went_back())
        });
    }

    /// As [`Store::apply_attachment_response`], for a PersistentVolume.
    pub fn apply_volume_response(&self, record: Volume) {
        let change = self.inner.index.write().answered_volume(record);
        self.dispatch_change(&change);
    }

    /// Takes in that the object that a request went to is not there (404). `uid` is that of the object it was made
    /// from: a new one of the same name, which the watch may have brought meanwhile, stays.
    pub fn mark_deleted(&self, target: &WriteTarget, uid: &str) {
        let mut index = self.inner.index.write();
        let change = match target {
            WriteTarget::Attachment(name) | WriteTarget::AttachmentStatus(name) => index.bury_attachment(name, uid),
            WriteTarget::Volume(name) => index.bury_volume(name, uid),
        };
        drop(index);
        self.dispatch_change(&change);
    }

    /// As [`Store::mark_deleted`], of a CSINode.
    pub fn mark_node_deleted(&self, name: &str, uid: &str) {
        let change = self.inner.index.write().remove_node(name, uid);
        self.dispatch_change(&change);
    }

    /// Version of the known copy of the object that a write goes to.
    pub fn version(&self, target: &WriteTarget) -> Option<ResourceVersion> {
        self.inner.index.read().version(target)
    }
}
