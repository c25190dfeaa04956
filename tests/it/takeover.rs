//! Proves that the operator and the Go sidecar can follow each other on the same objects, in both directions: what one
//! leaves is what the other expects, whatever state it is in.

mod lease;
mod objects;
mod sidecar;
mod states;

use csi_attacher_model::api::names::NODE_ID_ANNOTATION;

use crate::rig::Driver;
use crate::support::Result;

/// What the operator writes beyond the sidecar's protocol.
const NOTE_ANNOTATION: &str = "attacher.csi.dev/volume";

impl Driver<'_> {
    /// Waits until the operator has looked at everything that it found when it started. It takes work up in the order in
    /// which it arrives, so that a whole attach made now ends after it.
    async fn looked_at_everything(&self, name: &str) -> Result<()> {
        self.attach_one_more(name).await
    }
}
