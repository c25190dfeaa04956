//! Drivers without ControllerPublishVolume: section 8.5 of the sidecar's behaviour, 4 scenarios.

use super::builders::{FINALIZER, attachment, volume};
use super::table::{play, row, tally};
use super::world::{World, world};
use crate::decide::{self, Capabilities};

fn trivial() -> World {
    world().capabilities(Capabilities::default())
}

#[test]
fn a_driver_without_calls_has_everything_attached() {
    let rows = vec![
        row("added", trivial().va(attachment()), "ATT", "F"),
        row(
            "updated",
            trivial().va(attachment().set("/metadata/resourceVersion", "2")),
            "ATT",
            "F",
        ),
        row(
            "another attacher",
            trivial().va(attachment().set("/spec/attacher", "unknownDriver")),
            "",
            "F",
        ),
        row(
            "cannot be saved",
            trivial().va(attachment()).refuse_attachment(&[1, 2]),
            "ATT 403 | ATT 403 | ATT",
            "RRF",
        ),
    ];
    tally("8.5", "trivial", play(rows, World::attempt));
}

/// Divergence: the sidecar looks at no deletion, so that what a driver claimed while it had the calls stays for ever.
#[test]
fn what_was_claimed_when_the_driver_had_the_calls_is_let_go() {
    let rows = vec![
        row(
            "deleted",
            trivial().va(attachment().claimed().attached().deleting()),
            "FIN-",
            "F",
        ),
        row(
            "deleted, kept by others",
            trivial().va(attachment().finalizers(&[FINALIZER, "a/b"]).deleting()),
            "FIN-",
            "F",
        ),
        row(
            "deleted, never ours",
            trivial().va(attachment().finalizers(&["a/b"]).deleting()),
            "",
            "F",
        ),
        row("attached already", trivial().va(attachment().attached()), "", "F"),
        row(
            "without a volume",
            trivial().va(attachment().inline(&volume())),
            "ATT",
            "F",
        ),
    ];
    play(rows, World::attempt);
}

#[test]
fn an_attachment_that_needs_no_work_is_told_without_a_decision() {
    for capabilities in [Capabilities::default(), super::world::capable()] {
        for va in [
            attachment(),
            attachment().attached(),
            attachment().claimed(),
            attachment().claimed().attached(),
            attachment().finalizers(&["a/b"]).deleting(),
            attachment().claimed().deleting(),
            attachment().claimed().attached().deleting(),
        ] {
            let mut world = world().capabilities(capabilities).pv(volume()).node().va(va.clone());
            let record = world.snapshot().unwrap().attachment;
            let needed = decide::needs_work(&record, &world.driver);
            world.attempt();
            assert_eq!(needed, !world.log.is_empty(), "{va:?} {capabilities:?}");
        }
    }
}
