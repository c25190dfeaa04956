//! Which lists begin when somebody asks for fresh ones, and who waits for which.

use futures::FutureExt as _;
use futures::stream::{self, StreamExt as _};
use kube::runtime::watcher::Event;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::backwards::list_in;
use super::follow::{broken, following_all, listed, told};
use super::{DRIVER, attachment_wire, facts, volume_wire};
use crate::cache::{Index, Store};
use crate::objects::{CsiNodeWire, PersistentVolumeWire, VolumeAttachmentWire};
use crate::reflect::{CachedKind, WatchedKind, follow_from_list};
use csi_attacher_base::health::Health;

/// What was listed before somebody asked does not count, whatever is told of it later.
#[tokio::test(start_paused = true)]
async fn everything_is_listed_anew_for_who_takes_over() {
    fn lists<K: WatchedKind>(store: &Store, health: &Health) -> (tokio::task::JoinHandle<()>, Arc<AtomicUsize>)
    where
        K::Record: CachedKind<Index>,
    {
        let count = Arc::new(AtomicUsize::new(0));
        let (counter, store, check) = (count.clone(), store.clone(), health.check(K::PLURAL));
        let watch = move || {
            counter.fetch_add(1, Ordering::Relaxed);
            stream::iter([Ok(Event::<K>::Init), Ok(Event::InitDone)]).chain(stream::pending())
        };
        (tokio::spawn(follow_from_list(watch, store, check)), count)
    }
    let (store, health) = (Store::default(), Health::new());
    let tasks = [
        lists::<VolumeAttachmentWire>(&store, &health),
        lists::<PersistentVolumeWire>(&store, &health),
        lists::<CsiNodeWire>(&store, &health),
    ];
    store.lists().wait_synced().await;
    for round in 1..=3 {
        for (_, count) in &tasks {
            assert_eq!(count.load(Ordering::Relaxed), round);
        }
        store.lists().relist().await;
    }
    for (task, _) in tasks {
        task.abort();
    }
}

/// Follows VolumeAttachments, of which each list takes a second, and the other kinds, whose lists take no time; tells how many
/// lists of VolumeAttachments began.
fn slowly_listed(store: &Store) -> (AbortOnDropHandle<()>, Arc<AtomicUsize>) {
    let lists = Arc::new(AtomicUsize::new(0));
    let begun = lists.clone();
    let slow = move || {
        begun.fetch_add(1, Ordering::Relaxed);
        let done = stream::once(async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(Event::<VolumeAttachmentWire>::InitDone)
        });
        let first = attachment_wire("a", "a-uid", 1);
        stream::iter([Ok(Event::Init), Ok(Event::InitApply(first))])
            .chain(done)
            .chain(stream::pending())
    };
    (following_all(store, slow), lists)
}

/// Asks for fresh lists after so many milliseconds each; tells when each was had, and how many lists began.
async fn asked_after(milliseconds: &[u64], store: &Store, lists: &AtomicUsize) -> (Vec<u64>, usize) {
    let begun = Instant::now();
    let had = milliseconds.iter().map(|pause| async move {
        tokio::time::sleep(Duration::from_millis(*pause)).await;
        store.lists().relist().await;
        u64::try_from(begun.elapsed().as_millis()).unwrap()
    });
    let had = futures::future::join_all(had).await;
    (had, lists.load(Ordering::Relaxed))
}

/// Whoever asks while a list comes in waits for a list that begins afterwards. Nobody asked for the list of the start; once somebody
/// asks, it is cut off, once.
#[tokio::test(start_paused = true)]
async fn many_that_take_over_at_once_share_a_list() {
    for (is_synced, milliseconds, expected, lists_begun) in [
        (true, &[0][..], &[1_100][..], 2),
        (true, &[0, 50, 99], &[1_100, 1_100, 1_100], 2),
        (true, &[0, 50, 200, 800], &[1_100, 1_100, 2_100, 2_100], 3),
        (false, &[0], &[1_100], 2),
        (false, &[300], &[1_400], 2),
        (false, &[300, 350], &[1_400, 1_400], 2),
        (false, &[300, 500, 600], &[1_400, 2_400, 2_400], 3),
    ] {
        let store = Store::default();
        let (_follow, lists) = slowly_listed(&store);
        if is_synced {
            store.lists().wait_synced().await;
        } else {
            store.lists().wait_answered().await;
        }
        assert_eq!(store.lists().is_synced(), is_synced);
        assert_eq!(lists.load(Ordering::Relaxed), 1);
        let seen = asked_after(milliseconds, &store, &lists).await;
        let wanted = (expected.to_vec(), lists_begun);
        assert_eq!(seen, wanted, "{milliseconds:?}, synced: {is_synced}");
    }
}

/// What may not be listed is not answered.
#[tokio::test(start_paused = true)]
async fn lists_are_answered_when_the_first_parts_of_all_three_kinds_came_in() {
    let (store, health) = (Store::default(), Health::new());
    let is_answered = || store.lists().wait_answered().now_or_never().is_some();
    told(&store, &health, listed(&["a"], 1)).await;
    told::<CsiNodeWire>(&store, &health, vec![Ok(Event::Init), Ok(Event::InitDone)]).await;
    told::<PersistentVolumeWire>(&store, &health, vec![Ok(Event::Init), broken()]).await;
    assert!(!is_answered());
    let first = json!({"name": "pv1", "uid": "u", "resourceVersion": "1"});
    let part = vec![Ok(Event::Init), Ok(Event::InitApply(volume_wire(&first)))];
    told(&store, &health, part).await;
    assert!(is_answered() && !store.lists().is_synced());
}

/// A kind of which nothing is read for a driver holds nothing up: neither its first list, nor the one after an API server went back.
#[test]
fn a_driver_without_calls_goes_by_lists_of_all_kinds_but_csi_nodes() {
    for (publishes, is_enough) in [(true, false), (false, true)] {
        let store = Store::default();
        let mut facts = facts(DRIVER);
        facts.capabilities.publish_unpublish = publishes;
        let lists = store.lists_for(&facts);
        list_in::<VolumeAttachmentWire>(0, &store, Vec::new());
        assert!(!lists.is_synced(), "PersistentVolumes are needed: {publishes}");
        list_in::<PersistentVolumeWire>(0, &store, Vec::new());
        assert_eq!(lists.is_synced(), is_enough, "publishes: {publishes}");
        assert_eq!(lists.wait_synced().now_or_never().is_some(), is_enough);

        lists.distrust();
        assert!(!lists.is_of_one_state());
        let round = lists.round();
        list_in::<VolumeAttachmentWire>(round, &store, Vec::new());
        list_in::<PersistentVolumeWire>(round, &store, Vec::new());
        assert_eq!(lists.is_of_one_state(), is_enough, "publishes: {publishes}");
        assert!(!store.lists().is_synced() && !store.lists().is_of_one_state());
    }
}
