//! Who works for the drivers of AttacherConfigs for which nothing runs here, as their specs cannot be used. Another replica may go on with
//! settings that were valid before, which this one never had. That is seen by the Leases of the driver.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::election::LeaderElectionMode;
use super::status_author::DriverLeader;
use crate::api::names::{lease_name, provisioner_lease_name};
use crate::lease::LeaderElectionHandle;
use crate::telemetry::Metrics;

/// A driver, and who holds its Leases.
struct ObservedDriver {
    name: String,
    attaching: LeaderElectionHandle,
    provisioning: LeaderElectionHandle,
}

/// The drivers that are observed, by the name of their AttacherConfig.
#[derive(Default)]
pub(super) struct ObservedDrivers(BTreeMap<String, ObservedDriver>);

impl ObservedDrivers {
    /// Observes these drivers, by the name of their AttacherConfig, and no other ones.
    pub fn set(&mut self, drivers: BTreeMap<String, String>, election: &LeaderElectionMode, metrics: &Metrics) {
        self.0.retain(|config, known| {
            let has_ended = known.attaching.has_ended() || known.provisioning.has_ended();
            drivers.get(config) == Some(&known.name) && !has_ended
        });
        for (config, name) in drivers {
            let Entry::Vacant(place) = self.0.entry(config) else {
                continue;
            };
            let Some(election) = election.config_for_observer() else {
                return;
            };
            let observe = |lease| LeaderElectionHandle::observe(election.clone(), lease, metrics.clone());
            place.insert(ObservedDriver {
                attaching: observe(lease_name(&name)),
                provisioning: observe(provisioner_lease_name(&name)),
                name,
            });
        }
    }

    /// The driver that is observed for an AttacherConfig.
    pub fn driver(&self, config: &str) -> Option<&str> {
        self.0.get(config).map(|observed| &*observed.name)
    }

    /// Who attaches for the driver of an AttacherConfig, as far as known; none where it is not observed.
    pub fn attacher(&self, config: &str) -> Option<DriverLeader> {
        self.0.get(config).map(|observed| leader(&observed.attaching))
    }

    /// The same of who provisions.
    pub fn provisioner(&self, config: &str) -> Option<DriverLeader> {
        self.0.get(config).map(|observed| leader(&observed.provisioning))
    }
}

/// Who holds a Lease. Where it may not be read nobody does for long: all replicas have the same permissions.
fn leader(lease: &LeaderElectionHandle) -> DriverLeader {
    let seen = lease.status();
    match DriverLeader::from(&seen.state) {
        DriverLeader::Unknown if seen.permission_error.is_some() => DriverLeader::Nobody,
        lead => lead,
    }
}
