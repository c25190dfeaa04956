//! Answers to our own writes are ahead of the watch. That is no sign of an API server that went back to an older state.

use futures::stream::{self, StreamExt as _};
use kube::runtime::watcher::Event;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

use super::backwards::{attached, bare_node, list, list_in, pv1, told, told_in};
use super::follow::following_all;
use super::{attachment_wire, served, volume_wire};
use crate::apiserver::ApiErrorKind;
use crate::cache::Store;
use crate::objects::{
    Attachment, CsiNode, CsiNodeWire, PersistentVolumeWire, ResourceVersion, Volume, VolumeAttachmentWire,
};
use crate::reflect::Sink as _;

fn rounds(store: &Store) -> u64 {
    store.lists().round()
}

/// Everything was listed, and nothing more.
fn listed() -> Store {
    let store = Store::default();
    list(&store, vec![attached(880)]);
    list(&store, vec![pv1("5")]);
    list::<CsiNodeWire>(&store, Vec::new());
    store
}

#[test]
fn an_answer_that_is_ahead_of_the_watch_is_no_restore() {
    let store = listed();
    // "b" was made at 1055, and the watch has not told it when our write to "a" is answered.
    store.apply_response::<Attachment>(attached(1060).into());
    list(&store, vec![attached(1060), attachment_wire("b", "b-uid", 1055)]);
    assert!(store.lists().is_of_one_state());
    // The same for volumes: an answer to a write, and to a read of one that is not known.
    store.apply_response::<Volume>(pv1("1070").into());
    let other = volume_wire(&json!({"name": "pv2", "uid": "q", "resourceVersion": "1090"}));
    store.read::<Volume>(&"pv2".into()).apply(other.clone().into()).unwrap();
    let late = volume_wire(&json!({"name": "pv3", "uid": "r", "resourceVersion": "1065"}));
    list(&store, vec![pv1("1070"), other, late]);
    let reading = store.read::<CsiNode>(&"n1".into());
    reading.apply(bare_node("n1", "1100").into()).unwrap();
    list(&store, vec![bare_node("n1", "1100"), bare_node("n2", "1095")]);
    assert!(store.lists().is_of_one_state());
    assert_eq!(rounds(&store), 0, "nobody has a reason to list anything again");
}

/// A list was made before our request, and comes in after its answer, or before it.
#[test]
fn what_is_made_while_a_list_comes_in_is_known_until_its_watch_reports_the_end() {
    let made = || volume_wire(&json!({"name": "pv2", "uid": "q", "resourceVersion": "20"}));
    let (name, path): (Arc<str>, _) = ("pv2".into(), "/api/v1/persistentvolumes");
    // The version of the list, whether the answer comes first, and whether the object is known then.
    for (version, is_first, is_known) in [
        (10, true, true),
        (10, false, true),
        (20, true, false),
        (20, false, false),
        (0, true, false),
        (0, false, false),
    ] {
        let store = listed();
        let knows = || store.volume("pv2").is_some();
        let answers = store.lists().answers();
        let mut reading = Some(store.read::<Volume>(&name));
        told::<PersistentVolumeWire>(&store, vec![Event::Init]);
        answers.listed(path, ResourceVersion(version));
        if let Some(reading) = reading.take_if(|_| is_first) {
            reading.apply(made().into()).unwrap();
            assert!(knows());
        }
        told(&store, vec![Event::InitApply(pv1("5")), Event::InitDone]);
        if let Some(reading) = reading {
            reading.apply(made().into()).unwrap();
        }
        assert_eq!(knows(), is_known, "list {version}, {is_first}");
        assert_eq!(rounds(&store), 0);
        told(&store, vec![Event::Delete(made())]);
        assert!(!knows());
    }
}

/// The API server went back, and its answer says nothing of what is known; nor does what is known.
#[test]
fn a_read_that_is_older_than_the_copy_from_before_it_proves_nothing() {
    let store = listed();
    store.apply_response::<Volume>(pv1("1070").into());
    let name = "pv1".into();
    let reading = store.read::<Volume>(&name);
    let error = reading.apply(pv1("1069").into()).unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Malformed);
    assert_eq!(rounds(&store), 1, "everything is listed again");
    // The watch was faster than the answer: that is no sign.
    let reading = store.read::<Volume>(&name);
    store.apply_response::<Volume>(pv1("1080").into());
    reading.apply(pv1("1075").into()).unwrap();
    // Another object by the name.
    let other = volume_wire(&json!({"name": "pv1", "uid": "other", "resourceVersion": "1000"}));
    store.read::<Volume>(&name).apply(other.into()).unwrap();
    assert_eq!(rounds(&store), 1);
}

/// The parts of a list are of one state, and what the next list shows beside the first part may be older than that.
#[test]
fn what_a_list_has_shown_that_was_cut_off_is_no_restore() {
    let store = listed();
    told(&store, vec![Event::Init, Event::InitApply(attached(1060))]);
    list(&store, vec![attached(1060), attachment_wire("b", "b-uid", 1055)]);
    assert!(store.lists().is_of_one_state());
    assert_eq!(rounds(&store), 0);
}

/// An object that nobody knows shows a restore by what lists and watches have told: another object, or the end of one.
#[test]
fn what_a_watch_has_told_shows_a_restore() {
    for event in [Event::Apply(attached(1060)), Event::Delete(attached(1060))] {
        let store = listed();
        told(&store, vec![event]);
        list(&store, vec![attachment_wire("b", "b-uid", 1055)]);
        assert!(!store.lists().is_of_one_state());
    }
    // The answer shows it by the object that it was about.
    let store = listed();
    store.apply_response::<Attachment>(attached(1060).into());
    list(&store, vec![attached(1055)]);
    assert!(!store.lists().is_of_one_state());
}

#[test]
fn one_list_is_one_sign() {
    let (store, _queue, _registration) = served();
    let many = |version: u64| -> Vec<VolumeAttachmentWire> {
        let name = |number: u64| format!("va{number}");
        let one = |number| attachment_wire(&name(number), &name(number), version + number);
        (0..20).map(one).collect()
    };
    list(&store, many(1000));
    list(&store, many(500));
    assert_eq!(rounds(&store), 1);
    assert!(!store.lists().is_of_one_state());
    // The lists of the round begin later than what another kind shows meanwhile.
    list(&store, vec![pv1("900")]);
    list(&store, vec![pv1("850")]);
    assert_eq!(rounds(&store), 1);
    // One that has begun may have been too early.
    told_in::<CsiNodeWire>(1, &store, vec![Event::Init]);
    list_in(1, &store, vec![pv1("800")]);
    assert_eq!(rounds(&store), 2);
}

/// Follows all kinds; what each list of VolumeAttachments shows is older than what the one before has shown.
fn ever_older(store: &Store) -> (AbortOnDropHandle<()>, Arc<AtomicUsize>) {
    let lists = Arc::new(AtomicUsize::new(0));
    let begun = lists.clone();
    let older = move || {
        let number = begun.fetch_add(1, Ordering::Relaxed);
        let object = attached(1_000_000 - u64::try_from(number).unwrap());
        let events = stream::iter([Ok(Event::Init), Ok(Event::InitApply(object)), Ok(Event::InitDone)]);
        events.chain(stream::pending())
    };
    (following_all(store, older), lists)
}

/// Whoever always answers with something older does not cause lists without end, and keeps nobody from a list who takes a Lease.
#[tokio::test(start_paused = true)]
async fn signs_without_end_have_pauses() {
    let store = Store::default();
    let (_follow, lists) = ever_older(&store);
    store.lists().wait_synced().await;
    store.lists().relist().await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let many = lists.load(Ordering::Relaxed);
    assert!((10..=18).contains(&many), "{many} lists in a minute");
    let wait = tokio::time::timeout(Duration::from_millis(150), store.lists().relist()).await;
    assert!(wait.is_ok(), "a pause is not for others");
}
