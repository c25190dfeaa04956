//! From the events of a watch to the cache and to readiness.

use futures::stream::{self, Stream, StreamExt as _};
use kube::Resource as _;
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{FINALIZER, attachment_wire, served, volume_wire, woken};
use crate::cache::{Index, Store};
use crate::objects::{CsiNodeWire, PersistentVolumeWire, ResourceVersion, VolumeAttachmentWire};
use crate::reflect::with_backoff;
use crate::reflect::{CachedKind, RECOVERED, WatchedKind, compare, follow, follow_from_list, from_lists};
use csi_attacher_base::health::Health;

pub(super) type Events<K> = Vec<watcher::Result<Event<K>>>;

/// Follows a watch until it has told all this.
pub(super) async fn told<K: WatchedKind>(store: &Store, health: &Health, events: Events<K>)
where
    K::Record: CachedKind<Index>,
{
    let listing = watch::Sender::new(false);
    let check = health.check("watch");
    follow(stream::iter(events), store.clone(), check, 0, &listing).await;
}

/// Follows such a watch until it is dropped.
fn following(
    store: &Store,
    health: &Health,
    events: impl Stream<Item = watcher::Result<Event<VolumeAttachmentWire>>> + Send + 'static,
) -> AbortOnDropHandle<()> {
    let (store, check) = (store.clone(), health.check("watch"));
    let follows = async move { follow(events, store, check, 0, &watch::Sender::new(false)).await };
    AbortOnDropHandle::new(tokio::spawn(follows))
}

/// Follows such lists and watches of VolumeAttachments, and those of the other kinds, which list nothing and tell no news.
pub(super) fn following_all<S>(store: &Store, attachments: impl FnMut() -> S + Send + 'static) -> AbortOnDropHandle<()>
where
    S: Stream<Item = watcher::Result<Event<VolumeAttachmentWire>>> + Send + 'static,
{
    fn quick<K: Send + 'static>() -> impl Stream<Item = watcher::Result<Event<K>>> {
        stream::iter([Ok(Event::Init), Ok(Event::InitDone)]).chain(stream::pending())
    }
    let (health, store) = (Health::new(), store.clone());
    let check = |name: &str| health.check(name);
    let follow = futures::future::join3(
        follow_from_list::<VolumeAttachmentWire, _, _>(attachments, store.clone(), check("a")),
        follow_from_list::<PersistentVolumeWire, _, _>(quick, store.clone(), check("v")),
        follow_from_list::<CsiNodeWire, _, _>(quick, store.clone(), check("n")),
    );
    AbortOnDropHandle::new(tokio::spawn(async move {
        follow.await;
    }))
}

pub(super) fn broken<K>() -> watcher::Result<Event<K>> {
    Err(watcher::Error::NoResourceVersion)
}

pub(super) fn listed(names: &[&str], version: u64) -> Events<VolumeAttachmentWire> {
    let objects = names
        .iter()
        .map(|name| Ok(Event::InitApply(attachment_wire(name, &format!("{name}-uid"), version))));
    std::iter::once(Ok(Event::Init))
        .chain(objects)
        .chain([Ok(Event::InitDone)])
        .collect()
}

fn known(store: &Store) -> Vec<String> {
    let index = store.inner.index.read();
    let names = index.attachments.values().map(|record| record.name.to_string());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// The list that follows a broken watch shows that the kind can be watched again, also where it is the list of a round, which cuts the
/// broken watch off.
#[tokio::test(start_paused = true)]
async fn a_complete_list_ends_the_failure_of_the_watch_before_it() {
    let ((store, _queue, _registration), health) = (served(), Health::new());
    let watch_broke = listed(&["a"], 1).into_iter().chain([broken()]).collect();
    told::<VolumeAttachmentWire>(&store, &health, watch_broke).await;
    assert!(store.lists().failure().is_some());
    // A watch of its own, which knows of no failure.
    told(&store, &health, listed(&["a"], 2)).await;
    assert_eq!(store.lists().failure(), None);
    assert!(health.is_ready());
    let mended = std::iter::once(broken()).chain(listed(&["a"], 3));
    told::<VolumeAttachmentWire>(&store, &health, mended.collect()).await;
    assert!(health.is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_list_brings_what_is_there_and_takes_what_is_not() {
    let ((store, queue, _registration), health) = (served(), Health::new());
    told(&store, &health, listed(&["a", "b"], 1)).await;
    assert_eq!(known(&store), ["a", "b"]);
    assert_eq!(woken(&queue), ["a", "b"]);
    let deleted = json!({"name": "pv1", "uid": "u", "resourceVersion": "1", "finalizers": [FINALIZER],
                         "deletionTimestamp": "2026-01-01T00:00:00Z"});
    told(&store, &health, vec![Ok(Event::Apply(volume_wire(&deleted)))]).await;
    woken(&queue);
    // b ended while nobody watched.
    told(&store, &health, listed(&["a", "c"], 2)).await;
    assert_eq!(known(&store), ["a", "c"]);
    // The end of b is followed up on.
    assert_eq!(woken(&queue), ["a", "c", "volume pv1"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_takes_nothing() {
    let ((store, _queue, _registration), health) = (served(), Health::new());
    told(&store, &health, listed(&["a", "b"], 1)).await;
    let mut events = listed(&["b"], 2);
    events.pop();
    events.push(broken());
    told(&store, &health, events).await;
    assert_eq!(known(&store), ["a", "b"]);
    told(&store, &health, listed(&["c"], 3)).await;
    assert_eq!(known(&store), ["c"], "what the broken list showed does not count");
}

#[tokio::test(start_paused = true)]
async fn the_cache_is_whole_when_all_three_kinds_were_listed() {
    let (store, health) = (Store::default(), Health::new());
    assert!(!store.lists().is_synced());
    told::<PersistentVolumeWire>(&store, &health, vec![Ok(Event::Init), Ok(Event::InitDone)]).await;
    told::<CsiNodeWire>(&store, &health, vec![Ok(Event::Init), Ok(Event::InitDone)]).await;
    told::<VolumeAttachmentWire>(&store, &health, vec![Ok(Event::Init)]).await;
    assert!(!store.lists().is_synced());
    let waiting = store.lists().wait_synced();
    told::<VolumeAttachmentWire>(&store, &health, vec![Ok(Event::InitDone)]).await;
    waiting.await;
    assert!(store.lists().is_synced());
}

#[tokio::test(start_paused = true)]
async fn an_error_makes_the_check_fail_until_the_next_event() {
    let ((store, _queue, _registration), health) = (served(), Health::new());
    told::<VolumeAttachmentWire>(&store, &health, vec![broken()]).await;
    let reason = health.readiness()[0].failure.clone().unwrap();
    assert!(reason.starts_with("cannot watch volumeattachments: "), "{reason}");
    let mut events = listed(&["a"], 1);
    told(&store, &health, events.drain(..2).collect()).await;
    assert!(!health.is_ready(), "not before the first list is complete");
    told(&store, &health, events).await;
    assert!(health.is_ready());
    let resumed = Ok(Event::Apply(attachment_wire("b", "b", 2)));
    told(&store, &health, vec![broken(), broken(), resumed]).await;
    assert!(health.is_ready());
}

/// A watch that is resumed tells nothing about it, and in a quiet cluster no event follows for hours. One that cannot be resumed is listed
/// anew, and each try begins with the same event whether it is answered or not.
#[tokio::test(start_paused = true)]
async fn silence_after_an_error_is_a_good_sign_of_a_watch_and_none_of_a_list() {
    let only_begun = vec![broken(), Ok(Event::Init), broken(), Ok(Event::Init)];
    for (what, is_listed, events, is_mended) in [
        ("a watch", true, vec![broken()], true),
        ("a list that only begins", true, only_begun, false),
        ("a first list that does not come", false, vec![broken()], false),
    ] {
        let ((store, _queue, _registration), health) = (served(), Health::new());
        let before = if is_listed { listed(&["a"], 1) } else { Vec::new() };
        let events = stream::iter(before.into_iter().chain(events));
        let _following = following(&store, &health, events.chain(stream::pending()));
        tokio::time::sleep(RECOVERED / 2).await;
        assert!(!health.is_ready(), "{what}");
        tokio::time::sleep(RECOVERED).await;
        assert_eq!(health.is_ready(), is_mended, "{what}");
        tokio::time::sleep(RECOVERED * 9).await;
        assert_eq!(health.is_ready(), is_mended, "{what}");
        let reason = health.readiness()[0].failure.clone().unwrap_or_default();
        let is_told = reason.starts_with("cannot watch volumeattachments: ");
        assert_eq!(is_told, !is_mended, "{what}: {reason}");
    }
}

/// Nothing else tells of a watch that is resumed. It is asked for after a pause, and may have to wait for as long as the API server said.
#[tokio::test(start_paused = true)]
async fn a_watch_that_was_refused_has_recovered_when_the_next_one_is_accepted() {
    for seconds in [1, 300] {
        let ((store, _queue, _registration), health) = (served(), Health::new());
        let (answers, path) = (store.lists().answers(), VolumeAttachmentWire::url_path(&(), None));
        answers.asked(&path);
        let accepted = async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            answers.accepted(&path);
        };
        let resumed = stream::once(accepted).flat_map(|()| stream::pending());
        let mut events = listed(&["a"], 1);
        events.push(Err(refused(429)));
        let _following = following(&store, &health, stream::iter(events).chain(resumed));
        tokio::time::sleep(Duration::from_millis(seconds * 1_000 - 100)).await;
        assert!(!health.is_ready(), "it waits for {seconds} s");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(health.is_ready(), "it is accepted after {seconds} s");
        assert_eq!(store.lists().failure(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_is_asked_less_and_less_often() {
    // As the watcher does it: each list is announced, then refused.
    let refused = stream::iter((0..12).flat_map(|_| [Ok(Event::<VolumeAttachmentWire>::Init), broken()]));
    let began = tokio::time::Instant::now();
    assert_eq!(with_backoff(refused).count().await, 24);
    // 0.8 s doubled to 30 s; without growth it would be some 10 s.
    assert!(began.elapsed() > Duration::from_secs(100), "{:?}", began.elapsed());
}

/// An API server ends the watches of those to whom it cannot send fast enough: no attach may wait for a pause then.
#[tokio::test(start_paused = true)]
async fn a_watch_that_worked_begins_again_at_once() {
    let paused = async |events: Events<VolumeAttachmentWire>| {
        let began = tokio::time::Instant::now();
        with_backoff(stream::iter(events)).count().await;
        began.elapsed()
    };
    let once: Events<_> = listed(&[], 1).into_iter().chain([broken()]).collect();
    assert!(paused(once).await <= Duration::from_millis(50));
    // A list that is refused afterwards, and a watch that is refused because there is too much to do, wait.
    let announced = || Ok(Event::<VolumeAttachmentWire>::Init);
    let refused_list = listed(&[], 1).into_iter().chain([broken(), announced(), broken()]);
    assert!(paused(refused_list.collect()).await >= Duration::from_millis(800));
    let too_much = listed(&[], 1).into_iter().chain([Err(refused(429))]);
    assert!(paused(too_much.collect()).await >= Duration::from_millis(800));
    // Four times within 20 seconds, then after the usual pause.
    let events = || (0..5).flat_map(|_| listed(&[], 1).into_iter().chain([broken()]));
    let five = paused(events().collect()).await;
    assert!((800..2_000).contains(&five.as_millis()), "{five:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_comes_makes_the_pauses_short_again() {
    let mut events: Events<VolumeAttachmentWire> = Vec::new();
    for _ in 0..12 {
        events.push(broken());
        events.extend(listed(&[], 1));
    }
    let began = tokio::time::Instant::now();
    with_backoff(stream::iter(events)).count().await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

/// Watches that break at once, by this error, and how many of them were begun within two minutes.
async fn begun(error: fn() -> watcher::Error) -> (usize, usize) {
    let (lists, starts) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let watch = || {
        lists.fetch_add(1, Ordering::Relaxed);
        let starts = starts.clone();
        let fails = stream::repeat_with(move || {
            starts.fetch_add(1, Ordering::Relaxed);
            Err(error())
        });
        stream::iter([Ok(Event::<VolumeAttachmentWire>::Init), Ok(Event::InitDone)]).chain(fails)
    };
    let follows = with_backoff(from_lists(watch)).for_each(|_| std::future::ready(()));
    drop(tokio::time::timeout(Duration::from_mins(2), follows).await);
    (lists.load(Ordering::Relaxed), starts.load(Ordering::Relaxed))
}

fn refused(code: u16) -> watcher::Error {
    let status = kube::core::Status::failure("refused", "Refused").with_code(code);
    watcher::Error::WatchStartFailed(kube::Error::Api(status.boxed()))
}

/// What happened meanwhile may be that the API server was restored from a backup.
#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_begins_with_a_list_again_and_not_too_often() {
    for error in [|| watcher::Error::NoResourceVersion, || refused(410), || refused(503)] {
        let (lists, starts) = begun(error).await;
        assert_eq!(lists, starts, "each with a list");
        // Four at once, and four within 20 seconds.
        assert!((20..=29).contains(&lists), "{lists}");
    }
    let (lists, starts) = begun(|| refused(429)).await;
    assert_eq!(lists, 1, "an API server that has too much to do is not asked for more");
    assert!(starts > 3, "{starts}");
}

/// A version below what was told before is a reason to list everything again, for whatever reason it is told.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_behind_what_it_told_is_listed_again() {
    let (store, health) = (Store::default(), Health::new());
    let count = Arc::new(AtomicUsize::new(0));
    let (counter, check) = (count.clone(), health.check("watch"));
    let watch = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        stream::iter(listed(&["a"], 7)).chain(stream::pending())
    };
    let task = tokio::spawn(follow_from_list(watch, store.clone(), check));
    let lists = async |expected: usize| {
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(count.load(Ordering::Relaxed), expected);
    };
    lists(1).await;
    let known = ResourceVersion(7);
    for version in [None, Some("x"), Some("7"), Some("8")] {
        compare::<VolumeAttachmentWire, _>(&store, known, version);
        lists(1).await;
    }
    // No object has the version 8: the API server said that it is there.
    let known = store.inner.index.read().attachments.newest();
    compare::<VolumeAttachmentWire, _>(&store, known, Some("7"));
    lists(2).await;
    let known = ResourceVersion(7);
    compare::<VolumeAttachmentWire, _>(&store, known, Some("6"));
    lists(2).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    compare::<VolumeAttachmentWire, _>(&store, known, Some("6"));
    lists(3).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    // A list that began since has answered it.
    compare::<VolumeAttachmentWire, _>(&store, ResourceVersion(9), Some("8"));
    lists(3).await;
    task.abort();
}

/// What is known of a kind is of any age while its watch waits for an answer, though its list is complete.
#[test]
fn a_kind_whose_watch_waits_for_an_answer_is_not_watched() {
    let store = Store::default();
    let answers = store.lists().answers();
    let lists = store.lists();
    let volumes = || lists.is_watched::<PersistentVolumeWire>();
    let watched = || (volumes(), lists.is_watched::<CsiNodeWire>());
    assert_eq!(watched(), (true, true));
    answers.asked("/api/v1/persistentvolumes");
    assert_eq!(watched(), (false, true));
    answers.accepted("/api/v1/persistentvolumes");
    answers.asked("/apis/storage.k8s.io/v1/csinodes");
    assert_eq!(watched(), (true, false));
}

/// Its watch ended when the list was asked for, and a list may take as long as it likes. No other one need be asked for meanwhile.
#[tokio::test(start_paused = true)]
async fn a_kind_whose_list_comes_in_is_not_watched() {
    let store = Store::default();
    let (lists, check) = (store.lists(), Health::new().check("watch"));
    let is_watched = || lists.is_watched::<VolumeAttachmentWire>();
    let (send, receive) = tokio::sync::mpsc::unbounded_channel();
    let mut first = Some(receive);
    let watch = move || {
        let next = first.take();
        stream::unfold(next, |next| async {
            let mut receive: tokio::sync::mpsc::UnboundedReceiver<watcher::Result<Event<VolumeAttachmentWire>>> = next?;
            receive.recv().await.map(|event| (event, Some(receive)))
        })
        .chain(stream::iter([Ok(Event::Init)]))
        .chain(stream::pending())
    };
    let task = tokio::spawn(follow_from_list(watch, store.clone(), check));
    let settled = async || tokio::time::sleep(Duration::from_secs(1)).await;
    send.send(Ok(Event::Init)).unwrap();
    settled().await;
    assert!(!is_watched());
    send.send(Ok(Event::InitDone)).unwrap();
    settled().await;
    assert!(is_watched());
    lists.doubt_unwatched::<VolumeAttachmentWire>("it is watched");
    settled().await;
    assert_eq!((lists.round(), is_watched()), (0, true));
    lists.doubt("a test wants it");
    settled().await;
    assert_eq!((lists.round(), is_watched()), (1, false));
    tokio::time::sleep(Duration::from_mins(1)).await;
    lists.doubt_unwatched::<VolumeAttachmentWire>("a list comes in");
    assert_eq!(lists.round(), 1);
    task.abort();
}
