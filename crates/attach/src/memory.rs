//! What is remembered of a VolumeAttachment beside what its object says. It belongs to the key in the queue and ends with it, so that no
//! wait outlives the attachment that waits.

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::cache::AttacherKey;
use crate::driver::{AwaitedSecret, WithheldGuard};
use crate::objects::Attachment;
use crate::queue::Remembered;
use crate::traces::SharedLifecycle;

/// What is remembered of an unsettled key.
#[derive(Default)]
pub struct KeyMemory {
    /// The UID of the attachment that is worked on although it looks settled.
    pub(crate) forced: Option<Box<str>>,
    /// Since when the attach is held back for what is done about its volume at another node.
    pub(crate) held_back_since: Option<Instant>,
    /// Runs the key again when the call of another attachment ends that is in its way.
    pub(crate) call: Option<AbortOnDropHandle<()>>,
    /// The Secret that it waits for.
    pub(crate) secret: Option<AwaitedSecret>,
    /// That the driver is not given the Secret, and why.
    pub(crate) withheld: Option<WithheldGuard>,
    /// The trace that its attempts are a part of.
    pub(crate) lifecycle: Option<SharedLifecycle>,
}

impl KeyMemory {
    /// Whether this very attachment is worked on although it looks settled.
    pub(crate) fn forces(&self, attachment: &Attachment) -> bool {
        self.forced.as_deref() == Some(&*attachment.uid)
    }
}

impl Remembered for AttacherKey {
    type Memory = KeyMemory;
}
