//! What every layer of the operator stands on and none of them owns: the wall clock, where tasks begin, readiness checks, PEM texts,
//! which certificates of servers are accepted, what their TLS alerts mean, the causes of an error in one line, which errors are told.
//!
//! Must not know Kubernetes, CSI or a transport.

pub mod clock;
pub mod error_chain;
pub mod health;
pub mod pem;
pub mod schedule;
pub mod server_certificate;
pub mod tls_alert;
pub mod told_errors;
