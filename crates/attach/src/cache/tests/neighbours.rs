//! Attachments of one volume, and who is woken when one of them leaves: what the property in `sharing` does not draw.

use super::*;
use crate::cache::AttachmentView;
use crate::decide::{self, Action, Policy, SecretState, VolumeOnNode};
use crate::objects::InTreePlugin;
use csi_attacher_runtime::EnqueueCause;

fn with_id(record: Attachment, id: &str) -> Attachment {
    with(record, |record| record.node_id = Some(id.into()))
}

/// PersistentVolumes of these names and handles.
fn of_handles(volumes: &[(&str, &str)]) -> Index {
    let mut index = Index::default();
    for (name, handle) in volumes {
        index.apply(with_handle(name, 1, handle));
    }
    index
}

/// Who has the volume of an attachment in use at its place.
fn here(index: &Index, name: &str) -> Option<String> {
    let other = index.snapshot(name).unwrap().neighbours.here;
    other.map(|other| other.name.to_string())
}

/// Where the volume of an attachment is elsewhere.
fn elsewhere(index: &Index, name: &str) -> Vec<String> {
    let others = index.snapshot(name).unwrap().neighbours.elsewhere;
    others.iter().map(|other| other.name.to_string()).collect()
}

/// The attachments that are claimed where this one may be.
fn claimed(index: &Index, name: &str) -> Vec<String> {
    let others = index.snapshot(name).unwrap().neighbours.claimed;
    others.iter().map(|other| other.attachment.name.to_string()).collect()
}

/// Claims that a detach renews: those of the same handle on the same machine that wait to be attached.
#[test]
fn a_detach_knows_the_claims_for_its_places() {
    let mut index = of_handles(&[("pv1", "h"), ("pv2", "h"), ("pv3", "other")]);
    let claim = |name: &str, volume: &str, handle: &str| {
        let record = held(of_volume(attachment(name, 1), volume));
        noted(with_id(record, "machine-1"), handle, &[])
    };
    let mut unclaimed = claim("unclaimed", "pv2", "h");
    unclaimed.finalizers = Finalizers::default();
    index.apply(noted(with_id(detaching("a", 1), "machine-1"), "h", &["machine-0"]));
    for record in [
        unclaimed,
        claim("another-handle", "pv3", "other"),
        with_id(on_node(claim("another-node", "pv2", "h"), "n2"), "machine-2"),
    ] {
        index.apply(record);
    }
    assert!(claimed(&index, "a").is_empty());
    index.apply(claim("twin", "pv2", "h"));
    index.apply(on_node(claim("renamed", "pv1", "h"), "n2"));
    index.apply(with_id(on_node(claim("formerly", "pv1", "h"), "n3"), "machine-0"));
    index.apply(on_node(claim("renamed-twin", "pv2", "h"), "n4"));
    let all = ["formerly", "renamed", "renamed-twin", "twin"];
    assert_eq!(claimed(&index, "a"), all);
    assert!(claimed(&index, "twin").is_empty());
    index.apply(held(with_id(on_node(attached("formerly", 2), "n3"), "machine-0")));
    assert_eq!(claimed(&index, "a"), all, "also what the sidecar attached");
}

/// A volume that was removed by force leaves the handle that was noted on its attachment, also for an operator that starts
/// after that.
#[test]
fn a_volume_that_is_gone_is_known_by_the_note() {
    let twin = noted(of_volume(attached("b", 1), "pv2"), "h", &[]);
    let mut seen = Index::default();
    let mut started = Index::default();
    for index in [&mut seen, &mut started] {
        index.apply(with_handle("pv1", 1, "h"));
        index.apply(detaching("a", 1));
        index.apply(twin.clone());
    }
    seen.apply(with_handle("pv2", 1, "h"));
    seen.remove::<Volume>("pv2", "pv2-uid");
    started.finish_list::<Volume>(&std::iter::once("pv1".into()).collect(), ResourceVersion(0));
    started.finish_list::<Attachment>(&["a".into(), "b".into()].into(), ResourceVersion(0));
    for index in [seen, started] {
        assert_eq!(here(&index, "a").as_deref(), Some("b"));
    }
}

/// An attachment that is being detached from one node, while an attach of its volume at another one waits for that.
fn waited_for(store: &Store, queue: &Queue<AttacherKey>) -> Attachment {
    store.apply(volume("pv1", 1));
    let leaving = with(on_node(detaching("old", 1), "n2"), |it| it.attached = true);
    store.apply(leaving.clone());
    assert_eq!(woken(queue), ["old"]);
    store.apply(attachment("new", 2));
    fail_next(queue);
    leaving
}

/// The answer to the write that lets an attachment go may come before the watch, which says nothing new then.
#[tokio::test(start_paused = true)]
async fn an_attach_is_woken_by_the_answer_that_ends_the_detach_elsewhere() {
    let (store, queue, _registration) = served();
    let mut leaving = waited_for(&store, &queue);
    leaving.resource_version.0 = 3;
    leaving.finalizers = Finalizers::default();
    store.apply_response(leaving);
    assert_eq!(woken(&queue), ["new"]);
    removed(&store, "old");
    assert_eq!(woken(&queue), [""; 0]);
}

/// It does not wait for a detach that failed. Where it fails as well, the end of the detach is what it needs.
#[tokio::test(start_paused = true)]
async fn an_attach_is_woken_when_a_detach_elsewhere_that_failed_once_succeeds() {
    let (store, queue, _registration) = served();
    let mut leaving = waited_for(&store, &queue);
    leaving.resource_version.0 = 3;
    leaving.detach_error = Some(volume_error().into());
    store.apply_response(leaving.clone());
    // The detach, and the attach.
    fail_next(&queue);
    fail_next(&queue);
    assert_eq!(woken(&queue), [""; 0], "both are held back");
    leaving.resource_version.0 = 4;
    leaving.finalizers = Finalizers::default();
    store.apply_response(leaving);
    assert_eq!(woken(&queue), ["new"]);
}

/// The sidecar notes no volume. What it attached keeps its place all the same, and so does what it claimed, whoever asks.
#[test]
fn what_a_sidecar_claimed_keeps_its_place() {
    let place = VolumeOnNode::new("h", "id").unwrap();
    let gone = noted(with_id(attachment("a", 1), "id"), "h", &[]);
    let made_again = |is_attached, is_held, node_id: Option<&str>| {
        let mut record = attachment("a", 1);
        (record.uid, record.attached) = ("second".into(), is_attached);
        record.node_id = node_id.map(Into::into);
        if is_held { held(record) } else { record }
    };
    let id = Some("id");
    let to_be_detached = with_id(with(detaching("a", 1), |it| it.uid = "second".into()), "id");
    for (what, record, keeps) in [
        ("attached, with the finalizer", made_again(true, true, id), true),
        ("claimed", made_again(false, true, id), true),
        ("somebody took the finalizer off", made_again(true, false, id), true),
        ("somebody took the node ID off", made_again(true, true, None), true),
        ("neither attached nor claimed", made_again(false, false, id), false),
        ("at another node", made_again(true, true, Some("other")), false),
        ("to be detached", with(to_be_detached, |it| it.attached = true), false),
    ] {
        let mut index = of_handles(&[("pv1", "h")]);
        index.apply(record);
        assert_eq!(index.is_claimed(&gone, &facts(DRIVER), place), keeps, "{what}");
    }
}

/// A machine was node n, and is node o now; the failed attachment for n still carries its ID.
#[test]
fn what_a_sidecar_attached_at_a_machine_that_has_another_name_keeps_it() {
    let mut index = of_handles(&[("pv1", "h")]);
    let failed = held(with_id(attachment("for-n", 1), "id-o"));
    index.apply(failed.clone());
    index.apply(held(on_node(with_id(attached("for-o", 1), "id-o"), "o")));
    let place = VolumeOnNode::new("h", "id-o").unwrap();
    assert!(index.is_claimed(&failed, &facts(DRIVER), place));
}

/// Describes the volume of that handle itself.
fn in_line(mut record: Attachment, handle: &str) -> Attachment {
    record.source = AttachmentSource::Inline(Box::new(with_handle("inline", 1, handle).spec));
    record
}

/// Two PersistentVolumes of one handle, and an attachment `leaving` of the first one whose node n1, without a CSINode now, had the ID id-o.
fn leaving_from_a_machine_that_moved() -> Index {
    let mut index = of_handles(&[("pv1", "h"), ("pv2", "h")]);
    index.apply(with_id(detaching("leaving", 1), "id-o"));
    index
}

/// Where an attachment would be detached from, by handle and node ID; none when it would not.
fn unpublished(index: &Index, name: &str) -> Option<Vec<(String, String)>> {
    let snapshot = index.snapshot(name).unwrap();
    let (driver, policy) = (facts(DRIVER), Policy::default());
    let observed = decide::observe(&snapshot, &driver, &policy, SecretState::NotLoaded);
    let Action::Unpublish(plan) = decide::attachment(&observed) else {
        return None;
    };
    let places = plan.places.iter();
    Some(places.map(|place| at(place.volume_id, place.node_id)).collect())
}

fn at(handle: &str, id: &str) -> (String, String) {
    (handle.to_owned(), id.to_owned())
}

/// A machine has another name now, and the volume is in use there by another PersistentVolume of its handle.
#[test]
fn two_volumes_of_one_handle_are_one_volume_at_a_machine_that_moved() {
    let there = || on_node(of_volume(attached("there", 1), "pv2"), "o");
    let with_its_id = || with_id(there(), "id-o");
    for (label, other, is_registered, is_there) in [
        ("by its ID", with_its_id(), false, true),
        ("noted", noted(with_its_id(), "h", &[]), false, true),
        ("in line", in_line(with_its_id(), "h"), false, true),
        ("the annotation is gone: by the CSINode", there(), true, true),
        ("in line, and the annotation is gone", in_line(there(), "h"), true, true),
        ("its node had another ID", with_id(there(), "id-p"), true, true),
        ("another machine", with_id(there(), "id-p"), false, false),
        ("another volume", noted(with_its_id(), "other", &[]), false, false),
    ] {
        let mut index = leaving_from_a_machine_that_moved();
        index.apply(other);
        if is_registered {
            index.apply(node("o", 1, &[(DRIVER, "id-o")]));
        }
        assert_eq!(here(&index, "leaving").is_some(), is_there, "{label}");
        let expected = (!is_there).then(|| vec![at("h", "id-o")]);
        assert_eq!(unpublished(&index, "leaving"), expected, "{label}");
        let place = VolumeOnNode::new("h", "id-o").unwrap();
        let leaving = index.snapshot("leaving").unwrap().attachment;
        let claimed = index.is_claimed(&leaving, &facts(DRIVER), place);
        assert_eq!(claimed, is_there, "{label}: what is undone");
    }
}

/// The annotation of the attachment of the same PersistentVolume was removed; its node tells the machine.
#[test]
fn what_lost_its_node_id_is_where_its_node_is() {
    let mut index = leaving_from_a_machine_that_moved();
    index.apply(on_node(attached("there", 1), "o"));
    assert_eq!(unpublished(&index, "leaving"), Some(vec![at("h", "id-o")]));
    for (version, id) in [(1, "id-o"), (2, "id-q"), (3, "id-o")] {
        index.apply(node("o", version, &[(DRIVER, id)]));
        let expected = (id == "id-q").then(|| vec![at("h", "id-o")]);
        assert_eq!(unpublished(&index, "leaving"), expected, "{version}");
    }
    index.remove::<CsiNode>("o", "o-uid");
    assert_eq!(unpublished(&index, "leaving"), Some(vec![at("h", "id-o")]));
}

/// A former node ID, which another node has now.
#[test]
fn a_former_place_is_left_to_another_volume_of_the_handle() {
    let there = || on_node(of_volume(attached("there", 1), "pv2"), "o");
    let (both, one) = (vec![at("h", "id-n"), at("h", "id-o")], vec![at("h", "id-n")]);
    for (label, other, is_there) in [
        ("by its ID, without a note", with_id(there(), "id-o"), true),
        ("noted", noted(with_id(there(), "id-o"), "h", &[]), true),
        ("the annotation is gone: by the CSINode", there(), true),
        ("in line, and the annotation is gone", in_line(there(), "h"), true),
        ("another volume", noted(there(), "other", &[]), false),
    ] {
        let mut index = leaving_from_a_machine_that_moved();
        let mut leaving = noted(with_id(detaching("leaving", 2), "id-n"), "h", &["id-o"]);
        leaving.attached = true;
        index.apply(leaving);
        index.apply(other);
        index.apply(node("o", 1, &[(DRIVER, "id-o")]));
        let expected = if is_there { &one } else { &both };
        assert_eq!(unpublished(&index, "leaving").as_ref(), Some(expected), "{label}");
    }
}

/// The node of an attached VolumeAttachment has another ID now, and its former one is that of another node, where a pod uses the volume.
#[test]
fn the_id_that_a_node_had_is_left_to_who_is_attached_there() {
    let (now, both) = (at("h", "id-n"), vec![at("h", "id-n"), at("h", "id-o")]);
    for (label, other, expected) in [
        ("its node", on_node(attached("there", 1), "o"), Some(vec![now.clone()])),
        (
            "its ID",
            with_id(on_node(attached("there", 1), "p"), "id-o"),
            Some(vec![now]),
        ),
        (
            "the node's ID of now",
            with_id(on_node(attached("there", 1), "p"), "id-n"),
            None,
        ),
        ("the same node", with_id(attached("there", 1), "id-o"), None),
        (
            "another machine",
            with_id(on_node(attached("there", 1), "p"), "id-p"),
            Some(both),
        ),
    ] {
        for volume in ["pv1", "pv2"] {
            let mut index = leaving_from_a_machine_that_moved();
            index.apply(node("n1", 1, &[(DRIVER, "id-n")]));
            index.apply(node("o", 1, &[(DRIVER, "id-o")]));
            index.apply(of_volume(other.clone(), volume));
            assert_eq!(unpublished(&index, "leaving"), expected, "{label}, {volume}");
        }
    }
}

/// A PersistentVolume is replaced by another one of its name without a word of its end, as in a gap of the watch.
#[test]
fn a_handle_that_is_noted_counts_though_its_volume_was_replaced() {
    let mut index = of_handles(&[("pv1", "h"), ("pv2", "h")]);
    index.apply(detaching("a", 1));
    index.apply(noted(of_volume(attached("b", 1), "pv2"), "h", &[]));
    assert_eq!(here(&index, "a").as_deref(), Some("b"));
    let replaced = with_handle("pv2", 2, "other");
    index.apply(with(replaced, |it| it.uid = "second".into()));
    assert_eq!(here(&index, "a").as_deref(), Some("b"));
    index.remove::<Volume>("pv2", "second");
    assert_eq!(here(&index, "a").as_deref(), Some("b"));
    index.apply(noted(of_volume(attachment("b", 2), "pv2"), "h", &[]));
    assert_eq!(here(&index, "a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_detach_is_woken_when_a_machine_that_moved_is_free() {
    let (store, queue, _registration) = served();
    for name in ["pv1", "pv2"] {
        let mut volume = with_handle(name, 1, "h");
        volume.finalizers = Finalizers::new([FINALIZER]);
        store.apply(volume);
    }
    let mut wanted = held(on_node(of_volume(attached("wanted", 1), "pv2"), "o"));
    store.apply(noted(with_id(wanted.clone(), "id-o"), "h", &[]));
    store.apply(with_id(detaching("leaving", 2), "id-o"));
    let wait = || {
        assert_eq!(unpublished(&store.inner.index.read(), "leaving"), None);
        fail_next(&queue);
    };
    wait();
    // It loses its node ID, which is to be written again, and its node has none.
    wanted.resource_version.0 = 3;
    store.apply(noted(wanted.clone(), "h", &[]));
    assert_eq!(woken(&queue), ["leaving", "wanted"]);
    store.apply(node("o", 1, &[(DRIVER, "id-o")]));
    store.enqueue("leaving", EnqueueCause::Update);
    wait();
    store.apply(node("o", 2, &[(DRIVER, "id-p")]));
    assert_eq!(woken(&queue), ["leaving", "wanted"]);
    store.apply(node("o", 3, &[(DRIVER, "id-o")]));
    store.enqueue("leaving", EnqueueCause::Update);
    wait();
    // It turns out to be of another volume.
    wanted.resource_version.0 = 6;
    store.apply(noted(wanted.clone(), "other", &[]));
    assert_eq!(woken(&queue), ["leaving"]);
    wanted.resource_version.0 = 7;
    store.apply(noted(wanted.clone(), "h", &[]));
    store.enqueue("leaving", EnqueueCause::Update);
    wait();
    removed(&store, "wanted");
    assert_eq!(woken(&queue), ["leaving"]);
}

/// A PersistentVolume was removed by force and made again with another handle: two volumes, which have nothing to do with each other.
#[test]
fn a_volume_that_was_made_again_is_no_neighbour() {
    let made_again = || of_handles(&[("pv1", "h-new")]);
    let mut index = made_again();
    let mut old = noted(with_id(detaching("old", 1), "id-n"), "h-old", &[]);
    old.attached = true;
    let new = noted(with_id(attached("new", 1), "id-n"), "h-new", &[]);
    index.apply(old.clone());
    index.apply(new.clone());
    assert_eq!(here(&index, "old"), None);
    assert_eq!(unpublished(&index, "old"), Some(vec![at("h-old", "id-n")]));
    let place = VolumeOnNode::new("h-old", "id-n").unwrap();
    assert!(!index.is_claimed(&old, &facts(DRIVER), place));

    // The other way round.
    let mut index = made_again();
    index.apply(noted(with_id(attached("old", 1), "id-n"), "h-old", &[]));
    index.apply(noted(with_id(detaching("new", 1), "id-n"), "h-new", &[]));
    assert_eq!(unpublished(&index, "new"), Some(vec![at("h-new", "id-n")]));

    // An attach at another node does not wait for the detach.
    let mut index = made_again();
    index.apply(old);
    index.apply(noted(on_node(attachment("new", 1), "n2"), "h-new", &[]));
    assert!(elsewhere(&index, "new").is_empty());
    // Nor does it where it was claimed for the volume of before.
    index.apply(noted(on_node(attachment("new", 2), "n2"), "h-old", &[]));
    assert!(elsewhere(&index, "new").is_empty());
    let mut same = noted(on_node(detaching("same", 1), "n3"), "h-new", &[]);
    same.attached = true;
    index.apply(same);
    assert_eq!(elsewhere(&index, "new"), ["same"]);
}

/// Somebody changed the labels of an in-tree volume, so that it has another handle: it is the volume that it was.
#[test]
fn an_in_tree_volume_whose_labels_were_changed_is_a_neighbour() {
    let mut index = Index::default();
    let mut relabelled = with_handle("pv1", 1, "h-new");
    relabelled.in_tree = Some(InTreePlugin::GcePersistentDisk);
    relabelled.created = Some("2025-01-01T00:00:00Z".parse().unwrap());
    index.apply(relabelled);
    let since = |record: Attachment, handle: &str| {
        let record = noted(with_id(record, "id-n"), handle, &[]);
        with(record, |it| it.created = Some("2026-01-01T00:00:00Z".parse().unwrap()))
    };
    index.apply(since(detaching("old", 1), "h-old"));
    index.apply(since(attached("new", 1), "h-new"));
    assert_eq!(here(&index, "old").as_deref(), Some("new"));
    // The detach renews the claim of what may have been published for another one.
    index.apply(held(since(attachment("new", 2), "h-new")));
    assert_eq!(claimed(&index, "old"), ["new"]);
    // An attach at another node waits for the detach.
    index.apply(on_node(held(since(attachment("new", 3), "h-new")), "n2"));
    assert_eq!(elsewhere(&index, "new"), ["old"]);
}

/// As long as one handle is not known, the name of the PersistentVolume counts.
#[test]
fn a_volume_that_may_be_the_one_that_was_made_again_is_a_neighbour() {
    let mut index = Index::default();
    let mut again = with_handle("pv1", 1, "h-new");
    again.created = Some("2026-01-01T02:00:00Z".parse().unwrap());
    index.apply(again);
    index.apply(noted(with_id(detaching("old", 1), "id-n"), "h-old", &[]));
    // Claimed by a sidecar, before the volume of today was made.
    let mut unknown = held(with_id(attached("unknown", 1), "id-n"));
    unknown.created = Some("2026-01-01T01:00:00Z".parse().unwrap());
    index.apply(unknown);
    assert_eq!(here(&index, "old").as_deref(), Some("unknown"));
    let place = VolumeOnNode::new("h-old", "id-n").unwrap();
    let old = index.snapshot("old").unwrap().attachment;
    assert!(index.is_claimed(&old, &facts(DRIVER), place));
}

/// What the view of an attachment says.
fn viewed(store: &Store, name: &str, what: impl Fn(AttachmentView<'_>) -> Option<&str>) -> Option<String> {
    let mut found = None;
    store.for_each_attachment(&[name.into()], |around| found = what(around).map(str::to_owned));
    found
}

fn attached_at(store: &Store, name: &str, others: &[&str]) -> Option<String> {
    let others: Vec<std::sync::Arc<str>> = others.iter().map(|name| (*name).into()).collect();
    viewed(store, name, |around| around.attached_at(&others))
}

/// Two PersistentVolumes of one handle are one volume.
#[test]
fn a_volume_is_attached_twice_also_under_another_name() {
    let store = Store::default();
    for (name, handle) in [("pv1", "h"), ("pv2", "h"), ("pv3", "other")] {
        store.apply(with_handle(name, 1, handle));
    }
    store.apply(attached("one", 1));
    store.apply(on_node(of_volume(attached("two", 1), "pv2"), "n2"));
    store.apply(on_node(of_volume(attached("three", 1), "pv3"), "n3"));
    let shared = |name: &str| viewed(&store, name, |around| around.shared_handle());
    assert_eq!(shared("one").as_deref(), Some("h"));
    assert_eq!(shared("two").as_deref(), Some("h"));
    assert_eq!(shared("three"), None);
    let all = ["one", "three", "two", "unknown"];
    assert_eq!(attached_at(&store, "one", &all).as_deref(), Some("n2"));
    assert_eq!(attached_at(&store, "two", &all).as_deref(), Some("n1"));
    assert_eq!(attached_at(&store, "three", &all), None);
    // What was gathered before may be over.
    let leaving = with(detaching("two", 2), |it| it.attached = true);
    store.apply(on_node(of_volume(leaving, "pv2"), "n2"));
    assert_eq!(attached_at(&store, "one", &all), None);
    // Nor does one on the same node count, or one of another driver.
    store.apply(of_volume(attached("here", 1), "pv2"));
    assert_eq!(attached_at(&store, "one", &["here"]), None);
    let mut foreign = on_node(of_volume(attached("foreign", 1), "pv2"), "n4");
    foreign.attacher = "other.test".into();
    store.apply(foreign);
    assert_eq!(attached_at(&store, "one", &["foreign"]), None);
}

#[test]
fn a_volume_that_was_made_again_is_not_attached_twice() {
    let store = Store::default();
    store.apply(with_handle("pv1", 1, "h-new"));
    store.apply(noted(attached("old", 1), "h-old", &[]));
    store.apply(noted(on_node(attached("new", 1), "n2"), "h-new", &[]));
    let attached_at = |name: &str| attached_at(&store, name, &[]);
    assert_eq!(attached_at("old"), None);
    assert_eq!(attached_at("new"), None);
    store.apply(noted(on_node(attached("third", 1), "n3"), "h-new", &[]));
    assert_eq!(attached_at("new").as_deref(), Some("n3"));
    assert_eq!(attached_at("old"), None);
    // Without a note it stands for the volume of today.
    store.apply(on_node(attached("fourth", 1), "n4"));
    assert_eq!(attached_at("fourth").as_deref(), Some("n2"));
    assert_eq!(attached_at("old"), None);
}
