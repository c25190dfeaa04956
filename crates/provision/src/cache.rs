//! The observed claims and classes, shared by all drivers: one watch for each kind, slim records, and what has to be enqueued when something
//! changes.
//!
//! Reads see our own writes: the object that the API server returned goes straight into the cache, and older copies that the watch still
//! delivers are dropped by their version. Must not decide anything and must not call anything but the watches.

use jiff::Timestamp;
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

use crate::clock;
use crate::key::ClaimKey;
use crate::objects::{Claim, ClaimReference, PersistentVolumeClaimWire, StorageClass, StorageClassWire, Volume};
use crate::provision::{MarkerState, OwningClaim, Seen, is_of_volume, may_be_asked_for, named_claim};
use crate::reflect::{
    CachedKind, CountedMap, Kind, Listener, Lists, ObjectTable, Origin, Sink, Tables, hash, weak_listener,
};
use crate::runtime::EnqueueCause;
use crate::shared_names::SharedNames;
use csi_attacher_kube::watch_answers::WatchAnswers;

/// What works for one driver, as the cache knows it. All are told of every claim, as only they know which they work on: so each is given
/// the key, and makes none.
pub(crate) trait ClaimRoute: Send + Sync {
    /// Name of the driver.
    fn driver(&self) -> &Arc<str>;
    /// A claim changed, or something that it depends on.
    fn changed(&self, key: &ClaimKey, claim: &Claim, cause: EnqueueCause);
    /// A class came, changed or went. The claims that name it are told besides.
    fn class_changed(&self, class: Option<&StorageClass>);
    /// A claim is gone.
    fn gone(&self, key: &ClaimKey, claim: &Claim);
    /// A PersistentVolume changed, came or went, or its VolumeAttachment went.
    fn volume_changed(&self, volume: &Arc<Volume>);
    /// The topology of a node changed, for which these claims were scheduled.
    fn topology_changed(&self, claims: &[(ClaimKey, &Claim)]);
}

type Routes = BTreeMap<Arc<str>, Arc<dyn ClaimRoute>>;

fn keyed(claim: &Arc<Claim>) -> (ClaimKey, &Claim) {
    (ClaimKey::of(claim), claim)
}

/// Handle to the cache. Clones share it.
#[derive(Clone)]
pub struct Store(Arc<StoreInner>);

struct StoreInner {
    index: RwLock<Index>,
    /// Shared with whoever tells them of a change: they come and go seldom.
    routes: RwLock<Arc<Routes>>,
    lists: Lists,
    removed: watch::Sender<()>,
}

/// The tables, and the ways between their records.
#[derive(Default)]
pub struct Index {
    claims: ObjectTable<Claim>,
    classes: ObjectTable<StorageClass>,
    /// The claims that may need work, by UID.
    open: BTreeMap<Arc<str>, Arc<str>>,
    /// The same, by the name of their class.
    open_of_class: CountedMap<Arc<str>, Arc<str>>,
    /// The same, by the name of the node that is selected for them.
    open_of_node: CountedMap<Arc<str>, Arc<str>>,
    /// All claims that name a PersistentVolume, by the hash of its name: thousands are bound, and a few bytes are enough for each.
    bound: CountedMap<u64, Arc<str>>,
    /// Since when the volume of an open claim is asked for, by UID, where that was not so when the claim was seen first.
    asked: HashMap<Arc<str>, Timestamp>,
    names: SharedNames,
}

/// Whether a claim may still need work: it names no volume, or carries the marker of a provisioner.
fn is_open(claim: &Claim) -> bool {
    claim.volume_name.is_none() || claim.marker_at.is_some()
}

/// kube-controller-manager asks so soon where nothing is missing.
const ASKED_SOON: Duration = Duration::from_secs(10);

/// Who is asked for the volume of a claim: kube-controller-manager asks when there is a class.
fn asked(claim: &Claim) -> Option<&str> {
    claim.provisioner.as_deref().filter(|_| may_be_asked_for(claim))
}

impl Index {
    fn marked(&self, driver: &str) -> usize {
        let open = self.open.values().filter_map(|name| self.claims.get(name));
        open.filter(|claim| MarkerState::of(claim, driver).is_recorded())
            .count()
    }

    /// Notes when a claim that is known begins to ask a provisioner for its volume, or another one than before, long after its creation.
    /// That is forgotten when the claim is not open any more.
    fn note_asked(&mut self, previous: &Claim, current: Option<&Arc<Claim>>) {
        let Some(current) = current.filter(|current| current.uid == previous.uid && is_open(current)) else {
            self.asked.remove(&*previous.uid);
            return;
        };
        let is_late = current.created.is_none_or(|created| clock::since(created) > ASKED_SOON);
        if is_late && asked(current).is_some_and(|now| asked(previous) != Some(now)) {
            self.asked.insert(Arc::from(&*current.uid), clock::now());
        }
    }

    fn relink(&mut self, previous: Option<&Arc<Claim>>, current: Option<&Arc<Claim>>) {
        if let Some(previous) = previous {
            self.note_asked(previous, current);
        }
        let bound = |claim: &Arc<Claim>| Some((hash(claim.volume_name.as_deref()?), claim.key.clone()));
        self.bound.replace(previous.and_then(bound), current.and_then(bound));
        let previous = previous.filter(|previous| is_open(previous));
        let current = current.filter(|current| is_open(current));
        if let Some(previous) = previous {
            self.open.remove(&*previous.uid);
        }
        if let Some(current) = current {
            self.open.insert(Arc::from(&*current.uid), current.key.clone());
        }
        let of_class = |claim: &Arc<Claim>| (claim.class.clone(), claim.key.clone());
        self.open_of_class
            .replace(previous.map(of_class), current.map(of_class));
        let of_node = |claim: &Arc<Claim>| Some((claim.selected_node.clone()?, claim.key.clone()));
        self.open_of_node
            .replace(previous.and_then(of_node), current.and_then(of_node));
    }

    /// The open claims whose volume may have this name: those whose UID it ends in, or begins with what it ends in where names are short.
    fn named_by(&self, volume: &str) -> Vec<Arc<Claim>> {
        if let Some(key) = uid_in(volume).and_then(|uid| self.open.get(uid)) {
            return self.records(std::iter::once(key));
        }
        let Some(beginning) = beginning_in(volume) else {
            return Vec::new();
        };
        let open = self
            .open
            .range::<str, _>((Bound::Included(&*beginning), Bound::Unbounded));
        let alike = open.take_while(|(uid, _)| uid.starts_with(&*beginning));
        self.records(alike.map(|(_, key)| key))
    }

    /// The claims that name this PersistentVolume, perhaps with others.
    fn naming(&self, volume: &str) -> Vec<Arc<Claim>> {
        self.records_of(&self.bound, hash(volume))
    }

    fn records_of<N: Ord + Clone>(&self, keys: &CountedMap<N, Arc<str>>, named: N) -> Vec<Arc<Claim>> {
        self.records(keys.entries(named).map(|(_, key)| key))
    }

    fn records<'i>(&'i self, keys: impl Iterator<Item = &'i Arc<str>>) -> Vec<Arc<Claim>> {
        keys.filter_map(|key| self.claims.get(key).cloned()).collect()
    }
}

/// What a change of the cache concerns.
#[derive(Default)]
pub struct Change {
    /// The claim that changed or is gone, if it is one.
    gone: Option<Arc<Claim>>,
    claims: Vec<Arc<Claim>>,
    cause: EnqueueCause,
    /// The class as it is now, if it is one and is there.
    class: Option<Arc<StorageClass>>,
}

impl Tables for Index {
    type Change = Change;
}

impl CachedKind<Index> for Claim {
    fn table(index: &Index) -> &ObjectTable<Self> {
        &index.claims
    }

    fn table_mut(index: &mut Index) -> &mut ObjectTable<Self> {
        &mut index.claims
    }

    fn share_names(&mut self, index: &mut Index) {
        index.names.share(self);
    }

    fn relink(index: &mut Index, previous: Option<&Arc<Self>>, current: Option<&Arc<Self>>) -> Change {
        index.relink(previous, current);
        let same = previous.filter(|previous| current.is_some_and(|current| current.uid == previous.uid));
        let cause = match (same, current) {
            (Some(previous), Some(current)) if previous.deleting.is_none() && current.deleting.is_some() => {
                EnqueueCause::Delete
            }
            (Some(_), _) => EnqueueCause::Update,
            (None, _) => EnqueueCause::Add,
        };
        Change {
            gone: previous.filter(|_| same.is_none()).cloned(),
            claims: current.into_iter().cloned().collect(),
            cause,
            ..Change::default()
        }
    }
}

impl CachedKind<Index> for StorageClass {
    fn table(index: &Index) -> &ObjectTable<Self> {
        &index.classes
    }

    fn table_mut(index: &mut Index) -> &mut ObjectTable<Self> {
        &mut index.classes
    }

    fn relink(index: &mut Index, previous: Option<&Arc<Self>>, current: Option<&Arc<Self>>) -> Change {
        let name = current.or(previous).map(|class| &*class.name).unwrap_or_default();
        Change {
            claims: index.records_of(&index.open_of_class, name.into()),
            cause: EnqueueCause::Class,
            class: current.cloned(),
            ..Change::default()
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        Self::recorded_by(WatchAnswers::default())
    }
}

impl Sink for Store {
    type Tables = Index;

    const CONSEQUENCE: &'static str = "until then no volume is provisioned";

    fn lists(&self) -> &Lists {
        &self.0.lists
    }

    fn tables(&self) -> &RwLock<Index> {
        &self.0.index
    }

    fn dispatch(&self, change: Change) {
        let gone = change.gone.as_ref().map(keyed);
        let claims: Vec<_> = change.claims.iter().map(keyed).collect();
        for route in self.routes().values() {
            if let Some((key, gone)) = &gone {
                route.gone(key, gone);
            }
            for (key, claim) in &claims {
                route.changed(key, claim, change.cause);
            }
            if change.cause == EnqueueCause::Class {
                route.class_changed(change.class.as_deref());
            }
        }
    }
}

impl Store {
    /// An empty one; `answers` is where the connection of its watches records what the API server has accepted.
    pub fn recorded_by(answers: WatchAnswers) -> Self {
        let kinds = [PersistentVolumeClaimWire::PLURAL, StorageClassWire::PLURAL];
        Self(Arc::new(StoreInner {
            index: RwLock::default(),
            routes: RwLock::default(),
            lists: Lists::recorded_by(&kinds, true, answers),
            removed: watch::Sender::default(),
        }))
    }

    pub(crate) fn claim(&self, key: &ClaimKey) -> Seen<Arc<Claim>> {
        self.seen(|index| {
            index
                .claims
                .get(&key.name)
                .filter(|claim| *claim.uid == *key.uid)
                .cloned()
        })
    }

    /// What the lists have or, if they were complete before this look, do not have.
    fn seen<T>(&self, find: impl FnOnce(&Index) -> Option<T>) -> Seen<T> {
        Seen::look(self.0.lists.is_synced(), || find(&self.0.index.read()))
    }

    /// Since when the volume of a claim is asked for, as this process has seen; none where that was so when it saw the claim first.
    pub(crate) fn asked_since(&self, key: &ClaimKey) -> Option<Timestamp> {
        self.0.index.read().asked.get(&*key.uid).copied()
    }

    /// What is known of the claim that a PersistentVolume names. Where claims are not watched at the moment, the cache proves nothing.
    pub(crate) fn owning(&self, reference: &ClaimReference, volume: &Volume) -> OwningClaim {
        let lists = &self.0.lists;
        if !lists.is_synced() || !lists.is_of_one_state() {
            return OwningClaim::Unknown;
        }
        // Asked for before the look, as for `Seen::look`.
        let is_watched = lists.is_watched::<PersistentVolumeClaimWire>();
        let key = ClaimKey::named_by(reference);
        let known = self.0.index.read().claims.get(&key.name).cloned();
        let is_seen = known.is_some_and(|claim| *claim.uid == *key.uid || is_of_volume(&claim, volume));
        if is_seen || !is_watched {
            OwningClaim::Cached
        } else {
            OwningClaim::NotCached
        }
    }

    /// The claims that are bound to a PersistentVolume beside the one that it names: somebody may have edited `spec.claimRef`. That there
    /// are none is known only while claims are watched, or were listed lately.
    pub(crate) fn bound_claims(&self, volume: &Volume) -> Seen<Vec<ClaimReference>> {
        let lists = &self.0.lists;
        let is_synced = lists.is_synced();
        let is_current = lists.is_watched::<PersistentVolumeClaimWire>()
            || lists.is_listed_lately(PersistentVolumeClaimWire::PLURAL, 0);
        let is_proof = is_synced && is_current && lists.is_of_one_state();
        let named = named_claim(volume).map(ClaimKey::named_by);
        let is_named = |claim: &Claim| named.as_ref().is_some_and(|named| named.name == claim.key);
        let seen = Seen::look(is_proof, || {
            let naming = self.0.index.read().naming(&volume.name);
            let bound = naming
                .iter()
                .filter(|claim| !is_named(claim) && is_of_volume(claim, volume));
            let references: Vec<ClaimReference> = bound.map(|claim| reference_of(claim)).collect();
            (!references.is_empty()).then_some(references)
        });
        if is_synced && matches!(seen, Seen::Unknown) {
            lists.doubt_unwatched::<PersistentVolumeClaimWire>(
                "a volume may be deleted, and PersistentVolumeClaims are not watched",
            );
        }
        seen
    }

    pub(crate) fn class(&self, name: &str) -> Seen<Arc<StorageClass>> {
        self.seen(|index| index.classes.get(name).cloned())
    }

    pub(crate) fn tell_classes(&self, route: &dyn ClaimRoute) {
        let classes: Vec<_> = self.0.index.read().classes.values().cloned().collect();
        for class in &classes {
            route.class_changed(Some(class));
        }
    }

    /// A claim that a patch of ours was answered with. One that is not known any more stays unknown: the watch was faster, and does not
    /// report its end again. Whether the answer is older than what is known of the claim: then it says nothing.
    pub(crate) fn take_answer(&self, claim: Claim) -> bool {
        let change = {
            let mut index = self.0.index.write();
            let Some(known) = index.claims.get(&claim.key) else {
                return true;
            };
            if known.uid == claim.uid && claim.resource_version < known.resource_version {
                return false;
            }
            if claim.is_gone() {
                index.mark_gone::<Claim>(&claim.key, &claim.uid)
            } else {
                index.take_copy(claim, Origin::Answer)
            }
        };
        if let Some(change) = change {
            self.dispatch(change);
        }
        true
    }

    pub(crate) fn mark_gone(&self, key: &ClaimKey) {
        self.change(|index| index.mark_gone::<Claim>(&key.name, &key.uid));
    }

    /// A driver is told of changes from now on, until the guard is dropped; none when another engine is told already.
    pub(crate) fn register(&self, route: Arc<dyn ClaimRoute>) -> Option<Registration> {
        let driver = route.driver().clone();
        {
            let mut routes = self.0.routes.write();
            if routes.contains_key(&driver) {
                return None;
            }
            Arc::make_mut(&mut routes).insert(driver.clone(), route);
        }
        Some(Registration {
            store: self.clone(),
            driver,
        })
    }

    /// Enqueues every claim that a driver may have to work on.
    pub(crate) fn enqueue_open(&self, route: &dyn ClaimRoute, cause: EnqueueCause) {
        let mut open: Vec<Arc<Claim>> = {
            let index = self.0.index.read();
            let open = index.open.values();
            open.filter_map(|name| index.claims.get(name).cloned()).collect()
        };
        // The oldest first, so that two starts over the same objects do the same.
        open.sort_by(|one, other| (one.created, &one.key).cmp(&(other.created, &other.key)));
        for claim in &open {
            route.changed(&ClaimKey::of(claim), claim, cause);
        }
    }

    /// How many claims carry a marker that says it is of a driver; not known before the first complete lists.
    pub fn marked(&self, driver: &str) -> Option<usize> {
        let is_synced = self.0.lists.is_synced();
        is_synced.then(|| self.0.index.read().marked(driver))
    }

    /// Wakes the claim that waited for a PersistentVolume, and tells the drivers of it. It does not keep the cache alive.
    pub fn volume_listener(&self) -> Listener<Arc<Volume>> {
        weak_listener(&self.0, |inner, volume: &Arc<Volume>| {
            Self(inner).volume_changed(volume);
        })
    }

    /// The claim that it was made for may wait for it; and so may one whose volume would have its name, where that is taken.
    fn volume_changed(&self, volume: &Arc<Volume>) {
        let claims = {
            let index = self.0.index.read();
            let of = volume.claim.as_ref().and_then(|claim| index.open.get(&*claim.uid));
            let mut claims = index.records(of.into_iter());
            let named = index.named_by(&volume.name);
            claims.extend(named.into_iter().filter(|named| Some(&named.key) != of));
            claims
        };
        if !claims.is_empty() {
            let cause = EnqueueCause::Volume;
            self.dispatch(Change {
                claims,
                cause,
                ..Change::default()
            });
        }
        for route in self.routes().values() {
            route.volume_changed(volume);
        }
    }

    fn routes(&self) -> Arc<Routes> {
        self.0.routes.read().clone()
    }

    /// Wakes the claims that depend on the topology of a node. It does not keep the cache alive.
    pub fn node_listener(&self) -> Listener<Arc<str>> {
        weak_listener(&self.0, |inner, node: &Arc<str>| Self(inner).node_changed(node))
    }

    fn node_changed(&self, node: &str) {
        let claims = {
            let index = self.0.index.read();
            index.records_of(&index.open_of_node, node.into())
        };
        let claims: Vec<_> = claims.iter().map(keyed).collect();
        for route in self.routes().values() {
            route.topology_changed(&claims);
        }
    }

    /// Told when a driver is not worked for any more.
    pub(crate) fn vacancies(&self) -> watch::Receiver<()> {
        self.0.removed.subscribe()
    }
}

/// What a UID begins with whose first 16 to 32 characters, without its dashes, the name of a volume ends in.
fn beginning_in(volume: &str) -> Option<String> {
    const DASHES_BEFORE: [usize; 4] = [8, 12, 16, 20];
    let (_, short) = volume.rsplit_once('-')?;
    if !(16..=32).contains(&short.len()) || !short.is_ascii() {
        return None;
    }
    let mut beginning = String::with_capacity(short.len() + DASHES_BEFORE.len());
    for (at, character) in short.chars().enumerate() {
        if DASHES_BEFORE.contains(&at) {
            beginning.push('-');
        }
        beginning.push(character);
    }
    Some(beginning)
}

/// The UID that the name of a volume ends in. One with a shortened UID names none.
fn uid_in(volume: &str) -> Option<&str> {
    const UID_LENGTH: usize = 36;
    let at = volume.len().checked_sub(UID_LENGTH)?;
    let (prefix, uid) = volume.split_at_checked(at)?;
    prefix.ends_with('-').then_some(uid)
}

fn reference_of(claim: &Claim) -> ClaimReference {
    ClaimReference {
        namespace: Box::from(&*claim.namespace),
        name: Box::from(&*claim.name),
        uid: claim.uid.clone(),
    }
}

/// A driver's place among the routes, given up on drop.
pub struct Registration {
    store: Store,
    driver: Arc<str>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        Arc::make_mut(&mut self.store.0.routes.write()).remove(&self.driver);
        self.store.0.removed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::ClaimPhase;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    fn claim(name: &str, driver: Option<&str>) -> Claim {
        let marker = driver
            .map(|driver| json!({"driver": driver, "uid": name, "prefix": "pvc", "since": "2026-01-01T00:00:00Z"}));
        let object = json!({
            "metadata": {
                "name": name, "namespace": "web", "uid": name, "resourceVersion": "7",
                "annotations": {"attacher.csi.dev/provisioning": marker.as_ref().map_or_else(String::new, Value::to_string)},
                "finalizers": marker.iter().map(|_| "attacher.csi.dev/provisioning").collect::<Vec<_>>(),
            },
            "spec": {},
        });
        serde_json::from_value::<PersistentVolumeClaimWire>(object)
            .unwrap()
            .into()
    }

    /// The deletion of an AttacherConfig waits for them.
    #[test]
    fn markers_are_counted_by_their_driver() {
        let store = Store::default();
        for (name, driver) in [("a", Some("csi.test")), ("b", Some("other")), ("c", None)] {
            store.take_copy(claim(name, driver), Origin::Watch);
        }
        assert_eq!(store.marked("csi.test"), None, "the lists are not complete");
        let index = store.0.index.read();
        assert_eq!((index.marked("csi.test"), index.marked("none")), (1, 0));
    }

    /// A claim waits for the PersistentVolume that has the name of its volume.
    #[test]
    fn the_claims_of_a_name_are_found_by_their_uid_or_its_beginning() {
        let uids = [
            "0123abcd-4567-89ab-cdef-0123456789ab",
            "0123abcd-4567-89ab-cdef-ffffffffffff",
            "0123abcd-4567-89ab-0000-0123456789ab",
        ];
        let store = Store::default();
        for uid in uids {
            store.take_copy(claim(uid, None), Origin::Watch);
        }
        let index = store.0.index.read();
        let named = |volume: &str| {
            let found = index.named_by(volume);
            let mut found: Vec<usize> = found
                .iter()
                .filter_map(|claim| uids.iter().position(|uid| **uid == *claim.uid))
                .collect();
            found.sort_unstable();
            found
        };
        assert_eq!(named("pvc-0123abcd-4567-89ab-cdef-0123456789ab"), [0]);
        assert_eq!(named("pvc-0123abcd456789ab"), [0, 1, 2]);
        assert_eq!(named("a-b-0123abcd456789abcdef"), [0, 1]);
        assert_eq!(named("pvc-0123abcd456789abcdefffffffffffff"), [1]);
        for other in [
            "pvc-0123abcd456789a",
            "0123abcd456789ab",
            "pvc-9123abcd456789ab",
            "pvc-",
            "",
            "pvc-äöüäöüäöüäöü",
        ] {
            assert!(named(other).is_empty(), "{other}");
        }
    }

    /// It is noted when that changes, and for no longer than there may be work for the claim.
    #[test]
    fn since_when_a_claim_is_asked_for_is_known_where_that_was_not_so_from_the_start() {
        let store = Store::default();
        let take = |version: u64, class: &str, provisioner: Option<&str>, volume: Option<&str>| {
            let mut record = claim("a", None);
            record.resource_version.0 = version;
            (record.class, record.provisioner) = (class.into(), provisioner.map(Into::into));
            record.volume_name = volume.map(Into::into);
            let key = ClaimKey::of(&record);
            store.take_copy(record, Origin::Watch);
            store.asked_since(&key).is_some()
        };
        let driver = Some("csi.test");
        assert!(!take(8, "", driver, None), "there is no class");
        assert!(!take(9, "good", None, None), "nobody is asked");
        assert!(take(10, "good", driver, None));
        assert!(take(11, "good", driver, None));
        assert!(!take(12, "good", driver, Some("pv")), "it is bound");
        let store = Store::default();
        let mut record = claim("b", None);
        (record.class, record.provisioner) = ("good".into(), driver.map(Into::into));
        let key = ClaimKey::of(&record);
        for version in 8..10 {
            record.resource_version.0 = version;
            store.take_copy(record.clone(), Origin::Watch);
        }
        assert_eq!(store.asked_since(&key), None, "it was so from the start");
        let store = Store::default();
        record.created = Some(clock::now());
        for (version, provisioner) in [(8, None), (9, driver)] {
            record.resource_version.0 = version;
            record.provisioner = provisioner.map(Into::into);
            store.take_copy(record.clone(), Origin::Watch);
        }
        assert_eq!(
            store.asked_since(&key),
            None,
            "kube-controller-manager asks a moment after the creation"
        );
    }

    /// What it was told.
    #[derive(Default)]
    struct Told {
        driver: Arc<str>,
        claims: Mutex<Vec<(ClaimKey, EnqueueCause)>>,
        classes: Mutex<Vec<bool>>,
    }

    impl ClaimRoute for Told {
        fn driver(&self) -> &Arc<str> {
            &self.driver
        }
        fn changed(&self, key: &ClaimKey, _: &Claim, cause: EnqueueCause) {
            self.claims.lock().push((key.clone(), cause));
        }
        fn class_changed(&self, class: Option<&StorageClass>) {
            self.classes.lock().push(class.is_some());
        }
        fn gone(&self, key: &ClaimKey, _: &Claim) {
            self.claims.lock().push((key.clone(), EnqueueCause::Delete));
        }
        fn volume_changed(&self, _: &Arc<Volume>) {}
        fn topology_changed(&self, _: &[(ClaimKey, &Claim)]) {}
    }

    /// With these drivers, which stay for as long as their registrations.
    fn told(store: &Store, drivers: [&str; 2]) -> [(Arc<Told>, Registration); 2] {
        drivers.map(|driver| {
            let route = Arc::new(Told {
                driver: driver.into(),
                ..Told::default()
            });
            let registration = store.register(route.clone()).unwrap();
            (route, registration)
        })
    }

    /// There are hundreds of drivers, and almost no claim is of one of them: nothing is made for each.
    #[test]
    fn all_drivers_are_told_of_a_claim_with_one_key() {
        let store = Store::default();
        let [(one, registration), (other, _registered)] = told(&store, ["one", "other"]);
        store.take_copy(claim("a", None), Origin::Watch);
        store.take_deletion(&claim("a", None));
        let (heard, same) = (one.claims.lock().clone(), other.claims.lock().clone());
        let causes: Vec<_> = heard.iter().map(|(_, cause)| *cause).collect();
        assert_eq!((causes, &heard), (vec![EnqueueCause::Add, EnqueueCause::Delete], &same));
        let mut pairs = heard.iter().zip(&same);
        assert!(pairs.all(|((key, _), (of_other, _))| Arc::ptr_eq(&key.uid, &of_other.uid)));
        drop(registration);
        store.take_copy(claim("b", None), Origin::Watch);
        assert_eq!((one.claims.lock().len(), other.claims.lock().len()), (2, 3));
    }

    /// Each that is told goes through its whole queue.
    #[test]
    fn of_a_class_only_what_it_says_is_told() {
        let store = Store::default();
        let mut waiting = claim("a", None);
        waiting.class = "good".into();
        store.take_copy(waiting, Origin::Watch);
        let [(route, _one), (_, _other)] = told(&store, ["one", "other"]);
        let take = |uid: &str, version: u64, pool: &str| {
            let object = json!({
                "metadata": {
                    "name": "good", "uid": uid, "resourceVersion": version.to_string(),
                    "annotations": {"changed-at": version.to_string()},
                },
                "provisioner": "csi.test", "parameters": {"pool": pool},
            });
            let class: StorageClass = serde_json::from_value::<StorageClassWire>(object).unwrap().into();
            store.take_copy(class.clone(), Origin::Watch);
            let (claims, classes) = (&route.claims, &route.classes);
            ((claims.lock().drain(..).len(), classes.lock().drain(..).len()), class)
        };
        assert_eq!(take("u", 10, "a").0, (1, 1));
        assert_eq!(take("u", 11, "a").0, (0, 0), "another annotation");
        let known = store.0.index.read().classes.newest();
        assert_eq!(known.0, 11, "it is taken in");
        assert_eq!(take("u", 12, "b").0, (1, 1));
        let (told, class) = take("made again", 13, "b");
        assert_eq!(told, (1, 1));
        store.take_deletion(&class);
        assert_eq!((route.claims.lock().len(), &*route.classes.lock()), (1, &vec![false]));
    }

    /// Somebody edited `spec.claimRef` of a PersistentVolume.
    #[test]
    fn the_claims_that_are_bound_to_a_volume_are_found_whatever_it_names() {
        let volume = |claim: Value| -> Volume {
            let object = json!({
                "metadata": {"name": "pv", "uid": "pv-uid", "resourceVersion": "1"},
                "spec": {"claimRef": claim, "csi": {"driver": "csi.test", "volumeHandle": "h"}},
            });
            serde_json::from_value::<csi_attacher_model::objects::PersistentVolumeWire>(object)
                .unwrap()
                .into()
        };
        let names = |name: &str, uid: &str| json!({"namespace": "web", "name": name, "uid": uid});
        let store = Store::default();
        let found = |volume: &Volume| match store.bound_claims(volume) {
            Seen::Here(claims) => claims.iter().map(|claim| claim.name.to_string()).collect(),
            known => format!("{known:?}"),
        };
        let take_record = |mut record: Claim| {
            record.resource_version.0 += store.0.index.read().claims.newest().0;
            store.take_copy(record, Origin::Watch);
        };
        let take = |name: &str, volume: Option<&str>, phase: ClaimPhase| {
            let mut record = claim(name, None);
            (record.volume_name, record.phase) = (volume.map(Into::into), phase);
            take_record(record);
        };
        take("a", Some("pv"), ClaimPhase::Bound);
        take("b", Some("other"), ClaimPhase::Bound);
        take("c", Some("pv"), ClaimPhase::Pending);
        assert_eq!(found(&volume(names("gone", "gone"))), "a");
        assert_eq!(found(&volume(json!(null))), "a");
        let freed = [json!({"namespace": "web", "name": "a"}), names("a", "")];
        assert_eq!(
            freed.map(|freed| found(&volume(freed))),
            ["a", "a"],
            "who names no UID names no claim"
        );
        assert_eq!(
            found(&volume(names("gone", "c"))),
            "ac",
            "the UID is that of a claim that waits"
        );
        assert_eq!(found(&volume(names("a", "a"))), "Unknown", "the lists are not complete");
        take("a", Some("pv"), ClaimPhase::Lost);
        assert_eq!(found(&volume(names("gone", "gone"))), "a");
        take("a", Some("other"), ClaimPhase::Bound);
        assert_eq!(found(&volume(names("gone", "gone"))), "Unknown");
        take_record(Claim {
            volume_name: Some("pv".into()),
            bind_completed: true,
            ..claim("c", None)
        });
        let restored = found(&volume(names("gone", "gone")));
        assert_eq!(restored, "c", "its phase is not written yet");
        assert_eq!(store.0.index.read().bound.keys().count(), 3);
        let gone = store.0.index.write().claims.get("web/a").cloned().unwrap();
        store.take_deletion(&*gone);
        assert_eq!(store.0.index.read().bound.keys().count(), 2);
    }
}
