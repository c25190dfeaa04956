//! Finalizers of PersistentVolumes: section 8.3 of the sidecar's behaviour, 11 scenarios, and 8.7.

use serde_json::json;

use super::api_server::apply;
use super::builders::{FINALIZER, GCE_DRIVER, GCE_FINALIZER, Pv, attachment, gce_volume, volume};
use super::table::{done, ends, play, play_with, retried, tally};
use super::world::{gce_world, on_node, world};
use crate::decide::{self, Capabilities, DriverFacts, KeepReason};

#[test]
fn releasing_volumes() {
    let gce = |finalizer| gce_world().pv(gce_volume().finalizers(&[finalizer]).deleting());
    let rows = vec![
        done("PV-").when(vec![
            ("attachment deleted", world().pv(volume().protected().deleting())),
            ("attachment deleted, in-tree", gce(GCE_FINALIZER)),
            (
                "volume updated",
                world().pv(volume().protected().deleting().set("/metadata/resourceVersion", "2")),
            ),
            (
                "finalizers of others stay",
                world().pv(volume().finalizers(&[FINALIZER, "foo/bar", "bar/baz"]).deleting()),
            ),
        ]),
        done("").when(vec![
            (
                "attachment deleted, not ours",
                world().pv(volume().finalizers(&["a/b"]).deleting()),
            ),
            ("attachment deleted, in-tree, not ours", gce("a/b")),
            (
                "no finalizer",
                world().pv(volume().deleting().set("/metadata/finalizers", json!(null))),
            ),
            ("not deleted", world().pv(volume().protected())),
            (
                "of another driver",
                world().pv(volume()
                    .set("/spec/csi/driver", "dummy")
                    .finalizers(&["external-attacher/dummy"])),
            ),
        ]),
        ends("RRF", "PV- 403 | PV- 403 | PV-").when(vec![(
            "finalizer cannot be removed",
            world().pv(volume().protected().deleting()).refuse_volume(&[1, 2]),
        )]),
    ];
    let attached = vec![done("").when(vec![("still attached", world().pv(volume().protected().deleting()))])];
    let count = play_with(rows, |world| world.volume_attempt(0)) + play_with(attached, |world| world.volume_attempt(1));
    tally("8.3", "PersistentVolume finalizers", count);
}

#[test]
fn others_keep_their_place() {
    let mut world = world().pv(volume().finalizers(&["a/b", FINALIZER, "c/d"]).deleting());
    world.volume_attempt(0);
    assert_eq!(world.volume.unwrap()["metadata"]["finalizers"], json!(["a/b", "c/d"]));
}

/// Section 8.7, 6 scenarios: who is asked about which volume; and the decision is the same when nothing is attached.
#[test]
fn which_volumes_are_released() {
    let driver = DriverFacts::new(GCE_DRIVER, Capabilities::default());
    assert_eq!(&*driver.finalizer, GCE_FINALIZER);
    let ours = |volume: Pv| volume.finalizers(&[GCE_FINALIZER]);
    let annotated = |key: &str, value: &str| ours(gce_volume()).set("/metadata/annotations", json!({key: value}));
    let migrated = annotated("pv.kubernetes.io/migrated-to", GCE_DRIVER);
    let rows = [
        ("nothing interesting", volume(), false),
        ("not deleted", ours(volume()), false),
        ("deleted", ours(volume()).deleting(), true),
        ("live, in-tree, not migrated", ours(gce_volume()), true),
        ("live, in-tree, something noted", annotated("some", "thing"), true),
        ("live, in-tree, migrated to this driver", migrated.clone(), false),
    ];
    tally("8.7", "finalizer filter", rows.len());
    let more = [
        (
            "live, in-tree, migrated to another driver",
            annotated("pv.kubernetes.io/migrated-to", "other.test"),
            true,
        ),
        ("deleted, in-tree, migrated", migrated.deleting(), true),
        ("live, in-tree, without our finalizer", gce_volume(), false),
        (
            "live, in-tree, not to be translated",
            ours(volume().in_tree("azureDisk").set("/spec/azureDisk/kind", "Shared")),
            true,
        ),
    ];
    for (name, volume, released) in rows.into_iter().chain(more) {
        let record = world().pv(volume).volume_record().unwrap();
        assert_eq!(decide::may_release(&record, &driver), released, "{name}");
        let action = decide::volume(&record, 0, &driver);
        assert_eq!(action.is_ok(), released, "{name}: {action:?}");
        let action = decide::volume(&record, 2, &driver);
        assert!(action.is_err(), "{name}: {action:?}");
    }
}

/// A process stood still between its decision and the write, and meanwhile the volume was given back to the driver and attached.
#[test]
fn a_late_release_of_a_live_volume_is_refused() {
    let driver = DriverFacts::new(GCE_DRIVER, Capabilities::default());
    let before = gce_volume()
        .finalizers(&[GCE_FINALIZER])
        .set("/metadata/resourceVersion", "7");
    let record = world().pv(before.clone()).volume_record().unwrap();
    let write = decide::volume(&record, 0, &driver).unwrap();
    assert!(apply(&before.0, &write).is_ok());
    let migrated = json!({"pv.kubernetes.io/migrated-to": GCE_DRIVER});
    let since = before
        .set("/metadata/annotations", migrated)
        .set("/metadata/resourceVersion", "8");
    assert!(apply(&since.0, &write).is_err());
}

#[test]
fn why_volumes_are_kept() {
    let driver = DriverFacts::new(GCE_DRIVER, Capabilities::default());
    let kept = |volume, attachments, why| {
        let record = world().pv(volume).volume_record().unwrap();
        assert_eq!(decide::volume(&record, attachments, &driver), Err(why));
    };
    let ours = |volume: Pv| volume.finalizers(&[GCE_FINALIZER]);
    kept(volume(), 0, KeepReason::Live);
    kept(ours(volume()), 0, KeepReason::Live);
    kept(volume().protected().deleting(), 0, KeepReason::NotProtected);
    kept(gce_volume(), 0, KeepReason::NotProtected);
    kept(ours(volume()).deleting(), 2, KeepReason::Attached);
    kept(ours(gce_volume()), 1, KeepReason::Attached);
}

/// A driver whose migration is taken back while it fails to release the volume is asked again at once.
#[test]
fn a_volume_that_is_to_be_served_by_another_is_news() {
    let driver = DriverFacts::new(GCE_DRIVER, Capabilities::default());
    let print = |volume: Pv| decide::volume_fingerprint(&world().pv(volume).volume_record().unwrap(), 0, &driver);
    let migrated = |to: &str| gce_volume().set("/metadata/annotations", json!({"pv.kubernetes.io/migrated-to": to}));
    assert_ne!(print(gce_volume()), print(migrated(GCE_DRIVER)));
    assert_eq!(print(gce_volume()), print(migrated("other.test")));
}

/// Beyond the sidecar: what is attached gets the finalizer on its volume again when that has lost it.
#[test]
fn what_is_attached_is_protected_again() {
    let attached = || attachment().claimed().attached();
    let noted = |handle: &str| attached().noted_volume(&json!({"handle": handle}));
    let with = |volume| on_node(volume);
    let relabelled = |time: &str| {
        let attached = noted("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/testpd")
            .set("/metadata/creationTimestamp", "2026-01-01T00:00:00Z")
            .set("/spec/attacher", GCE_DRIVER)
            .finalizers(&[GCE_FINALIZER]);
        let volume = gce_volume().set("/metadata/creationTimestamp", time);
        gce_world().pv(volume).node().va(attached)
    };
    play(vec![
        done("PV+ | NOTE").when(vec![("lost", with(volume()).va(attached()))]),
        done("PV+").when(vec![
            ("lost, its volume noted", with(volume()).va(noted("handle1"))),
            ("lost, its node gone", world().pv(volume()).va(noted("handle1"))),
        ]),
        done("PV+").when(vec![(
            "lost by an in-tree volume that is older, and has another handle since its labels were changed",
            relabelled("2025-01-01T00:00:00Z"),
        )]),
        done("").when(vec![(
            "an in-tree volume that was made again",
            relabelled("2026-01-02T00:00:00Z"),
        )]),
        retried("PV+ 403").when(vec![(
            "that cannot be written, and is no attach error",
            with(volume()).va(attached()).refuse_volume(&[1]),
        )]),
        done("").when(vec![
            ("another volume by its name", with(volume()).va(noted("other"))),
            (
                "another driver's volume by its name",
                with(volume().set("/spec/csi/driver", "other.test")).va(attached()),
            ),
            (
                "what was attached without us",
                with(volume()).va(attachment().attached()),
            ),
        ]),
        done("NOTE").when(vec![(
            "a volume that is being deleted",
            with(volume().deleting()).va(attached()),
        )]),
    ]);
}
