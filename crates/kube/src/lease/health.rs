//! Whether the Leases that are thought to be held are really renewed; what `/healthz/leader-election` shows.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How late a renewal may be before it is called a fault, as in the sidecar.
const TOLERANCE: Duration = Duration::from_secs(20);

/// A Lease that is thought to be held was not renewed in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed election to renew leadership on lease {lease}")]
pub struct NotRenewed {
    lease: Arc<str>,
}

/// Numbers the candidates: one may end while the next one competes for the same Lease.
static CANDIDATES: AtomicU64 = AtomicU64::new(0);

/// The held Leases of a process, by the numbers of their candidates. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LeaseHealth(Arc<Mutex<BTreeMap<u64, HeldLease>>>);

#[derive(Clone, Debug)]
struct HeldLease {
    lease: Arc<str>,
    /// After this a renewal is a fault.
    due: Instant,
}

/// What one candidate says of its Lease. Dropped, as when the candidate is cut off, it says nothing any more: a Lease that nobody
/// renews for this process is not one that is thought to be held.
#[derive(Debug)]
pub(super) struct LeaseHealthEntry {
    health: LeaseHealth,
    lease: Arc<str>,
    number: u64,
}

impl LeaseHealth {
    /// The entry of a new candidate for a Lease.
    pub(super) fn candidate(&self, lease: &str) -> LeaseHealthEntry {
        LeaseHealthEntry {
            health: self.clone(),
            lease: lease.into(),
            number: CANDIDATES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Fails when a Lease that is thought to be held was not renewed for longer than its duration and 20 s.
    pub fn check(&self, now: Instant) -> Result<(), NotRenewed> {
        let held = self.0.lock();
        let mut late = held.values().filter(|held| now > held.due);
        let lease = late.next().map(|held| held.lease.clone());
        lease.map_or(Ok(()), |lease| Err(NotRenewed { lease }))
    }
}

impl LeaseHealthEntry {
    /// The Lease was taken or renewed.
    pub fn renewed(&self, duration: Duration, now: Instant) {
        let (lease, due) = (self.lease.clone(), now + duration + TOLERANCE);
        self.health.0.lock().insert(self.number, HeldLease { lease, due });
    }

    /// The Lease is not thought to be held any more.
    pub fn remove(&self) {
        self.health.0.lock().remove(&self.number);
    }
}

impl Drop for LeaseHealthEntry {
    fn drop(&mut self) {
        self.remove();
    }
}
