//! [`Store`]: the handle to the cache of a process, from the watches and answers to the queues of the drivers.

use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

use super::index::{CacheChange, Index};
use super::kinds::{KINDS, unread_kinds};
use super::links::{Counts, handles_of};
use super::routing::{AttacherKey, Route, RouteConflict, Routes, add_route};
use super::sharing::OfVolume;
use super::view::AttachmentView;
use crate::decide::patch::WriteTarget;
use crate::decide::{self, DriverFacts, Snapshot, VolumeOnNode};
use crate::objects::{Attachment, CsiNode, PersistentVolumeWire, ResourceVersion, Volume, VolumeAttachmentWire};
use crate::reflect::{CachedKind, Kind, Listener, Lists, Origin, Sink, TableRules, Tables as _};
use csi_attacher_runtime::EnqueueCause;

/// So many attachments are enqueued for a watch between two yields. The watches are shared by all drivers: a volume or a node with
/// thousands of attachments must not delay the events of the others.
const PIECE: usize = 64;

/// Handle to the cache. Clones share it.
#[derive(Clone)]
pub struct Store {
    pub(super) inner: Arc<StoreInner>,
}

pub(super) struct StoreInner {
    pub index: RwLock<Index>,
    routes: RwLock<Routes>,
    lists: Lists,
    /// The attachments that are still to be enqueued for changes that the watches brought.
    pub backlog: Mutex<Backlog>,
    /// Told of each PersistentVolume that changed, for another role.
    volume_listener: RwLock<Option<Listener<Arc<Volume>>>>,
    /// Told of each CSINode whose topology changed, for another role.
    topology_listener: RwLock<Option<Listener<Arc<str>>>>,
    removed: watch::Sender<()>,
    added: watch::Sender<()>,
    generation: AtomicU64,
    pub rules: CacheRules,
}

/// What is still to be enqueued, in the order of arrival, each once: it is looked at as it is by then, however often it was told.
#[derive(Default)]
pub(super) struct Backlog {
    order: VecDeque<(Arc<str>, EnqueueCause)>,
    waiting: HashSet<(Arc<str>, EnqueueCause)>,
}

impl Backlog {
    fn extend(&mut self, keys: impl Iterator<Item = (Arc<str>, EnqueueCause)>) {
        for key in keys {
            if self.waiting.insert(key.clone()) {
                self.order.push_back(key);
            }
        }
    }

    /// The first ones, no more than [`PIECE`]. What is told of them from now on is told again.
    fn take_piece(&mut self) -> Vec<(Arc<str>, EnqueueCause)> {
        let size = self.order.len().min(PIECE);
        let piece: Vec<_> = self.order.drain(..size).collect();
        for key in &piece {
            self.waiting.remove(key);
        }
        piece
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.order.len()
    }
}

/// The rules by which the cache works, as values: a test of the tests hands in wrong ones. By default all hold.
#[derive(Clone, Copy, Debug)]
pub struct CacheRules {
    /// Whether the queues learn of a change.
    pub dispatches: fn(&CacheChange) -> bool,
    /// Everything is listed anew when that is asked for.
    pub lists_anew: bool,
    /// How copies are taken in.
    pub tables: TableRules,
}

impl Default for CacheRules {
    fn default() -> Self {
        Self {
            dispatches: |_| true,
            lists_anew: true,
            tables: TableRules::default(),
        }
    }
}

/// So many nodes are named of those that a PersistentVolume is attached to.
const MAX_NODES: usize = 8;

/// What shows that volumes of a driver were published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// How many attachments are claimed.
    pub attachments: usize,
    /// The first of them by name.
    pub attachment: Option<Arc<str>>,
    /// The first PersistentVolume by name that carries the finalizer and is not being deleted.
    pub volume: Option<Arc<str>>,
}

impl Marks {
    /// Whether nothing shows that a volume was published.
    pub fn is_empty(&self) -> bool {
        self.attachments == 0 && self.volume.is_none()
    }
}

impl Default for Store {
    fn default() -> Self {
        Self::with_rules(CacheRules::default())
    }
}

impl Sink for Store {
    type Tables = Index;

    const CONSEQUENCE: &'static str = "until then no volume is attached or detached";

    fn lists(&self) -> &Lists {
        &self.inner.lists
    }

    fn tables(&self) -> &RwLock<Index> {
        &self.inner.index
    }

    fn dispatch(&self, change: CacheChange) {
        if !(self.inner.rules.dispatches)(&change) {
            return;
        }
        self.inner.generation.fetch_add(1, Ordering::Relaxed);
        self.tell_of_volumes(&change);
        if let Some(node) = &change.topology_of {
            // It is not locked while it is told.
            let listener = self.inner.topology_listener.read().clone();
            if let Some(tell) = listener {
                tell(node);
            }
        }
        if let Some(gone) = &change.gone {
            self.forget_gone(gone);
        }
        for (key, cause) in change.keys() {
            self.enqueue_key(&key, cause);
        }
    }

    fn dispatch_copy(&self, mut change: CacheChange) {
        let later = change.attachments.split_off(change.attachments.len().min(PIECE));
        let later = later.into_iter().map(|name| (name, change.cause));
        self.inner.backlog.lock().extend(later);
        self.dispatch(change);
    }

    /// Enqueues what is left of earlier changes, with yields between. When it is cut off, the next call continues.
    async fn work_off_backlog(&self) {
        loop {
            let piece = self.inner.backlog.lock().take_piece();
            if piece.is_empty() {
                return;
            }
            for (name, cause) in &piece {
                self.enqueue(name, *cause);
            }
            tokio::task::yield_now().await;
        }
    }
}

impl Store {
    /// One that works by these rules.
    pub fn with_rules(rules: CacheRules) -> Self {
        let inner = StoreInner {
            index: RwLock::new(Index::with_rules(rules.tables)),
            routes: RwLock::default(),
            lists: Lists::new(&KINDS, rules.lists_anew),
            backlog: Mutex::default(),
            volume_listener: RwLock::default(),
            topology_listener: RwLock::default(),
            removed: watch::Sender::default(),
            added: watch::Sender::default(),
            generation: AtomicU64::new(0),
            rules,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Which lists of the kinds are complete.
    pub fn lists(&self) -> &Lists {
        &self.inner.lists
    }

    /// The same, as far as anything is read of the kinds for a driver: see [`unread_kinds`].
    pub fn lists_for(&self, facts: &DriverFacts) -> Lists {
        self.lists().without(unread_kinds(facts.capabilities.publish_unpublish))
    }

    /// Whether the cache knows of all attachments that name a PersistentVolume, as it knows that volume.
    pub fn knows_who_names_volumes(&self) -> bool {
        self.lists()
            .is_as_new(VolumeAttachmentWire::PLURAL, PersistentVolumeWire::PLURAL)
    }

    /// A read of a PersistentVolume has shown the copy that is known.
    pub fn confirm_volume(&self, volume: &Volume) {
        let now = self.lists().now();
        self.inner.index.write().volumes.confirm(volume, now);
    }

    /// When a PersistentVolume was read as it is known, for [`Store::attachments_listed_after`].
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

    /// Takes in an object that the watch shows.
    pub fn apply<R: CachedKind<Index>>(&self, record: R) {
        self.take_copy(record, Origin::Watch);
    }

    /// Takes in an object from an answer to a request of ours ([`Index::take_response`]).
    pub fn apply_response<R: CachedKind<Index>>(&self, record: R) {
        self.change(|index| index.take_response(record));
    }

    /// Takes in that an object is gone, and that the watch does not show it again.
    pub fn remove<R: CachedKind<Index>>(&self, name: &str, uid: &str) {
        self.change(|index| index.remove::<R>(name, uid));
    }

    /// Takes in that the object that a request went to is not there (404). `uid` is that of the object it was made
    /// from: a new one of the same name, which the watch may have brought meanwhile, stays.
    pub fn mark_deleted(&self, target: &WriteTarget, uid: &str) {
        self.change(|index| index.mark_deleted(target, uid));
    }

    fn tell_of_volumes(&self, change: &CacheChange) {
        let Some(tell) = self.inner.volume_listener.read().clone() else {
            return;
        };
        let detached = change.gone.as_deref().map(|gone| self.volumes_of(gone));
        for volume in change.volume.iter().chain(detached.iter().flatten()) {
            tell(volume);
        }
    }

    /// The PersistentVolume that an attachment named, and one of each other handle that it noted or described: whoever hears of one of
    /// those that share a handle looks at the others.
    fn volumes_of(&self, attachment: &Attachment) -> Vec<Arc<Volume>> {
        let index = self.inner.index.read();
        let named = attachment.volume_name().and_then(|name| index.volumes.get(name));
        let named_handle = named.and_then(|volume| volume.spec.csi()).map(|source| &*source.handle);
        let handles: BTreeSet<&str> = handles_of(attachment).collect();
        let others = handles.into_iter().filter(|handle| Some(*handle) != named_handle);
        let others = others.filter_map(|handle| index.volumes_of_handle(&attachment.attacher, handle).next());
        named.into_iter().chain(others).cloned().collect()
    }

    fn enqueue_key(&self, key: &AttacherKey, cause: EnqueueCause) {
        match key {
            AttacherKey::Attachment(name) => self.enqueue(name, cause),
            AttacherKey::Volume(name) => self.enqueue_volume(name, cause),
        }
    }

    /// Hands an attachment to its driver's queue, if it may need work or the cause says that it is worked on although it looks settled.
    ///
    /// The index stays locked for reading until the queue knows: otherwise a slower thread with an older view could
    /// tell the queue to forget a key after a faster one added it. Locks are taken in the order index, routes, queue.
    pub fn enqueue(&self, name: &str, cause: EnqueueCause) {
        self.enqueue_if(name, cause, |_| true);
    }

    /// As [`Self::enqueue`], if the attachment is the one that is asked for.
    pub fn enqueue_if(&self, name: &str, cause: EnqueueCause, is_asked_for: impl FnOnce(&Attachment) -> bool) {
        let index = self.inner.index.read();
        let snapshot = index.snapshot(name).filter(|found| is_asked_for(&found.attachment));
        let Some(snapshot) = snapshot else { return };
        if let Some(route) = self.inner.routes.read().get(&snapshot.attachment.attacher) {
            route.enqueue_attachment(&snapshot, cause);
        }
    }

    /// Hands a PersistentVolume to each driver that may have to release it. Almost every volume is neither being deleted
    /// nor of an in-tree plug-in, and no driver is asked about it.
    fn enqueue_volume(&self, name: &str, cause: EnqueueCause) {
        let index = self.inner.index.read();
        let Some((volume, attachments)) = index.volume(name) else {
            return;
        };
        if !volume.deleting && volume.in_tree.is_none() {
            return;
        }
        for route in self.inner.routes.read().values() {
            route.enqueue_volume(&volume, attachments, cause);
        }
    }

    /// Takes the key of an attachment that is gone out of its driver's queue, unless another one of that driver has the name.
    fn forget_gone(&self, gone: &Attachment) {
        let index = self.inner.index.read();
        let known = index.attachments.get(&gone.name);
        let is_named = known.is_some_and(|known| known.attacher == gone.attacher);
        if let Some(route) = self.inner.routes.read().get(&gone.attacher) {
            route.forget_gone(gone, is_named);
        }
    }

    /// Makes a driver's queue receive its keys from now on, and fills it with the work that there is.
    pub fn register(&self, route: Route) -> Result<Registration, RouteConflict> {
        let driver = route.facts.name.clone();
        add_route(&mut self.inner.routes.write(), route)?;
        self.seed(&driver);
        self.inner.added.send_replace(());
        Ok(Registration {
            store: self.clone(),
            driver,
        })
    }

    /// Queues everything of a driver that may need work.
    pub fn seed(&self, driver: &str) {
        let Some(facts) = self.inner.routes.read().get(driver).map(|route| route.facts.clone()) else {
            return;
        };
        let work = self.inner.index.read().work_of(&facts);
        for key in &work {
            self.enqueue_key(key, EnqueueCause::Resync);
        }
    }

    /// Changes whenever a driver is registered.
    pub fn subscribe_added(&self) -> watch::Receiver<()> {
        self.inner.added.subscribe()
    }

    /// Changes whenever a driver's registration ends, so that one that was refused because of it may try again.
    pub fn subscribe_removed(&self) -> watch::Receiver<()> {
        self.inner.removed.subscribe()
    }

    /// The drivers that are registered.
    pub fn drivers(&self) -> HashMap<Arc<str>, Arc<DriverFacts>> {
        let routes = self.inner.routes.read();
        let facts = routes.values().map(|route| &route.facts);
        facts.map(|facts| (facts.name.clone(), facts.clone())).collect()
    }

    /// Changes with every change of what is cached.
    pub fn generation(&self) -> u64 {
        self.inner.generation.load(Ordering::Relaxed)
    }

    /// What is known about an attachment; none when there is no such object.
    pub fn attachment(&self, name: &str) -> Option<Snapshot> {
        self.inner.index.read().snapshot(name)
    }

    /// Whether an attachment other than that of `snapshot` is claimed for a place, whatever its node is called.
    pub fn is_claimed(&self, driver: &DriverFacts, snapshot: &Snapshot, place: VolumeOnNode<'_>) -> bool {
        self.inner.index.read().is_claimed(&snapshot.attachment, driver, place)
    }

    /// A PersistentVolume and the number of VolumeAttachments of any driver that name it.
    pub fn volume(&self, name: &str) -> Option<(Arc<Volume>, usize)> {
        self.inner.index.read().volume(name)
    }

    /// Tells of each PersistentVolume that changes, comes or goes, or whose VolumeAttachment goes, from now on, instead of whoever was told
    /// before: as it is now, or its last copy. Of those that have one handle it may be told of one alone. The store is not locked then.
    pub fn listen_to_volumes(&self, listener: Listener<Arc<Volume>>) {
        *self.inner.volume_listener.write() = Some(listener);
    }

    /// Tells the name of each node whose CSINode comes or goes, or gets other topology keys, from now on, instead of whoever was told before.
    pub fn listen_to_topology(&self, listener: Listener<Arc<str>>) {
        *self.inner.topology_listener.write() = Some(listener);
    }

    /// The CSINode of a name.
    pub fn csi_node(&self, name: &str) -> Option<Arc<CsiNode>> {
        self.inner.index.read().nodes.get(name).cloned()
    }

    /// All CSINodes, in no order.
    pub fn csi_nodes(&self) -> Vec<Arc<CsiNode>> {
        self.inner.index.read().nodes.values().cloned().collect()
    }

    /// Whether some driver registered a topology key of this name on some node.
    pub fn is_topology_key(&self, key: &str) -> bool {
        let index = self.inner.index.read();
        index.links.topologies.keys().any(|keys| keys.has_key(key))
    }

    /// The nodes of the VolumeAttachments that a volume may be attached by, in words: those that name the PersistentVolume of this name,
    /// whatever the driver, and those of this driver that noted or describe this handle. None when there are no such.
    pub fn nodes_of_volume(&self, name: &str, driver: &str, handle: &str) -> Option<Arc<str>> {
        let index = self.inner.index.read();
        let of_volume = index.links.of_volume(name).into_iter().flat_map(OfVolume::names);
        let named = of_volume.filter_map(|name| index.attachments.get(name));
        let all = named.chain(index.attachments_of_handle(driver, handle));
        let all: BTreeSet<&str> = all.map(|record| &*record.node).collect();
        let shown: Vec<&str> = all.iter().copied().take(MAX_NODES).collect();
        let more = match all.len() - shown.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")).into())
    }

    /// Whether a VolumeAttachment of any driver names the PersistentVolume of this name.
    pub fn is_named(&self, name: &str) -> bool {
        self.inner.index.read().links.of_volume(name).is_some()
    }

    /// Whether a VolumeAttachment of this driver noted or describes this handle, whatever PersistentVolume it names. Costs time for each
    /// volume that has the handle.
    pub fn is_noted(&self, driver: &str, handle: &str) -> bool {
        let index = self.inner.index.read();
        index.attachments_of_handle(driver, handle).next().is_some()
    }

    /// Shows every PersistentVolume that is known, in no order.
    pub fn for_each_volume(&self, mut look: impl FnMut(&Arc<Volume>)) {
        let volumes: Vec<Arc<Volume>> = self.inner.index.read().volumes.values().cloned().collect();
        for volume in &volumes {
            look(volume);
        }
    }

    /// Shows every PersistentVolume that is being deleted, in no order. The cache is locked meanwhile.
    pub fn for_each_volume_in_deletion(&self, mut look: impl FnMut(&Volume)) {
        let index = self.inner.index.read();
        for volume in index.volumes.values().filter(|volume| volume.deleting) {
            look(volume);
        }
    }

    /// The name of another PersistentVolume of a driver than `except` that has this handle: the first one.
    pub fn handle_owner(&self, driver: &str, handle: &str, except: &str) -> Option<Arc<str>> {
        let index = self.inner.index.read();
        let mut owners = index.volumes_of_handle(driver, handle);
        let owner = owners.find(|volume| *volume.name != *except);
        owner.map(|volume| volume.name.clone())
    }

    /// All PersistentVolumes of a driver that have this handle, by their names.
    pub fn volumes_of_handle(&self, driver: &str, handle: &str) -> Vec<Arc<Volume>> {
        let index = self.inner.index.read();
        index.volumes_of_handle(driver, handle).cloned().collect()
    }

    /// Version of the known copy of the object that a write goes to.
    pub fn version(&self, target: &WriteTarget) -> Option<ResourceVersion> {
        self.inner.index.read().version(target)
    }

    /// How long ago the known copy of an object came in.
    pub fn age(&self, key: &AttacherKey) -> Option<Duration> {
        let index = self.inner.index.read();
        match key {
            AttacherKey::Attachment(name) => index.attachments.age(name),
            AttacherKey::Volume(name) => index.volumes.age(name),
        }
    }

    /// How many attachments of a driver are in which state.
    pub fn counts(&self, driver: &str) -> Counts {
        self.inner.index.read().links.counts(driver)
    }

    /// The attachment of a driver that has waited longest to be attached or detached.
    pub fn oldest_pending(&self, driver: &str) -> Option<Arc<Attachment>> {
        self.inner.index.read().oldest_pending(driver)
    }

    /// The attachment of a driver that has waited longest to be attached, or to be detached.
    pub fn oldest_pending_of(&self, driver: &str, detaching: bool) -> Option<Arc<Attachment>> {
        self.inner.index.read().oldest_pending_of(driver, detaching)
    }

    /// Whether the attachment of this name and UID is neither attached for good nor gone.
    pub fn is_pending(&self, name: &str, uid: &str) -> bool {
        let index = self.inner.index.read();
        let known = index.attachments.get(name).filter(|record| *record.uid == *uid);
        known.is_some_and(|record| !record.attached || record.deleting.is_some())
    }

    /// How many attachments of a driver carry a finalizer, or lost it before their detach: they get it again
    /// ([`decide::has_lost_finalizer`]) or are detached without it. Of a driver without calls nobody does either.
    pub fn claimed(&self, driver: &str, finalizer: &str) -> usize {
        let index = self.inner.index.read();
        let facts = self.inner.routes.read().get(driver).map(|route| route.facts.clone());
        let has_calls = facts.is_none_or(|facts| facts.capabilities.publish_unpublish);
        let is_claimed = |record: &&Arc<Attachment>| {
            record.finalizers.contains(finalizer)
                || (has_calls
                    && (decide::has_lost_finalizer(record, finalizer) || decide::is_detaching(record, finalizer)))
        };
        index.attachments_of(driver).filter(is_claimed).count()
    }

    /// Names of the attachments of a driver, in their order.
    pub fn attachments_of(&self, driver: &str) -> Vec<Arc<str>> {
        let index = self.inner.index.read();
        sorted(index.attachments_of(driver).map(|record| &record.name))
    }

    /// Names of all attachments, in no order.
    pub fn attachment_names(&self) -> Vec<Arc<str>> {
        let index = self.inner.index.read();
        index.attachments.values().map(|record| record.name.clone()).collect()
    }

    /// Shows these attachments, as far as they are still there. The cache is locked meanwhile: they should be few.
    pub fn for_each_attachment(&self, names: &[Arc<str>], mut look: impl FnMut(AttachmentView<'_>)) {
        let index = self.inner.index.read();
        for attachment in names.iter().filter_map(|name| index.attachments.get(name)) {
            look(index.view(attachment));
        }
    }

    /// The IDs under which a driver knows the nodes of the cluster.
    pub fn node_ids(&self, driver: &str) -> HashSet<Box<str>> {
        let index = self.inner.index.read();
        let ids = index.nodes.values().filter_map(|node| node.node_id(driver));
        ids.map(Box::from).collect()
    }

    /// The PersistentVolumes that are being deleted and that no attachment names.
    pub fn unreferenced_deleting_volumes(&self) -> Vec<Arc<Volume>> {
        let index = self.inner.index.read();
        let deleting = index.volumes.values().filter(|volume| volume.deleting);
        let unreferenced = deleting.filter(|volume| index.links.of_volume(&volume.name).is_none());
        unreferenced.cloned().collect()
    }

    /// What shows that a driver was published to: how many of its attachments are claimed ([`decide::is_claimed`]), one of them, and
    /// a PersistentVolume that carries its finalizer and is not being deleted.
    pub fn marks(&self, driver: &DriverFacts) -> Marks {
        let index = self.inner.index.read();
        let claimed = index
            .attachments_of(&driver.name)
            .filter(|one| decide::is_claimed(one, driver));
        let claimed = sorted(claimed.map(|attachment| &attachment.name));
        Marks {
            attachments: claimed.len(),
            attachment: claimed.into_iter().next(),
            volume: index.protected(&driver.finalizer).min().cloned(),
        }
    }

    /// The PersistentVolumes that carry a finalizer and are not being deleted, by their names.
    pub fn protected(&self, finalizer: &str) -> Vec<Arc<str>> {
        let index = self.inner.index.read();
        sorted(index.protected(finalizer))
    }
}

fn sorted<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> Vec<Arc<str>> {
    let mut names: Vec<_> = names.cloned().collect();
    names.sort_unstable();
    names
}

/// A driver's place among the routes, given up on drop.
pub struct Registration {
    store: Store,
    driver: Arc<str>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.store.inner.routes.write().remove(&self.driver);
        self.store.inner.removed.send_replace(());
    }
}
