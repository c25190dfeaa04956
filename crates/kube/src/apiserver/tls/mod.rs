//! TLS towards the API server: whom we trust, and as whom we come, both read from their files at each handshake.
//!
//! What is accepted is what Go's client accepts, because clusters are set up for kubectl and the Go sidecars.

mod error;
mod identity;
mod plugin;
mod source;
mod trust;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use kube::Config;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;

use super::connect_error::ConnectError;
use crate::server_certificate::ServerVerifier;
use error::API_SERVER;
pub(super) use error::explain;
pub(super) use identity::Identity;
pub use plugin::PluginProblem;
pub(super) use source::Source;
use trust::CaData;
pub(super) use trust::{pem_of, read_authorities};

/// How TLS is spoken to this API server, and as whom we come.
pub(super) fn client_config(config: &Config) -> Result<(ClientConfig, Identity), ConnectError> {
    let provider = Arc::new(default_provider());
    let verifier = Arc::new(ServerVerifier::new(CaData::new(config)?, API_SERVER, &provider));
    let identity = Identity::new(&config.auth_info, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ConnectError::Protocol)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut tls = match &identity.certificate {
        Some(certificate) => builder.with_client_cert_resolver(certificate.clone()),
        None => builder.with_no_client_auth(),
    };
    // A resumed session is that of the certificates at its start, ours as well as the server's: Go's client resumes none.
    tls.resumption = Resumption::disabled();
    Ok((tls, identity))
}

/// The algorithms and keys of all TLS of this process.
type Provider = Arc<CryptoProvider>;
