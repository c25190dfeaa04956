//! Finalizers of PersistentVolumes: section 8.3 of the sidecar's behaviour, 11 scenarios, and 8.7.

use serde_json::json;

use super::builders::{FINALIZER, volume};
use super::table::{play, row};
use super::world::{World, world};
use crate::decide::{self, Capabilities, DriverFacts, VolumeAction, VolumeKept};

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn releasing_volumes() {
    let gce = || volume().in_tree("gcePersistentDisk");
    let rows = vec![
        row(
            "attachment deleted",
            world().pv(volume().protected().deleting()),
            "PV-",
            "F",
        ),
        row(
            "attachment deleted, in-tree",
            world().pv(gce().protected().deleting()),
            "PV-",
            "F",
        ),
        row(
            "attachment deleted, not ours",
            world().pv(volume().finalizers(&["a/b"]).deleting()),
            "",
            "F",
        ),
        row(
            "attachment deleted, in-tree, not ours",
            world().pv(gce().finalizers(&["a/b"]).deleting()),
            "",
            "F",
        ),
        row(
            "volume updated",
            world().pv(volume().protected().deleting().set("/metadata/resourceVersion", "2")),
            "PV-",
            "F",
        ),
        row(
            "finalizers of others stay",
            world().pv(volume().finalizers(&[FINALIZER, "foo/bar", "bar/baz"]).deleting()),
            "PV-",
            "F",
        ),
        row(
            "finalizer cannot be removed",
            world().pv(volume().protected().deleting()).refuse_volume(&[1, 2]),
            "PV- 403 | PV- 403 | PV-",
            "RRF",
        ),
        row(
            "no finalizer",
            world().pv(volume().deleting().set("/metadata/finalizers", json!(null))),
            "",
            "F",
        ),
        row("not deleted", world().pv(volume().protected()), "", "F"),
        row(
            "of another driver",
            world().pv(volume()
                .set("/spec/csi/driver", "dummy")
                .finalizers(&["external-attacher/dummy"])),
            "",
            "F",
        ),
    ];
    let attached = vec![row(
        "still attached",
        world().pv(volume().protected().deleting()),
        "",
        "F",
    )];
    let count = play(rows, |world| world.volume_attempt(0)) + play(attached, |world| world.volume_attempt(1));
    assert_eq!(count, 11);
}

#[test]
fn others_keep_their_place() {
    let mut world = world().pv(volume().finalizers(&["a/b", FINALIZER, "c/d"]).deleting());
    world.volume_attempt(0);
    assert_eq!(world.volume.unwrap()["metadata"]["finalizers"], json!(["a/b", "c/d"]));
}

/// Section 8.7: who looks at which volume. Migration back from CSI is not served by this version: the three rows about
/// live in-tree volumes are one here, and none of them is released.
#[test]
fn which_volumes_are_released() {
    let driver = DriverFacts::new("pd.csi.storage.gke.io", Capabilities::default());
    let finalizer = "external-attacher/pd-csi-storage-gke-io";
    assert_eq!(&*driver.finalizer, finalizer);
    let decide = |world: World, attachments| decide::volume(&world.volume_record().unwrap(), attachments, &driver);
    let kept = |volume, attachments, why| {
        assert_eq!(decide(world().pv(volume), attachments), VolumeAction::Keep(why));
    };
    kept(volume(), 0, VolumeKept::Live);
    kept(volume().finalizers(&[finalizer]), 0, VolumeKept::Live);
    kept(
        volume().in_tree("gcePersistentDisk").finalizers(&[finalizer]),
        0,
        VolumeKept::Live,
    );
    kept(volume().protected().deleting(), 0, VolumeKept::NotProtected);
    kept(volume().finalizers(&[finalizer]).deleting(), 2, VolumeKept::Attached);
    let deleted = volume().finalizers(&[finalizer]).deleting();
    assert!(matches!(decide(world().pv(deleted), 0), VolumeAction::Release(_)));
}
