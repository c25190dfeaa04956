//! What a Lease says, in the form of client-go's LeaderElectionRecord.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

/// The record of an election.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaderElectionRecord {
    /// Who holds the Lease; empty when it was released.
    pub holder: String,
    /// How long others must leave it alone after its last change, in seconds.
    pub duration_seconds: i32,
    /// When the holder took it, by the holder's clock.
    pub acquired: Option<Timestamp>,
    /// When the holder last renewed it, by the holder's clock.
    pub renewed: Option<Timestamp>,
    /// How often the holder changed.
    pub transitions: i32,
}

impl LeaderElectionRecord {
    /// Reads a Lease. What is absent counts as zero or empty, as in client-go.
    pub fn of(lease: &Lease) -> Self {
        let Some(spec) = &lease.spec else {
            return Self::default();
        };
        let time = |time: &Option<MicroTime>| time.as_ref().map(|time| time.0);
        Self {
            holder: spec.holder_identity.clone().unwrap_or_default(),
            duration_seconds: spec.lease_duration_seconds.unwrap_or_default(),
            acquired: time(&spec.acquire_time),
            renewed: time(&spec.renew_time),
            transitions: spec.lease_transitions.unwrap_or_default(),
        }
    }

    /// How long others must leave the Lease alone after its last change.
    pub fn duration(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.duration_seconds).unwrap_or_default())
    }

    /// Writes the record and labels into a Lease and leaves the rest of it, its resource version above all.
    pub(super) fn write_to(&self, lease: &mut Lease, labels: &BTreeMap<String, String>) {
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity = (!self.holder.is_empty()).then(|| self.holder.clone());
        spec.lease_duration_seconds = Some(self.duration_seconds);
        spec.acquire_time = self.acquired.map(MicroTime);
        spec.renew_time = self.renewed.map(MicroTime);
        spec.lease_transitions = Some(self.transitions);
        if !labels.is_empty() {
            let all = lease.metadata.labels.get_or_insert_default();
            all.extend(labels.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
    }
}
