//! Leader election by Leases: of all replicas that can serve a driver, the one that holds the driver's Lease does.
//!
//! Name, record and rules are those of client-go, so that a sidecar kubernetes-csi/external-attacher and an operator for
//! the same driver exclude each other. [`Election`] decides, from the record that was read and from when it was seen to
//! change by the clock of this process; the clocks of others are never believed. [`Candidate`] reads and writes.
//!
//! A [`Place`] is where a Lease lives. A change of it hands over.
//!
//! This module must not know what is led: it tells where its candidate stands, and who works acts on that.

mod candidate;
mod clock;
mod election;
mod elector;
mod health;
mod place;
mod record;
mod requests;
mod settings;
mod shares;
mod term;

#[cfg(test)]
pub(crate) mod tests;

pub use candidate::{Campaign, Candidate, Holder, Office, Standing};
pub use clock::{Clock, Moment};
pub use election::{Election, Next};
pub use health::LeaseHealth;
pub use place::{FormerLease, FormerPlace, Place, SeenPlaces, record::PlaceRecord};
pub use record::Record;
pub use settings::{ElectionSettings, Timing, TimingError, namespace};
pub use shares::LeaseShares;
pub use term::Term;
