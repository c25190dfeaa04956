//! One running driver: connect, find out who answers, work until the connection is lost, start over.
//!
//! A driver never ends the process and never touches another driver. What it is at is published as a
//! [`DriverState`]; everything else about it is in the objects of the cluster.

pub mod reservation;

#[macro_use]
mod log;

mod attempt;
mod capability;
mod connect;
mod context;
mod controller_calls;
mod engine;
mod fence;
mod identity;
mod leadership;
mod permissions;
mod queue_metrics;
mod reconcile_sync;
mod release;
mod rules;
mod runner;
mod secret_waiters;
mod shared_context;
mod state;
mod task;
mod waits;

pub use attempt::unfinished::UnfinishedPublishes;
pub use rules::Rules;
pub use shared_context::SharedContext;
pub use state::{DriverPhase, DriverState, FailureRecord, Plugin, ReconcileSyncResult};
pub use task::DriverTask;

#[cfg(test)]
mod attempt_tests;
#[cfg(test)]
mod fence_tests;
#[cfg(test)]
mod runner_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod term_tests;
