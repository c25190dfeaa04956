//! As whom we come: the client certificate and its key, which are read again when they are files, and the bearer token, of a file or a
//! credential plugin (`exec`). Where the token comes from is asked again in time, and after the API server has refused it, but not with
//! each request.
//!
//! An API server looks at the certificate of a connection with each request, so that one which ends makes every request of
//! the connection fail. Whoever renews the files does so before: the connection is replaced as soon as they hold another
//! pair, and at the latest after an answer 401. A credential plugin is run again a minute before its pair ends, and after a 401,
//! in a thread of its own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use csi_attacher_kubeconfig::{LastToken, TokenError, TokenFile};
use http::HeaderValue;
use kube::config::AuthInfo;
use parking_lot::Mutex;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;
use tracing::{info, warn};

use super::plugin::{Plugin, PluginAnswer};
use super::{Provider, Source};
use crate::apiserver::connect_error::ConnectError;
use crate::pem::{self, IdentityError};
use crate::told_errors::ToldErrors;

/// As whom the requests of a connection come: its client certificate and their token, if there are any that can be refreshed.
#[derive(Clone, Default)]
pub(crate) struct Identity {
    /// Handshakes ask for it.
    pub(super) certificate: Option<Arc<ClientIdentity>>,
    token: Option<Token>,
}

/// How often the files are looked at while requests are sent.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

const CERTIFICATE: &str = "client-certificate";
const KEY: &str = "client-key";

/// Where the pair comes from.
enum Origin {
    Kubeconfig { certificate: Source, key: Source },
    Plugin(Plugin),
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
    /// When the files were looked at.
    looked_at: Instant,
    /// What the log has since they could last be used.
    told: ToldErrors,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ClientIdentity").finish_non_exhaustive()
    }
}

impl Identity {
    /// As in client-go, a plugin is run where the kubeconfig has nothing else: for a pair if it has one, or else for a token.
    pub(super) fn new(auth: &AuthInfo, provider: &Provider) -> Result<Self, ConnectError> {
        let mut identity = Self {
            certificate: ClientIdentity::of_kubeconfig(auth, provider)?.map(Arc::new),
            token: auth.token_file.as_deref().map(TokenFile::new).map(Token::File),
        };
        let is_known = identity.certificate.is_some() || has_other_credentials(auth);
        let Some(exec) = auth.exec.as_ref().filter(|_| !is_known) else {
            return Ok(identity);
        };
        let (plugin, answer) = Plugin::first(exec)?;
        if let Some(texts) = answer.pair {
            let certificate = ClientIdentity::with(Origin::Plugin(plugin), &texts, provider)?;
            identity.certificate = Some(Arc::new(certificate));
        } else {
            identity.token = answer.token.map(|token| Token::of_plugin(plugin, token));
        }
        Ok(identity)
    }

    /// Which client certificate there is.
    pub(in crate::apiserver) fn number(&self) -> u64 {
        let certificate = self.certificate.as_ref();
        certificate.map(ClientIdentity::number).unwrap_or_default()
    }

    /// The value of `Authorization`, if a file or a plugin has it.
    pub(in crate::apiserver) fn token(&self) -> Option<HeaderValue> {
        self.token.as_ref().and_then(Token::header)
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

/// Whether a kubeconfig has credentials that each request bears.
fn has_other_credentials(auth: &AuthInfo) -> bool {
    let is_basic = auth.username.is_some() && auth.password.is_some();
    auth.auth_provider.is_some() || is_basic || auth.token.is_some() || auth.token_file.is_some()
}

impl ClientIdentity {
    /// Nothing if the kubeconfig names no client certificate. As in client-go, a key alone counts as nothing.
    fn of_kubeconfig(auth: &AuthInfo, provider: &Provider) -> Result<Option<Self>, ConnectError> {
        let certificate = Source::new(
            CERTIFICATE,
            auth.client_certificate_data.as_deref(),
            auth.client_certificate.as_deref(),
        )?;
        let data = auth.client_key_data.as_ref().map(SecretString::expose_secret);
        let key = Source::new(KEY, data, auth.client_key.as_deref())?;
        let Some(certificate) = certificate else {
            return Ok(None);
        };
        let key = key.ok_or(ConnectError::NoKey)?;
        let texts = (certificate.read(CERTIFICATE)?, key.read(KEY)?);
        let origin = Origin::Kubeconfig { certificate, key };
        Self::with(origin, &texts, provider).map(Some)
    }

    fn with(origin: Origin, texts: &(Vec<u8>, Vec<u8>), provider: &Provider) -> Result<Self, ConnectError> {
        let pair = Pair {
            current: Arc::new(load(texts, provider)?),
            hash: hash(texts),
            number: 0,
            looked_at: Instant::now(),
            told: ToldErrors::default(),
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
            Origin::Kubeconfig { .. } if pair.looked_at.elapsed() >= LOOK_INTERVAL => self.look(&mut pair),
            Origin::Plugin(plugin) if plugin.ends_soon() => self.run_again(plugin),
            Origin::Kubeconfig { .. } | Origin::Plugin(_) => {}
        }
        pair.number
    }

    /// The API server refused the pair: looks at the files now, or runs the plugin.
    fn refused(self: &Arc<Self>) {
        let mut pair = self.pair.lock();
        match &self.origin {
            Origin::Kubeconfig { .. } => self.look(&mut pair),
            Origin::Plugin(plugin) => self.run_again(plugin),
        }
    }

    /// Reads the pair again, if it is in files.
    fn look(&self, pair: &mut Pair) {
        let Origin::Kubeconfig { certificate, key } = &self.origin else {
            return;
        };
        pair.looked_at = Instant::now();
        if matches!((certificate, key), (Source::Data(_), Source::Data(_))) {
            return;
        }
        let read = || Ok((certificate.read(CERTIFICATE)?, key.read(KEY)?));
        self.take(pair, read());
    }

    /// What is in use stays so until the plugin has ended.
    fn run_again(self: &Arc<Self>, plugin: &Plugin) {
        let identity = Arc::clone(self);
        plugin.run_again(move |answer| identity.answered(answer));
    }

    /// Takes over what the plugin gave; whether that is a pair.
    fn answered(&self, answer: Result<PluginAnswer, ConnectError>) -> bool {
        let Some(texts) = answer.map(|answer| answer.pair).transpose() else {
            warn!("the credential plugin has no client certificate any more; keeping the former one");
            return false;
        };
        self.take(&mut self.pair.lock(), texts)
    }

    /// Takes over what was read; whether it can be used.
    fn take(&self, pair: &mut Pair, texts: Result<(Vec<u8>, Vec<u8>), ConnectError>) -> bool {
        let taken = texts.and_then(|texts| {
            let hash = hash(&texts);
            if hash != pair.hash {
                pair.current = Arc::new(load(&texts, &self.provider)?);
                (pair.hash, pair.number) = (hash, pair.number + 1);
                info!("the client certificate of the kubeconfig changed; new connections use the new one");
            }
            Ok(())
        });
        match taken {
            Ok(()) => {
                pair.told.end();
                true
            }
            // The two files may be between two pairs.
            Err(error) => {
                if pair.told.is_news(&error) {
                    warn!(%error, "cannot read the client certificate again; keeping the one that was read before");
                }
                false
            }
        }
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

fn load((certificate, key): &(Vec<u8>, Vec<u8>), provider: &Provider) -> Result<CertifiedKey, ConnectError> {
    pem::identity(certificate, key, provider).map_err(|error| match error {
        IdentityError::Certificate(problem) => ConnectError::Pem(CERTIFICATE, problem),
        IdentityError::Key(problem) => ConnectError::Pem(KEY, problem),
        IdentityError::Mismatch => ConnectError::Mismatch,
    })
}

/// A token that can be refreshed. It cannot be printed. Clones share it.
#[derive(Clone)]
enum Token {
    File(TokenFile),
    /// The plugin, and what it gave last.
    Plugin(Plugin, Arc<Mutex<LastToken>>),
}

impl Token {
    /// The token that this plugin has given.
    fn of_plugin(plugin: Plugin, token: String) -> Self {
        let mut last = LastToken::default();
        last.take(Ok(token));
        Self::Plugin(plugin, Arc::new(Mutex::new(last)))
    }

    /// The value of `Authorization`. The one that there was stays while no other is to be had.
    fn header(&self) -> Option<HeaderValue> {
        match self {
            Self::File(file) => file.header(),
            Self::Plugin(plugin, last) => {
                let known = last.lock();
                if known.is_doubtful() || plugin.ends_soon() {
                    let last = last.clone();
                    plugin.run_again(move |answer| last.lock().take(token_of(answer)));
                }
                known.header()
            }
        }
    }

    /// The API server refused the token: there may be another one already.
    fn refused(&self) {
        match self {
            Self::File(file) => file.refused(),
            Self::Plugin(_, last) => last.lock().refuse(),
        }
    }
}

/// The token that a plugin gave.
fn token_of(answer: Result<PluginAnswer, ConnectError>) -> Result<String, TokenError> {
    let answer = answer.map_err(|error| TokenError::Plugin(error.into()))?;
    answer.token.ok_or(TokenError::Missing)
}
