//! What attachments of one volume know of each other, and who is woken, against going through all of them.

use proptest::prelude::*;
use std::collections::BTreeMap;

use super::{DRIVER, FINALIZER, attachment, volume};
use crate::cache::index::{CacheChange, Index};
use crate::decide;
use crate::objects::{Attachment, AttachmentSource, Finalizers, VolumeError};

/// What an attachment is like, drawn.
#[allow(clippy::struct_excessive_bools, reason = "each is drawn")]
#[derive(Clone, Copy, Debug)]
struct Drawn {
    name: usize,
    replaced: bool,
    node: usize,
    id: usize,
    volume: usize,
    other_driver: bool,
    deleting: bool,
    attached: bool,
    failed: bool,
    ours: bool,
    gone: bool,
}

prop_compose! {
    fn drawn()(
        (name, node, id, volume) in (0..5_usize, 0..3_usize, 0..3_usize, 0..3_usize),
        (deleting, attached, failed, ours) in (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.8)),
        (replaced, other_driver, gone) in (prop::bool::weighted(0.1), prop::bool::weighted(0.1), prop::bool::weighted(0.2)),
    ) -> Drawn {
        Drawn { name, replaced, node, id, volume, other_driver, deleting, attached, failed, ours, gone }
    }
}

fn record(drawn: Drawn, version: u64) -> Attachment {
    let name = format!("va{}", drawn.name);
    let mut record = attachment(&name, version);
    if drawn.other_driver {
        record.attacher = "other.test".into();
    }
    record.node = format!("n{}", drawn.node).into();
    record.node_id = (drawn.id > 0).then(|| format!("id{}", drawn.id).into());
    record.source = AttachmentSource::PersistentVolume(format!("pv{}", drawn.volume).into());
    record.attached = drawn.attached;
    record.deleting = drawn.deleting.then(|| "2026-01-01T00:00:00Z".parse().unwrap());
    let finalizer = if drawn.ours { FINALIZER } else { "a/b" };
    record.finalizers = Finalizers::new([finalizer]);
    record.detach_error = drawn.failed.then(|| {
        Box::new(VolumeError {
            time: None,
            message: "no".into(),
            code: None,
        })
    });
    record
}

/// Whether an attach has to wait for a detach elsewhere, and a detach for who is there: by going through all.
fn waits(all: &BTreeMap<String, Attachment>, name: &str) -> (bool, bool) {
    let one = &all[name];
    let others = || {
        all.values()
            .filter(|other| *other.name != *name && other.attacher == one.attacher)
    };
    let same_volume = |other: &Attachment| other.volume_name() == one.volume_name();
    // pv1 and pv2 are two names of one volume of our driver.
    let twins = |other: &Attachment| [other, one].iter().all(|it| !it.volume_name().unwrap().ends_with('0'));
    let same_handle = |other: &Attachment| same_volume(other) || (*one.attacher == *DRIVER && twins(other));
    let leaving =
        others().any(|other| same_volume(other) && other.node != one.node && decide::is_leaving(other, FINALIZER));
    let in_use = others().any(|other| {
        let here = same_handle(other) && other.node == one.node;
        let machine = same_volume(other) && other.node_id.is_some() && other.node_id == one.node_id;
        (here || machine) && decide::is_in_use(other)
    });
    (leaving && one.deleting.is_none(), in_use && one.deleting.is_some())
}

fn known(index: &Index, name: &str) -> (bool, bool) {
    let snapshot = index.snapshot(name).unwrap();
    let live = snapshot.attachment.deleting.is_none();
    let mut elsewhere = snapshot.neighbours.elsewhere.iter();
    (
        live && elsewhere.any(|other| decide::is_leaving(other, FINALIZER)),
        snapshot.neighbours.here.is_some_and(|other| decide::is_in_use(&other)),
    )
}

proptest! {
    #[test]
    fn neighbours_are_found_and_woken_as_by_going_through_all(steps in prop::collection::vec(drawn(), 1..60)) {
        let mut index = Index::default();
        for (name, handle) in [("pv0", "h0"), ("pv1", "h1"), ("pv2", "h1")] {
            let mut volume = volume(name, 1);
            if let crate::objects::VolumeSource::Csi(source) = &mut volume.spec.source {
                source.handle = handle.into();
            }
            index.apply_volume(volume);
        }
        let mut all: BTreeMap<String, Attachment> = BTreeMap::new();
        for (version, drawn) in (10_u64..).zip(steps) {
            let name = format!("va{}", drawn.name);
            let before: BTreeMap<String, _> = all.keys().map(|name| (name.clone(), waits(&all, name))).collect();
            let change = if drawn.gone {
                let Some(record) = all.remove(&name) else { continue };
                index.remove_attachment(&name, &record.uid)
            } else {
                let mut record = record(drawn, version);
                // A UID does not come back.
                record.uid = match all.get(&name) {
                    Some(known) if !drawn.replaced => known.uid.clone(),
                    _ => format!("{name}-{version}").into(),
                };
                all.insert(name.clone(), record.clone());
                index.apply_attachment(record)
            };
            let (CacheChange::Attachment { waiting, .. } | CacheChange::AttachmentGone { waiting, .. }) = change else {
                panic!("nothing changed");
            };
            for other in all.keys() {
                let now = waits(&all, other);
                prop_assert_eq!(known(&index, other), now, "{}", other);
                let was = before.get(other);
                // Whoever may go on is woken; that somebody has to wait from now on is no reason to.
                let freed = was.is_some_and(|was| (was.0 && !now.0) || (was.1 && !now.1));
                let live = all[other].deleting.is_none();
                let may_matter = !live || !all[other].attached;
                if *other != name && freed && may_matter && all[other].attacher == DRIVER.into() {
                    prop_assert!(waiting.iter().any(|woken| **woken == **other), "{other} is not woken: {waiting:?}");
                }
            }
        }
    }
}
