//! Attachments of one volume, and who is woken when one of them leaves.

use super::{DRIVER, FINALIZER, attachment, detaching, fail_next, removed, served, volume, woken};
use crate::cache::index::Index;
use crate::cache::{AttacherKey, Store};
use crate::decide::VolumeOnNode;
use crate::objects::{Attachment, Finalizers, FormerVolumeOnNode, VolumeAnnotation, VolumeSource};
use crate::queue::Queue;

fn on_node(mut record: Attachment, node: &str) -> Attachment {
    record.node = node.into();
    record
}

fn attached(name: &str) -> Attachment {
    let mut record = attachment(name, 1);
    record.attached = true;
    record
}

fn names<'a>(records: impl IntoIterator<Item = &'a std::sync::Arc<Attachment>>) -> Vec<&'a str> {
    records.into_iter().map(|record| &*record.name).collect()
}

fn of_volume(mut record: Attachment, volume: &str) -> Attachment {
    record.source = crate::objects::AttachmentSource::PersistentVolume(volume.into());
    record
}

/// The volume `name` with the handle `handle`.
fn with_handle(name: &str, handle: &str) -> crate::objects::Volume {
    let mut record = volume(name, 1);
    if let VolumeSource::Csi(source) = &mut record.spec.source {
        source.handle = handle.into();
    }
    record
}

fn noted(mut record: Attachment, handle: &str, former: &[&str]) -> Attachment {
    let former = former.iter().map(|id| FormerVolumeOnNode {
        handle: handle.into(),
        node_id: (*id).into(),
    });
    record.volume_note = Some(Box::new(VolumeAnnotation {
        handle: handle.into(),
        secret: None,
        former: former.collect(),
        renewed: 0,
    }));
    record
}

fn with_id(mut record: Attachment, id: &str) -> Attachment {
    record.node_id = Some(id.into());
    record
}

#[test]
fn attachments_of_one_volume_know_each_other() {
    let mut index = Index::default();
    index.apply_volume(volume("pv1", 1));
    index.apply_attachment(attachment("a", 1));
    index.apply_attachment(on_node(detaching("b", 1), "n2"));
    index.apply_attachment(of_volume(attachment("c", 1), "pv2"));
    let mut other = on_node(detaching("d", 1), "n3");
    other.attacher = "other.test".into();
    index.apply_attachment(other);
    let snapshot = index.snapshot("a").unwrap();
    assert_eq!(names(&snapshot.neighbours.elsewhere), ["b"]);
    assert!(snapshot.neighbours.here.is_none());
    assert!(
        index.snapshot("b").unwrap().neighbours.elsewhere.is_empty(),
        "nothing leaves but itself"
    );
    assert!(index.snapshot("c").unwrap().neighbours.elsewhere.is_empty());
}

#[test]
fn two_volumes_of_one_handle_are_one_volume_at_the_node() {
    let mut index = Index::default();
    for (name, handle) in [("pv1", "h"), ("pv2", "h"), ("pv3", "other")] {
        index.apply_volume(with_handle(name, handle));
    }
    index.apply_attachment(detaching("a", 1));
    index.apply_attachment(of_volume(attached("b"), "pv2"));
    index.apply_attachment(of_volume(attached("c"), "pv3"));
    index.apply_attachment(on_node(of_volume(attached("d"), "pv2"), "n2"));
    assert_eq!(names(&index.snapshot("a").unwrap().neighbours.here), ["b"]);
    assert!(
        index.snapshot("b").unwrap().neighbours.here.is_none(),
        "asked only of what is being deleted"
    );
}

/// A machine whose Node was deleted and registered under another name: the detach from the old one must not take away what
/// the new one has.
#[test]
fn two_nodes_of_one_id_are_one_machine() {
    let mut index = Index::default();
    index.apply_volume(volume("pv1", 1));
    index.apply_attachment(with_id(detaching("old", 1), "machine-1"));
    index.apply_attachment(with_id(on_node(attached("other"), "n3"), "machine-3"));
    assert!(index.snapshot("old").unwrap().neighbours.here.is_none());
    index.apply_attachment(with_id(on_node(attached("renamed"), "n2"), "machine-1"));
    let neighbours = index.snapshot("old").unwrap().neighbours;
    assert_eq!(names(&neighbours.here), ["renamed"]);
}

/// Claims that a detach renews: those of the same handle on the same machine that wait to be attached.
#[test]
fn a_detach_knows_the_claims_for_its_places() {
    let mut index = Index::default();
    for (name, handle) in [("pv1", "h"), ("pv2", "h"), ("pv3", "other")] {
        index.apply_volume(with_handle(name, handle));
    }
    let claimed = |name: &str, volume: &str, handle: &str| {
        let mut record = of_volume(attachment(name, 1), volume);
        record.finalizers = Finalizers::new([FINALIZER]);
        noted(with_id(record, "machine-1"), handle, &[])
    };
    let mut unclaimed = claimed("unclaimed", "pv2", "h");
    unclaimed.finalizers = Finalizers::default();
    index.apply_attachment(noted(with_id(detaching("a", 1), "machine-1"), "h", &["machine-0"]));
    for record in [
        unclaimed,
        claimed("another-handle", "pv3", "other"),
        on_node(claimed("another-node", "pv2", "h"), "n2"),
    ] {
        index.apply_attachment(record);
    }
    assert!(index.snapshot("a").unwrap().neighbours.claimed.is_empty());
    index.apply_attachment(claimed("twin", "pv2", "h"));
    index.apply_attachment(on_node(claimed("renamed", "pv1", "h"), "n2"));
    index.apply_attachment(with_id(on_node(claimed("formerly", "pv1", "h"), "n3"), "machine-0"));
    let claimed = |index: &Index, name: &str| index.snapshot(name).unwrap().neighbours.claimed;
    assert_eq!(names(&claimed(&index, "a")), ["formerly", "renamed", "twin"]);
    assert!(claimed(&index, "twin").is_empty());
    let mut attached = with_id(on_node(attached("formerly"), "n3"), "machine-0");
    attached.finalizers = Finalizers::new([FINALIZER]);
    index.apply_attachment(attached);
    assert_eq!(
        names(&claimed(&index, "a")),
        ["formerly", "renamed", "twin"],
        "also what the sidecar attached"
    );
}

/// A volume that was removed by force leaves the handle that was noted on its attachment, also for an operator that starts
/// after that.
#[test]
fn a_volume_that_is_gone_is_known_by_the_note() {
    let twin = noted(of_volume(attached("b"), "pv2"), "h", &[]);
    let mut seen = Index::default();
    let mut started = Index::default();
    for index in [&mut seen, &mut started] {
        index.apply_volume(with_handle("pv1", "h"));
        index.apply_attachment(detaching("a", 1));
        index.apply_attachment(twin.clone());
    }
    seen.apply_volume(with_handle("pv2", "h"));
    seen.remove_volume("pv2", "pv2-uid");
    started.finish_volume_list(&std::iter::once("pv1".into()).collect());
    started.finish_attachment_list(&["a".into(), "b".into()].into());
    for index in [seen, started] {
        assert_eq!(names(&index.snapshot("a").unwrap().neighbours.here), ["b"]);
    }
}

/// An attachment that is being detached from one node, while an attach of its volume at another one waits for that.
fn waited_for(store: &Store, queue: &Queue<AttacherKey>) -> Attachment {
    store.apply_volume(volume("pv1", 1));
    let mut leaving = on_node(detaching("old", 1), "n2");
    leaving.attached = true;
    store.apply_attachment(leaving.clone());
    assert_eq!(woken(queue), ["old"]);
    store.apply_attachment(attachment("new", 2));
    fail_next(queue);
    leaving
}

#[tokio::test(start_paused = true)]
async fn an_attach_is_woken_by_the_end_of_the_detach_elsewhere() {
    let (store, queue, _registration) = served();
    let mut leaving = waited_for(&store, &queue);
    // Its detach failed: nobody waits for it any more.
    leaving.resource_version.0 = 3;
    leaving.detach_error = Some(Box::new(crate::objects::VolumeError {
        time: None,
        message: "no".into(),
        code: None,
    }));
    store.apply_attachment(leaving);
    assert_eq!(woken(&queue), ["new", "old"]);
    store.apply_attachment(attachment("new", 4));
    fail_next(&queue);
    removed(&store, "old");
    assert_eq!(woken(&queue), [""; 0], "it did not wait for that one any more");
}

/// The answer to the write that lets an attachment go may come before the watch, which says nothing new then.
#[tokio::test(start_paused = true)]
async fn an_attach_is_woken_by_the_answer_that_ends_the_detach_elsewhere() {
    let (store, queue, _registration) = served();
    let mut leaving = waited_for(&store, &queue);
    leaving.resource_version.0 = 3;
    leaving.finalizers = Finalizers::default();
    store.apply_attachment_response(leaving);
    assert_eq!(woken(&queue), ["new"]);
    removed(&store, "old");
    assert_eq!(woken(&queue), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_detach_is_woken_when_nobody_wants_the_volume_there() {
    let (store, queue, _registration) = served();
    store.apply_volume(with_handle("pv1", "h"));
    store.apply_volume(with_handle("pv2", "h"));
    let mut wanted = of_volume(attachment("wanted", 1), "pv2");
    wanted.attached = true;
    wanted.finalizers = Finalizers::new([FINALIZER]);
    store.apply_attachment(wanted.clone());
    store.apply_attachment(detaching("leaving", 2));
    fail_next(&queue);
    wanted.resource_version.0 = 3;
    wanted.deleting = Some("2026-01-01T00:00:00Z".parse().unwrap());
    store.apply_attachment(wanted);
    assert_eq!(woken(&queue), ["leaving", "wanted"]);
    assert_eq!(store.counts(DRIVER).detaching, 2);
}

/// The sidecar notes no volume. What it attached keeps its place all the same, and so does what it claimed, whoever asks.
#[test]
fn what_a_sidecar_claimed_keeps_its_place() {
    let place = VolumeOnNode::new("h", "id").unwrap();
    let gone = noted(with_id(attachment("a", 1), "id"), "h", &[]);
    let claims = |edit: fn(&mut Attachment)| {
        let mut index = Index::default();
        index.apply_volume(with_handle("pv1", "h"));
        let mut made_again = with_id(attached("a"), "id");
        made_again.uid = "second".into();
        made_again.finalizers = Finalizers::new([FINALIZER]);
        edit(&mut made_again);
        index.apply_attachment(made_again);
        index.is_claimed(&gone, &super::facts(DRIVER), place)
    };
    assert!(claims(|_| {}), "attached, with the finalizer");
    assert!(claims(|one| one.attached = false), "claimed");
    assert!(
        claims(|one| one.finalizers = Finalizers::default()),
        "attached, and somebody took the finalizer off"
    );
    assert!(
        claims(|one| one.node_id = None),
        "attached, and somebody took the node ID off"
    );
    assert!(
        !claims(|one| {
            one.attached = false;
            one.finalizers = Finalizers::default();
        }),
        "neither attached nor claimed"
    );
    assert!(!claims(|one| one.node_id = Some("other".into())), "at another node");
    assert!(
        !claims(|one| one.deleting = Some(jiff::Timestamp::UNIX_EPOCH)),
        "to be detached"
    );
}

/// A machine was node n, and is node o now; the failed attachment for n still carries its ID.
#[test]
fn what_a_sidecar_attached_at_a_machine_that_has_another_name_keeps_it() {
    let mut index = Index::default();
    index.apply_volume(with_handle("pv1", "h"));
    let mut failed = with_id(attachment("for-n", 1), "id-o");
    failed.finalizers = Finalizers::new([FINALIZER]);
    let mut in_use = on_node(with_id(attached("for-o"), "id-o"), "o");
    in_use.finalizers = Finalizers::new([FINALIZER]);
    index.apply_attachment(failed.clone());
    index.apply_attachment(in_use);
    let place = VolumeOnNode::new("h", "id-o").unwrap();
    assert!(index.is_claimed(&failed, &super::facts(DRIVER), place));
}
