//! Whether a driver answers over a connection.
//!
//! A connection can stand although nobody is behind it any more: a proxy that swallows it, a process that hangs and was replaced at
//! its endpoint. Nothing but calls without an answer shows that. A driver that is only slow answers other calls meanwhile.

use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

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
pub(super) struct AnswerCounter(Arc<AnswerCounterInner>);

#[derive(Debug, Default)]
struct AnswerCounterInner {
    answers: watch::Sender<Answers>,
    /// How many calls have begun and not ended, and since when there are some and none was answered.
    pending: Mutex<(usize, Option<Instant>)>,
}

/// A call that has begun. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct PendingCall {
    counter: AnswerCounter,
    is_of_controller: bool,
    /// The answers before it.
    before: u64,
}

impl AnswerCounter {
    /// Follows the count. A change is shown when an answer is missing, and when one comes after that.
    pub fn subscribe(&self) -> watch::Receiver<Answers> {
        self.0.answers.subscribe()
    }

    /// Since when calls are pending and none was answered; none while nothing is pending.
    pub fn silent_since(&self) -> Option<Instant> {
        self.0.pending.lock().1
    }

    /// A call begins, of the method with this path.
    pub fn begin(&self, path: &str) -> PendingCall {
        let mut pending = self.0.pending.lock();
        pending.0 += 1;
        pending.1.get_or_insert_with(Instant::now);
        drop(pending);
        PendingCall {
            counter: self.clone(),
            is_of_controller: path.starts_with("/csi.v1.Controller/"),
            before: self.0.answers.borrow().count,
        }
    }
}

impl PendingCall {
    /// The call has ended; `answered` says whether the driver itself said how.
    pub fn end(self, answered: bool) {
        if answered && let Some(since) = &mut self.counter.0.pending.lock().1 {
            *since = Instant::now();
        }
        self.counter.0.answers.send_if_modified(|answers| {
            if answered {
                answers.count += 1;
                answers.of_controller += u64::from(self.is_of_controller);
                std::mem::take(&mut answers.missing) > 0
            } else if self.before == answers.count {
                answers.missing = answers.missing.saturating_add(1);
                true
            } else {
                // The driver answered another call meanwhile.
                false
            }
        });
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let mut pending = self.counter.0.pending.lock();
        pending.0 = pending.0.saturating_sub(1);
        if pending.0 == 0 {
            pending.1 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";

    #[test]
    fn an_answer_is_missing_only_if_none_came_since_the_call_began() {
        let counter = AnswerCounter::default();
        let mut seen = counter.subscribe();
        let (one, other) = (counter.begin(PUBLISH), counter.begin("/csi.v1.Identity/Probe"));
        other.end(true);
        assert!(!seen.has_changed().unwrap(), "nobody waits for what goes well");
        one.end(false);
        assert_eq!(seen.borrow_and_update().missing, 0, "it answers, if not this call");
        for missing in 1..4 {
            counter.begin(PUBLISH).end(false);
            assert_eq!(seen.borrow_and_update().missing, missing);
        }
        counter.begin(PUBLISH).end(true);
        assert!(seen.has_changed().unwrap());
        let wanted = Answers {
            count: 2,
            of_controller: 1,
            missing: 0,
        };
        assert_eq!(*seen.borrow_and_update(), wanted);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_lasts_from_the_first_call_that_is_out_or_the_last_answer() {
        let counter = AnswerCounter::default();
        assert_eq!(counter.silent_since(), None, "nothing was asked");
        let begun = Instant::now();
        let one = counter.begin(PUBLISH);
        tokio::time::advance(Duration::from_secs(5)).await;
        let other = counter.begin(PUBLISH);
        assert_eq!(counter.silent_since(), Some(begun));
        other.end(true);
        assert_eq!(counter.silent_since(), Some(Instant::now()));
        // A call that nobody waits for any more is no silence.
        drop(one);
        assert_eq!(counter.silent_since(), None);
    }
}
