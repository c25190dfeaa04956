//! Whether the Leases that are thought to be held are really renewed; what `/healthz/leader-election` shows.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How late a renewal may be before it is called a fault, as in the sidecar.
const TOLERANCE: Duration = Duration::from_secs(20);

/// A Lease that is thought to be held was not renewed in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed election to renew leadership on lease {lease}")]
pub struct NotRenewed {
    lease: Arc<str>,
}

/// What the candidates of a process say of their Leases. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LeaseHealth(Arc<Mutex<Vec<Weak<LeaseHealthEntry>>>>);

/// What one candidate says of its Lease. One that is cut off says nothing any more: a Lease that nobody renews for this process is not one
/// that is thought to be held.
#[derive(Debug)]
pub(super) struct LeaseHealthEntry {
    lease: Arc<str>,
    /// After this a renewal is a fault; none while the Lease is not thought to be held.
    due: Mutex<Option<Instant>>,
}

impl LeaseHealth {
    /// The entry of a new candidate for a Lease.
    pub(super) fn candidate(&self, lease: &str) -> Arc<LeaseHealthEntry> {
        let entry = Arc::new(LeaseHealthEntry {
            lease: lease.into(),
            due: Mutex::default(),
        });
        let mut entries = self.0.lock();
        entries.retain(|entry| entry.strong_count() > 0);
        entries.push(Arc::downgrade(&entry));
        entry
    }

    /// Fails when a Lease that is thought to be held was not renewed for longer than its duration and 20 s.
    pub fn check(&self, now: Instant) -> Result<(), NotRenewed> {
        let entries = self.0.lock();
        let mut candidates = entries.iter().filter_map(Weak::upgrade);
        let late = candidates.find(|entry| entry.due.lock().is_some_and(|due| now > due));
        let lease = late.map(|entry| entry.lease.clone());
        lease.map_or(Ok(()), |lease| Err(NotRenewed { lease }))
    }
}

impl LeaseHealthEntry {
    /// The Lease was taken or renewed.
    pub fn renewed(&self, duration: Duration, now: Instant) {
        *self.due.lock() = Some(now + duration + TOLERANCE);
    }

    /// The Lease is not thought to be held any more.
    pub fn remove(&self) {
        *self.due.lock() = None;
    }
}
