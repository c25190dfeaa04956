//! The permission to run a key, from being handed out to the result of the run.

use std::any::Any;
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;

use super::handle::QueueInner;
use super::item::Key;
use super::run::{Run, RunResult};

/// The permission to run a key, until [`Ticket::finish`]. Dropping it (a panic, a cancelled task) counts as [`RunResult::Failed`].
#[must_use = "a dropped ticket counts as a failed run"]
pub struct Ticket<K: Key> {
    run: Run<K>,
    shared: Arc<QueueInner<K>>,
    finished: bool,
}

impl<K: Key> Ticket<K> {
    pub(super) fn new(run: Run<K>, shared: Arc<QueueInner<K>>) -> Self {
        Self {
            run,
            shared,
            finished: false,
        }
    }

    /// Gives the key back with what became of it.
    pub fn finish(mut self, result: RunResult) {
        self.finished = true;
        self.shared.finish(&self.run, result);
    }

    /// Runs `handler` and gives the key back with its result. A handler that panics fails the run: the key is held and retried, and
    /// the observer is called.
    pub async fn work<H, F>(self, handler: H)
    where
        H: FnOnce(Run<K>) -> F,
        F: Future<Output = RunResult>,
    {
        let view = Run::clone(&self);
        // After a panic only the ticket is used, and nothing of what the handler borrowed.
        match AssertUnwindSafe(async { handler(view).await }).catch_unwind().await {
            Ok(result) => self.finish(result),
            Err(panic) => {
                let message = message(panic.as_ref());
                self.shared.observer.panicked(self.run.lane, &self.run.key, message);
                self.finish(RunResult::Failed);
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

impl<K: Key> Deref for Ticket<K> {
    type Target = Run<K>;

    fn deref(&self) -> &Run<K> {
        &self.run
    }
}

impl<K: Key> Drop for Ticket<K> {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.finish(&self.run, RunResult::Failed);
        }
    }
}
