//! What the test targets share: a real Kubernetes control plane on loopback ports and builders for the stock objects
//! around a volume. It knows nothing of the operator under test, so that what it proves is proved from outside.
//!
//! Nothing started here outlives the test process, however that process ends: see [`controlplane::watchdog`].

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "this is test code, also where a bench or a demo uses it"
)]

pub mod api_answers;
pub mod apply;
pub mod branch;
pub mod controlplane;
mod error;
pub mod fixtures;
pub mod http;
pub mod http2;
pub mod jaeger;
pub mod kubectl;
pub mod lease;
pub mod lease_server;
pub mod left_out;
mod logged;
pub mod operator;
pub mod otlp;
pub mod prometheus;
pub mod proxy;
pub mod rbac;
pub mod refusals;
mod shifted_clock;
pub mod sidecar;
pub mod stage;
pub mod tunnel;
pub mod wait;

pub use apply::apply_yaml;
pub use controlplane::audit::AuditEvent;
pub use controlplane::{ControlPlane, Options};
pub use error::{Error, Result};
pub use fixtures::{Fixtures, Volume};
pub use jaeger::Jaeger;
pub use kubectl::Kubectl;
pub use left_out::left_out;
pub use logged::Logged;
pub use operator::{Operator, OperatorOptions};
pub use refusals::Refusals;
pub use shifted_clock::ShiftedClock;
pub use sidecar::Sidecar;
pub use stage::Stage;

use std::path::{Path, PathBuf};

use csi_attacher_model::decide;

/// A file of this repository, by its path from the root.
pub fn of_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A program that cargo built beside the one that asks: `name`, or `examples/name`. Cargo builds the programs of the operator's own crate
/// before its tests, and others only when it is asked to.
pub fn built_program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(|error| Error::Other(format!("cannot find this program: {error}")))?;
    // Cargo puts tests and examples into folders beside the programs.
    let path = own.ancestors().nth(2).unwrap_or(Path::new("")).join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::Other(format!(
        "there is no program {}: cargo build --bins --example demo",
        path.display()
    )))
}
