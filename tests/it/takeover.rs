//! Proves that the operator and the Go sidecar can follow each other on the same objects, in both directions: what one
//! leaves is what the other expects, whatever state it is in.

mod lease;
mod objects;
mod sidecar;
mod states;

use csi_attacher_model::api::names::NODE_ID_ANNOTATION;

use crate::drop_in::Scene;
use crate::rig::{Driver, part};
use crate::support::Result;

/// What the operator writes beyond the sidecar's protocol.
const NOTE_ANNOTATION: &str = "attacher.csi.dev/volume";

/// Each part has a driver of its own.
#[tokio::test]
async fn sidecar_and_operator_follow_each_other() -> Result<()> {
    let scene = Scene::new().await?;
    let world = &scene.world;
    part("by the Lease of the driver", lease::exclude_each_other(&scene)).await?;
    part("whatever a sidecar left", states::whatever_a_sidecar_left(world)).await?;
    part("by turns", sidecar::by_turns(world)).await?;
    part(
        "a driver that attaches no more",
        sidecar::a_driver_that_attaches_no_more(world),
    )
    .await
}

impl Driver<'_> {
    /// Waits until the operator has looked at everything that it found when it started. It takes work up in the order in
    /// which it arrives, so that a whole attach made now ends after it.
    async fn looked_at_everything(&self, name: &str) -> Result<()> {
        self.attach_one_more(name).await
    }
}
