//! Tests of the queue. Time is tokio's paused clock or plain arithmetic; nothing sleeps in earnest.

mod backoff;
mod causes;
mod holds;
mod limits;
mod memory;
mod model;
mod pace;
mod panics;
mod put_backs;
mod remembered;
mod snapshots;
mod stress;
mod waiting;

use std::time::Duration;

use futures::FutureExt as _;
use tokio::task::coop::unconstrained;

use super::{Backoff, Builder, Item, Key, Lane, LaneLimits, Queue, QueueLimits, Rate, Remembered, RunResult, Ticket};

/// What is remembered of these keys: a number.
macro_rules! keys {
    ($($key:ty),+) => { $(impl Remembered for $key { type Memory = u32; })+ };
}
keys!(String, u8, i32, u32, usize);

pub(super) const ATTACH: Lane = Lane::new(0);
pub(super) const DETACH: Lane = Lane::new(1);
pub(super) const VOLUME: Lane = Lane::new(2);

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// One second, doubled up to a minute, without jitter.
pub(super) fn plain_backoff() -> Backoff {
    Backoff::new(SECOND, 60 * SECOND, 2.0, 0).unwrap()
}

pub(super) fn queue() -> Queue<&'static str> {
    Queue::new(plain_backoff())
}

pub(super) fn limited(limits: QueueLimits) -> Queue<&'static str> {
    Builder {
        limits,
        ..Builder::new(plain_backoff())
    }
    .build()
}

/// Limits of the attach, detach and volume lane; the first two are rate limited.
pub(super) fn limits(running: [usize; 3], per_group: usize, starts_per_second: u32) -> QueueLimits {
    let lane = |index: usize| LaneLimits {
        max_running: running[index],
        rate_limited: index < 2,
    };
    QueueLimits {
        lanes: vec![lane(0), lane(1), lane(2)],
        per_group,
        max_running: 0,
        starts_per_second: Rate::from(starts_per_second),
    }
}

/// An item of the attach lane without a group.
pub(super) fn item(key: &'static str, fingerprint: u64) -> Item<&'static str> {
    Item::new(key, ATTACH, fingerprint)
}

/// The ticket that is there right now, if any.
pub(super) fn take<K: Key>(queue: &Queue<K>) -> Option<Ticket<K>> {
    unconstrained(queue.next()).now_or_never().flatten()
}

/// All tickets that are there right now, kept.
pub(super) fn take_all<K: Key>(queue: &Queue<K>) -> Vec<Ticket<K>> {
    std::iter::from_fn(|| take(queue)).collect()
}

/// The key that is handed out right now; its run is settled at once.
pub(super) fn settle<K: Key>(queue: &Queue<K>) -> Option<K> {
    let ticket = take(queue)?;
    let key = ticket.key.clone();
    ticket.finish(RunResult::Done);
    Some(key)
}

/// All keys in the order in which they are handed out and settled right now.
pub(super) fn settle_all<K: Key>(queue: &Queue<K>) -> Vec<K> {
    std::iter::from_fn(|| settle(queue)).collect()
}

/// Fails the next run.
pub(super) fn fail<K: Key>(queue: &Queue<K>) {
    take(queue).expect("a key is ready").finish(RunResult::Failed);
}
