//! TLS towards the API server: whom we trust, and as whom we come, both read from their files at each handshake.
//!
//! What is accepted is what Go's client accepts, because clusters are set up for kubectl and the Go sidecars.

mod end_entity;
mod error;
mod identity;
mod rules;
mod trust;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use kube::Config;
use kube::client::ConfigExt;
use rustls::ClientConfig;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;

pub(super) use error::explain;
pub use error::{IssuerProblem, ServerCertificateError};
pub use identity::IdentityError;
pub(super) use identity::{ClientIdentity, Identity};
use trust::ServerVerifier;
pub use trust::TrustError;
pub(super) use trust::{authorities, pem_of};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The CA data cannot be used.
    #[error(transparent)]
    Trust(TrustError),
    /// The client certificate cannot be used.
    #[error(transparent)]
    Identity(IdentityError),
    /// The TLS library cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Protocol(rustls::Error),
    /// The credential plugin has no client certificate that can be used.
    #[error("cannot set up the connection to {url}: {source}")]
    Plugin {
        /// The API server.
        url: String,
        /// What is wrong.
        source: Box<kube::Error>,
    },
}

/// How TLS is spoken to this API server, and the client certificate, if there is one.
pub(super) fn client_config(config: &Config) -> Result<(ClientConfig, Identity), TlsError> {
    let provider = Arc::new(default_provider());
    let verifier = Arc::new(ServerVerifier::new(config, &provider).map_err(TlsError::Trust)?);
    let identity = ClientIdentity::new(&config.auth_info, &provider).map_err(TlsError::Identity)?;
    let identity = identity.map(Arc::new);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Protocol)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let resolver: Option<Arc<dyn ResolvesClientCert>> = match &identity {
        Some(identity) => Some(identity.clone()),
        None if config.auth_info.exec.is_some() => Some(of_plugin(config)?),
        None => None,
    };
    let mut tls = match resolver {
        Some(resolver) => builder.with_client_cert_resolver(resolver),
        None => builder.with_no_client_auth(),
    };
    // A resumed session is that of the certificates at its start, ours as well as the server's: Go's client resumes none.
    tls.resumption = Resumption::disabled();
    Ok((tls, identity))
}

/// The client certificate of a credential plugin, which kube runs.
fn of_plugin(config: &Config) -> Result<Arc<dyn ResolvesClientCert>, TlsError> {
    let mut config = config.clone();
    // Only the client certificate is taken from it, so it needs no CA data.
    config.root_cert = Some(Vec::new());
    config.root_cert_file = None;
    let of_kube = config.rustls_client_config().map_err(|source| TlsError::Plugin {
        url: config.cluster_url.to_string(),
        source: Box::new(source),
    })?;
    Ok(of_kube.client_auth_cert_resolver)
}

/// The algorithms and keys of all TLS of this process.
type Provider = Arc<CryptoProvider>;
