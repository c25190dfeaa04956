//! A keyed work queue: it decides which key may run next, and when.
//!
//! Keys are added with a lane (what kind of work), an optional group (whose work) and a fingerprint of their inputs. The queue
//! hands them out as [`Ticket`]s: in order of arrival within a group, round-robin among the groups of a lane and among the
//! lanes, at most one run of a key at a time, never above the [`QueueLimits`]. A failed key is held for its [`Backoff`] delay, and
//! only a change of its inputs, a [`Queue::wake`] or the end of that delay runs it again; so is one that waits for something. A settled
//! key leaves no state behind, but for a while what was put back of it ([`Queue::count_put_back`]).
//!
//! It must not know what a key means: no Kubernetes, no CSI, no metrics library and no logging backend. What happened is reported
//! to an [`Observer`]. Nor does it know a runtime: whoever uses it takes tickets with [`Queue::next`] and says in which task
//! [`Ticket::work`] runs.
//!
//! Every operation costs O(log n) of the keys that wait or less, except those that name all keys ([`Queue::wake_all`],
//! [`Queue::stats`], [`Queue::held`]) and a change of the limit per group.

mod backoff;
mod entry;
mod handle;
mod item;
mod lanes;
mod limits;
mod observer;
mod places;
mod put_backs;
mod run;
mod state;
mod ticket;

#[cfg(test)]
mod tests;

pub use backoff::Backoff;
pub use handle::{Builder, LaneSlot, Queue};
pub use item::{AddResult, CauseCode, Group, Item, Key, Lane, Remembered};
pub use limits::{LaneLimits, QueueLimits, Rate, TokenBucket};
pub use observer::{LaneStats, Observer, Stats};
pub use run::{Run, RunResult, Trigger};
pub use ticket::Ticket;
