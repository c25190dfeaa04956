//! An AttacherConfig that is being deleted, and drivers that lost their calls: what is let be.

use serde_json::json;

use super::builders::{NODE_ID, attachment, volume};
use super::table::{done, play, retried};
use super::world::{DecideModel, on_node, ready};
use crate::decide::ReleaseWithoutCall;

impl DecideModel {
    /// With a driver of which this may be released without a call.
    pub fn releasing(mut self, release: ReleaseWithoutCall) -> Self {
        self.driver.release = release;
        self
    }

    /// Of an AttacherConfig that is being deleted.
    pub fn leaving(mut self) -> Self {
        self.policy.leaving = true;
        self
    }
}

/// An AttacherConfig that waits to be deleted goes on with what is claimed, and claims nothing new.
#[test]
fn attaching_while_the_config_is_being_deleted() {
    let ready = || ready().leaving();
    let refused = "AERR(the AttacherConfig of driver csi/test is being deleted (spec.deletionPolicy: WaitForDetach) and attaches \
                   no further volumes; create another AttacherConfig for the driver, which takes over)";
    play(vec![
        retried(refused).when(vec![
            ("new", ready().va(attachment())),
            (
                "new, with finalizers of others",
                ready().va(attachment().finalizers(&["a/b"])),
            ),
            (
                "its volume is not even protected",
                on_node(volume()).leaving().va(attachment()),
            ),
        ]),
        done("NOTE").when(vec![("attached", ready().va(attachment().claimed().attached()))]),
        done("FIN again | NOTE").when(vec![(
            "attached, and somebody took the finalizer off",
            ready().va(attachment().noted_node(NODE_ID).attached()),
        )]),
        done("FIN again | pub handle1 nodeID1 rw | ATT").when(vec![(
            "called for, and somebody took the finalizer off",
            ready().va(attachment()
                .noted_node(NODE_ID)
                .noted_volume(&json!({"handle": "handle1"}))),
        )]),
        done("pub handle1 nodeID1 rw | ATT").when(vec![(
            "claimed before",
            ready().va(attachment().claimed().noted_volume(&json!({"handle": "handle1"}))),
        )]),
        done("unpub handle1 nodeID1 | FIN-").when(vec![(
            "detached as ever",
            ready().va(attachment().claimed().attached().deleting()),
        )]),
    ]);
}
