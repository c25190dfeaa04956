//! A run of a key, from being handed out to its verdict.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::Instant;

use super::handle::QueueInner;
use super::{CauseCode, Group, Key, Lane, RunResult, Trigger};

/// What a handler may know about its run. A snapshot: it does not change while the run lasts.
#[derive(Clone, Debug)]
pub struct Run<K> {
    pub(super) key: K,
    pub(super) lane: Lane,
    pub(super) group: Option<Group>,
    pub(super) fingerprint: u64,
    pub(super) failures: u32,
    pub(super) trigger: Trigger,
    pub(super) cause: CauseCode,
    pub(super) held_back: bool,
    pub(super) ready_since: Instant,
    pub(super) pending_since: Instant,
    pub(super) started: Instant,
    pub(super) retry_delay: Duration,
}

impl<K> Run<K> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The lane that the run counts in.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The group that the run counts in.
    pub fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// The newest fingerprint when the key was handed out.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The failures in a row before this run.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The number of this attempt, from 1: the failures plus one.
    pub fn attempt(&self) -> u32 {
        self.failures.saturating_add(1)
    }

    /// Why the key was handed out.
    pub fn trigger(&self) -> Trigger {
        self.trigger
    }

    /// Why, as the add or wake told that triggered it; of one triggered otherwise, that before it.
    pub fn cause(&self) -> CauseCode {
        self.cause
    }

    /// When the key became ready: an add, or the end of its hold.
    pub fn ready_since(&self) -> Instant {
        self.ready_since
    }

    /// When the key became unsettled: the first add after its last `Done`.
    pub fn pending_since(&self) -> Instant {
        self.pending_since
    }

    /// When the key was handed out.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// How long the key was ready before it was handed out.
    pub fn waited(&self) -> Duration {
        self.started.saturating_duration_since(self.ready_since)
    }

    /// How much of [`Run::waited`] was for a limit: all of it, or nothing if no limit ever held the key back.
    pub fn waited_for_limit(&self) -> Duration {
        if self.held_back { self.waited() } else { Duration::ZERO }
    }

    /// How long the key will be held if this run fails, jitter included.
    pub fn retry_delay(&self) -> Duration {
        self.retry_delay
    }
}

/// The right to run a key, until [`Ticket::finish`]. Dropping it (a panic, a cancelled task) counts as [`RunResult::Failed`].
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
    pub fn finish(mut self, verdict: RunResult) {
        self.finished = true;
        self.shared.finish(&self.run, verdict);
    }

    /// Runs `handler` and gives the key back with its verdict. A handler that panics fails the run: the key is held and retried, and
    /// [`super::Observer::panicked`] is told.
    pub async fn work<H, F>(self, handler: H)
    where
        H: FnOnce(Run<K>) -> F,
        F: Future<Output = RunResult>,
    {
        let view = Run::clone(&self);
        // After a panic only the ticket is used, and nothing of what the handler borrowed.
        match AssertUnwindSafe(async { handler(view).await }).catch_unwind().await {
            Ok(verdict) => self.finish(verdict),
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

impl<K: Key> fmt::Debug for Ticket<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticket").field(&self.run).finish()
    }
}
