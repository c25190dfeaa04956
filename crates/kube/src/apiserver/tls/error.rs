//! Why there is no TLS connection to an API server, and what to do about it.

use std::error::Error as StdError;
use std::io;

use rustls::AlertDescription;
use thiserror::Error;
use tower::BoxError;

use crate::server_certificate::{ServerCertificateError, Terms};
use crate::tls_alert::AlertMeaning;

/// How errors speak of an API server.
pub(super) const API_SERVER: Terms = Terms {
    server: "the API server",
    trusted: "the CA data",
    rename: "use one of these in the URL of the API server, set tls-server-name in the kubeconfig",
};

/// Why a TLS connection was not made, where the library's words do not say what to do.
#[derive(Debug, Error)]
enum HandshakeError {
    #[error(
        "the API server rejects our client certificate ({0:?}): check client-certificate and client-key of the kubeconfig, \
         and the client CA of the API server"
    )]
    ClientCertificate(AlertDescription),
    #[error(
        "the API server has no TLS version, cipher suite, key exchange or key type in common with this client ({0:?}): it \
         needs TLS 1.3, or TLS 1.2 with ECDHE and AES-GCM or ChaCha20"
    )]
    NothingInCommon(AlertDescription),
    #[error("the API server, or a proxy on the way, does not speak TLS on this port")]
    NotTls,
}

/// The failure of a connection by its cause, with what to do about it, if TLS is that cause.
pub(in crate::apiserver) fn explain(failure: BoxError) -> BoxError {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(failure.as_ref());
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return explained(error).unwrap_or(failure);
        }
        // An error of the network holds the other one, and names only the causes of that.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    failure
}

fn explained(error: &rustls::Error) -> Option<BoxError> {
    match error {
        rustls::Error::InvalidCertificate(error) => Some(Box::new(ServerCertificateError::of(error)?.clone())),
        rustls::Error::AlertReceived(alert) => {
            let error = match AlertMeaning::of(*alert)? {
                AlertMeaning::ClientCertificate => HandshakeError::ClientCertificate(*alert),
                AlertMeaning::NothingInCommon => HandshakeError::NothingInCommon(*alert),
            };
            Some(Box::new(error))
        }
        rustls::Error::InvalidMessage(_) => Some(Box::new(HandshakeError::NotTls)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_is_told_with_what_to_check() {
        use AlertDescription as Alert;
        let (refused, in_common) = ("rejects our client certificate", "in common with this client");
        for (alert, wanted) in [
            (Alert::BadCertificate, Some(refused)),
            (Alert::CertificateRequired, Some(refused)),
            (Alert::AccessDenied, Some(refused)),
            (Alert::DecryptError, Some(refused)),
            (Alert::NoCertificate, Some(refused)),
            (Alert::HandshakeFailure, Some(in_common)),
            (Alert::InternalError, None),
        ] {
            let told = explained(&rustls::Error::AlertReceived(alert)).map(|error| error.to_string());
            let is_told = told
                .as_deref()
                .zip(wanted)
                .is_some_and(|(told, wanted)| told.contains(wanted));
            assert_eq!(
                (told.is_some(), is_told),
                (wanted.is_some(), wanted.is_some()),
                "{alert:?}: {told:?}"
            );
        }
    }
}
