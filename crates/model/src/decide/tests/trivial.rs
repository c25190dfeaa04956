//! Drivers without ControllerPublishVolume: section 8.5 of the sidecar's behaviour, 4 scenarios.

use serde_json::json;

use super::builders::{FINALIZER, NODE_ID, attachment, volume};
use super::table::{done, ends, play, tally};
use super::world::{DecideModel, world};
use crate::decide::ReleaseWithoutCall::{AttachNotRequired, Confirmed, Nothing, Unclaimed};
use crate::decide::{self, Capabilities};

fn trivial() -> DecideModel {
    world().capabilities(Capabilities::default())
}

#[test]
fn a_driver_without_calls_has_everything_attached() {
    let rows = vec![
        done("ATT").when(vec![
            ("added", trivial().va(attachment())),
            (
                "updated",
                trivial().va(attachment().set("/metadata/resourceVersion", "2")),
            ),
        ]),
        done("").when(vec![(
            "another attacher",
            trivial().va(attachment().set("/spec/attacher", "unknownDriver")),
        )]),
        ends("RRF", "ATT 403 | ATT 403 | ATT").when(vec![(
            "cannot be saved",
            trivial().va(attachment()).refuse_attachment(&[1, 2]),
        )]),
    ];
    tally("8.5", "trivial", play(rows));
}

/// What is written on an attachment that is kept.
macro_rules! kept {
    ($label:literal) => {
        concat!(
            $label,
            "(CSI driver csi/test does not announce PUBLISH_UNPUBLISH_VOLUME any more, so that the volume, which it may have \
             published, cannot be attached or detached; check that the attacher is connected to the controller plugin of the \
             driver)"
        )
    };
}

/// Divergence: the sidecar looks at no deletion, so that what a driver claimed while it had the calls stays for ever. So it does
/// in its place; elsewhere it stays until the CSIDriver, or a person, says that nothing has to be detached.
#[test]
fn what_was_claimed_when_the_driver_had_the_calls_is_kept() {
    let kept = kept!("DERR");
    let detaching = || attachment().claimed().attached().deleting();
    for (release, log, requeue) in [
        (Nothing, kept, "R"),
        (Unclaimed, kept, "R"),
        (AttachNotRequired, "FIN-", "F"),
        (Confirmed, "FIN-", "F"),
    ] {
        let trivial = || trivial().releasing(release);
        let beside_others = if log == "FIN-" { "FIN- | DET" } else { log };
        play(vec![
            ends(requeue, beside_others).when(vec![(
                "deleted, kept by others",
                trivial().va(detaching().finalizers(&[FINALIZER, "a/b"])),
            )]),
            ends(requeue, log).when(vec![
                ("deleted", trivial().va(detaching())),
                ("deleted, of a pod", trivial().va(detaching().inline(&volume()))),
                (
                    "deleted, never answered",
                    trivial().va(attachment().claimed().deleting()),
                ),
                (
                    "deleted, by its note alone",
                    trivial().va(attachment()
                        .finalizers(&[FINALIZER])
                        .noted_volume(&json!({"handle": "handle1"}))
                        .deleting()),
                ),
                (
                    "deleted, attached and without a note",
                    trivial().va(attachment().finalizers(&[FINALIZER]).attached().deleting()),
                ),
            ]),
            done("").when(vec![
                (
                    "deleted, never ours",
                    trivial().va(attachment().finalizers(&["a/b"]).attached().deleting()),
                ),
                ("attached already", trivial().va(attachment().claimed().attached())),
            ]),
            done("ATT").when(vec![("without a volume", trivial().va(attachment().inline(&volume())))]),
        ]);
    }
}

#[test]
fn what_waits_to_be_attached_and_may_be_published_is_not_marked_attached() {
    let kept = kept!("AERR");
    for (release, log, requeue) in [
        (Nothing, "ATT", "F"),
        (Unclaimed, kept, "R"),
        (AttachNotRequired, "ATT", "F"),
        (Confirmed, "ATT", "F"),
    ] {
        let va = attachment().claimed();
        play(vec![
            ends(requeue, log).when(vec![("claimed", trivial().releasing(release).va(va))]),
        ]);
    }
}

/// Both attachers write finalizer and node ID together, so that a finalizer alone comes from no publish.
#[test]
fn a_finalizer_that_comes_from_no_publish_goes() {
    let kept = kept!("DERR");
    for (release, deleted, requeue, wanted) in [
        (Nothing, kept, "R", "ATT"),
        (Unclaimed, "FIN-", "F", "FIN- | ATT"),
        (AttachNotRequired, "FIN-", "F", "ATT"),
        (Confirmed, "FIN-", "F", "ATT"),
    ] {
        let va = || attachment().finalizers(&[FINALIZER]);
        let world = |va| trivial().releasing(release).va(va);
        play(vec![
            ends(requeue, deleted).when(vec![("deleted", world(va().deleting()))]),
            done(wanted).when(vec![("wanted", world(va()))]),
        ]);
    }
}

#[test]
fn an_attachment_that_needs_no_work_is_told_without_a_decision() {
    for capabilities in [Capabilities::default(), super::world::capable()] {
        for va in [
            attachment(),
            attachment().attached(),
            attachment().noted_node(NODE_ID).attached(),
            attachment().claimed(),
            attachment().claimed().attached(),
            attachment().finalizers(&["a/b"]).deleting(),
            attachment().claimed().deleting(),
            attachment().claimed().attached().deleting(),
        ] {
            let mut world = world().capabilities(capabilities).pv(volume()).node().va(va.clone());
            let snapshot = world.snapshot().unwrap();
            let needed = decide::needs_work(&snapshot.attachment, snapshot.volume.as_deref(), &world.driver);
            world.attempt();
            assert_eq!(needed, !world.log.is_empty(), "{va:?} {capabilities:?}");
        }
    }
}
