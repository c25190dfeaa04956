//! What is remembered of a VolumeAttachment beside what its object says. It belongs to the key in the queue and ends with it, so that no
//! wait outlives the attachment that waits. Only its attempts and its trace go on with the next engine of the driver (`progress`).

use std::time::Duration;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::api::validated::Timeouts;
use crate::cache::AttacherKey;
use crate::decide::DetachWait;
use crate::driver::WithheldGuard;
use crate::objects::{Attachment, Operation};
use crate::queue::Remembered;
use crate::traces::SharedLifecycle;
use csi_attacher_model::ListRests;
use csi_attacher_runtime::fence::UnsentCalls;
use csi_attacher_runtime::secret_waits::{AwaitedSecret, AwaitsSecret};

/// The longest that an attach is held back, whatever the deadlines are.
const LONGEST_HOLD: Duration = Duration::from_mins(2);

/// The longest rest of what waits for lists: nothing wakes it when they are complete.
pub(crate) const LONGEST_LIST_REST: Duration = Duration::from_secs(2);

/// What is remembered of an unsettled key.
#[derive(Default)]
pub struct KeyMemory {
    /// The UID of the attachment that is worked on although it looks settled.
    pub(crate) forced: Option<Box<str>>,
    /// Since when the attach is held back for what is done about its volume at another node.
    held_back_since: Option<Instant>,
    /// Runs the key again when the call of another attachment ends that is in its way.
    pub(crate) call: Option<AbortOnDropHandle<()>>,
    /// How often in a row it rested because it waits for lists.
    pub(crate) list_rests: ListRests,
    /// Its calls in a row that were not sent.
    pub(crate) unsent: UnsentCalls,
    pub(crate) secret: Option<AwaitedSecret>,
    /// That the driver is not given the Secret, and why.
    pub(crate) withheld: Option<WithheldGuard>,
    /// The trace that its attempts are a part of.
    pub(crate) lifecycle: Option<SharedLifecycle>,
    pub(crate) attempts: LifecycleAttempts,
}

/// The attempts of one attach or detach, whether it is traced or not. The queue counts failures in a row: new inputs make them void, and a
/// wait ends the row.
#[derive(Clone, Debug, Default)]
pub(crate) struct LifecycleAttempts {
    uid: Box<str>,
    /// What they are at; none before the first.
    pub(crate) operation: Option<Operation>,
    count: u32,
    node_gone_told: bool,
}

impl LifecycleAttempts {
    /// Counts an attempt at what this attachment asks for; its number, from 1. Another object or direction under the same name begins
    /// again.
    pub(crate) fn begin(&mut self, attachment: &Attachment) -> u32 {
        let operation = Operation::of(attachment);
        if self.operation != Some(operation) || *self.uid != *attachment.uid {
            *self = Self {
                uid: attachment.uid.clone(),
                operation: Some(operation),
                ..Self::default()
            };
        }
        self.count = self.count.saturating_add(1);
        self.count
    }

    /// Whether it is still to be told that the node is gone: once in all attempts.
    pub(crate) fn tells_node_gone(&mut self) -> bool {
        !std::mem::replace(&mut self.node_gone_told, true)
    }
}

impl KeyMemory {
    /// Whether the attachment of this UID is worked on although it looks settled.
    pub(crate) fn forces(&self, uid: &str) -> bool {
        self.forced.as_deref() == Some(uid)
    }

    /// The next rest of a run that waits for lists.
    pub(crate) fn list_rest(&mut self) -> Duration {
        self.list_rests.next_rest().min(LONGEST_LIST_REST)
    }

    /// Holds the attach back; how long that may last from now on.
    pub(crate) fn hold_back(&mut self, timeouts: &Timeouts) -> Duration {
        let since = *self.held_back_since.get_or_insert_with(Instant::now);
        longest_hold(timeouts).saturating_sub(since.elapsed())
    }

    /// Whether the attach may be held back still.
    pub(crate) fn detach_wait(&self, timeouts: &Timeouts) -> DetachWait {
        match self.held_back_since {
            Some(since) if since.elapsed() >= longest_hold(timeouts) => DetachWait::Expired,
            _ => DetachWait::Allowed,
        }
    }
}

/// How long an attach is held back for another node. A detach has its answer within its deadline, or a failure, after which
/// nobody waits for it; what is taken back after a Publish is given the same time.
fn longest_hold(timeouts: &Timeouts) -> Duration {
    timeouts.unpublish.min(LONGEST_HOLD)
}

impl Remembered for AttacherKey {
    type Memory = KeyMemory;
}

impl AwaitsSecret for AttacherKey {
    fn awaited(memory: &mut KeyMemory) -> &mut Option<AwaitedSecret> {
        &mut memory.secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AttacherConfigSpec, DriverConfig};
    use crate::objects::VolumeAttachmentWire;
    use serde_json::json;

    fn attachment(uid: &str, deleting: Option<&str>) -> Attachment {
        let object = json!({
            "metadata": {"name": "va", "uid": uid, "deletionTimestamp": deleting},
            "spec": {"attacher": "a.test", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}},
        });
        serde_json::from_value::<VolumeAttachmentWire>(object).unwrap().into()
    }

    #[test]
    fn attempts_are_counted_for_each_attach_and_detach() {
        let deleted = Some("2026-01-01T00:00:00Z");
        let mut attempts = LifecycleAttempts::default();
        for (uid, deleting, number, tells) in [
            ("one", None, 1, true),
            ("one", None, 2, false),
            ("one", None, 3, false),
            ("one", deleted, 1, true),
            ("one", deleted, 2, false),
            ("other", deleted, 1, true),
            ("other", None, 1, true),
        ] {
            let count = attempts.begin(&attachment(uid, deleting));
            let told = attempts.tells_node_gone();
            assert_eq!((count, told), (number, tells), "{uid} {deleting:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attach_is_held_back_for_so_long_however_often_it_is_asked_for() {
        let spec = AttacherConfigSpec::new("unix:///run/csi/csi.sock");
        let mut timeouts = DriverConfig::try_from(&spec).unwrap().timeouts;
        let limit = Duration::from_mins(1);
        timeouts.unpublish = limit;
        let mut memory = KeyMemory::default();
        assert_eq!(memory.detach_wait(&timeouts), DetachWait::Allowed);
        assert_eq!(memory.hold_back(&timeouts), limit);
        tokio::time::advance(limit / 2).await;
        assert_eq!(memory.hold_back(&timeouts), limit / 2);
        tokio::time::advance(limit / 2).await;
        assert_eq!(memory.detach_wait(&timeouts), DetachWait::Expired);
    }
}
