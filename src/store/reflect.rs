//! One watch for each kind, into the cache.

use futures::{Stream, StreamExt};
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use super::index::{Change, Index};
use super::table::Origin;
use super::{Store, Synced};
use crate::admin::CheckHandle;
use crate::objects::{Attachment, CsiNode, CsiNodeWire, PersistentVolumeWire, Volume, VolumeAttachmentWire};

/// Objects asked for at a time while listing; bounds the memory of a start.
const PAGE_SIZE: u32 = 500;

/// A watch that is resumed says nothing until an object changes, which may take days. But one that fails again says so
/// within its longest backoff, of 30 s, and the time of a request.
pub(crate) const RECOVERED: Duration = Duration::from_mins(1);

/// A kind that the cache holds.
pub(crate) trait Reflected:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static
{
    /// Plural name, for logs.
    const PLURAL: &'static str;
    #[doc(hidden)]
    fn start(index: &mut Index);
    #[doc(hidden)]
    fn finish(index: &mut Index, seen: &HashSet<Arc<str>>) -> Vec<Change>;
    #[doc(hidden)]
    fn apply(self, store: &Store, origin: Origin) -> Arc<str>;
    #[doc(hidden)]
    fn remove(index: &mut Index, name: &str, uid: &str) -> Change;
    #[doc(hidden)]
    fn slot(synced: &mut Synced) -> &mut Option<u64>;
}

/// The events of a watch, with growing pauses after errors. The watcher announces each new list before it is asked for;
/// that alone is no success and must not make the pauses short again, or an API server that refuses would be asked every
/// second.
pub(crate) fn patient<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send {
    let announced = Arc::new(AtomicBool::new(false));
    let pauses = Pauses {
        usual: watcher::DefaultBackoff::default(),
        announced: announced.clone(),
    };
    events
        .inspect(move |event| announced.store(matches!(event, Ok(watcher::Event::Init)), Ordering::Relaxed))
        .backoff(pauses)
}

/// The usual pauses, which the announcement of a list leaves as they are.
struct Pauses {
    usual: watcher::DefaultBackoff,
    /// Whether the last event was only that.
    announced: Arc<AtomicBool>,
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.usual.next()
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        if !self.announced.load(Ordering::Relaxed) {
            self.usual.reset();
        }
    }
}

/// Keeps the cache in step with the API server until the future is dropped.
///
/// A watch that ends is resumed, one that expired is listed anew; errors are retried with backoff and shown on `check`.
pub(crate) async fn reflect<K: Reflected>(client: Client, store: Store, check: CheckHandle) {
    let api = Api::<K>::all(client);
    let events = || patient(watcher(api.clone(), watcher::Config::default().page_size(PAGE_SIZE)));
    follow_from_list(events, store, check).await;
}

/// Follows what `watch` starts, and starts it again whenever a fresh list is asked for ([`Store::listed_anew`]). A list that
/// is coming in is let end before: many drivers that are taken over at the same time would start it again and again.
pub(crate) async fn follow_from_list<K: Reflected, S: Stream<Item = watcher::Result<watcher::Event<K>>>>(
    mut watch: impl FnMut() -> S,
    store: Store,
    check: CheckHandle,
) {
    let mut rounds = store.inner.rounds.subscribe();
    loop {
        let round = *rounds.borrow_and_update();
        let listing = watch::Sender::new(false);
        let mut listed = listing.subscribe();
        let wanted_anew = async {
            // The senders live in the store, and here.
            let _more = rounds.changed().await;
            let _done = listed.wait_for(|listing| !listing).await;
        };
        tokio::select! {
            biased;
            () = wanted_anew => {}
            () = follow(watch(), store.clone(), check.clone(), round, &listing) => return,
        }
    }
}

pub(super) async fn follow<K: Reflected>(
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
    loop {
        let patience = if broken { RECOVERED } else { Duration::MAX };
        let event = match timeout(patience, events.next()).await {
            Ok(None) => return,
            Ok(Some(Err(error))) => {
                coming_in.send_replace(false);
                if !std::mem::replace(&mut broken, true) {
                    warn!(resource = K::PLURAL, %error, "cannot watch; trying again with backoff");
                }
                check.set_failing(format!("cannot watch {}: {error}", K::PLURAL));
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
        // That a list begins is told before it is asked for: nothing is mended before it is complete.
        if !listing && std::mem::take(&mut broken) {
            info!(resource = K::PLURAL, "watching again");
            check.set_ready(store.is_listed::<K>());
        }
        if let Some(event) = event {
            take_in(event, &store, &mut seen, &check, round);
        }
        coming_in.send_replace(listing && !broken);
    }
}

pub(super) fn take_in<K: Reflected>(
    event: watcher::Event<K>,
    store: &Store,
    seen: &mut HashSet<Arc<str>>,
    check: &CheckHandle,
    round: u64,
) {
    match event {
        watcher::Event::Init => {
            seen.clear();
            K::start(&mut store.inner.index.write());
        }
        watcher::Event::InitApply(object) => {
            seen.insert(object.apply(store, Origin::List));
        }
        watcher::Event::InitDone => {
            let changes = K::finish(&mut store.inner.index.write(), seen);
            for change in changes {
                store.react(change);
            }
            *seen = HashSet::new();
            store.inner.synced.send_modify(|synced| *K::slot(synced) = Some(round));
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
            let change = K::remove(&mut store.inner.index.write(), name, uid);
            store.react(change);
        }
    }
}

impl Store {
    fn is_listed<K: Reflected>(&self) -> bool {
        let mut synced = *self.inner.synced.borrow();
        K::slot(&mut synced).is_some()
    }
}

/// Says of a kind where it goes: its table, and what of the index and the store takes it in.
macro_rules! reflected {
    ($wire:ty as $record:ty, $table:ident, $plural:literal: $take:ident, $remove:ident, $finish:ident) => {
        impl Reflected for $wire {
            const PLURAL: &'static str = $plural;
            fn start(index: &mut Index) {
                index.$table.start_list();
            }
            fn finish(index: &mut Index, seen: &HashSet<Arc<str>>) -> Vec<Change> {
                index.$finish(seen)
            }
            fn apply(self, store: &Store, origin: Origin) -> Arc<str> {
                let record = <$record>::from(self);
                let name = record.name.clone();
                store.$take(record, origin);
                name
            }
            fn remove(index: &mut Index, name: &str, uid: &str) -> Change {
                index.$remove(name, uid)
            }
            fn slot(synced: &mut Synced) -> &mut Option<u64> {
                &mut synced.$table
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
