//! Why there is no connection to the API server.

use std::io;

use csi_attacher_kubeconfig::{LoadError, PodError, ServerError, ValueError};
use thiserror::Error;

use super::tls::PluginProblem;
use crate::pem::PemError;

/// Why there is no client, or no newer client certificate or token. Never quotes a key, a token, what a plugin printed, or the
/// URL of a proxy, which may hold a password.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum ConnectError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("no cluster is configured: give --kubeconfig FILE, or run inside a pod with a service account ({0})")]
    NoConfiguration(PodError),
    #[error("not inside a pod with a service account, and no --kubeconfig FILE is given ({0})")]
    NotInPod(PodError),
    #[error("the URL of the cluster {0}")]
    Url(ServerError),
    #[error("{0} {1}: {2}")]
    File(&'static str, String, #[source] io::Error),
    #[error("{0}-data of the kubeconfig is not base64")]
    Base64(&'static str),
    #[error(
        "there is no CA data, and there are no certificates of public CAs: set certificate-authority or \
         certificate-authority-data in the kubeconfig, or mount ca.crt of the service account"
    )]
    NoSystemAuthorities,
    #[error("the kubeconfig has client-certificate but no client-key: a client certificate needs both")]
    NoKey,
    #[error("{0} of the kubeconfig {1}")]
    Pem(&'static str, PemError),
    #[error("client-key of the kubeconfig is not the key of the first certificate in client-certificate")]
    Mismatch,
    #[error("exec of the kubeconfig has no command")]
    NoCommand,
    #[error("credential plugin {0}: {1}")]
    PluginStart(String, #[source] io::Error),
    #[error("credential plugin {0} {1}")]
    Plugin(String, PluginProblem),
    #[error("cannot set up TLS: {0}")]
    Protocol(rustls::Error),
    #[error("tls-server-name of the kubeconfig is neither a host name nor an IP address")]
    ServerName,
    #[error("cannot set up the connection to {0}: {1}")]
    Setup(String, #[source] Box<kube::Error>),
    /// The same, for a reason that kube would quote values with.
    #[error("cannot set up the connection to {0}: {1}")]
    Credentials(String, ValueError),
}

impl ConnectError {
    /// Why kube does not set up the connection to this URL.
    pub(super) fn setup(url: &str, error: kube::Error) -> Self {
        match ValueError::of(&error) {
            Some(value) => Self::Credentials(url.to_owned(), value),
            None => Self::Setup(url.to_owned(), Box::new(error)),
        }
    }
}
