//! A model checker for the core of csi-attacher-operator.

#[allow(clippy::unwrap_used, reason = "it is the API server of the tests of the model")]
#[path = "../../../crates/model/src/decide/tests/api_server.rs"]
mod api_server;
pub mod core;
pub mod explorer;
pub mod hash;

use csi_attacher_model::decide;
