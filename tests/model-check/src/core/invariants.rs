//! The properties by name: those of the simulation where it has them (`crates/attach/src/driver/simulation/invariants.rs`, which is read here), and two more.

#[path = "../../../../crates/attach/src/driver/simulation/invariants.rs"]
#[allow(
    dead_code,
    missing_docs,
    reason = "the simulation has properties that are not of these worlds"
)]
mod simulation;

pub use simulation::*;

/// What this model asks besides.
pub const ONE_NODE: &str = "no volume for one node is published at two nodes by our doing";
/// What this model asks besides.
pub const STAYS_ATTACHED: &str = "what is attached and wanted stays recorded as attached";
