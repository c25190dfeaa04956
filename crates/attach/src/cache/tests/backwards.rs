//! An API server that goes back to an older state, and beliefs that a fresh list proves wrong.

use kube::runtime::watcher::Event;
use serde_json::json;
use std::collections::HashSet;

use super::*;
use crate::decide::patch::WriteTarget;
use crate::objects::{Attachment, CsiNodeWire};
use crate::reflect::{Kind, WatchedKind, apply};
use csi_attacher_base::health::Health;

pub(super) fn told<K: WatchedKind>(store: &Store, events: Vec<Event<K>>)
where
    K::Record: CachedKind<Index>,
{
    told_in(0, store, events);
}

pub(super) fn told_in<K: WatchedKind>(round: u64, store: &Store, events: Vec<Event<K>>)
where
    K::Record: CachedKind<Index>,
{
    let (mut seen, health) = (HashSet::new(), Health::default());
    for event in events {
        apply(event, store, &mut seen, &health.check("watch"), round);
    }
}

pub(super) fn list<K: WatchedKind>(store: &Store, objects: Vec<K>)
where
    K::Record: CachedKind<Index>,
{
    list_in(0, store, objects);
}

pub(super) fn list_in<K: WatchedKind>(round: u64, store: &Store, objects: Vec<K>)
where
    K::Record: CachedKind<Index>,
{
    let objects = objects.into_iter().map(Event::InitApply);
    let events = std::iter::once(Event::Init).chain(objects).chain([Event::InitDone]);
    told_in(round, store, events.collect());
}

pub(super) fn attached(version: u64) -> VolumeAttachmentWire {
    let mut wire = attachment_wire("a", "a-uid", version);
    wire.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    wire
}

pub(super) fn pv1(version: &str) -> PersistentVolumeWire {
    volume_wire(&json!({"name": "pv1", "uid": "p", "resourceVersion": version}))
}

pub(super) fn bare_node(name: &str, version: &str) -> CsiNodeWire {
    let metadata = json!({"name": name, "uid": name, "resourceVersion": version});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"drivers": []}})).unwrap()
}

fn version(store: &Store) -> Option<u64> {
    store.attachment("a").map(|known| known.attachment.resource_version.0)
}

#[test]
fn a_list_takes_the_cache_back_to_where_the_api_server_is() {
    let (store, queue, _registration) = served();
    list(&store, vec![attached(880)]);
    store.apply_response::<Attachment>(attached(1050).into());
    assert_eq!(woken(&queue), ["a"]);
    // The same object, as it was when the backup was made.
    list(&store, vec![attachment_wire("a", "a-uid", 880)]);
    assert_eq!(version(&store), Some(880));
    assert!(!store.attachment("a").unwrap().attachment.finalizers.contains(FINALIZER));
    assert_eq!(woken(&queue), ["a"], "it has to be looked at again");
    // What happens from there on counts, though the versions were seen before.
    told(&store, vec![Event::Apply(attached(890))]);
    assert_eq!(version(&store), Some(890));
    list(&store, vec![pv1("1040")]);
    list(&store, vec![pv1("870")]);
    assert_eq!(store.volume("pv1").unwrap().0.resource_version.0, 870);
    list(&store, vec![bare_node("n1", "1030")]);
    list(&store, vec![bare_node("n1", "860")]);
    assert_eq!(store.attachment("a").unwrap().node.unwrap().resource_version.0, 860);
}

/// Every object has the version that it had, but what the API server makes now has far greater ones.
#[test]
fn a_restore_with_a_bumped_revision_is_followed_too() {
    let (store, _queue, _registration) = served();
    list(&store, vec![attached(1050)]);
    list(&store, vec![attachment_wire("a", "a-uid", 880)]);
    store.apply_response::<Attachment>(attached(1_000_000_901).into());
    told(&store, vec![Event::Apply(attachment_wire("a", "a-uid", 1_000_000_900))]);
    assert_eq!(version(&store), Some(1_000_000_901), "reads see our own writes");
}

#[test]
fn an_empty_list_empties_the_cache_and_asks_for_nothing() {
    let (store, queue, _registration) = served();
    list(&store, vec![attached(5)]);
    woken(&queue);
    list::<VolumeAttachmentWire>(&store, vec![]);
    assert!(store.attachment("a").is_none());
    assert_eq!(woken(&queue), [""; 0]);
}

#[test]
fn what_a_fresh_list_shows_exists_though_an_answer_said_that_it_is_gone() {
    let (store, queue, _registration) = served();
    list(&store, vec![attached(5)]);
    woken(&queue);
    store.mark_deleted(&WriteTarget::Attachment("a".into()), "a-uid");
    told(&store, vec![Event::Apply(attached(6))]);
    assert!(store.attachment("a").is_none(), "the watch may be behind");
    list(&store, vec![attached(6)]);
    assert_eq!(version(&store), Some(6));
    assert_eq!(woken(&queue), ["a"]);
    told(&store, vec![Event::Apply(attached(7))]);
    assert_eq!(version(&store), Some(7));
}

/// After a restore the three lists come in one after the other: until all of them have, a volume may still look protected.
#[test]
fn a_cache_of_two_states_is_known_as_that_until_everything_is_listed_again() {
    let (store, _queue, _registration) = served();
    list(&store, vec![attached(880)]);
    list(&store, vec![pv1("900")]);
    list::<CsiNodeWire>(&store, Vec::new());
    told(&store, vec![Event::Apply(attached(1050))]);
    // A gap of the watch, in which an object was changed and one was made: nothing went back.
    list(&store, vec![attached(1060), attachment_wire("b", "b-uid", 1055)]);
    assert!(store.lists().is_of_one_state());
    list(&store, vec![attachment_wire("a", "a-uid", 880)]);
    assert!(!store.lists().is_of_one_state());
    let round = store.lists().round();
    list_in(round, &store, vec![attachment_wire("a", "a-uid", 880)]);
    list_in::<CsiNodeWire>(round, &store, Vec::new());
    assert!(!store.lists().is_of_one_state(), "the volumes are those of before");
    list_in(round, &store, vec![pv1("850")]);
    assert!(!store.lists().is_of_one_state(), "they went back as well");
    let round = store.lists().round();
    list_in(round, &store, vec![pv1("850")]);
    list_in(round, &store, vec![attachment_wire("a", "a-uid", 880)]);
    list_in::<CsiNodeWire>(round, &store, Vec::new());
    assert!(store.lists().is_of_one_state());
    // What was made after the backup under a name that nobody knows shows it too.
    told(&store, vec![Event::Apply(attached(890))]);
    list_in(round, &store, vec![attached(890), attachment_wire("c", "c-uid", 700)]);
    assert!(!store.lists().is_of_one_state());
}

/// The watch of PersistentVolumes broke, maybe because the API server went back: before attachments are listed as well, nobody
/// knows who names a volume.
#[test]
fn who_names_a_volume_is_known_once_attachments_are_listed_after_volumes() {
    let store = Store::default();
    list(&store, vec![attached(5)]);
    list(&store, vec![pv1("5")]);
    assert!(store.knows_who_names_volumes(), "the first lists are one state");
    told(&store, vec![Event::Init, Event::InitApply(pv1("5"))]);
    assert!(!store.knows_who_names_volumes(), "a list is coming in");
    told::<VolumeAttachmentWire>(&store, vec![Event::Init]);
    told::<PersistentVolumeWire>(&store, vec![Event::InitDone]);
    told(&store, vec![Event::InitApply(attached(5)), Event::InitDone]);
    // Attachments may have been listed before.
    assert!(!store.knows_who_names_volumes());
    list(&store, vec![attached(5)]);
    assert!(store.knows_who_names_volumes());
    list(&store, vec![pv1("5")]);
    assert!(!store.knows_who_names_volumes());
    // A round that was asked for lists all kinds.
    list_in(1, &store, vec![attached(5)]);
    assert!(store.knows_who_names_volumes());
    list_in(1, &store, vec![pv1("5")]);
    assert!(store.knows_who_names_volumes());
}

/// The list after a break shows that the API server went back, and so a round is asked for. PersistentVolumes that come first in it
/// say nothing of attachments, which are still as they were before.
#[test]
fn volumes_that_are_listed_first_in_a_round_wait_for_the_attachments() {
    let asked = |store: &Store| {
        store.lists().distrust();
        store.lists().round()
    };
    let breaks = |store: &Store| store.lists().record_break(PersistentVolumeWire::PLURAL);
    let store = Store::default();
    list(&store, vec![attached(5)]);
    list(&store, vec![pv1("5")]);
    breaks(&store);
    list(&store, vec![pv1("5")]);
    let round = asked(&store);
    list_in(round, &store, vec![pv1("5")]);
    assert!(!store.knows_who_names_volumes(), "the attachments are those of before");
    list_in(round, &store, vec![attached(5)]);
    assert!(store.knows_who_names_volumes());
    // The other order.
    let round = asked(&store);
    list_in(round, &store, vec![attached(5)]);
    list_in(round, &store, vec![pv1("5")]);
    assert!(store.knows_who_names_volumes(), "both began after it was asked for");
    // The API server may have gone back between the two lists.
    let round = asked(&store);
    list_in(round, &store, vec![attached(5)]);
    breaks(&store);
    list_in(round, &store, vec![pv1("5")]);
    assert!(!store.knows_who_names_volumes(), "they were listed before the break");
    list_in(round, &store, vec![attached(5)]);
    assert!(store.knows_who_names_volumes());
}
