//! TLS towards a driver: the certificates as a Secret holds them, and what went wrong in words that say what to fix.
//!
//! Only the certificates of `ca.crt` are trusted: who may attach volumes is not for the public authorities to say.

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{AlertDescription, ClientConfig};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};
use thiserror::Error;
use tokio::io::AsyncBufReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::pem::{self, IdentityError, PemError};
use crate::server_certificate::{ServerCertificateError, ServerVerifier, Terms, TrustedCertificates};
use crate::tls_alert::AlertMeaning;

/// Keys of the Secret, those of `kubernetes.io/tls` and of cert-manager.
const AUTHORITIES: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const PRIVATE_KEY: &str = "tls.key";

/// How errors speak of a driver.
const DRIVER: Terms = Terms {
    server: "the driver",
    trusted: AUTHORITIES,
    rename: "set spec.tls.serverName to one of these",
};

/// gRPC is HTTP/2, which is agreed on in the handshake.
const HTTP2: &[u8] = b"h2";
/// How long the server's first words are waited for. Most servers speak at once; some proxies wait for ours.
const FIRST_WORDS: Duration = Duration::from_millis(500);

/// Why a Secret cannot be used for TLS. Never quotes what is in it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TlsSecretError {
    /// This key is not there.
    #[error("it has no key {0}")]
    Missing(&'static str),
    /// This key is there, and nothing in it.
    #[error("its key {0} is empty")]
    Empty(&'static str),
    /// The first key, one half of the client certificate, is there; the second is not.
    #[error("it has {0} but no {1}; a client certificate needs both, a connection without one neither")]
    Half(&'static str, &'static str),
    /// The value of the key is not PEM, or not what is needed; with what is wrong.
    #[error("its key {0} {1}")]
    Pem(&'static str, String),
    /// The private key is another certificate's.
    #[error("its tls.key is not the private key of the first certificate in tls.crt")]
    Mismatch,
}

/// What a Secret holds for TLS, checked. Its `Debug` tells no key.
#[derive(Clone)]
pub struct ClientCertificates {
    config: Arc<ClientConfig>,
    identifies_us: bool,
}

impl fmt::Debug for ClientCertificates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ClientCertificates")
            .field("identifies_us", &self.identifies_us)
            .finish_non_exhaustive()
    }
}

impl ClientCertificates {
    /// Checks `ca.crt` of a Secret's entries, and `tls.crt` with `tls.key` if they are there.
    pub fn read(entries: &BTreeMap<String, Vec<u8>>) -> Result<Self, TlsSecretError> {
        let value = |key: &str| entries.get(key).filter(|value| !value.trim_ascii().is_empty());
        let lacks = |key: &'static str, missing: TlsSecretError| match entries.get(key) {
            Some(_) => TlsSecretError::Empty(key),
            None => missing,
        };
        let authorities = value(AUTHORITIES).ok_or_else(|| lacks(AUTHORITIES, TlsSecretError::Missing(AUTHORITIES)))?;
        let identity = match (value(CERTIFICATE), value(PRIVATE_KEY)) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(lacks(PRIVATE_KEY, TlsSecretError::Half(CERTIFICATE, PRIVATE_KEY))),
            (None, Some(_)) => return Err(lacks(CERTIFICATE, TlsSecretError::Half(PRIVATE_KEY, CERTIFICATE))),
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let trusted = pem::authorities(authorities).map_err(|problem| bad(AUTHORITIES, problem))?;
        let verifier = ServerVerifier::new(TrustedCertificates::from(trusted), DRIVER, &provider);
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsSecretError::Pem(AUTHORITIES, format!("cannot be used: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let own = pem::identity(certificate, key, &provider)?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
            }
        };
        config.alpn_protocols = vec![HTTP2.to_vec()];
        // A resumed session would not show the driver's certificate again.
        config.resumption = Resumption::disabled();
        Ok(Self {
            config: Arc::new(config),
            identifies_us: identity.is_some(),
        })
    }
}

impl From<IdentityError> for TlsSecretError {
    fn from(error: IdentityError) -> Self {
        match error {
            IdentityError::Certificate(problem) => bad(CERTIFICATE, problem),
            IdentityError::Key(problem) => bad(PRIVATE_KEY, problem),
            IdentityError::Mismatch => Self::Mismatch,
        }
    }
}

/// That the value of this key is wrong.
fn bad(key: &'static str, problem: PemError) -> TlsSecretError {
    TlsSecretError::Pem(key, problem.to_string())
}

/// How one endpoint is dialled by TLS.
#[derive(Clone, Debug)]
pub struct TlsTarget {
    certificates: ClientCertificates,
    server_name: ServerName<'static>,
}

impl TlsTarget {
    /// TLS with a driver whose certificate must be for this DNS name or IP address (an IPv6 address may be in brackets);
    /// `None` when it is neither.
    pub fn new(certificates: ClientCertificates, server_name: &str) -> Option<Self> {
        let bare = server_name.trim_start_matches('[').trim_end_matches(']');
        let server_name = ServerName::try_from(bare.to_owned()).ok()?;
        Some(Self {
            certificates,
            server_name,
        })
    }

    /// Makes the handshake. It is done when the server spoke, as only then it has looked at our certificate: it may hang up
    /// on us after our side is done, and what we send before that would hide why.
    pub(super) async fn connect(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, TlsConnectError> {
        let connector = TlsConnector::from(self.certificates.config.clone());
        let connected = connector.connect(self.server_name.clone(), stream).await;
        let mut stream = connected.map_err(|error| self.fault(&error))?;
        if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
            return Err(TlsConnectError::NoHttp2);
        }
        match tokio::time::timeout(FIRST_WORDS, stream.fill_buf()).await {
            Ok(Ok([])) => return Err(TlsConnectError::HungUp),
            Ok(Err(error)) => return Err(self.fault(&error)),
            Ok(Ok(_)) | Err(_) => {}
        }
        Ok(stream)
    }

    /// What an error of the stream means, as far as TLS has to do with it.
    fn fault(&self, error: &io::Error) -> TlsConnectError {
        let known = self.fault_of(error);
        known.unwrap_or_else(|| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                TlsConnectError::HungUp
            }
            _ => TlsConnectError::Other(error.to_string()),
        })
    }

    /// The same, for an error that may have nothing to do with TLS.
    pub(super) fn fault_of(&self, error: &io::Error) -> Option<TlsConnectError> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(TlsConnectError::of(error, self.certificates.identifies_us))
    }
}

/// Why there is no TLS connection.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TlsConnectError {
    /// We do not accept the driver's certificate.
    #[error("{0}")]
    Certificate(Box<ServerCertificateError>),
    /// The driver does not accept us.
    #[error(
        "the driver rejected the client certificate of the operator ({0}); is tls.crt valid and signed by a CA that the driver trusts?"
    )]
    ClientRefused(String),
    /// The driver wants to know who we are.
    #[error("the driver demands a client certificate; put tls.crt and tls.key into the Secret")]
    ClientUnknown,
    /// The driver ends the handshake for want of something in common.
    #[error(
        "the driver has no TLS version or cipher suite in common with the operator ({alert:?}): it needs TLS 1.3, or TLS 1.2 with ECDHE and \
         AES-GCM or ChaCha20{}",
        or_unknown(*.is_unknown)
    )]
    NothingInCommon {
        /// Its word for that.
        alert: AlertDescription,
        /// Whether the same word may say that it wants to know who we are.
        is_unknown: bool,
    },
    /// No HTTP/2.
    #[error("the server does not agree on HTTP/2 (ALPN h2); it is not a gRPC server")]
    NoHttp2,
    /// No TLS.
    #[error("the server does not speak TLS")]
    NotTls,
    /// Closed without a word.
    #[error("the server closed the connection during the TLS handshake; its log may say why")]
    HungUp,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

fn or_unknown(is_unknown: bool) -> &'static str {
    if is_unknown {
        "; or it demands a client certificate: put tls.crt and tls.key into the Secret"
    } else {
        ""
    }
}

impl TlsConnectError {
    /// `identifies_us` is whether we have a client certificate.
    pub(super) fn of(error: &rustls::Error, identifies_us: bool) -> Self {
        match error {
            rustls::Error::InvalidCertificate(error) => match ServerCertificateError::of(error) {
                Some(refused) => Self::Certificate(Box::new(refused.clone())),
                None => Self::Other(format!("the driver's certificate is invalid: {error}")),
            },
            rustls::Error::AlertReceived(alert) => Self::of_alert(*alert, identifies_us),
            rustls::Error::NoApplicationProtocol => Self::NoHttp2,
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            error => Self::Other(error.to_string()),
        }
    }

    fn of_alert(alert: AlertDescription, identifies_us: bool) -> Self {
        use AlertDescription as Alert;
        match (alert, AlertMeaning::of(alert)) {
            (Alert::NoApplicationProtocol, _) => Self::NoHttp2,
            (_, Some(AlertMeaning::ClientCertificate)) if identifies_us => Self::ClientRefused(format!("{alert:?}")),
            // Servers of the older TLS say BadCertificate or HandshakeFailure to one who shows none.
            (Alert::NoCertificate | Alert::CertificateRequired | Alert::BadCertificate, _) => Self::ClientUnknown,
            (_, Some(AlertMeaning::NothingInCommon)) => Self::NothingInCommon {
                alert,
                is_unknown: alert == Alert::HandshakeFailure && !identifies_us,
            },
            _ => Self::Other(format!("the server ended the TLS handshake: {alert:?}")),
        }
    }
}
