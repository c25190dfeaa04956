//! Whether the Leases that are thought to be held are really renewed; what `/healthz/leader-election` shows.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How late a renewal may be before it is called a fault, as in the sidecar.
const TOLERANCE: Duration = Duration::from_secs(20);

/// The held Leases of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LeaseHealth(Arc<Mutex<BTreeMap<String, LeaseRenewal>>>);

#[derive(Clone, Copy, Debug)]
struct LeaseRenewal {
    renewed: Instant,
    duration: Duration,
}

impl LeaseHealth {
    /// A Lease was taken or renewed.
    pub(super) fn renewed(&self, lease: &str, duration: Duration, now: Instant) {
        self.0
            .lock()
            .insert(lease.to_owned(), LeaseRenewal { renewed: now, duration });
    }

    /// A Lease is not thought to be held any more.
    pub(super) fn remove(&self, lease: &str) {
        self.0.lock().remove(lease);
    }

    /// Fails when a Lease that is thought to be held was not renewed for longer than its duration and 20 s.
    pub fn check(&self, now: Instant) -> Result<(), String> {
        for (lease, held) in &*self.0.lock() {
            if now.duration_since(held.renewed) > held.duration + TOLERANCE {
                return Err(format!("failed election to renew leadership on lease {lease}"));
            }
        }
        Ok(())
    }
}
