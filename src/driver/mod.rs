//! One running driver: connect, find out who answers, work until the connection is lost, start over.
//!
//! A driver never ends the process and never touches another driver. What it is at is published as a
//! [`DriverStatus`]; everything else about it is in the objects of the cluster.

#[macro_use]
mod telling;

mod access;
mod announce;
mod attempt;
mod calls;
mod capability;
mod engine;
mod failures;
mod fence;
mod flights;
mod handshake;
mod held;
mod holds;
mod keys;
mod listing;
mod lives;
mod lookup;
mod observer;
mod publish;
mod reconcile;
mod record;
mod release;
mod report;
mod rights;
mod rules;
mod runner;
mod secrets;
mod status;
mod sync_span;
mod task;
mod turn;
mod undo;
mod waits;

#[cfg(test)]
pub use status::LastFailure;
pub use status::{DriverStatus, LastReconcile, Phase, Plugin};
pub use task::DriverTask;

use crate::events::Events;
use crate::kubernetes::Requests;
use crate::store::Store;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::{DriverLogs, Tracer};

/// What all drivers share.
#[derive(Clone)]
pub struct Context {
    /// The observed state of the cluster.
    pub store: Store,
    /// Writes to the API server.
    pub requests: Requests,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub metrics: Metrics,
    /// Traces.
    pub tracer: Tracer,
    /// Levels of the log.
    pub logs: DriverLogs,
}

#[cfg(test)]
mod attempt_tests;
#[cfg(test)]
mod fence_tests;
#[cfg(test)]
mod handshake_tests;
#[cfg(test)]
mod reconcile_tests;
#[cfg(test)]
mod runner_tests;
#[cfg(test)]
#[allow(
    clippy::assigning_clones,
    clippy::format_collect,
    clippy::map_unwrap_or,
    clippy::match_bool,
    clippy::needless_continue,
    clippy::semicolon_if_nothing_returned,
    clippy::similar_names,
    clippy::struct_excessive_bools,
    clippy::too_many_lines,
    reason = "a model of the world, with tables of what happens in it"
)]
mod simulation;
#[cfg(test)]
mod term_tests;
#[cfg(test)]
pub use simulation::{Flaw, has_flaw, of_this_process, simulated_time};
