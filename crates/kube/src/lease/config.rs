//! What a candidate needs to compete for a Lease.

use std::collections::BTreeMap;

use kube::Client;

use super::clock::Clock;
use super::election::LeaseRules;
use super::health::LeaseHealth;
use super::settings::{self, LeaseTimings};
use super::shares::LeaseShares;
use super::state::Membership;
use crate::api::names::{LEASE_DROP_IN_ANNOTATION, LEASE_HOLDER_ANNOTATION};

/// What the holder of a Lease writes on it about itself, as an annotation with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderNote {
    /// Nothing, as a sidecar.
    None,
    /// That it writes the status of the AttacherConfig.
    Reports,
    /// That it is the operator in the place of a sidecar.
    DropIn,
}

impl HolderNote {
    pub(super) const fn annotation(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Reports => Some(LEASE_HOLDER_ANNOTATION),
            Self::DropIn => Some(LEASE_DROP_IN_ANNOTATION),
        }
    }
}

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
    /// What the holder writes on the Lease about itself.
    pub note: HolderNote,
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
    /// Those of a process of this name, with nothing else said: no labels, no note, by the clocks of the machine.
    pub fn new(client: Client, identity: String) -> Self {
        Self {
            client,
            identity,
            labels: BTreeMap::new(),
            note: HolderNote::None,
            health: LeaseHealth::default(),
            shares: LeaseShares::default(),
            clock: Clock::default(),
            rules: LeaseRules::default(),
        }
    }

    /// The same, of a process in the place of a sidecar, which works under a Lease that it creates at once.
    #[must_use]
    pub fn in_place_of_a_sidecar(mut self) -> Self {
        self.rules.creators_wait = false;
        self
    }

    /// An election in this namespace; empty means that of the pod.
    pub fn config_for(&self, namespace: &str, timing: LeaseTimings) -> LeaderElectionConfig {
        LeaderElectionConfig {
            shared: self.clone(),
            namespace: settings::namespace(namespace),
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
    pub fn after(self, former: &str) -> Self {
        self.and(former, Membership::Former)
    }

    fn and(mut self, namespace: &str, membership: Membership) -> Self {
        let is_held = *namespace == self.namespace || self.others.iter().any(|(other, _)| other == namespace);
        if !namespace.is_empty() && !is_held {
            self.others.push((namespace.to_owned(), membership));
        }
        self
    }

    /// The election for the Lease in another namespace alone.
    pub(super) fn in_namespace(&self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            others: Vec::new(),
            ..self.clone()
        }
    }
}
