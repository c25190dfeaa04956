//! Which certificates of servers are accepted: those that Go's client accepts, because clusters, drivers and collectors are set up
//! for it.
//!
//! Must not know which server that is: who asks names it.

mod end_entity;
mod error;
mod rules;
mod verifier;

pub use error::{CertificateProblem, IssuerProblem, ServerCertificateError, Terms};
pub use rules::{is_certificate, verify};
pub use verifier::{ServerVerifier, Trust, TrustedCertificates};
