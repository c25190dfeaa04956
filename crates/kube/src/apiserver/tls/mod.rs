//! TLS towards the API server: whom we trust, and as whom we come, both read from their files at each handshake.
//!
//! What is accepted is what Go's client accepts, because clusters are set up for kubectl and the Go sidecars.

mod error;
mod identity;
mod plugin;
mod trust;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
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

/// Where certificates or keys are that a field of a kubeconfig names.
pub(super) enum Source {
    File(PathBuf),
    Data(Vec<u8>),
}

impl Source {
    /// As in client-go, what stands in the kubeconfig itself goes before a file.
    pub fn new(field: &'static str, data: Option<&str>, file: Option<&str>) -> Result<Option<Self>, ConnectError> {
        match (data.unwrap_or_default(), file.unwrap_or_default()) {
            ("", "") => Ok(None),
            ("", file) => Ok(Some(Self::File(PathBuf::from(file)))),
            (data, _) => {
                let decoded = base64::engine::general_purpose::STANDARD.decode(data);
                let decoded = decoded.map_err(|_| ConnectError::Base64(field))?;
                Ok(Some(Self::Data(decoded)))
            }
        }
    }

    pub fn read(&self, field: &'static str) -> Result<Vec<u8>, ConnectError> {
        match self {
            Self::Data(text) => Ok(text.clone()),
            Self::File(path) => {
                let text = fs::read(path);
                text.map_err(|error| ConnectError::File(field, path.display().to_string(), error))
            }
        }
    }
}
