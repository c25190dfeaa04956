//! A run of a key: why it was handed out, and how it ended.

use std::time::Duration;

use tokio::time::Instant;

use super::item::{CauseCode, Group, Lane};

/// What a handler may know about its run. A snapshot: it does not change while the run lasts.
#[derive(Clone, Debug)]
pub struct Run<K> {
    /// What is to be worked on.
    pub key: K,
    /// The lane that the run counts in.
    pub lane: Lane,
    /// The group that the run counts in.
    pub group: Option<Group>,
    /// The newest fingerprint when the key was handed out.
    pub fingerprint: u64,
    /// The failures in a row before this run, or the waits in a row if the last one waited.
    pub failures: u32,
    pub(super) waits: bool,
    /// Why the key was handed out.
    pub trigger: Trigger,
    /// The cause of the add or wake that triggered the run; of a run that was triggered otherwise, the cause before it.
    pub cause: CauseCode,
    pub(super) held_back: bool,
    /// When the key became ready: an add, or the end of its hold.
    pub ready_since: Instant,
    /// When the key became unsettled: the first add after its last `Done`.
    pub pending_since: Instant,
    /// When the key was handed out.
    pub started: Instant,
    /// How long the key will be held if this run fails, jitter included.
    pub retry_delay: Duration,
    /// How long the key will be held if this run ends with [`RunResult::Waits`] and nothing comes of it, jitter included.
    pub wait_delay: Duration,
}

impl<K> Run<K> {
    /// The waits in a row before this run: what it waits for again is no news.
    pub fn waits(&self) -> u32 {
        if self.waits { self.failures } else { 0 }
    }

    /// The number of this attempt, from 1: the failures plus one.
    pub fn attempt(&self) -> u32 {
        self.failures.saturating_add(1)
    }

    /// How long the key was ready before it was handed out.
    pub fn waited(&self) -> Duration {
        self.started.saturating_duration_since(self.ready_since)
    }

    /// How much of [`Run::waited`] was for a limit: all of it, or nothing if no limit ever held the key back.
    pub fn waited_for_limit(&self) -> Duration {
        if self.held_back { self.waited() } else { Duration::ZERO }
    }
}

/// Why a key was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// A `Queue::add`.
    Event,
    /// The end of the hold after a failure or a wait.
    Retry,
    /// A `Queue::wake` or `Queue::wake_all`.
    Wake,
    /// The last run asked for it with [`RunResult::Requeue`] or [`RunResult::RequeueAfter`].
    Again,
}

/// How a run ended, and so what becomes of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunResult {
    /// Settled: all state of the key goes. An add that came during the run queues it anew.
    Done,
    /// Failed with the inputs of [`Run::fingerprint`]: held for [`Run::retry_delay`], one failure more.
    Failed,
    /// As [`RunResult::Failed`], with the inputs as the run left them. For runs whose own writes change the fingerprint, so that
    /// the echo of such a write does not count as a change.
    FailedWith {
        /// The fingerprint of the inputs when the run ended.
        fingerprint: u64,
    },
    /// Nothing can be done before something comes, and nothing failed. Held as after a failure with these inputs, by a backoff of its
    /// own: the wait has cost nothing that those who fail have to share, and does not wait for them.
    Waits {
        /// The fingerprint of the inputs when the run ended: what is waited for is one of them, or wakes the key.
        fingerprint: u64,
    },
    /// Queue the key again at once, at the end of its group; the failure count stays.
    Requeue,
    /// Hold the key for this long without counting a failure. Any add ends the hold.
    RequeueAfter(Duration),
}
