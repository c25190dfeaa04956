//! An AttacherConfig that is being deleted, and drivers that lost their calls: what is let be.

use serde_json::json;

use super::builders::{NODE_ID, attachment, volume};
use super::table::{play, row};
use super::world::{DecideModel, world};
use crate::decide::ReleaseWithoutCall;

impl DecideModel {
    /// With a driver of which this may be released without a call.
    pub fn releasing(mut self, release: ReleaseWithoutCall) -> Self {
        self.driver.release = release;
        self
    }

    /// Of an AttacherConfig that is being deleted.
    fn leaving(mut self) -> Self {
        self.policy.leaving = true;
        self
    }
}

/// An AttacherConfig that waits to be deleted goes on with what is claimed, and claims nothing new.
#[test]
fn attaching_while_the_config_is_being_deleted() {
    let ready = || world().pv(volume().protected()).node().leaving();
    let refused = "AERR(the AttacherConfig of driver csi/test is being deleted (spec.deletionPolicy: WaitForDetach) and attaches \
                   no further volumes; create another AttacherConfig for the driver, which takes over)";
    let rows = vec![
        row("new", ready().va(attachment()), refused, "R"),
        row(
            "new, with finalizers of others",
            ready().va(attachment().finalizers(&["a/b"])),
            refused,
            "R",
        ),
        row(
            "its volume is not even protected",
            world().pv(volume()).node().leaving().va(attachment()),
            refused,
            "R",
        ),
        row("attached", ready().va(attachment().claimed().attached()), "NOTE", "F"),
        row(
            "attached, and somebody took the finalizer off",
            ready().va(attachment().noted_node(NODE_ID).attached()),
            "FIN again | NOTE",
            "F",
        ),
        row(
            "claimed before",
            ready().va(attachment().claimed().noted_volume(&json!({"handle": "handle1"}))),
            "pub handle1 nodeID1 rw | ATT",
            "F",
        ),
        row(
            "detached as ever",
            ready().va(attachment().claimed().attached().deleting()),
            "unpub handle1 nodeID1 | FIN-",
            "F",
        ),
    ];
    play(rows, DecideModel::attempt);
}
