//! The Container Storage Interface: messages, clients and servers generated from `csi.proto`, and the redaction of what must not be shown.
//!
//! The `Debug` of every message with credentials shows how many entries there are and nothing else (see [`redact`]).
//!
//! Must not hold policy, nor a transport: who calls brings the connection.

pub mod redact;

/// Package `csi.v1`, generated from `csi.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/csi.v1.redacted.rs"));
}

#[cfg(test)]
mod tests;
