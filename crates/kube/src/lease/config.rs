//! What a candidate needs to compete for a Lease.

use std::collections::BTreeMap;

use csi_attacher_kubeconfig::pod_namespace;
use kube::Client;

use super::clock::Clock;
use super::election::LeaseRules;
use super::health::LeaseHealth;
use super::settings::{self, LeaseTimings};
use super::shares::LeaseShares;
use super::state::Membership;

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
    /// Whether this process writes the status of AttacherConfigs; if not, it is in the place of a sidecar. An annotation on the Leases that
    /// it holds says which of the two it is.
    pub reports: bool,
    /// Where held Leases are shown.
    pub health: LeaseHealth,
    /// How free Leases spread over the replicas.
    pub shares: LeaseShares,
    /// By which the time of held Leases is measured.
    pub clock: Clock,
    /// By which Leases are judged.
    pub rules: LeaseRules,
}

impl LeaderElections {
    /// Those of a process of this name that writes no status, without labels, by the clocks of the machine.
    pub fn new(client: Client, identity: String) -> Self {
        Self {
            client,
            identity,
            labels: BTreeMap::new(),
            reports: false,
            health: LeaseHealth::default(),
            shares: LeaseShares::default(),
            clock: Clock::default(),
            rules: LeaseRules::default(),
        }
    }

    /// An election in this namespace; empty means that of the pod.
    pub fn config_for(&self, namespace: &str, timing: LeaseTimings) -> LeaderElectionConfig {
        LeaderElectionConfig {
            shared: self.clone(),
            namespace: settings::namespace(namespace, pod_namespace),
            others: Vec::new(),
            timing,
        }
    }
}

/// What a candidate needs, whatever the name of the Lease.
#[derive(Clone)]
pub struct LeaderElectionConfig {
    /// What all elections of the process share.
    pub shared: LeaderElections,
    /// Namespace of the Lease that excludes other replicas. It stays the same for the life of the process.
    pub namespace: String,
    /// Namespaces of the Leases of the same name that are held as well, in the order in which they are acquired: those of sidecars, which
    /// are excluded so, and the one under which a former release serves, if that is none of these.
    pub(super) others: Vec<(String, Membership)>,
    /// How long a Lease is held, and when it is renewed.
    pub timing: LeaseTimings,
}

impl LeaderElectionConfig {
    /// The same, which holds the Leases of sidecars in these namespaces as well.
    #[must_use]
    pub fn holding<'a>(self, namespaces: impl IntoIterator<Item = &'a String>) -> Self {
        let hold = |config: Self, namespace: &'a String| config.and(namespace, Membership::Extra);
        namespaces.into_iter().fold(self, hold)
    }

    /// The same, of a driver that a former release serves under the Lease in this namespace, or did.
    #[must_use]
    pub fn after(self, former: Option<&str>) -> Self {
        former
            .into_iter()
            .fold(self, |config, former| config.and(former, Membership::Former))
    }

    fn and(mut self, namespace: &str, membership: Membership) -> Self {
        if namespace != self.namespace && self.others.iter().all(|(other, _)| other != namespace) {
            self.others.push((namespace.to_owned(), membership));
        }
        self
    }
}
