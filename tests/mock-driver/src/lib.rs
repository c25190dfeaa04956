//! A CSI driver without storage: real gRPC on a real socket, a correct backend in memory, and any misbehaviour a test asks for.
//!
//! Tests use it in their own process through [`MockDriver`] and [`MockHandle`]; the program `csi-mock-driver` offers the same with flags,
//! a script file and a control socket (see [`cli`] and [`control`]). Answers follow the specification unless a [`Rule`] says otherwise.
//!
//! Must not be used by the operator itself: only tests depend on this crate.

mod backend;
mod calls;
pub mod cli;
pub mod control;
mod control_socket;
mod facts;
mod handle;
mod script;
mod server;
mod service;
mod settings;
mod shared;
mod tls;

pub use calls::{CallRecord, CallResult, InFlight};
pub use facts::{CapabilityFacts, CreationFacts, Method, code_from_name, code_name, deadline_ms};
pub use handle::{MockDriver, MockDriverBuilder, MockHandle, MockStartError};
pub use script::{Rule, ScriptAction, ScriptedAnswer, ScriptedFailure};
pub use server::{EndpointError, ListenEndpoint, ListenError};
pub use settings::{ALL_CAPABILITIES, ControllerCapability, MockCredentials, MockSettings};
pub use tls::{ServerTls, TlsError};

#[cfg(test)]
mod tests;
