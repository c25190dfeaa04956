//! Whether a driver answers over a connection.
//!
//! A connection can stand although nobody is behind it any more: a proxy that swallows it, a process that hangs and was replaced at
//! its endpoint. Nothing but calls without an answer shows that. A driver that is only slow answers other calls meanwhile.

use std::sync::Arc;
use tokio::sync::watch;

/// The answers over one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Calls that the driver itself answered, with OK or an error.
    pub count: u64,
    /// Those of the controller service, which is what a driver is there for.
    pub of_controller: u64,
    /// Calls that ended without an answer of the driver, of those that began after its last answer.
    pub missing: u32,
}

/// Counts the answers over one connection. Clones count together.
#[derive(Clone, Debug, Default)]
pub(super) struct AnswerCounter(Arc<watch::Sender<Answers>>);

/// A call that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCall {
    is_of_controller: bool,
    /// The answers before it.
    before: u64,
}

impl AnswerCounter {
    /// Follows the count. A change is shown when an answer goes missing, and when one comes after that.
    pub fn subscribe(&self) -> watch::Receiver<Answers> {
        self.0.subscribe()
    }

    /// A call begins, of the method with this path.
    pub fn begin(&self, method: &str) -> PendingCall {
        PendingCall {
            is_of_controller: method.starts_with("/csi.v1.Controller/"),
            before: self.0.borrow().count,
        }
    }

    /// A call has ended; `answered` says whether the driver itself said how.
    pub fn end(&self, call: PendingCall, answered: bool) {
        self.0.send_if_modified(|answers| {
            if answered {
                answers.count += 1;
                answers.of_controller += u64::from(call.is_of_controller);
                std::mem::take(&mut answers.missing) > 0
            } else if call.before == answers.count {
                answers.missing = answers.missing.saturating_add(1);
                true
            } else {
                // The driver answered another call meanwhile.
                false
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";

    #[test]
    fn an_answer_is_missing_only_if_none_came_since_the_call_began() {
        let counter = AnswerCounter::default();
        let mut seen = counter.subscribe();
        let (one, other) = (counter.begin(PUBLISH), counter.begin("/csi.v1.Identity/Probe"));
        counter.end(other, true);
        assert!(!seen.has_changed().unwrap(), "nobody waits for what goes well");
        counter.end(one, false);
        assert_eq!(seen.borrow_and_update().missing, 0, "it answers, if not this call");
        for missing in 1..4 {
            counter.end(counter.begin(PUBLISH), false);
            assert_eq!(seen.borrow_and_update().missing, missing);
        }
        counter.end(counter.begin(PUBLISH), true);
        assert!(seen.has_changed().unwrap());
        let wanted = Answers {
            count: 2,
            of_controller: 1,
            missing: 0,
        };
        assert_eq!(*seen.borrow_and_update(), wanted);
    }
}
