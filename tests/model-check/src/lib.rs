//! A model checker for the core of csi-attacher-operator: small worlds, explored completely. `make model-check` runs it;
//! docs/contribute/CORRECTNESS.md tells what it shows and what not.
//!
//! * [`core`]: worlds of volumes. The attempts are those of production (`csi_attacher_model::attempt`), and so are the cache with its
//!   order of copies, who has to look again, and who is in whose way; each is asked once about the same things.
//! * [`lease`]: worlds of the Lease, with time.
//! * [`provision`]: worlds of a claim, its PersistentVolume and the driver's volumes.
//! * [`histories`]: plays random histories, and prints what they came to.
//! * [`walk`]: random histories of a world.
//! * [`report`]: explores the worlds and looks for the wrong operators, and prints what they came to.
//! * [`explorer`]: visits all states, and says why it is not `stateright`.

#![allow(
    clippy::cast_possible_truncation,
    reason = "states are numbered by u32, and the explorer stops before there are more"
)]
#![allow(
    clippy::missing_panics_doc,
    clippy::option_option,
    clippy::similar_names,
    clippy::struct_excessive_bools,
    clippy::too_many_lines,
    clippy::unused_self,
    reason = "it is a test: one table is one function, and a fact of a state is a field of its own"
)]

#[allow(clippy::unwrap_used, reason = "it is the API server of the tests of the model")]
#[path = "../../../crates/model/src/decide/tests/api_server.rs"]
mod api_server;
pub mod core;
pub mod explorer;
#[cfg(test)]
mod explorer_tests;
pub mod hash;
pub mod histories;
pub mod lease;
pub mod parallel;
pub mod provision;
pub mod report;
pub mod walk;

// The sources that are read here name them so.
use csi_attacher_model::{api, decide, objects};
