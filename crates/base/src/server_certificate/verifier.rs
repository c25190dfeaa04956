//! The verifier that rustls asks about the certificate of a server.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

use super::copies::Copies;
use super::error::{ServerCertificateError, Terms};
use super::rules;

/// Certificates of CAs, or of servers themselves.
pub type TrustedCertificates = Arc<[CertificateDer<'static>]>;

/// The public CAs that the system knows, which Go takes where nobody names others; none if it knows none.
pub fn system_authorities() -> Option<TrustedCertificates> {
    let found = rustls_native_certs::load_native_certs().certs;
    (!found.is_empty()).then(|| found.into())
}

/// Where the trusted certificates come from.
pub trait Trust: fmt::Debug + Send + Sync {
    /// Those at this moment; nothing if the certificate of the server is not to be checked.
    fn current(&self) -> Option<TrustedCertificates>;
}

impl Trust for TrustedCertificates {
    fn current(&self) -> Option<TrustedCertificates> {
        Some(self.clone())
    }
}

/// Accepts the certificates that Go's client accepts.
#[derive(Debug)]
pub struct ServerVerifier<T> {
    trust: T,
    terms: Terms,
    algorithms: WebPkiSupportedAlgorithms,
}

impl<T: Trust> ServerVerifier<T> {
    /// A verifier whose errors speak of the server in these terms.
    pub fn new(trust: T, terms: Terms, provider: &CryptoProvider) -> Self {
        Self {
            trust,
            terms,
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl<T: Trust> ServerCertVerifier for ServerVerifier<T> {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(trusted) = self.trust.current() {
            let terms = self.terms;
            rules::verify(&trusted, self.algorithms.all, (server, sent), name, now)
                .map_err(|problem| ServerCertificateError { terms, problem })?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let copies = Copies::new(certificate, &[]);
        verify_tls12_signature(message, &copies.server, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let copies = Copies::new(certificate, &[]);
        verify_tls13_signature(message, &copies.server, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
