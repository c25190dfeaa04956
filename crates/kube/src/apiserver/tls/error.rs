//! Why a certificate of an API server is not accepted, and what to do about it.

use std::error::Error as StdError;
use std::io;

use jiff::Timestamp;
use rustls::{AlertDescription, CertificateError};
use thiserror::Error;
use tower::BoxError;

/// Why the certificate of an API server is not accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ServerCertificateError {
    #[error(
        "the certificate of the API server is not for {name}, only for {presented}: use one of these in the URL of the \
         API server, set tls-server-name in the kubeconfig, or add the name to the certificate"
    )]
    Name { name: String, presented: String },
    #[error(
        "the certificate of the API server is not signed by the CA data: add the certificate of its issuer ({issuer}) to \
         the CA data"
    )]
    UnknownIssuer { issuer: String },
    #[error("the certificate of the API server is signed by {issuer}, which is in the CA data but {problem}")]
    Issuer { issuer: String, problem: IssuerProblem },
    #[error("the certificate of the API server, or of an intermediate CA, expired at {at}: renew it")]
    Expired { at: Timestamp },
    #[error(
        "the certificate of the API server, or of an intermediate CA, is not valid before {at}: compare the clocks of \
         the machines"
    )]
    NotYetValid { at: Timestamp },
    #[error(
        "the certificate of the API server, or of an intermediate CA, is not for servers: its extended key usage lacks \
         serverAuth"
    )]
    Usage,
    #[error("the certificate of the API server has an RSA key of {bits} bits: at least 2048 are needed")]
    ShortKey { bits: usize },
    #[error(
        "the certificate of the API server, or of a CA, has a key or signature of an unsupported kind: RSA of 2048 to \
         8192 bits, ECDSA with P-256, P-384 or P-521, and Ed25519 are supported, with SHA-256 or stronger"
    )]
    Algorithm,
    #[error("the certificate of the API server is invalid: {0}")]
    Invalid(webpki::Error),
}

/// Why a certificate of the CA data can issue none for servers.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IssuerProblem {
    #[error("expired: put the new certificate of the CA there")]
    Expired,
    #[error("is not valid yet: compare the clocks of the machines")]
    NotYetValid,
    #[error("is no CA (its basic constraints lack CA:TRUE): put the certificate of a CA there")]
    NotCa,
    #[error("may not sign certificates (its key usage lacks keyCertSign): put the certificate of a CA there")]
    NotSigner,
    #[error("is not a CA for servers (its extended key usage lacks serverAuth)")]
    Usage,
    #[error("has an unknown critical extension, or cannot be read")]
    Unreadable,
    #[error("has an RSA key of less than 2048 bits")]
    ShortKey,
}

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
    use AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => {
            let known = other.0.downcast_ref::<ServerCertificateError>()?;
            Some(Box::new(known.clone()))
        }
        rustls::Error::AlertReceived(alert) => match alert {
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA => Some(Box::new(HandshakeError::ClientCertificate(*alert))),
            Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::InsufficientSecurity => {
                Some(Box::new(HandshakeError::NothingInCommon(*alert)))
            }
            _ => None,
        },
        rustls::Error::InvalidMessage(_) => Some(Box::new(HandshakeError::NotTls)),
        _ => None,
    }
}
