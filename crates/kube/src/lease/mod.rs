//! Leader election by Leases: of all replicas that can serve a driver, the one that holds the driver's Lease does.
//!
//! Name, record and rules are those of client-go, so that a sidecar kubernetes-csi/external-attacher and an operator for
//! the same driver exclude each other. [`ElectionState`] decides, from the record that was read and from when it was seen to
//! change by the clock of this process; the clocks of others are never believed. [`LeaderElectionHandle`] reads and writes.
//!
//! The operator's own Lease is in its own namespace and never moves: it excludes replicas. The Leases of sidecars in other namespaces
//! are held as well (`group`): they exclude sidecars.
//!
//! This module must not know what is led: it shows the state of its candidate, and who works acts on that.

mod clock;
mod config;
mod election;
mod elector;
mod group;
mod handle;
mod health;
mod record;
mod settings;
mod shares;
mod state;
mod term;

#[cfg(test)]
pub(crate) mod tests;

pub use clock::{Clock, Moment, MomentSource};
pub use config::{LeaderElectionConfig, LeaderElections};
pub use election::{ElectionState, LeaseAction, LeaseRules, ObservedRecord};
pub use handle::LeaderElectionHandle;
pub use health::LeaseHealth;
pub use record::LeaderElectionRecord;
pub use settings::{LeaseTimings, LeaseTimingsError};
pub use shares::LeaseShares;
pub use state::{CandidateStatus, LeaderState, LeaseHolder, NewLease};
pub use term::{Term, rest};
