//! Whom we trust: the CA data, which is read again at each handshake when it is a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::uri::Scheme;
use kube::Config;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tracing::{info, warn};

use crate::apiserver::connect_error::ConnectError;
use crate::pem;
use crate::server_certificate::{Trust, TrustedCertificates, system_authorities};
use crate::told_errors::ToldErrors;

/// Certificates as a text in PEM form with nothing else.
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
    last: Option<Mutex<LastRead>>,
}

#[derive(Debug)]
struct LastRead {
    trusted: TrustedCertificates,
    /// What the log has since the file could last be read.
    told: ToldErrors,
}

impl CaData {
    pub(super) fn new(config: &Config) -> Result<Self, ConnectError> {
        let trusted = match &config.root_cert {
            _ if config.accept_invalid_certs => None,
            // Nothing is asked for where no TLS is spoken.
            _ if config.cluster_url.scheme() != Some(&Scheme::HTTPS) => Some(Arc::from([])),
            Some(certificates) => Some(certificates.iter().cloned().map(CertificateDer::from).collect()),
            None => Some(system_authorities().ok_or(ConnectError::NoSystemAuthorities)?),
        };
        if trusted.is_none() {
            warn!("insecure-skip-tls-verify is set: the certificate of the API server is not checked");
        }
        let last = trusted.map(|trusted| {
            let told = ToldErrors::default();
            Mutex::new(LastRead { trusted, told })
        });
        Ok(Self {
            file: config.root_cert_file.clone(),
            last,
        })
    }
}

/// What is to be trusted by this file; else what is wrong.
pub(in crate::apiserver) fn read_authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    pem::authorities(&text).map_err(|problem| format!("it {problem}"))
}

/// What is in the file now; what was in it before, if there is nothing now.
fn read_again(path: &Path, last: &mut LastRead) {
    match read_authorities(path) {
        Ok(found) => {
            last.told.end();
            if last.trusted[..] != found[..] {
                last.trusted = found.into();
                info!(path = %path.display(), certificates = last.trusted.len(), "the CA data changed");
            }
        }
        Err(error) if last.told.is_news(&error) => {
            warn!(path = %path.display(), %error, "cannot read the CA data again; keeping what was read before");
        }
        Err(_) => {}
    }
}

impl Trust for CaData {
    fn current(&self) -> Option<TrustedCertificates> {
        let mut last = self.last.as_ref()?.lock();
        if let Some(path) = &self.file {
            read_again(path, &mut last);
        }
        Some(last.trusted.clone())
    }
}
