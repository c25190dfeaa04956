//! How free Leases spread over replicas: a replica that holds more of them takes the next one later. Nobody hands over what
//! works.
//!
//! A replica is single as far as it knows until it has seen another one hold a Lease; then it counts as one of several for
//! as long as it lives. A replica that waits for Leases writes nothing, so that a holder cannot see it: the first of several
//! that start together takes Leases without a pause until another one has got one. Without effects: the electors wait.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The longest pause before a free Lease is taken, whatever the retry period.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// With so many other Leases the pause is half of the longest.
const HALFWAY: f64 = 4.0;

/// What the electors of one process know together. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LeaseShares(Arc<Mutex<LeaseSharesInner>>);

#[derive(Debug, Default)]
struct LeaseSharesInner {
    /// How many Leases this replica holds or is about to take.
    ours: u32,
    /// Whether another replica was seen to hold a Lease.
    several: bool,
}

/// A Lease that is held or about to be taken. It counts until it is dropped.
#[derive(Debug)]
pub(super) struct LeaseShareGuard {
    shares: LeaseShares,
    /// Until when the Lease, when it is free, is left to replicas that hold fewer.
    pub pause_ends: Instant,
}

impl LeaseShares {
    /// Another replica holds a Lease.
    pub(super) fn observe_other(&self) {
        self.0.lock().several = true;
    }

    /// Counts one more Lease, and draws the pause before it is taken if it is free: at most half a retry period and 500 ms,
    /// longer the more Leases there are; none for a single replica, and for the only Lease of a replica.
    pub(super) fn acquire(&self, retry_period: Duration, now: Instant) -> LeaseShareGuard {
        let mut inner = self.0.lock();
        let others = f64::from(inner.ours);
        inner.ours += 1;
        let longest = if inner.several {
            MAX_PAUSE.min(retry_period / 2).mul_f64(others / (others + HALFWAY))
        } else {
            Duration::ZERO
        };
        LeaseShareGuard {
            shares: self.clone(),
            pause_ends: now + longest.mul_f64(0.5 + 0.5 * fastrand::f64()),
        }
    }
}

impl Drop for LeaseShareGuard {
    fn drop(&mut self) {
        self.shares.0.lock().ours -= 1;
    }
}
