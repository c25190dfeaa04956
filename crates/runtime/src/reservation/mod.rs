//! Which AttacherConfig of this process works for a driver, when several name the same one or drivers whose finalizers and
//! Leases have the same names: the oldest, also when a younger one answered first.
//!
//! A Lease cannot tell them apart, as both candidates would have the identity of this process. So a claim is granted
//! before a driver's Lease is competed for, and given back after it was released. This module must not stop anybody: whose
//! claim is refused finishes by itself.

mod table;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

pub use table::{ReservationConflict, ReservationState, ReservationTable};

/// The claims of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Reservations(Arc<ReservationsInner>);

#[derive(Debug, Default)]
struct ReservationsInner {
    table: Mutex<ReservationTable>,
    changed: watch::Sender<()>,
}

impl Reservations {
    /// Tells when each AttacherConfig that there is was made.
    pub fn set_ages(&self, ages: BTreeMap<Arc<str>, Option<Timestamp>>) {
        if self.0.table.lock().set_ages(ages) {
            self.0.changed.send_replace(());
        }
    }

    /// Claims a driver for an AttacherConfig, until the claim is dropped.
    pub fn reserve(&self, config: &Arc<str>, driver: &Arc<str>) -> Reservation {
        self.0.table.lock().claim(config.clone(), driver.clone());
        self.0.changed.send_replace(());
        Reservation {
            shared: self.0.clone(),
            config: config.clone(),
            driver: driver.clone(),
        }
    }

    /// Whether another AttacherConfig than this one works for the driver.
    pub fn is_served_by_another(&self, config: &str, driver: &str) -> bool {
        self.0
            .table
            .lock()
            .holder(driver)
            .is_some_and(|holder| **holder != *config)
    }
}

/// The claim of an AttacherConfig to a driver. It must outlive the work for the driver: dropped, another one is granted.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<ReservationsInner>,
    config: Arc<str>,
    driver: Arc<str>,
}

impl Reservation {
    /// The driver.
    pub fn driver(&self) -> &Arc<str> {
        &self.driver
    }

    /// Whether it is granted, and what is in the way if not.
    pub fn state(&self) -> ReservationState {
        self.shared.table.lock().state(&self.config, &self.driver)
    }

    /// As [`Reservation::state`]; when it is granted, no other one is before [`Reservation::deactivate`]. That has to follow soon after
    /// the claim is refused, as an older one waits for it.
    pub fn activate(&self) -> ReservationState {
        self.shared.table.lock().activate(&self.config, &self.driver)
    }

    /// Nothing is done by this claim any more; another may be granted.
    pub fn deactivate(&self) {
        self.shared.table.lock().deactivate(&self.config, &self.driver);
        self.shared.changed.send_replace(());
    }

    /// Resolves when its state is another one than `before`.
    pub async fn differs_from(&self, before: &ReservationState) {
        let mut changes = self.shared.changed.subscribe();
        while self.state() == *before {
            // The sender lives in `self`.
            let _changed = changes.changed().await;
        }
    }

    /// Resolves when an older AttacherConfig claims the same.
    pub async fn refused(&self) {
        let mut changes = self.shared.changed.subscribe();
        while !matches!(self.state(), ReservationState::Refused(_)) {
            let _changed = changes.changed().await;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.table.lock().remove(&self.config, &self.driver);
        self.shared.changed.send_replace(());
    }
}
