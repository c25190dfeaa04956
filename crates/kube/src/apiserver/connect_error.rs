//! Why there is no connection to the API server.

use csi_attacher_kubeconfig::{LoadError, PodError, ServerError};
use thiserror::Error;

use super::proxy::ProxyError;
use super::tls::{IdentityError, TrustError};

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Neither a kubeconfig nor a service account was found.
    #[error("no cluster is configured: give --kubeconfig FILE, or run inside a pod with a service account ({0})")]
    NoConfiguration(PodError),
    /// No kubeconfig was given, and there is no service account.
    #[error("not inside a pod with a service account, and no --kubeconfig FILE is given ({0})")]
    NotInPod(PodError),
    /// No request can be sent to the URL of the cluster.
    #[error("the URL of the cluster {0}")]
    Url(ServerError),
    /// The CA data cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The client certificate, or the credential plugin, cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Protocol(rustls::Error),
    /// The proxy cannot be used.
    #[error(transparent)]
    Proxy(ProxyError),
    /// The name for the certificate of the API server cannot be used.
    #[error("tls-server-name of the kubeconfig is neither a host name nor an IP address")]
    ServerName,
    /// Credentials for this API server cannot be set up.
    #[error("cannot set up the connection to {0}: {1}")]
    Setup(String, #[source] Box<kube::Error>),
}
