//! TLS towards the API server: whom we trust, and as whom we come, both read from their files at each handshake.
//!
//! What is accepted is what Go's client accepts, because clusters are set up for kubectl and the Go sidecars.

mod end_entity;
mod error;
mod identity;
mod plugin;
mod rules;
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

pub(super) use error::explain;
pub(super) use identity::Identity;
use identity::IdentityError;
pub(super) use plugin::{Plugin, PluginAnswer, PluginError};
pub(super) use source::Source;
use trust::ServerVerifier;
pub(super) use trust::{TrustError, authorities, pem_of};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Trust(TrustError),
    #[error(transparent)]
    Identity(IdentityError),
    #[error("cannot set up TLS: {0}")]
    Protocol(rustls::Error),
}

/// How TLS is spoken to this API server, and as whom we come.
pub(super) fn client_config(config: &Config) -> Result<(ClientConfig, Identity), TlsError> {
    let provider = Arc::new(default_provider());
    let verifier = Arc::new(ServerVerifier::new(config, &provider).map_err(TlsError::Trust)?);
    let identity = Identity::new(&config.auth_info, &provider).map_err(TlsError::Identity)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Protocol)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut tls = match identity.certificate() {
        Some(certificate) => builder.with_client_cert_resolver(certificate),
        None => builder.with_no_client_auth(),
    };
    // A resumed session is that of the certificates at its start, ours as well as the server's: Go's client resumes none.
    tls.resumption = Resumption::disabled();
    Ok((tls, identity))
}

/// The algorithms and keys of all TLS of this process.
type Provider = Arc<CryptoProvider>;
