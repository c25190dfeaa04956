//! The Container Storage Interface: generated messages, clients and servers, and the redaction of what must not be shown.
//!
//! Must not hold policy: what to call when is decided elsewhere.

mod call_error;
mod client;
mod connection;
mod convert;
mod dial;
mod list;
pub mod redact;
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

/// Package `csi.v1`, generated from `proto/csi.proto`.
///
/// The `Debug` of every message with credentials shows how many entries there are and nothing else (see [`redact`]).
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/csi.v1.redacted.rs"));
}

/// The compiled descriptor of `proto/csi.proto` and its imports, an encoded `google.protobuf.FileDescriptorSet`. Keeps the options
/// declared in the proto, such as `csi_secret`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/csi.descriptor.bin"));

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
mod tests;
#[cfg(test)]
mod tls_tests;
