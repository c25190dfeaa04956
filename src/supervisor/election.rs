//! Whether and how a driver's Lease is competed for.

use crate::api::DriverConfig;
use crate::lease::{LeaderElectionConfig, LeaderElections, LeaseTimings};

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
    /// What a driver with these settings needs to compete: the own Lease in the operator's namespace, and those of sidecars.
    pub fn config_for(&self, config: &DriverConfig) -> Option<LeaderElectionConfig> {
        let elections = match self {
            Self::None => return None,
            Self::Same(config) => return Some(LeaderElectionConfig::clone(config)),
            Self::Each(elections) => elections,
        };
        let asked = &config.leader_election;
        // Times were checked when the AttacherConfig was read, so that the fall-back is never taken.
        let timing =
            LeaseTimings::new(asked.lease_duration, asked.renew_deadline, asked.retry_period).unwrap_or_default();
        Some(elections.config_for("", timing).holding(&asked.sidecar_namespaces))
    }

    /// What it takes to observe which replica holds a Lease, without settings; none where no replica competes by those of AttacherConfigs.
    pub fn config_for_observer(&self) -> Option<LeaderElectionConfig> {
        match self {
            Self::Each(elections) => Some(elections.config_for("", LeaseTimings::default())),
            Self::None | Self::Same(_) => None,
        }
    }
}
