//! The Container Storage Interface as the operator uses it: connections and calls. Its messages are those of `csi_attacher_proto`.
//!
//! Must not hold policy: what to call when is decided elsewhere.

mod call_error;
mod client;
mod connection;
mod convert;
mod dial;
mod list;
mod socket;
mod spans;
mod tls;
mod witness;

pub use call_error::CallError;
pub use client::{CapabilityReport, CsiClient, PluginInfo};
pub use connection::Connection;
pub use convert::mode_name;
pub use dial::DialError;
pub use list::{ListedVolume, VolumePage};
pub use socket::{Barrier, FileFacts, Ourselves};
pub use tls::{Certificates, Tls, TlsFault, TlsInvalid};

#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod connection_tests;
#[cfg(test)]
mod list_tests;
#[cfg(test)]
mod metric_tests;
#[cfg(test)]
mod sidecar_tests;
#[cfg(test)]
mod span_tests;
#[cfg(test)]
mod tls_tests;
