//! When the lifecycle of an attach or detach began.

use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

use crate::cache::AttacherKey;
use crate::clock::wall;
use crate::decide::DriverFacts;
use crate::objects::{Attachment, Operation};
use crate::queue::Run;

/// Resolution of the time stamps of objects.
const TICK: SignedDuration = SignedDuration::from_secs(1);

/// The start is the object's own time stamp.
const CREATION: &str = "creation";
/// The start is when the object was seen.
pub(super) const OBSERVED: &str = "observed";

pub(super) struct LifecycleStart {
    pub at: Timestamp,
    pub source: &'static str,
    pub lag: Duration,
    /// When this process saw it first.
    pub seen: Timestamp,
}

impl LifecycleStart {
    /// The time stamp of the object; but that has a resolution of a second, so that what was seen within the next one began
    /// when it was seen, unless somebody was at it before us.
    pub fn of(
        attachment: &Attachment,
        operation: Operation,
        run: &Run<AttacherKey>,
        facts: &DriverFacts,
        epoch: u32,
    ) -> Self {
        let (stamp, known) = match operation {
            Operation::Attach => {
                let claimed = attachment.finalizers.contains(&facts.finalizer);
                (attachment.created, claimed || attachment.attach_error.is_some())
            }
            Operation::Detach => (attachment.deleting, attachment.detach_error.is_some()),
        };
        let pending = wall(run.pending_since);
        let earlier = stamp.is_some_and(|stamp| pending < stamp);
        // It may have been pending as an attach before.
        let seen = if earlier { wall(run.ready_since) } else { pending };
        let lag = stamp.map_or(SignedDuration::ZERO, |stamp| seen.duration_since(stamp));
        let stamp = stamp.filter(|_| epoch == 0 && (lag >= TICK || (known && lag >= SignedDuration::ZERO)));
        Self {
            at: stamp.unwrap_or(seen),
            source: if stamp.is_some() { CREATION } else { OBSERVED },
            lag: Duration::try_from(lag).unwrap_or_default(),
            seen,
        }
    }
}
