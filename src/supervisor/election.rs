//! Whether and how a driver's Lease is competed for.

use std::time::Duration;

use crate::api::DriverConfig;
use crate::lease::{LeaderElectionConfig, LeaderElections, LeaseTimings, PlaceRecord};

/// How Leases are competed for.
#[derive(Clone)]
pub(super) enum LeaderElectionMode {
    /// Not at all: there must be no other replica.
    None,
    /// The same for all drivers.
    Same(Box<LeaderElectionConfig>),
    /// For each driver by its settings.
    Each(LeaderElections),
}

impl LeaderElectionMode {
    /// What the driver of this AttacherConfig needs to compete. Without a Lease, too: former places must be over first.
    pub fn config_for(&self, name: &str, config: &DriverConfig) -> Option<LeaderElectionConfig> {
        let elections = match self {
            Self::None => return None,
            Self::Same(config) => return Some(LeaderElectionConfig::clone(config)),
            Self::Each(elections) => elections,
        };
        let asked = &config.leader_election;
        // Times were checked when the AttacherConfig was read, so that the fall-back is never taken.
        let timing =
            LeaseTimings::new(asked.lease_duration, asked.renew_deadline, asked.retry_period).unwrap_or_default();
        let record = PlaceRecord::new(elections.client.clone(), name.to_owned());
        let longest_call = config.timeouts.publish.max(config.timeouts.unpublish);
        Some(LeaderElectionConfig {
            enabled: asked.enabled,
            record: Some(record),
            longest_call: if asked.enabled { Duration::ZERO } else { longest_call },
            sidecar_namespaces: asked.sidecar_namespaces.clone(),
            ..elections.config_for(&asked.namespace, timing)
        })
    }
}
