//! As whom we come: the client certificate and its key, which are read again when they are files.
//!
//! An API server looks at the certificate of a connection with each request, so that one which ends makes every request of
//! the connection fail. Whoever renews the files does so before: the connection is replaced as soon as they hold another
//! pair, and at the latest after an answer 401.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs};

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine as _;
use kube::config::AuthInfo;
use parking_lot::Mutex;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use secrecy::{ExposeSecret as _, SecretString};
use thiserror::Error;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Provider;
use crate::pem::{self, PemError};

/// The client certificate of a connection, if there is one.
pub(crate) type Identity = Option<Arc<ClientIdentity>>;

/// How often the files are looked at while requests are sent.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Why the client certificate cannot be used. Never quotes a key.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("{field} {path}: {source}")]
    File {
        /// The field of the kubeconfig.
        field: &'static str,
        /// The file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// A value is not base64.
    #[error("{field}-data of the kubeconfig is not base64")]
    Base64 {
        /// The field of the kubeconfig.
        field: &'static str,
    },
    /// One half of the pair is missing.
    #[error("the kubeconfig has {there} but no {missing}: a client certificate needs both")]
    Half {
        /// The half that is there.
        there: &'static str,
        /// The half that is not.
        missing: &'static str,
    },
    /// The value is not PEM, or not what is needed.
    #[error("{field} of the kubeconfig {problem}")]
    Pem {
        /// The field of the kubeconfig.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The key is that of another certificate.
    #[error("client-key of the kubeconfig is not the key of the first certificate in client-certificate")]
    Mismatch,
}

const CERTIFICATE: &str = "client-certificate";
const KEY: &str = "client-key";

/// Where one half of the pair is.
enum Source {
    File(PathBuf),
    Data(Vec<u8>),
}

impl Source {
    /// As in client-go, what stands in the kubeconfig itself goes before a file.
    fn new(field: &'static str, data: Option<&str>, file: Option<&str>) -> Result<Option<Self>, IdentityError> {
        match (data.unwrap_or_default(), file.unwrap_or_default()) {
            ("", "") => Ok(None),
            ("", file) => Ok(Some(Self::File(PathBuf::from(file)))),
            (data, _) => {
                let decoded = base64::engine::general_purpose::STANDARD.decode(data);
                decoded
                    .map(|text| Some(Self::Data(text)))
                    .map_err(|_| IdentityError::Base64 { field })
            }
        }
    }

    fn read(&self, field: &'static str) -> Result<Vec<u8>, IdentityError> {
        match self {
            Self::Data(text) => Ok(text.clone()),
            Self::File(path) => fs::read(path).map_err(|source| IdentityError::File {
                field,
                path: path.display().to_string(),
                source,
            }),
        }
    }
}

/// The client certificate of a kubeconfig. Its `Debug` tells no key.
pub(crate) struct ClientIdentity {
    certificate: Source,
    key: Source,
    provider: Provider,
    pair: Mutex<Pair>,
}

/// What was read last.
struct Pair {
    current: Arc<CertifiedKey>,
    /// Of the two texts.
    hash: Vec<u8>,
    /// Which pair it is, counted from 0.
    number: u64,
    /// When the files were looked at.
    looked_at: Instant,
    /// Whether the log has that they cannot be used.
    is_broken: bool,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ClientIdentity").finish_non_exhaustive()
    }
}

impl ClientIdentity {
    /// Nothing if the kubeconfig has no client certificate.
    pub(super) fn new(auth: &AuthInfo, provider: &Provider) -> Result<Option<Self>, IdentityError> {
        let certificate = Source::new(
            CERTIFICATE,
            auth.client_certificate_data.as_deref(),
            auth.client_certificate.as_deref(),
        )?;
        let data = auth.client_key_data.as_ref().map(SecretString::expose_secret);
        let key = Source::new(KEY, data, auth.client_key.as_deref())?;
        let half = |there, missing| Err(IdentityError::Half { there, missing });
        let (certificate, key) = match (certificate, key) {
            (None, None) => return Ok(None),
            (Some(_), None) => return half(CERTIFICATE, KEY),
            (None, Some(_)) => return half(KEY, CERTIFICATE),
            (Some(certificate), Some(key)) => (certificate, key),
        };
        let texts = (certificate.read(CERTIFICATE)?, key.read(KEY)?);
        let pair = Pair {
            current: Arc::new(load(&texts, provider)?),
            hash: hash(&texts),
            number: 0,
            looked_at: Instant::now(),
            is_broken: false,
        };
        Ok(Some(Self {
            certificate,
            key,
            provider: provider.clone(),
            pair: Mutex::new(pair),
        }))
    }

    /// Which pair there is. Looks at the files, but not at each call.
    pub(in crate::apiserver) fn number(&self) -> u64 {
        let mut pair = self.pair.lock();
        if pair.looked_at.elapsed() >= LOOK_INTERVAL {
            self.look(&mut pair);
        }
        pair.number
    }

    /// The API server refused the pair: looks at the files now.
    pub(in crate::apiserver) fn refused(&self) {
        self.look(&mut self.pair.lock());
    }

    fn look(&self, pair: &mut Pair) {
        pair.looked_at = Instant::now();
        if matches!((&self.certificate, &self.key), (Source::Data(_), Source::Data(_))) {
            return;
        }
        match self.read_again(&pair.hash) {
            Ok(None) => pair.is_broken = false,
            Ok(Some((hash, current))) => {
                *pair = Pair {
                    current: Arc::new(current),
                    hash,
                    number: pair.number + 1,
                    looked_at: pair.looked_at,
                    is_broken: false,
                };
                info!("the client certificate of the kubeconfig changed; new connections use the new one");
            }
            // The two files may be between two pairs.
            Err(error) if !std::mem::replace(&mut pair.is_broken, true) => {
                warn!(%error, "cannot read the client certificate again; keeping the one that was read before");
            }
            Err(_) => {}
        }
    }

    fn read_again(&self, known: &[u8]) -> Result<Option<(Vec<u8>, CertifiedKey)>, IdentityError> {
        let texts = (self.certificate.read(CERTIFICATE)?, self.key.read(KEY)?);
        let hash = hash(&texts);
        if hash == known {
            return Ok(None);
        }
        Ok(Some((hash, load(&texts, &self.provider)?)))
    }
}

impl ResolvesClientCert for ClientIdentity {
    /// The pair that the files have now.
    fn resolve(&self, _root_hint_subjects: &[&[u8]], _sigschemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let mut pair = self.pair.lock();
        self.look(&mut pair);
        Some(pair.current.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn hash((certificate, key): &(Vec<u8>, Vec<u8>)) -> Vec<u8> {
    let mut context = Context::new(&SHA256);
    context.update(&certificate.len().to_be_bytes());
    context.update(certificate);
    context.update(key);
    context.finish().as_ref().to_vec()
}

fn load((certificate, key): &(Vec<u8>, Vec<u8>), provider: &Provider) -> Result<CertifiedKey, IdentityError> {
    let wrong = |field| {
        move |problem: PemError| IdentityError::Pem {
            field,
            problem: problem.to_string(),
        }
    };
    let chain = pem::certificates(certificate).map_err(wrong(CERTIFICATE))?;
    let key = pem::private_key(key, provider).map_err(wrong(KEY))?;
    CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => IdentityError::Mismatch,
        error => IdentityError::Pem {
            field: CERTIFICATE,
            problem: format!("cannot be used: {error}"),
        },
    })
}
