//! Whether and how a driver's Lease is competed for.

use crate::api::DriverConfig;
use crate::lease::{Campaign, Office, Timing};

/// How Leases are competed for.
#[derive(Clone)]
pub(super) enum Election {
    /// Not at all: there must be no other replica.
    None,
    /// The same for all drivers.
    Same(Campaign),
    /// For each driver by its settings.
    Each(Office),
}

impl Election {
    /// What a driver with these settings needs to compete.
    pub fn campaign(&self, config: &DriverConfig) -> Option<Campaign> {
        let office = match self {
            Self::None => return None,
            Self::Same(campaign) => return Some(campaign.clone()),
            Self::Each(office) => office,
        };
        let asked = &config.leader_election;
        // Times were checked when the AttacherConfig was read, so that the fall-back is never taken.
        let timing = Timing::new(asked.lease_duration, asked.renew_deadline, asked.retry_period).unwrap_or_default();
        asked.enabled.then(|| office.campaign(&asked.namespace, timing))
    }
}
