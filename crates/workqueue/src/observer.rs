//! What a queue reports: events as they happen, and snapshots.

use std::fmt::Debug;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{KeyEntry, KeyPhase};
use super::item::{Group, Lane};

/// Is called for each event of a queue, for counters, histograms and gauges.
///
/// All methods but [`Observer::panicked`] are called while the queue is locked, so that gauges arrive in order: they must be
/// quick, must not panic and must not call the queue.
pub trait Observer: Send + Sync + 'static {
    /// A key became ready in this lane (an add, the end of a hold, a requeue, a move from another lane). Adds of a key that
    /// is ready already do not count.
    fn added(&self, _lane: Lane) {}

    /// A run ended with a wish for another one (`RunResult` other than `Done`).
    fn retried(&self, _lane: Lane) {}

    /// So many keys of this lane are ready now.
    fn depth(&self, _lane: Lane, _depth: usize) {}

    /// A key was handed out so long after it became ready.
    fn waited(&self, _lane: Lane, _waited: Duration) {}

    /// A run ended after so long.
    fn worked(&self, _lane: Lane, _worked: Duration) {}

    /// A handler panicked; its key is held as after any failure.
    fn panicked(&self, _lane: Lane, _key: &dyn Debug, _message: &str) {}
}

/// The observer of a queue that has none.
#[derive(Debug)]
pub(super) struct NoObserver;

impl Observer for NoObserver {}

/// A snapshot of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats<K> {
    /// One for each lane that was ever used or limited, by [`Lane::index`].
    pub lanes: Vec<LaneStats<K>>,
    /// Whether lanes that are rate limited have to wait for `QueueLimits::starts_per_second` now.
    pub lacks_token: bool,
    /// Whether `Queue::pause` holds.
    pub paused: bool,
    /// Whether `Queue::close` was called.
    pub closed: bool,
}

/// A snapshot of one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStats<K> {
    /// Keys that are ready and wait for a slot.
    pub ready: usize,
    /// Keys that run.
    pub running: usize,
    /// Keys that are held until a time.
    pub held: usize,
    /// Keys whose last attempt failed, whether they are ready, held or running.
    pub failing: usize,
    /// Since when the longest waiting ready key is ready.
    pub oldest_ready_since: Option<Instant>,
    /// Ready keys whose group has all the runs it may have.
    pub blocked: usize,
    /// The group of the longest waiting of these, and since when that key is ready.
    pub oldest_blocked: Option<(Group, Instant)>,
    /// Since when the longest waiting ready key is ready that its group does not keep from running.
    pub oldest_unblocked_since: Option<Instant>,
    /// The key that is unsettled for the longest time, and since when: the first add after its last `Done`.
    pub oldest_pending: Option<(K, Instant)>,
    /// How long the longest run lasts by now.
    pub longest_running: Option<Duration>,
    /// The sum of how long all runs last by now.
    pub unfinished: Duration,
}

/// A lane that nothing is in.
impl<K> Default for LaneStats<K> {
    fn default() -> Self {
        Self {
            ready: 0,
            running: 0,
            held: 0,
            failing: 0,
            oldest_ready_since: None,
            blocked: 0,
            oldest_blocked: None,
            oldest_unblocked_since: None,
            oldest_pending: None,
            longest_running: None,
            unfinished: Duration::ZERO,
        }
    }
}

impl<K> LaneStats<K> {
    /// Counts one key; `blocked` is whether its group has all the runs it may have.
    pub(super) fn count<M>(&mut self, entry: &KeyEntry<M>, blocked: bool, now: Instant) {
        self.failing += usize::from(entry.failures > 0);
        match &entry.phase {
            KeyPhase::Held(_) => self.held += 1,
            KeyPhase::Ready(ready) => {
                self.ready += 1;
                let earlier = |known: Option<Instant>| known.is_none_or(|known| ready.time < known);
                if earlier(self.oldest_ready_since) {
                    self.oldest_ready_since = Some(ready.time);
                }
                if !blocked {
                    if earlier(self.oldest_unblocked_since) {
                        self.oldest_unblocked_since = Some(ready.time);
                    }
                    return;
                }
                self.blocked += 1;
                if earlier(self.oldest_blocked.as_ref().map(|(_, since)| *since)) {
                    self.oldest_blocked = entry.group.clone().map(|group| (group, ready.time));
                }
            }
            KeyPhase::Running(active) => {
                let lasts = now.saturating_duration_since(active.started);
                self.running += 1;
                self.unfinished += lasts;
                self.longest_running = Some(self.longest_running.map_or(lasts, |longest| longest.max(lasts)));
            }
        }
    }
}
