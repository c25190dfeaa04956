//! Which certificates of servers are accepted: those that Go's client accepts, because clusters, drivers and collectors are set up
//! for it.
//!
//! Must not know which server that is: who asks names it.

mod copies;
mod error;
mod rules;
#[cfg(test)]
mod tests;
mod verifier;

pub use error::{CertificateProblem, IssuerProblem, ServerCertificateError, Terms};
pub(crate) use rules::parse;
pub use rules::verify;
pub use verifier::{ServerVerifier, Trust, TrustedCertificates, system_authorities};
