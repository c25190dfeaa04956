//! Why a certificate of a server is not accepted, and what to do about it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::{CertificateError, OtherError};
use thiserror::Error;

/// How an error speaks of the server and of what is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Whose certificate it is, such as "the API server".
    pub server: &'static str,
    /// Where the trusted certificates are, such as "the CA data".
    pub trusted: &'static str,
    /// How to use one of the names that the certificate is for.
    pub rename: &'static str,
}

/// Why the certificate of a server is not accepted, with what to do about it.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerCertificateError {
    /// How it speaks of the server.
    pub terms: Terms,
    /// What is wrong.
    pub problem: CertificateProblem,
}

/// What is wrong with the certificate of a server, or with one above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateProblem {
    /// It is not for the name that was looked for; and the names and addresses, in words, by which its server can be called, if any.
    Name(String, Vec<String>),
    /// No trusted certificate has signed it; who has, as far as the certificates say.
    UnknownIssuer(String),
    /// The trusted certificate of this name has signed it, and can issue none for servers.
    Issuer(String, IssuerProblem),
    /// It, or an intermediate CA, is too old: since when.
    Expired(Timestamp),
    /// It, or an intermediate CA, is too new: until when.
    NotYetValid(Timestamp),
    /// It, or an intermediate CA, is not for servers.
    Usage,
    /// Its RSA key is too short: of so many bits.
    ShortKey(usize),
    /// A key or signature of a kind that is not supported.
    Algorithm,
    /// Anything else.
    Invalid(webpki::Error),
}

/// Why a trusted certificate can issue none for servers.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
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

impl ServerCertificateError {
    /// The one that an error of rustls holds.
    pub fn of(error: &CertificateError) -> Option<&Self> {
        match error {
            CertificateError::Other(other) => other.0.downcast_ref(),
            _ => None,
        }
    }
}

impl From<ServerCertificateError> for rustls::Error {
    fn from(error: ServerCertificateError) -> Self {
        CertificateError::Other(OtherError(Arc::new(error))).into()
    }
}

impl fmt::Display for ServerCertificateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use CertificateProblem as Problem;
        let Terms {
            server,
            trusted,
            rename,
        } = self.terms;
        write!(formatter, "the certificate of {server}")?;
        match &self.problem {
            Problem::Name(name, presented) if presented.is_empty() => write!(
                formatter,
                " is not for {name}: it has no usable DNS name or IP address in a subjectAltName (a common name or a URI does \
                 not count): add the name to the certificate"
            ),
            Problem::Name(name, presented) => write!(
                formatter,
                " is not for {name}, only for {}: {rename}, or add the name to the certificate",
                presented.join(", ")
            ),
            Problem::UnknownIssuer(issuer) => write!(
                formatter,
                " is not signed by {trusted}: add the certificate of its issuer (\"{issuer}\") to {trusted}"
            ),
            Problem::Issuer(issuer, problem) => {
                write!(
                    formatter,
                    " is signed by \"{issuer}\", which is in {trusted} but {problem}"
                )
            }
            Problem::Expired(at) => write!(formatter, ", or of an intermediate CA, expired at {at}: renew it"),
            Problem::NotYetValid(at) => write!(
                formatter,
                ", or of an intermediate CA, is not valid before {at}: compare the clocks of the machines"
            ),
            Problem::Usage => formatter
                .write_str(", or of an intermediate CA, is not for servers: its extended key usage lacks serverAuth"),
            Problem::ShortKey(bits) => write!(formatter, " has an RSA key of {bits} bits: at least 2048 are needed"),
            Problem::Algorithm => formatter.write_str(
                ", or of a CA, has a key or signature of an unsupported kind: RSA of 2048 to 8192 bits, ECDSA with \
                 P-256, P-384 or P-521, and Ed25519 are supported, with SHA-256 or stronger",
            ),
            Problem::Invalid(error) => write!(formatter, " is invalid: {error}"),
        }
    }
}

/// rustls shows an error that is not its own by this, where nobody looks for it: in the errors of collectors.
impl fmt::Debug for ServerCertificateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl StdError for ServerCertificateError {}
