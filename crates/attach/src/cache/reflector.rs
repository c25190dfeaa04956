//! One watch for each kind, into the cache.

use futures::{Stream, StreamExt, stream};
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::index::{CacheChange, Index};
use super::store::Store;
use super::synced::{Listed, Slot, Synced};
use super::table::Origin;
use super::watch_backoff::{LISTS, WINDOW, breaks, patient};
use super::watch_error::{consequence, explain};
use crate::health::CheckHandle;
use crate::objects::{
    Attachment, CsiNode, CsiNodeWire, PersistentVolumeWire, ResourceVersion, Volume, VolumeAttachmentWire,
};

/// Objects asked for at a time while listing; bounds the memory of a start.
const PAGE_SIZE: u32 = 500;

/// A watch that is resumed says nothing until an object changes, which may take days. But one that fails again says so
/// within its longest backoff, of 30 s, and the time of a request.
pub const RECOVERED: Duration = Duration::from_mins(1);

/// How often the version that the API server is at is compared with what is known.
pub const COMPARED_EVERY: Duration = Duration::from_secs(20);

/// A kind that the cache holds.
pub trait WatchedKind: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static {
    /// Plural name, for logs.
    const PLURAL: &'static str;
    #[doc(hidden)]
    fn start(index: &mut Index);
    #[doc(hidden)]
    fn finish(index: &mut Index, seen: &HashSet<Arc<str>>) -> Vec<CacheChange>;
    #[doc(hidden)]
    fn apply(self, store: &Store, origin: Origin) -> Arc<str>;
    #[doc(hidden)]
    fn remove(index: &mut Index, name: &str, uid: &str) -> CacheChange;
    #[doc(hidden)]
    fn count_end(index: &mut Index, version: ResourceVersion);
    #[doc(hidden)]
    fn newest(index: &Index) -> ResourceVersion;
    #[doc(hidden)]
    const SLOT: Slot;
}

/// The events of a kind, from a list on, and from another list whenever the watch fails.
///
/// A watch that broke is not resumed from where it was: the API server may have been restored from a backup meanwhile, and
/// what is older than the watch is never told by it. Nothing that is cheaper than a list proves the contrary. It counts as
/// broken too when its stream ends before its time (`kubernetes::connect`); one that ends in time is resumed, and so is one
/// that the API server asks to begin later (429).
pub fn from_lists<K, S>(watch: impl FnMut() -> S) -> impl Stream<Item = watcher::Result<watcher::Event<K>>>
where
    S: Stream<Item = watcher::Result<watcher::Event<K>>>,
{
    let lists = Lists {
        watch,
        running: None,
        is_listed: false,
        begun: VecDeque::new(),
    };
    stream::unfold(lists, |mut lists| async move {
        let event = lists.next().await?;
        Some((event, lists))
    })
}

struct Lists<F, S> {
    watch: F,
    running: Option<Pin<Box<S>>>,
    /// Whether the list of what runs is complete.
    is_listed: bool,
    /// When watches broke lately.
    begun: VecDeque<Instant>,
}

impl<K, S, F> Lists<F, S>
where
    S: Stream<Item = watcher::Result<watcher::Event<K>>>,
    F: FnMut() -> S,
{
    async fn next(&mut self) -> Option<watcher::Result<watcher::Event<K>>> {
        if self.running.is_none() && std::mem::take(&mut self.is_listed) {
            self.turn().await;
        }
        let running = self.running.get_or_insert_with(|| Box::pin((self.watch)()));
        let event = running.next().await?;
        match &event {
            Ok(watcher::Event::InitDone) => self.is_listed = true,
            Err(error) if breaks(error) => self.running = None,
            Err(_) | Ok(_) => {}
        }
        Some(event)
    }

    /// Waits for the turn of a list: whoever cuts every watch off does not cause lists without end.
    async fn turn(&mut self) {
        if self.begun.len() >= LISTS
            && let Some(first) = self.begun.pop_front()
        {
            sleep_until(first + WINDOW).await;
        }
        self.begun.push_back(Instant::now());
    }
}

/// Keeps the cache in step with the API server until the future is dropped.
///
/// A watch that ends is resumed, one that breaks or expires is listed anew; errors are retried with backoff and shown on
/// `check`.
pub async fn reflect<K: WatchedKind>(client: Client, store: Store, check: CheckHandle) {
    let api = Api::<K>::all(client);
    let watch = || watcher(api.clone(), watcher::Config::default().page_size(PAGE_SIZE));
    let events = || patient(from_lists(watch));
    tokio::select! {
        () = follow_from_list(events, store.clone(), check) => {}
        never = compare_versions(&api, &store) => match never {},
    }
}

/// Asks now and then for the version that the API server is at. It has never been behind what it told, unless it went back:
/// then a watch that did not break would tell nothing until the versions come to where they were.
async fn compare_versions<K: WatchedKind>(api: &Api<K>, store: &Store) -> Infallible {
    loop {
        sleep(COMPARED_EVERY.mul_f64(1.0 + fastrand::f64() / 4.0)).await;
        let known = store.newest::<K>();
        let one = ListParams::default().limit(1);
        if let Ok(list) = api.list(&one).await {
            store.compare::<K>(known, list.metadata.resource_version.as_deref());
        }
    }
}

/// Follows what `watch` starts, and starts it again a moment after a fresh list is asked for ([`Store::relist`]). A list that
/// is coming in is let end before: many drivers that are taken over at the same time would start it again and again. Only the list
/// of the start, for which nobody asked, is cut off: whoever takes a Lease meanwhile would wait for two lists.
pub async fn follow_from_list<K: WatchedKind, S: Stream<Item = watcher::Result<watcher::Event<K>>>>(
    mut watch: impl FnMut() -> S,
    store: Store,
    check: CheckHandle,
) {
    let mut rounds = store.inner.relist_rounds.subscribe();
    loop {
        let round = *rounds.borrow_and_update();
        let listing = watch::Sender::new(false);
        let mut listed = listing.subscribe();
        let wanted_anew = async {
            // The senders live in the store, and here.
            let _more = rounds.changed().await;
            store.round_is_due(&mut rounds).await;
            if round > 0 {
                let _done = listed.wait_for(|listing| !listing).await;
            }
        };
        tokio::select! {
            biased;
            () = wanted_anew => {}
            () = follow(watch(), store.clone(), check.clone(), round, &listing) => return,
        }
    }
}

pub async fn follow<K: WatchedKind>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    store: Store,
    check: CheckHandle,
    round: u64,
    coming_in: &watch::Sender<bool>,
) {
    let mut events = pin!(events);
    let mut seen = HashSet::new();
    let mut broken = false;
    let mut listing = false;
    let mut answered = false;
    loop {
        store.work_off_backlog().await;
        let patience = if broken { RECOVERED } else { Duration::MAX };
        let event = match timeout(patience, events.next()).await {
            Ok(None) => return,
            Ok(Some(Err(error))) => {
                coming_in.send_replace(false);
                store.watches::<K>(false);
                if breaks(&error) {
                    store.inner.synced.write().broke(K::SLOT);
                }
                let error = explain::<K>(&error, consequence(store.is_listed::<K>()));
                if !std::mem::replace(&mut broken, true) {
                    warn!(resource = K::PLURAL, error, "cannot watch; retrying with backoff");
                }
                let failure = format!("cannot watch {}: {error}", K::PLURAL);
                check.set_failing(failure.clone());
                store.inner.watch_failures.lock().insert(K::PLURAL, failure);
                continue;
            }
            Ok(Some(Ok(event))) => Some(event),
            // No word is a good sign only from a watch that is resumed, not from a list that does not come.
            Err(_) if listing || !store.is_listed::<K>() => continue,
            Err(_) => None,
        };
        match event {
            Some(watcher::Event::Init) => listing = true,
            Some(watcher::Event::InitDone) => listing = false,
            _ => {}
        }
        let is_of_a_list = matches!(event, Some(watcher::Event::InitApply(_) | watcher::Event::InitDone));
        if is_of_a_list && !std::mem::replace(&mut answered, true) {
            store.inner.synced.write().answered(K::SLOT);
            store.inner.listed.notify_waiters();
        }
        // That a list begins is told before it is asked for: nothing is mended before it is complete.
        if !listing && std::mem::take(&mut broken) {
            info!(resource = K::PLURAL, "watching again");
            store.watches::<K>(true);
            store.inner.watch_failures.lock().remove(K::PLURAL);
            check.set_ready(store.is_listed::<K>());
        }
        if let Some(event) = event {
            take_in(event, &store, &mut seen, &check, round);
        }
        coming_in.send_replace(listing && !broken);
    }
}

pub fn take_in<K: WatchedKind>(
    event: watcher::Event<K>,
    store: &Store,
    seen: &mut HashSet<Arc<str>>,
    check: &CheckHandle,
    round: u64,
) {
    match event {
        watcher::Event::Init => {
            seen.clear();
            store.inner.synced.write().begin(K::SLOT, round);
            K::start(&mut store.inner.index.write());
        }
        watcher::Event::InitApply(object) => {
            seen.insert(object.apply(store, Origin::List));
        }
        watcher::Event::InitDone => {
            let changes = K::finish(&mut store.inner.index.write(), seen);
            for change in changes {
                store.dispatch_change(&change);
            }
            *seen = HashSet::new();
            store.inner.synced.write().finish(K::SLOT, round);
            store.watches::<K>(true);
            store.inner.listed.notify_waiters();
            check.set_ready(true);
        }
        watcher::Event::Apply(object) => {
            object.apply(store, Origin::News);
        }
        watcher::Event::Delete(object) => {
            let meta = object.meta();
            let (name, uid) = (
                meta.name.as_deref().unwrap_or_default(),
                meta.uid.as_deref().unwrap_or_default(),
            );
            let change = {
                let mut index = store.inner.index.write();
                K::count_end(&mut index, ResourceVersion::of(meta));
                K::remove(&mut index, name, uid)
            };
            store.dispatch_change(&change);
        }
    }
}

impl Store {
    /// The greatest version of a kind that was seen since its last list began.
    pub(crate) fn newest<K: WatchedKind>(&self) -> ResourceVersion {
        K::newest(&self.inner.index.read())
    }

    /// Takes in the version that a list had which was asked for when `known` was the greatest one.
    pub(crate) fn compare<K: WatchedKind>(&self, known: ResourceVersion, version: Option<&str>) {
        let version = version.and_then(|version| version.parse().ok()).map(ResourceVersion);
        // When a list has begun since, the doubt is answered already.
        if version.is_some_and(|version| version < known) && self.newest::<K>() >= known {
            self.doubt("the API server is at an older version than it had reported before");
        }
    }

    /// Takes in whether the watch of a kind is at work.
    pub(crate) fn watches<K: WatchedKind>(&self, at_work: bool) {
        self.inner.synced.write().watches(K::SLOT, at_work);
    }

    fn is_listed<K: WatchedKind>(&self) -> bool {
        let mut synced = *self.inner.synced.read();
        (K::SLOT)(&mut synced).round.is_some()
    }
}

/// Says of a kind where it goes: its table, and what of the index and the store takes it in.
macro_rules! reflected {
    ($wire:ty as $record:ty, $table:ident, $plural:literal: $take:ident, $remove:ident, $finish:ident) => {
        impl WatchedKind for $wire {
            const PLURAL: &'static str = $plural;
            const SLOT: fn(&mut Synced) -> &mut Listed = |synced| &mut synced.$table;
            fn start(index: &mut Index) {
                index.$table.start_list();
            }
            fn finish(index: &mut Index, seen: &HashSet<Arc<str>>) -> Vec<CacheChange> {
                index.$finish(seen)
            }
            fn apply(self, store: &Store, origin: Origin) -> Arc<str> {
                let record = <$record>::from(self);
                let name = record.name.clone();
                store.$take(record, origin);
                name
            }
            fn remove(index: &mut Index, name: &str, uid: &str) -> CacheChange {
                index.$remove(name, uid)
            }
            fn count_end(index: &mut Index, version: ResourceVersion) {
                index.$table.count_end(version);
            }
            fn newest(index: &Index) -> ResourceVersion {
                index.$table.newest()
            }
        }
    };
}
reflected!(VolumeAttachmentWire as Attachment, attachments, "volumeattachments":
    take_attachment, remove_attachment, finish_attachment_list);
reflected!(PersistentVolumeWire as Volume, volumes, "persistentvolumes":
    take_volume, remove_volume, finish_volume_list);
reflected!(CsiNodeWire as CsiNode, nodes, "csinodes":
    take_node, remove_node, finish_node_list);
