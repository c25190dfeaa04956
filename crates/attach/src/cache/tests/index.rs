//! The ways between the tables.

use super::*;
use crate::cache::Counts;
use crate::decide::NodeEntry;
use crate::decide::patch::WriteTarget;

fn counts(attached: usize, attaching: usize, detaching: usize) -> Counts {
    Counts {
        attached,
        attaching,
        detaching,
    }
}

#[test]
fn a_snapshot_joins_attachment_volume_and_node() {
    let mut index = Index::default();
    index.apply(attachment("a", 3));
    let bare = index.snapshot("a").unwrap();
    assert!(bare.volume.is_none() && bare.node.is_none());
    assert_eq!(bare.node_entry(DRIVER), NodeEntry::Missing);
    index.apply(volume("pv1", 2));
    index.apply(node("n1", 1, &[("b.test", "x"), (DRIVER, "id-1")]));
    let full = index.snapshot("a").unwrap();
    assert_eq!(full.volume.as_ref().map(|volume| &*volume.name), Some("pv1"));
    assert_eq!(full.node_entry(DRIVER), NodeEntry::Registered("id-1"));
    assert_eq!(full.node_entry("c.test"), NodeEntry::WithoutDriver);
    let version = |version| Some(ResourceVersion(version));
    let volume = WriteTarget::Volume("pv1".into());
    assert_eq!((full.uid(&volume), full.version(&volume)), ("pv1-uid", version(2)));
    assert_eq!((bare.uid(&volume), bare.version(&volume)), ("", None));
    let status = WriteTarget::AttachmentStatus("a".into());
    assert_eq!((full.uid(&status), full.version(&status)), ("a-uid", version(3)));
    assert!(index.snapshot("b").is_none());
}

#[test]
fn attachments_of_a_volume_are_counted_whoever_made_them() {
    let mut index = Index::default();
    index.apply(volume("pv1", 1));
    let count = |index: &Index| index.volume("pv1").unwrap().1;
    assert_eq!(count(&index), 0);
    let other = with(attachment("b", 1), |it| it.attacher = "other.test".into());
    let mut both = attachment("c", 1);
    both.source = AttachmentSource::Both("pv1".into());
    let elsewhere = of_volume(attachment("d", 1), "pv2");
    for record in [attachment("a", 1), other, both, elsewhere] {
        index.apply(record);
    }
    assert_eq!(count(&index), 3);
    index.apply(attachment("a", 2));
    assert_eq!(count(&index), 3, "a newer copy counts once");
    index.remove::<Attachment>("a", "a-uid");
    index.mark_deleted(&WriteTarget::Attachment("c".into()), "c-uid");
    index.remove::<Attachment>("c", "c-uid");
    assert_eq!(count(&index), 1);
    // What comes back under a name may name another volume.
    let moved = of_volume(attachment("b", 9), "pv2");
    index.apply(with(moved, |it| it.uid = "new".into()));
    assert_eq!(count(&index), 0);
}

#[test]
fn states_are_counted_for_each_driver() {
    let mut index = Index::default();
    // Another driver has some of each all the time.
    let of_other = |mut record: Attachment, attached| {
        (record.attacher, record.attached) = ("other.test".into(), attached);
        record
    };
    index.apply(of_other(attachment("other-1", 1), true));
    index.apply(of_other(attachment("other-2", 1), false));
    index.apply(of_other(detaching("other-3", 1), true));
    let of_others = counts(1, 1, 1);
    index.apply(attachment("a", 1));
    index.apply(attachment("b", 1));
    index.apply(detaching("c", 1));
    assert_eq!(index.links.counts(DRIVER), counts(0, 2, 1));
    assert_eq!(index.links.counts("other.test"), of_others);
    index.apply(attached("a", 2));
    assert_eq!(index.links.counts(DRIVER), counts(1, 1, 1));
    index.apply(with(detaching("a", 3), |it| it.attached = true));
    assert_eq!(index.links.counts(DRIVER), counts(0, 1, 2));
    for name in ["a", "b", "c"] {
        index.remove::<Attachment>(name, &format!("{name}-uid"));
    }
    assert_eq!(index.links.counts(DRIVER), Counts::default());
    assert_eq!(index.links.counts("nobody.test"), Counts::default());
    assert_eq!(index.links.counts("other.test"), of_others);
}

#[test]
fn names_are_kept_once() {
    let mut index = Index::default();
    index.apply(volume("pv1", 1));
    index.apply(attachment("a", 1));
    index.apply(attachment("b", 1));
    let [a, b] = ["a", "b"].map(|name| index.snapshot(name).unwrap().attachment);
    assert!(Arc::ptr_eq(&a.attacher, &b.attacher) && Arc::ptr_eq(&a.node, &b.node));
    let known = index.volumes.get("pv1").unwrap().name.clone();
    assert!(Arc::ptr_eq(a.volume_name().unwrap(), &known));
}

#[test]
fn the_oldest_that_waits_is_found_in_each_direction() {
    let mut index = Index::default();
    let at = |second: i64| Some(jiff::Timestamp::from_second(second).unwrap());
    let mut settled = attachment("settled", 1);
    (settled.attached, settled.created) = (true, at(1));
    let (mut old, mut young) = (attachment("old", 1), attachment("young", 1));
    (old.created, young.created) = (at(10), at(20));
    let mut leaving = detaching("leaving", 1);
    (leaving.created, leaving.deleting) = (at(2), at(15));
    for record in [settled, young, leaving, old] {
        index.apply(record);
    }
    let name = |found: Option<Arc<Attachment>>| found.map(|record| record.name.to_string());
    assert_eq!(name(index.oldest_pending(DRIVER)).as_deref(), Some("old"));
    assert_eq!(name(index.oldest_pending_of(DRIVER, true)).as_deref(), Some("leaving"));
    assert_eq!(name(index.oldest_pending("b.test")), None);
}

#[test]
fn a_driver_that_starts_finds_what_piled_up() {
    let mut index = Index::default();
    let settled = attached("settled", 1);
    let mut lost = attachment("lost-its-finalizer", 1);
    (lost.attached, lost.node_id) = (true, Some("id".into()));
    let mut not_ours = detaching("not-ours", 1);
    not_ours.finalizers = Finalizers::new(["a/b"]);
    let other = with(attachment("other", 1), |it| it.attacher = "other.test".into());
    let (wanted, leaving) = (attachment("wanted", 1), detaching("leaving", 1));
    for record in [wanted, leaving, settled, lost, not_ours, other] {
        index.apply(record);
    }
    let held = |name, finalizer: &str, deleting| {
        let mut record = volume(name, 1);
        (record.deleting, record.finalizers) = (deleting, Finalizers::new([finalizer]));
        record
    };
    index.apply(held("deleted", FINALIZER, true));
    index.apply(held("live", FINALIZER, false));
    index.apply(held("held-by-others", "a/b", true));
    let work: Vec<_> = index.work_of(&facts(DRIVER)).iter().map(label).collect();
    assert_eq!(work, ["leaving", "lost-its-finalizer", "wanted", "volume deleted"]);
}
