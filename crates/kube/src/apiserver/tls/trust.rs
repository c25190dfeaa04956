//! Whom we trust: the CA data, which is read again at each handshake when it is a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::uri::Scheme;
use kube::Config;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tracing::{info, warn};

use crate::apiserver::connect_error::ConnectError;
use crate::server_certificate::{Trust, TrustedCertificates, is_certificate};

/// How a certificate begins in PEM form.
const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// The certificates of a text in PEM form. As Go does, it passes over everything else.
pub(in crate::apiserver) fn authorities(text: &[u8]) -> Vec<CertificateDer<'static>> {
    let starts: Vec<usize> = (0..text.len()).filter(|at| text[*at..].starts_with(BEGIN)).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let parts = starts.iter().zip(ends).map(|(start, end)| &text[*start..end]);
    let read = parts.filter_map(|part| CertificateDer::from_pem_slice(part).ok());
    read.filter(is_certificate).collect()
}

/// The same certificates as a text with nothing else.
pub(in crate::apiserver) fn pem_of(certificates: &[CertificateDer<'_>]) -> String {
    use base64::Engine as _;
    let mut text = String::new();
    for certificate in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        base64::engine::general_purpose::STANDARD.encode_string(certificate, &mut text);
        text.push_str("\n-----END CERTIFICATE-----\n");
    }
    text
}

/// The CA data of a kubeconfig.
#[derive(Debug)]
pub(super) struct CaData {
    /// Where it is; nowhere if it cannot change.
    file: Option<PathBuf>,
    /// What was read last; nothing is asked for without.
    trusted: Option<Mutex<TrustedCertificates>>,
}

impl CaData {
    pub(super) fn new(config: &Config) -> Result<Self, ConnectError> {
        let trusted = match &config.root_cert {
            _ if config.accept_invalid_certs => None,
            // Nothing is asked for where no TLS is spoken.
            _ if config.cluster_url.scheme() != Some(&Scheme::HTTPS) => Some(Arc::from([])),
            Some(certificates) => Some(certificates.iter().cloned().map(CertificateDer::from).collect()),
            None => Some(of_system()?),
        };
        if trusted.is_none() {
            warn!("insecure-skip-tls-verify is set: the certificate of the API server is not checked");
        }
        Ok(Self {
            file: config.root_cert_file.clone(),
            trusted: trusted.map(Mutex::new),
        })
    }
}

/// What is in the file now; what was in it before, if there is nothing now.
fn read_again(path: &Path, trusted: &Mutex<TrustedCertificates>) {
    let found = match std::fs::read(path) {
        Ok(text) => authorities(&text),
        Err(error) => {
            warn!(path = %path.display(), %error, "cannot read the CA data again; keeping what was read before");
            return;
        }
    };
    let mut known = trusted.lock();
    if found.is_empty() {
        warn!(path = %path.display(), "the CA data holds no certificate; keeping what was read before");
    } else if known[..] != found[..] {
        *known = found.into();
        info!(path = %path.display(), certificates = known.len(), "the CA data changed");
    }
}

impl Trust for CaData {
    fn current(&self) -> Option<TrustedCertificates> {
        let trusted = self.trusted.as_ref()?;
        if let Some(path) = &self.file {
            read_again(path, trusted);
        }
        let current = trusted.lock().clone();
        Some(current)
    }
}

/// The public CAs that the system knows: what Go takes where a kubeconfig names none.
fn of_system() -> Result<TrustedCertificates, ConnectError> {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        return Err(ConnectError::NoSystemAuthorities);
    }
    Ok(found.into())
}
