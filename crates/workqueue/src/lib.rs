//! A keyed work queue: it decides which key may run next, and when.
//!
//! Keys are added with a lane (what kind of work), an optional group (whose work) and a fingerprint of their inputs. The queue
//! hands them out as [`Ticket`]s: in order of arrival within a group, round-robin among the groups of a lane and among the
//! lanes, at most one run of a key at a time, never above the [`QueueLimits`]. A failed key is held for its [`Backoff`] delay, and
//! only a change of its inputs, a [`Queue::wake`] or the end of that delay runs it again. A settled key leaves no state behind.
//!
//! It must not know what a key means: no Kubernetes, no CSI, no metrics library and no logging backend. What happened is told
//! to an [`Observer`]. Nor does it know a runtime: whoever uses it takes tickets with [`Queue::next`] and says in which task
//! [`Ticket::work`] runs.
//!
//! Every operation costs O(log n) of the keys that wait or less, except those that name all keys ([`Queue::wake_all`],
//! [`Queue::stats`], [`Queue::held`]) and a change of the limit per group.

mod backoff;
mod entry;
mod handle;
mod lanes;
mod limits;
mod observer;
mod pace;
mod places;
mod readd;
mod state;
mod ticket;

#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub use backoff::{Backoff, BackoffError};
pub use handle::{Builder, Queue};
pub use limits::{LaneLimits, QueueLimits, Rate, RateError};
pub use observer::{HeldKey, LaneStats, Observer, Stats};
pub use ticket::{Run, Ticket};

/// What a queue can hold: cheap to clone, for example an enum over `Arc<str>`.
pub trait Key: Clone + Eq + Hash + Debug + Send + Sync + 'static {}

impl<K: Clone + Eq + Hash + Debug + Send + Sync + 'static> Key for K {}

/// Whose work a key is, for fairness and for [`QueueLimits::per_group`]; in use: the node name.
pub type Group = Arc<str>;

/// What kind of work a key is. Lanes need no declaration: a lane that [`QueueLimits::lanes`] does not name has no limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u8);

impl Lane {
    /// The lane with this index, which is also its index in [`QueueLimits::lanes`] and [`Stats::lanes`].
    pub const fn new(index: u8) -> Self {
        Self(index)
    }

    /// The index of this lane.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why a key is to be looked at, in a code of its owner's: the queue carries it from the add or wake to the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CauseCode(u8);

impl CauseCode {
    /// The cause of this code.
    pub const fn new(code: u8) -> Self {
        Self(code)
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// A key as its owner wants it queued. A later add of the same key replaces the lane, the group and the fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<K> {
    /// The key.
    pub key: K,
    /// The lane that the key shall wait in.
    pub lane: Lane,
    /// The group within the lane. Keys without a group share one implicit group, to which [`QueueLimits::per_group`] does not apply.
    pub group: Option<Group>,
    /// A hash of all inputs on which the outcome of a run depends. While a failed key is held, an add with the fingerprint of
    /// the failed attempt does not run it earlier.
    pub fingerprint: u64,
    /// Why; of several adds before a run, that of the first counts, or of the first in the lane that the run is of.
    pub cause: CauseCode,
}

impl<K> Item<K> {
    /// An item without a group.
    pub fn new(key: K, lane: Lane, fingerprint: u64) -> Self {
        Self {
            key,
            lane,
            group: None,
            fingerprint,
            cause: CauseCode::default(),
        }
    }

    /// The same item for this cause.
    #[must_use]
    pub fn because(mut self, cause: CauseCode) -> Self {
        self.cause = cause;
        self
    }

    /// The same item in a group.
    #[must_use]
    pub fn in_group(mut self, group: impl Into<Group>) -> Self {
        self.group = Some(group.into());
        self
    }
}

/// What became of an add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddResult {
    /// The key is ready to run: it is new, or the add ended its hold.
    Queued,
    /// The key was ready already; its lane, group and fingerprint are now those of this add.
    Waiting,
    /// The key is held after a failure with these very inputs; the hold stays.
    Swallowed,
    /// The key runs now; it is looked at again when that run finishes.
    Dirty,
    /// The queue is closed; nothing was stored.
    Closed,
}

/// Why a key was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// An add.
    Event,
    /// The end of the hold after a failure.
    Retry,
    /// A [`Queue::wake`] or [`Queue::wake_all`].
    Wake,
    /// The last run asked for it with [`RunResult::Requeue`] or [`RunResult::RequeueAfter`].
    Again,
}

/// How a run ended.
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
    /// Queue the key again at once, at the end of its group; the failure count stays.
    Requeue,
    /// Hold the key for this long without counting a failure. Any add ends the hold.
    RequeueAfter(Duration),
}

/// The instant `delay` after `now`; some decades ahead when the sum cannot be represented.
fn later(now: Instant, delay: Duration) -> Instant {
    const FAR: Duration = Duration::from_hours(24 * 365 * 30);
    now.checked_add(delay).or_else(|| now.checked_add(FAR)).unwrap_or(now)
}
