//! Which AttacherConfig of this process works for a driver, when several name the same one or drivers whose finalizers and
//! Leases have the same names ([`ReservationTable`]).
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
use tokio::sync::watch;

pub use table::{ReservationConflict, ReservationState, ReservationTable};

/// The claims of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Reservations(Arc<watch::Sender<ReservationTable>>);

impl Reservations {
    /// See [`ReservationTable::set_ages`].
    pub fn set_ages(&self, ages: BTreeMap<Arc<str>, Option<Timestamp>>) {
        self.0.send_if_modified(|table| table.set_ages(ages));
    }

    /// See [`ReservationTable::set_pins`].
    pub fn set_pins(&self, pins: BTreeMap<Arc<str>, Arc<str>>) {
        self.0.send_if_modified(|table| table.set_pins(pins));
    }

    /// Claims a driver for an AttacherConfig, until the claim is dropped.
    pub fn reserve(&self, config: &Arc<str>, driver: &Arc<str>) -> Reservation {
        self.0.send_modify(|table| table.claim(config.clone(), driver.clone()));
        Reservation {
            table: self.0.clone(),
            config: config.clone(),
            driver: driver.clone(),
        }
    }

    /// The AttacherConfig that works for the driver.
    pub fn holder(&self, driver: &str) -> Option<Arc<str>> {
        self.0.borrow().holder(driver).cloned()
    }

    /// Whether another AttacherConfig than this one works for the driver.
    pub fn is_served_by_another(&self, config: &str, driver: &str) -> bool {
        self.holder(driver).is_some_and(|holder| *holder != *config)
    }
}

/// The claim of an AttacherConfig to a driver. It must outlive the work for the driver: dropped, another one is granted.
#[derive(Debug)]
pub struct Reservation {
    table: Arc<watch::Sender<ReservationTable>>,
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
        self.table.borrow().state(&self.config, &self.driver)
    }

    /// As [`Reservation::state`]; when it is granted, no other one is before [`Reservation::deactivate`]. That has to follow soon after
    /// the claim is refused, as the one that goes first waits for it.
    pub fn activate(&self) -> ReservationState {
        let mut state = ReservationState::Granted;
        self.table.send_if_modified(|table| {
            state = table.activate(&self.config, &self.driver);
            // The others wait for one that ends, not for one that begins.
            false
        });
        state
    }

    /// Nothing is done by this claim any more; another may be granted.
    pub fn deactivate(&self) {
        self.table
            .send_modify(|table| table.deactivate(&self.config, &self.driver));
    }

    /// Resolves when its state is another one than `before`.
    pub async fn differs_from(&self, before: &ReservationState) {
        self.becomes(|state| state != before).await;
    }

    /// Resolves when an AttacherConfig that goes before this one claims the same.
    pub async fn refused(&self) {
        self.becomes(|state| matches!(state, ReservationState::Refused(_)))
            .await;
    }

    async fn becomes(&self, wanted: impl Fn(&ReservationState) -> bool) {
        let mut table = self.table.subscribe();
        let changed = table.wait_for(|table| wanted(&table.state(&self.config, &self.driver)));
        // The sender lives in `self`.
        let _ended = changed.await;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.table.send_modify(|table| table.remove(&self.config, &self.driver));
    }
}
