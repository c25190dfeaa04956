//! What attachments of one volume know of each other, and who is woken, against going through all of them.

use proptest::prelude::*;
use std::collections::BTreeMap;

use super::{DRIVER, FINALIZER, attachment, node, noted, volume_error, with_handle};
use crate::cache::Index;
use crate::decide;
use crate::objects::{Attachment, AttachmentSource, Finalizers};
use crate::reflect::Tables as _;

/// What an attachment is like, drawn.
#[allow(clippy::struct_excessive_bools, reason = "each is drawn")]
#[derive(Clone, Copy, Debug)]
struct Drawn {
    name: usize,
    replaced: bool,
    node: usize,
    id: usize,
    volume: usize,
    noted: usize,
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
        noted in 0..4_usize,
        (deleting, attached, failed, ours) in (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.8)),
        (replaced, other_driver, gone) in (prop::bool::weighted(0.1), prop::bool::weighted(0.1), prop::bool::weighted(0.2)),
    ) -> Drawn {
        Drawn { name, replaced, node, id, volume, noted, other_driver, deleting, attached, failed, ours, gone }
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
    // h1 as of pv1 and pv2, or as of a volume that had one of their names before.
    if let Some(handle) = [None, None, Some("h1"), Some("h9")][drawn.noted] {
        record = noted(record, handle, &[]);
    }
    record.attached = drawn.attached;
    record.deleting = drawn.deleting.then(|| "2026-01-01T00:00:00Z".parse().unwrap());
    let finalizer = if drawn.ours { FINALIZER } else { "a/b" };
    record.finalizers = Finalizers::new([finalizer]);
    record.detach_error = drawn.failed.then(|| volume_error().into());
    record
}

/// The handle that pv0, pv1 or pv2 has.
fn described(volume: &str) -> &'static str {
    if volume == "pv0" { "h0" } else { "h1" }
}

fn handle(record: &Attachment) -> &str {
    let to_attach = record.deleting.is_none() && !record.attached;
    let noted = record.volume_note.as_ref().filter(|_| !to_attach);
    noted.map_or_else(|| described(record.volume_name().unwrap()), |note| &note.handle)
}

/// The node n2 has the ID id1 of our driver. The ID of now is first.
fn ids(record: &Attachment) -> Vec<&str> {
    let registered = (*record.node == *"n2" && *record.attacher == *DRIVER).then_some("id1");
    registered.into_iter().chain(record.node_id.as_deref()).collect()
}

/// Whether an attach has to wait for a detach elsewhere, whether one is not over there, and whether a detach has to wait for who is there:
/// by going through all.
fn waits(all: &BTreeMap<String, Attachment>, name: &str) -> [bool; 3] {
    let one = &all[name];
    let others = || {
        all.values()
            .filter(|other| *other.name != *name && other.attacher == one.attacher && handle(other) == handle(one))
    };
    let same_volume = |other: &Attachment| other.volume_name() == one.volume_name();
    let elsewhere = || others().filter(|other| same_volume(other) && other.node != one.node);
    let leaving = elsewhere().any(|other| decide::is_leaving(other, FINALIZER));
    let detaching = elsewhere().any(|other| decide::is_detaching(other, FINALIZER));
    let in_use = others().any(|other| {
        let machine = ids(other).iter().any(|id| ids(one).first() == Some(id));
        (other.node == one.node || machine) && decide::is_in_use(other)
    });
    let live = one.deleting.is_none();
    [live && leaving, live && detaching, !live && in_use]
}

fn known(index: &Index, name: &str) -> [bool; 3] {
    let snapshot = index.snapshot(name).unwrap();
    let live = snapshot.attachment.deleting.is_none();
    let elsewhere = || snapshot.neighbours.elsewhere.iter();
    let here = snapshot.neighbours.here.as_ref();
    [
        live && elsewhere().any(|other| decide::is_leaving(other, FINALIZER)),
        live && elsewhere().any(|other| decide::is_detaching(other, FINALIZER)),
        here.is_some_and(|other| decide::is_in_use(other)),
    ]
}

proptest! {
    #[test]
    fn neighbours_are_found_and_woken_as_by_going_through_all(steps in prop::collection::vec(drawn(), 1..60)) {
        let mut index = Index::default();
        index.apply(node("n2", 1, &[(DRIVER, "id1")]));
        for name in ["pv0", "pv1", "pv2"] {
            index.apply(with_handle(name, 1, described(name)));
        }
        let mut all: BTreeMap<String, Attachment> = BTreeMap::new();
        for (version, drawn) in (10_u64..).zip(steps) {
            let name = format!("va{}", drawn.name);
            let before: BTreeMap<String, _> = all.keys().map(|name| (name.clone(), waits(&all, name))).collect();
            let change = if drawn.gone {
                let Some(record) = all.remove(&name) else { continue };
                index.remove::<Attachment>(&name, &record.uid)
            } else {
                let mut record = record(drawn, version);
                // A UID does not come back.
                record.uid = match all.get(&name) {
                    Some(known) if !drawn.replaced => known.uid.clone(),
                    _ => format!("{name}-{version}").into(),
                };
                all.insert(name.clone(), record.clone());
                index.apply(record)
            };
            // None where the same is drawn again.
            let waiting = change.map(|change| change.attachments).unwrap_or_default();
            for other in all.keys() {
                let now = waits(&all, other);
                prop_assert_eq!(known(&index, other), now, "{}", other);
                let was = before.get(other);
                // Whoever may go on is woken; that somebody has to wait from now on is no reason to.
                let freed = was.is_some_and(|was| was.iter().zip(now).any(|(was, now)| *was && !now));
                let live = all[other].deleting.is_none();
                let may_matter = !live || !all[other].attached;
                if *other != name && freed && may_matter && all[other].attacher == DRIVER.into() {
                    prop_assert!(waiting.iter().any(|woken| **woken == **other), "{other} is not woken: {waiting:?}");
                }
            }
        }
    }
}
