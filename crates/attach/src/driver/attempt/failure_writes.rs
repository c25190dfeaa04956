//! How often failures are written on attachments.
//!
//! A VolumeAttachment shows the last error of each direction. The first one is what people and the attach/detach
//! controller wait for; that the same attachment failed once more is worth a write as long as there are few of them. A
//! driver that fails thousands of times a second must not take the API server from all others for that. What an attachment shows must not
//! stay wrong, though, because thousands of others repeat what they show already.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::decide::shown_error;
use crate::objects::{Attachment, Operation};
use crate::queue::{Rate, TokenBucket};

/// Failures of one driver that are written at the same time; those of others, and all that goes well, do not wait for them.
const AT_A_TIME: usize = 4;
/// How long a failure waits for its turn. An attempt that waits keeps its place among the calls to the driver, and with an
/// API server that answers nothing each turn lasts until its deadline.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::driver) struct FailureWriteLimiter {
    budgets: Mutex<FailureWriteBudgets>,
    line: Semaphore,
}

#[derive(Debug)]
struct FailureWriteBudgets {
    /// For attachments that show no error of this direction yet.
    first: TokenBucket,
    /// For those that show another error.
    changed: TokenBucket,
    again: TokenBucket,
}

impl FailureWriteLimiter {
    pub fn new(now: Instant) -> Self {
        Self {
            budgets: Mutex::new(FailureWriteBudgets {
                // One write for each attachment, where an attach that goes well takes three: a driver that fails for
                // thousands at once has it shown on all of them, before the attach/detach controller reports a time-out.
                first: TokenBucket::new(Rate::from(200).with_burst(5_000), now),
                changed: TokenBucket::new(Rate::from(5).with_burst(100), now),
                again: TokenBucket::new(Rate::from(5).with_burst(100), now),
            }),
            line: Semaphore::new(AT_A_TIME),
        }
    }

    /// Waits until a failure may be written; none when it is not to be written now. Then one of the next failures of this
    /// attachment is.
    pub async fn acquire(
        &self,
        attachment: &Attachment,
        operation: Operation,
        message: &str,
        now: Instant,
    ) -> Option<SemaphorePermit<'_>> {
        if !self.allow(attachment, operation, message, now) {
            return None;
        }
        // The semaphore is never closed.
        timeout(TURN_TIMEOUT, self.line.acquire()).await.ok()?.ok()
    }

    fn allow(&self, attachment: &Attachment, operation: Operation, message: &str, now: Instant) -> bool {
        let shown = match operation {
            Operation::Attach => &attachment.attach_error,
            Operation::Detach => &attachment.detach_error,
        };
        let mut budgets = self.budgets.lock();
        let budget = match shown {
            None => &mut budgets.first,
            Some(shown) if *shown.message != *shown_error(message) => &mut budgets.changed,
            Some(_) => &mut budgets.again,
        };
        budget.try_take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::VolumeAttachmentWire;

    fn attachment(status: &serde_json::Value) -> Attachment {
        let object = serde_json::json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "a", "uid": "u"},
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}, "status": status,
        });
        serde_json::from_value::<VolumeAttachmentWire>(object).unwrap().into()
    }

    #[test]
    fn repeated_errors_leave_the_budget_of_first_ones_alone() {
        let failed =
            serde_json::json!({"attached": false, "attachError": {"message": "m", "time": "2026-01-01T00:00:00Z"}});
        let (failed, fresh) = (attachment(&failed), attachment(&serde_json::json!({"attached": false})));
        let start = Instant::now();
        let failures = FailureWriteLimiter::new(start);
        let written = |attachment: &Attachment, operation, at| {
            (0..10_000)
                .filter(|_| failures.allow(attachment, operation, "m", at))
                .count()
        };
        assert_eq!(written(&failed, Operation::Attach, start), 100);
        assert_eq!(written(&failed, Operation::Attach, start + Duration::from_secs(2)), 10);
        // The error of the other direction is not shown yet.
        assert_eq!(written(&failed, Operation::Detach, start), 5_000);
        assert_eq!(written(&fresh, Operation::Attach, start + Duration::from_secs(1)), 200);
        // Those that repeat what they show do not keep a wrong error on another one.
        assert!(!failures.allow(&failed, Operation::Attach, "m", start + Duration::from_secs(2)));
        assert!(failures.allow(&failed, Operation::Attach, "other", start + Duration::from_secs(2)));
    }

    /// The object shows it on one line.
    #[test]
    fn an_error_of_several_lines_is_not_another_one_each_time() {
        let status = serde_json::json!({"attached": false, "attachError": {"message": "a b"}});
        let (failed, start) = (attachment(&status), Instant::now());
        let failures = FailureWriteLimiter::new(start);
        let written = |message: &str| {
            (0..200)
                .filter(|_| failures.allow(&failed, Operation::Attach, message, start))
                .count()
        };
        assert_eq!(written("a\nb"), 100);
        assert_eq!(written("a b"), 0, "that is the same error");
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_are_written_at_a_time_and_nobody_waits_for_long() {
        let fresh = attachment(&serde_json::json!({"attached": false}));
        let start = Instant::now();
        let failures = FailureWriteLimiter::new(start);
        let turn = || failures.acquire(&fresh, Operation::Attach, "m", start);
        let mut held = Vec::new();
        for _ in 0..AT_A_TIME {
            held.push(turn().await.unwrap());
        }
        let asked = Instant::now();
        assert!(turn().await.is_none());
        assert_eq!(asked.elapsed(), TURN_TIMEOUT);
        held.pop();
        assert!(turn().await.is_some());
    }
}
