//! Attaching for one driver: its queue, the attempts, the comparison with what the driver lists, the release of PersistentVolumes.
//! Everything about it is in the objects of the cluster.

mod attempt;
mod capability;
mod context;
mod engine;
mod reconcile_sync;
mod release;
mod role;
mod secret_waiters;

pub use attempt::unfinished::UnfinishedPublishes;
pub use context::{Rules, SharedContext};
pub use role::AttachRole;

pub(crate) use secret_waiters::WithheldGuard;

#[cfg(test)]
mod attempt_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod term_tests;
