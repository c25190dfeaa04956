//! TLS on the mock driver's port.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// What the mock driver serves TLS with, all in PEM form. `Debug` shows none of it.
#[derive(Clone)]
pub struct ServerTls {
    /// Its certificate, with those between it and the authority.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// The authority of the client certificates that it demands; `None` demands none.
    pub client_authority: Option<String>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("demands_client_certificate", &self.client_authority.is_some())
            .finish_non_exhaustive()
    }
}

/// Certificates or a key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve TLS with the {what}: {problem}")]
pub struct TlsError {
    what: &'static str,
    problem: String,
}

/// What new connections are met with; plain HTTP/2 when empty. It can change while the driver serves.
pub(super) type Acceptor = Arc<RwLock<Option<TlsAcceptor>>>;

impl ServerTls {
    /// Checks everything.
    pub(super) fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let failed = |what, problem: String| TlsError { what, problem };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| failed("protocol versions", error.to_string()))?;
        let builder = match &self.client_authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("client authority", authority)? {
                    let added = roots.add(certificate);
                    added.map_err(|error| failed("client authority", error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder
                    .with_client_cert_verifier(verifier.map_err(|error| failed("client authority", error.to_string()))?)
            }
        };
        // The error of the library may quote what it could not read.
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())
            .map_err(|_| failed("private key", "it is no key in PEM form".to_owned()))?;
        let chain = certificates("certificate", &self.certificate)?;
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| failed("certificate", error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn certificates(what: &'static str, text: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(TlsError {
            what,
            problem: "there is none in PEM form".to_owned(),
        }),
        Err(error) => Err(TlsError {
            what,
            problem: error.to_string(),
        }),
    }
}
