//! What a candidate needs to compete for a Lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kube::Client;
use tokio::time::Instant;

use super::clock::Clock;
use super::health::LeaseHealth;
use super::place::change::PlaceChange;
use super::place::record::PlaceRecord;
use super::place::{Place, SeenPlaces};
use super::rules::LeaseRules;
use super::settings::{self, LeaseTimings};
use super::shares::LeaseShares;

/// What all elections of a process share.
#[derive(Clone)]
pub struct LeaderElections {
    /// The client; of its own, so that no burst of other requests makes a renewal late.
    pub client: Client,
    /// Name of this process in all Leases. No two processes may have the same one at a time; one that starts again under its
    /// old name has its Leases back at once.
    pub identity: String,
    /// Labels to put on a Lease when it is written; others on it stay.
    pub labels: BTreeMap<String, String>,
    /// Whether the holder writes the status of an AttacherConfig, which the Lease then shows to the other replicas.
    pub reports: bool,
    /// Where held Leases are shown.
    pub health: LeaseHealth,
    /// How free Leases spread over the replicas.
    pub shares: LeaseShares,
    /// By which the time of held Leases is measured.
    pub clock: Clock,
    /// Where other replicas were seen to hold Leases.
    pub seen: SeenPlaces,
    /// By which Leases are judged.
    pub rules: LeaseRules,
}

impl LeaderElections {
    /// Those of a process of this name, with nothing else said: no labels, no reports, by the clocks of the machine.
    pub fn new(client: Client, identity: String) -> Self {
        Self {
            client,
            identity,
            labels: BTreeMap::new(),
            reports: false,
            health: LeaseHealth::default(),
            shares: LeaseShares::default(),
            clock: Clock::default(),
            seen: SeenPlaces::default(),
            rules: LeaseRules::default(),
        }
    }

    /// The same, of a process that writes the status of AttacherConfigs.
    #[must_use]
    pub fn with_status_writer(self) -> Self {
        Self { reports: true, ..self }
    }

    /// An election in this namespace; empty means that of the pod.
    pub fn config_for(&self, namespace: &str, timing: LeaseTimings) -> LeaderElectionConfig {
        LeaderElectionConfig {
            shared: self.clone(),
            enabled: true,
            namespace: settings::namespace(namespace),
            timing,
            record: None,
            longest_call: Duration::ZERO,
            sidecar_namespaces: Vec::new(),
        }
    }
}

/// What a candidate needs, whatever the name of the Lease.
#[derive(Clone)]
pub struct LeaderElectionConfig {
    /// What all elections of the process share.
    pub shared: LeaderElections,
    /// Whether there is a Lease at all. Without, a candidate leads as soon as no former place of a Lease is in use.
    pub enabled: bool,
    /// Namespace of the Lease.
    pub namespace: String,
    /// How long the Lease is held, and when it is renewed.
    pub timing: LeaseTimings,
    /// Where the place of the Lease is recorded; nowhere in the drop-in mode.
    pub record: Option<PlaceRecord>,
    /// How long a call may run that was begun without a Lease; zero with one.
    pub longest_call: Duration,
    /// Other namespaces in which an attacher of the driver may hold a Lease.
    pub sidecar_namespaces: Vec<String>,
}

impl LeaderElectionConfig {
    /// How the candidate for this Lease gets to its place; none when that is not recorded. `made` as in [`PlaceChange::made`].
    pub(super) fn place_change(&self, lease: &str, made: Option<(Instant, Arc<AtomicBool>)>) -> Option<PlaceChange> {
        Some(PlaceChange {
            client: self.shared.client.clone(),
            lease: lease.to_owned(),
            place: Place {
                namespace: self.enabled.then(|| self.namespace.clone()),
                identity: self.shared.identity.clone(),
                sidecar_namespaces: self.sidecar_namespaces.clone(),
                runs_out_after: self.timing.lease_duration.max(self.longest_call),
            },
            record: self.record.clone()?,
            seen: self.shared.seen.clone(),
            rules: self.shared.rules,
            made,
            retry_period: self.timing.retry_period,
            request_deadline: self.timing.request_deadline(),
        })
    }
}
