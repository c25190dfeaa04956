//! Everything that attachments of one driver wait for. It ends with the attachment that waits, however that goes.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

use super::attempt::detach_waits::DetachWaits;
use super::attempt::in_flight::CallInFlight;
use super::secret_waiters::SecretWaits;
use crate::cache::{AttacherKey, EnqueueCause, ForcedAttachments};
use crate::queue::Queue;
use crate::schedule;
use csi_attacher_runtime::state::DriverStateSender;

/// The waits of one driver.
pub(super) struct Waits {
    /// For a detach of the volume from another node.
    pub holds: DetachWaits,
    /// For a Secret.
    pub secrets: SecretWaits,
    /// For a call about the same volume and node.
    pub calls: CallWaits,
    /// Attachments that are worked on although they look settled.
    pub forced: ForcedAttachments,
    publisher: DriverStateSender,
}

impl Waits {
    pub fn new(publisher: DriverStateSender) -> Self {
        Self {
            holds: DetachWaits::default(),
            secrets: SecretWaits::default(),
            calls: CallWaits::default(),
            forced: ForcedAttachments::default(),
            publisher,
        }
    }

    /// An attachment is settled, or gone: it waits for nothing.
    pub fn end(&self, name: &str) {
        self.holds.remove(name);
        self.calls.end(name);
        self.forced.unmark(name);
        self.secrets.end(name, &self.publisher);
    }
}

/// Attachments that wait for the end of a call of another one, by name.
#[derive(Default)]
pub(super) struct CallWaits(Mutex<HashMap<Arc<str>, AbortOnDropHandle<()>>>);

impl CallWaits {
    /// Has an attachment tried again after a call. A wait from before ends: there is one for each attachment at most.
    pub fn wait(&self, name: &Arc<str>, call: CallInFlight, queue: Queue<AttacherKey>) {
        let key = AttacherKey::Attachment(name.clone());
        let task = schedule::spawn(async move {
            call.wait_finished().await;
            queue.wake(&key, EnqueueCause::Retry.into());
        });
        self.0.lock().insert(name.clone(), AbortOnDropHandle::new(task));
    }

    /// The attachment is tried again, settled, or gone.
    pub fn end(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::VolumeOnNode;
    use crate::driver::attempt::in_flight::InFlightCalls;
    use crate::queue::Backoff;

    fn here() -> VolumeOnNode<'static> {
        VolumeOnNode::new("volume", "node").unwrap()
    }

    #[tokio::test]
    async fn an_attachment_waits_for_one_call_and_no_longer_than_it_is_there() {
        let (in_flight, waits) = (InFlightCalls::default(), CallWaits::default());
        let queue = Queue::new(Backoff::default());
        let _call = in_flight.acquire(here()).ok().unwrap();
        let name: Arc<str> = "va".into();
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        for _ in 0..10 {
            waits.wait(&name, in_flight.acquire(here()).err().unwrap(), queue.clone());
            tokio::task::yield_now().await;
        }
        assert_eq!((waits.0.lock().len(), tasks()), (1, 1));
        waits.end("va");
        tokio::task::yield_now().await;
        assert_eq!((waits.0.lock().len(), tasks()), (0, 0));
    }
}
