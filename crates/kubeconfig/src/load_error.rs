//! Why a kubeconfig cannot be used.
//!
//! Must not let a value through. Errors of kube quote: the lines around a mistake in YAML, the wrong character of base64, a whole line of PEM, all
//! that a credential plugin printed, and the URL of a proxy with its password.

use std::path::PathBuf;
use std::process::ExitStatus;

use kube::client::AuthError;
use kube::config::{KubeconfigError, LoadDataError};
use thiserror::Error;

use crate::server::ServerError;
use crate::token::TokenError;

/// Why a kubeconfig cannot be used. Neither it nor its sources quote a value.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum LoadError {
    /// These files cannot be used, for a reason that quotes names of files, contexts and clusters at most.
    #[error("kubeconfig {0}: {1}")]
    Kubeconfig(String, #[source] KubeconfigError),
    /// A value in these files cannot be used, or they have none that can be read.
    #[error("kubeconfig {0}: {1}")]
    Value(String, ValueError),
    /// One file has two entries of a name in this list, as client-go refuses it, too.
    #[error("kubeconfig {0}: {1} has the name {2} twice: remove one of the two")]
    Twice(String, &'static str, String),
    #[error("server in kubeconfig {0} {1}")]
    Server(String, #[source] ServerError),
    #[error("{0} is not the URL of a proxy: write it as http://HOST:PORT")]
    ProxyUrl(&'static str),
    #[error("{0} has an unsupported scheme: must be http, https or socks5")]
    ProxyScheme(&'static str),
    #[error("tokenFile {path} of the kubeconfig: {1}", path = .0.display())]
    TokenFile(PathBuf, #[source] std::io::Error),
    #[error("{0} of the kubeconfig: {1}")]
    Token(&'static str, #[source] TokenError),
}

impl LoadError {
    /// What kube says of these files.
    pub(crate) fn new(files: String, error: KubeconfigError) -> Self {
        match ValueError::in_kubeconfig(&error) {
            Some(value) => Self::Value(files, value),
            None => Self::Kubeconfig(files, error),
        }
    }
}

/// What is wrong with a value, in the place of an error of kube that quotes it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum ValueError {
    /// The line and column are not always known.
    #[error("failed to parse kubeconfig YAML{}", .0.map(place).unwrap_or_default())]
    Syntax(Option<(u64, u64)>),
    #[error("{0} is not base64")]
    Base64(&'static str),
    #[error("certificate-authority has no certificates in PEM form")]
    NoCertificates,
    /// The credential plugin, or another command that gives a token, failed.
    #[error("the command that gives credentials ended with {0}")]
    Command(ExitStatus),
    #[error("the command that gives credentials printed none that can be read")]
    Printed,
    #[error(
        "proxy-url of the kubeconfig, or HTTPS_PROXY (for http: HTTP_PROXY), names a proxy, and none of its kind is \
         supported; if the API server can be reached without it, remove proxy-url, or list the host of the API server \
         in NO_PROXY"
    )]
    Proxy,
}

impl ValueError {
    /// What stands in the place of this error; none where it quotes no value.
    pub fn of(error: &kube::Error) -> Option<Self> {
        match error {
            kube::Error::InferKubeconfig(error) => Self::in_kubeconfig(error),
            kube::Error::Auth(error) => Self::in_credentials(error),
            // A token that ends is replaced on the way of a request.
            kube::Error::Service(error) => error.downcast_ref::<AuthError>().and_then(Self::in_credentials),
            kube::Error::ProxyProtocolUnsupported { .. } | kube::Error::ProxyProtocolDisabled { .. } => {
                Some(Self::Proxy)
            }
            _ => None,
        }
    }

    fn in_kubeconfig(error: &KubeconfigError) -> Option<Self> {
        use KubeconfigError::{
            LoadCertificateAuthority, LoadClientCertificate, LoadClientKey, Parse, ParseCertificates,
        };
        use LoadDataError::DecodeBase64;
        match error {
            Parse(error) => {
                let place = error.location().map(|place| (place.line(), place.column()));
                Some(Self::Syntax(place))
            }
            ParseCertificates(_) => Some(Self::NoCertificates),
            LoadCertificateAuthority(DecodeBase64(_)) => Some(Self::Base64("certificate-authority-data")),
            LoadClientCertificate(DecodeBase64(_)) => Some(Self::Base64("client-certificate-data")),
            LoadClientKey(DecodeBase64(_)) => Some(Self::Base64("client-key-data")),
            _ => None,
        }
    }

    fn in_credentials(error: &AuthError) -> Option<Self> {
        match error {
            AuthError::AuthExecRun { out, .. } => Some(Self::Command(out.status)),
            AuthError::AuthExecParse(_) | AuthError::ParseTokenKey(_) | AuthError::MalformedTokenExpirationDate(_) => {
                Some(Self::Printed)
            }
            _ => None,
        }
    }
}

fn place((line, column): (u64, u64)) -> String {
    format!(" at line {line}, column {column}")
}
