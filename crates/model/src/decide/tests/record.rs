//! Whether what a call came to may still be written down.

use serde_json::json;

use super::builders::{Va, attachment};
use super::world::{DecideModel, world};
use crate::decide::{is_same_work, may_note_failure};

fn seen(va: Va) -> DecideModel {
    world().va(va)
}

/// What an attempt was made from, what is known by now, and whether a success and a failure of it still count.
#[test]
fn what_a_result_is_a_result_of() {
    let claimed = || attachment().claimed();
    let attached = || claimed().set("/status/attached", true);
    let moved = || claimed().set("/metadata/annotations/csi.alpha.kubernetes.io~1node-id", "another");
    let noted = |note: serde_json::Value| claimed().noted_volume(&note);
    let (leaving, moving) = (|| attached().deleting(), || moved().deleting());
    let (both, neither, success, failure) = ((true, true), (false, false), (true, false), (false, true));
    for (what, one, other, (succeeds, fails)) in [
        ("nothing changed", claimed(), claimed(), both),
        ("the claim went", claimed(), attachment(), neither),
        ("claimed for another node ID", claimed(), moved(), neither),
        (
            "the claim was renewed",
            noted(json!({"handle": "handle1"})),
            noted(json!({"handle": "handle1", "renewed": 1})),
            neither,
        ),
        ("it is to be detached by now", claimed(), claimed().deleting(), failure),
        // The model checker found it: a successor's error stood on what its predecessor's late write had recorded as attached.
        ("recorded as attached by a late write", claimed(), attached(), success),
        (
            "attached, and listed otherwise by the driver",
            attached(),
            attached(),
            both,
        ),
        ("being detached, and moved", claimed().deleting(), moving(), both),
        ("attached, and being detached", leaving(), leaving(), both),
    ] {
        let (one, other) = (seen(one), seen(other));
        let (first, later) = (one.snapshot().unwrap(), other.snapshot().unwrap());
        let (first, later, driver) = (&first.attachment, &later.attachment, &one.driver);
        assert_eq!(is_same_work(first, later, driver), succeeds, "{what}: success");
        assert_eq!(may_note_failure(first, later, driver), fails, "{what}: failure");
    }
}
