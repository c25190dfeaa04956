//! The certificate that the metrics are served with: from files, followed when they change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::health::CheckHandle;

/// How often files are looked at. A Secret that changed takes a minute to reach a pod, and is valid for hours.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// One request for each connection needs no more than this.
const HTTP1: &[u8] = b"http/1.1";

/// Where the certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate in PEM form, and those that lead to its authority.
    pub certificate: PathBuf,
    /// Its private key in PEM form.
    pub key: PathBuf,
}

/// Why there is no certificate. Never quotes what is in a file.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path} {problem}")]
    Invalid {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// The key is another certificate's.
    #[error("{key} is not the private key of the first certificate in {certificate}")]
    Mismatch {
        /// The file of the key.
        key: String,
        /// That of the certificate.
        certificate: String,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// The certificate of the moment; none while there was no usable one.
#[derive(Clone)]
pub struct ServerCertificate(pub(super) watch::Receiver<Option<Arc<ServerConfig>>>);

impl ServerCertificate {
    /// Reads the certificate from files; the task that comes with it reads them again when they change, until `stopped`. Files
    /// that cannot be used leave the certificate before them in use, and are told; without one before them `check` fails and no
    /// connection is answered.
    pub async fn follow(
        files: CertificateFiles,
        check: CheckHandle,
        stopped: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (current, seen) = watch::channel(None);
        let mut follower = CertificateFileWatcher {
            files,
            check,
            current,
            last: Err(String::new()),
        };
        follower.look().await;
        let task = async move {
            let mut ticks = tokio::time::interval(LOOK_EVERY);
            while stopped.run_until_cancelled(ticks.tick()).await.is_some() {
                follower.look().await;
            }
        };
        (Self(seen), task)
    }

    /// That of the moment.
    pub(in crate::admin) fn current(&self) -> Option<Arc<ServerConfig>> {
        self.0.borrow().clone()
    }
}

struct CertificateFileWatcher {
    files: CertificateFiles,
    check: CheckHandle,
    current: watch::Sender<Option<Arc<ServerConfig>>>,
    /// The hash of what was read last, or why it could not be.
    last: Result<Vec<u8>, String>,
}

impl CertificateFileWatcher {
    async fn look(&mut self) {
        let outcome = match self.read().await {
            Ok((hash, _, _)) if self.last.as_ref() == Ok(&hash) => return,
            Ok((hash, certificate, key)) => {
                self.last = Ok(hash);
                self.parse(&certificate, &key)
            }
            Err(error) if self.last.as_ref() == Err(&error.to_string()) => return,
            Err(error) => {
                self.last = Err(error.to_string());
                Err(error)
            }
        };
        let file = self.files.certificate.display();
        match outcome {
            Ok(config) => {
                let renewed = self.current.send_replace(Some(Arc::new(config))).is_some();
                info!(%file, renewed, "the certificate of the metrics is in use");
                self.check.set_ready(true);
            }
            Err(error) if self.current.borrow().is_some() => {
                warn!(%error, "the new certificate of the metrics is invalid; the previous one stays in use");
            }
            Err(error) => {
                error!(%error, "there is no certificate for the metrics; rejecting all requests for them");
                self.check.set_failing(error.to_string());
            }
        }
    }

    async fn read(&self) -> Result<(Vec<u8>, Vec<u8>, Vec<u8>), CertificateError> {
        let (certificate, key) = (content(&self.files.certificate).await?, content(&self.files.key).await?);
        let mut hash = Context::new(&SHA256);
        for part in [&certificate, &key] {
            hash.update(&part.len().to_le_bytes());
            hash.update(part);
        }
        Ok((hash.finish().as_ref().to_vec(), certificate, key))
    }

    fn parse(&self, certificate: &[u8], key: &[u8]) -> Result<ServerConfig, CertificateError> {
        let invalid = |path: &Path| {
            let path = path.display().to_string();
            |problem: crate::pem::PemError| CertificateError::Invalid {
                path,
                problem: problem.to_string(),
            }
        };
        let provider = provider();
        let chain = crate::pem::certificates(certificate).map_err(invalid(&self.files.certificate))?;
        let private = crate::pem::private_key(key, &provider).map_err(invalid(&self.files.key))?;
        server_config(chain, private, provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => CertificateError::Mismatch {
                key: self.files.key.display().to_string(),
                certificate: self.files.certificate.display().to_string(),
            },
            error => CertificateError::Tls(error),
        })
    }
}

async fn content(path: &Path) -> Result<Vec<u8>, CertificateError> {
    tokio::fs::read(path)
        .await
        .map_err(|source| CertificateError::Unreadable {
            path: path.display().to_string(),
            source,
        })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

/// TLS 1.2 and 1.3, which is what rustls calls safe.
fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: Arc<CryptoProvider>,
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![HTTP1.to_vec()];
    Ok(config)
}
