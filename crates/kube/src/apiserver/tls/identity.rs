//! As whom we come: the client certificate and its key, which are read again when they are files, and the file with a token.
//!
//! An API server looks at the certificate of a connection with each request, so that one which ends makes every request of
//! the connection fail. Whoever renews the files does so before: the connection is replaced as soon as they hold another
//! pair, and at the latest after an answer 401. A credential plugin is run again a minute before its pair ends, and after a 401,
//! in a thread of its own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use http::HeaderValue;
use jiff::{SignedDuration, Timestamp};
use kube::config::{AuthInfo, ExecConfig};
use parking_lot::Mutex;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use secrecy::{ExposeSecret as _, SecretString};
use thiserror::Error;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Provider;
use super::plugin::{self, PluginError};
use super::source::{Source, SourceError};
use crate::apiserver::token_file::TokenFile;
use crate::pem::{self, PemError};

/// As whom the requests of a connection come: its client certificate, and the file with their token, if there are any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    certificate: Option<Arc<ClientIdentity>>,
    token: Option<TokenFile>,
}

/// How often the files are looked at while requests are sent.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// So long before the end of its pair a plugin is run again.
const PLUGIN_MARGIN: SignedDuration = SignedDuration::from_mins(1);
/// So long a plugin is not run again, whatever comes of it: it may ask a server.
const PLUGIN_REST: Duration = Duration::from_secs(5);

/// Why the client certificate cannot be used. Never quotes a key.
#[derive(Debug, Error)]
pub enum IdentityError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("the kubeconfig has {there} but no {missing}: a client certificate needs both")]
    Half { there: &'static str, missing: &'static str },
    #[error("{field} of the kubeconfig {problem}")]
    Pem { field: &'static str, problem: String },
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error("client-key of the kubeconfig is not the key of the first certificate in client-certificate")]
    Mismatch,
}

const CERTIFICATE: &str = "client-certificate";
const KEY: &str = "client-key";

/// Where the pair comes from.
enum Origin {
    Kubeconfig { certificate: Source, key: Source },
    Plugin(Box<ExecConfig>),
}

/// The client certificate of a kubeconfig. Its `Debug` shows no key.
pub(super) struct ClientIdentity {
    origin: Origin,
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
    /// When the files were looked at, or the plugin was run.
    looked_at: Instant,
    /// When a pair of a plugin ends, as the plugin says.
    expires: Option<Timestamp>,
    /// Whether the plugin runs now.
    is_running: bool,
    /// Whether the log has that they cannot be used.
    is_broken: bool,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ClientIdentity").finish_non_exhaustive()
    }
}

impl Identity {
    pub(super) fn new(auth: &AuthInfo, provider: &Provider) -> Result<Self, IdentityError> {
        Ok(Self {
            certificate: ClientIdentity::new(auth, provider)?.map(Arc::new),
            token: auth.token_file.as_deref().map(TokenFile::new),
        })
    }

    /// The client certificate, for handshakes.
    pub(super) fn certificate(&self) -> Option<Arc<ClientIdentity>> {
        self.certificate.clone()
    }

    /// Which client certificate there is.
    pub(in crate::apiserver) fn number(&self) -> u64 {
        let certificate = self.certificate.as_ref();
        certificate.map(ClientIdentity::number).unwrap_or_default()
    }

    /// The value of `Authorization`, if a file has it.
    pub(in crate::apiserver) fn token(&self) -> Option<HeaderValue> {
        self.token.as_ref().and_then(TokenFile::header)
    }

    /// The API server does not accept whom we come as: all of it is read again.
    pub(in crate::apiserver) fn refused(&self) {
        if let Some(certificate) = &self.certificate {
            certificate.refused();
        }
        if let Some(token) = &self.token {
            token.refused();
        }
    }
}

impl ClientIdentity {
    /// Nothing if the kubeconfig has no client certificate.
    fn new(auth: &AuthInfo, provider: &Provider) -> Result<Option<Self>, IdentityError> {
        let certificate = Source::new(
            CERTIFICATE,
            auth.client_certificate_data.as_deref(),
            auth.client_certificate.as_deref(),
        )?;
        let data = auth.client_key_data.as_ref().map(SecretString::expose_secret);
        let key = Source::new(KEY, data, auth.client_key.as_deref())?;
        let half = |there, missing| Err(IdentityError::Half { there, missing });
        let (certificate, key) = match (certificate, key) {
            (None, None) => {
                return match &auth.exec {
                    Some(exec) => Self::of_plugin(exec, provider),
                    None => Ok(None),
                };
            }
            (Some(_), None) => return half(CERTIFICATE, KEY),
            (None, Some(_)) => return half(KEY, CERTIFICATE),
            (Some(certificate), Some(key)) => (certificate, key),
        };
        let texts = (certificate.read(CERTIFICATE)?, key.read(KEY)?);
        let origin = Origin::Kubeconfig { certificate, key };
        Self::with(origin, &texts, None, provider).map(Some)
    }

    /// Runs the plugin. Nothing if it has no client certificate.
    fn of_plugin(exec: &ExecConfig, provider: &Provider) -> Result<Option<Self>, IdentityError> {
        let Some(found) = plugin::run(exec)? else {
            return Ok(None);
        };
        let texts = (found.certificate, found.key);
        let origin = Origin::Plugin(Box::new(exec.clone()));
        Self::with(origin, &texts, found.expires, provider).map(Some)
    }

    fn with(
        origin: Origin,
        texts: &(Vec<u8>, Vec<u8>),
        expires: Option<Timestamp>,
        provider: &Provider,
    ) -> Result<Self, IdentityError> {
        let pair = Pair {
            current: Arc::new(load(texts, provider)?),
            hash: hash(texts),
            number: 0,
            looked_at: Instant::now(),
            expires,
            is_running: false,
            is_broken: false,
        };
        Ok(Self {
            origin,
            provider: provider.clone(),
            pair: Mutex::new(pair),
        })
    }

    /// Which pair there is. Looks at the files, but not at each call, and runs a plugin whose pair ends soon.
    fn number(self: &Arc<Self>) -> u64 {
        let mut pair = self.pair.lock();
        match &self.origin {
            Origin::Kubeconfig { certificate, key } if pair.looked_at.elapsed() >= LOOK_INTERVAL => {
                self.look(certificate, key, &mut pair);
            }
            Origin::Plugin(_) if pair.ends_soon() => self.run_again(&mut pair),
            Origin::Kubeconfig { .. } | Origin::Plugin(_) => {}
        }
        pair.number
    }

    /// The API server refused the pair: looks at the files now, or runs the plugin.
    fn refused(self: &Arc<Self>) {
        let mut pair = self.pair.lock();
        match &self.origin {
            Origin::Kubeconfig { certificate, key } => self.look(certificate, key, &mut pair),
            Origin::Plugin(_) => self.run_again(&mut pair),
        }
    }

    fn look(&self, certificate: &Source, key: &Source, pair: &mut Pair) {
        pair.looked_at = Instant::now();
        if matches!((certificate, key), (Source::Data(_), Source::Data(_))) {
            return;
        }
        let read = || Ok((certificate.read(CERTIFICATE)?, key.read(KEY)?));
        self.take(pair, read(), None);
    }

    /// Runs the plugin in a thread of its own, as it may take long. What is in use stays so until it has ended.
    fn run_again(self: &Arc<Self>, pair: &mut Pair) {
        if pair.is_running || pair.looked_at.elapsed() < PLUGIN_REST {
            return;
        }
        pair.looked_at = Instant::now();
        let identity = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("credential-plugin".to_owned())
            .spawn(move || identity.run_plugin());
        match started {
            Ok(_) => pair.is_running = true,
            Err(error) => warn!(%error, "cannot start a thread for the credential plugin"),
        }
    }

    fn run_plugin(&self) {
        let Origin::Plugin(exec) = &self.origin else { return };
        let found = plugin::run(exec);
        let mut pair = self.pair.lock();
        pair.is_running = false;
        pair.looked_at = Instant::now();
        match found {
            Ok(Some(found)) => self.take(&mut pair, Ok((found.certificate, found.key)), found.expires),
            Ok(None) => warn!("the credential plugin has no client certificate any more; keeping the former one"),
            Err(error) => self.take(&mut pair, Err(error.into()), None),
        }
    }

    /// Takes over what was read.
    fn take(&self, pair: &mut Pair, texts: Result<(Vec<u8>, Vec<u8>), IdentityError>, expires: Option<Timestamp>) {
        let loaded = texts.and_then(|texts| {
            let hash = hash(&texts);
            if hash == pair.hash {
                return Ok(None);
            }
            Ok(Some((hash, load(&texts, &self.provider)?)))
        });
        match loaded {
            Ok(None) => (pair.expires, pair.is_broken) = (expires, false),
            Ok(Some((hash, current))) => {
                *pair = Pair {
                    current: Arc::new(current),
                    hash,
                    number: pair.number + 1,
                    looked_at: pair.looked_at,
                    expires,
                    is_running: false,
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
}

impl Pair {
    fn ends_soon(&self) -> bool {
        self.expires
            .is_some_and(|expires| expires.duration_since(Timestamp::now()) <= PLUGIN_MARGIN)
    }
}

impl ResolvesClientCert for ClientIdentity {
    /// The pair that the files have now.
    fn resolve(&self, _root_hint_subjects: &[&[u8]], _sigschemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let mut pair = self.pair.lock();
        if let Origin::Kubeconfig { certificate, key } = &self.origin {
            self.look(certificate, key, &mut pair);
        }
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
