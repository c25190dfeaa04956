//! Certificates and private keys in PEM form, with faults in words that say what to fix.
//!
//! Must not quote what it reads: the library's own words hold the line that is wrong, which may be of a private key.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::server_certificate::is_certificate;

/// What is wrong with a PEM text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// It was pasted without its line ends.
    #[error("has lost its line ends: BEGIN, the data and END each need lines of their own")]
    OneLine,
    /// There is no such item in it.
    #[error("holds no {0} in PEM form")]
    Missing(&'static str),
    /// An END line is missing.
    #[error("is cut off: an END line is missing")]
    CutOff,
    /// A BEGIN line is wrong.
    #[error("has a BEGIN line that cannot be read")]
    Begin,
    /// The data is not base64.
    #[error("is not base64 between BEGIN and END")]
    Base64,
    /// Anything else.
    #[error("is not PEM")]
    NotPem,
    /// None of its certificates is one.
    #[error("holds no certificate that can be read")]
    NoCertificate,
    /// A private key of another kind, or a broken one.
    #[error("is not an RSA, ECDSA or Ed25519 key that can be used")]
    Key,
}

/// All certificates of a PEM text, at least one.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| problem("certificate", text, &error))?;
    if found.is_empty() {
        return Err(problem("certificate", text, &pem::Error::NoItemsFound));
    }
    Ok(found)
}

/// The certificates of a PEM text that are to be trusted, at least one. As Go does, it passes over what is PEM and no certificate that can be read.
pub fn authorities(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let mut found = certificates(text)?;
    found.retain(is_certificate);
    if found.is_empty() {
        return Err(PemError::NoCertificate);
    }
    Ok(found)
}

/// The private key of a PEM text. It is tried here: what rustls finds wrong with it later could be put down to the certificate.
pub fn private_key(text: &[u8], provider: &CryptoProvider) -> Result<PrivateKeyDer<'static>, PemError> {
    let key = PrivateKeyDer::from_pem_slice(text).map_err(|error| problem("private key", text, &error))?;
    match provider.key_provider.load_private_key(key.clone_key()) {
        Ok(_) => Ok(key),
        Err(_) => Err(PemError::Key),
    }
}

fn problem(what: &'static str, text: &[u8], error: &pem::Error) -> PemError {
    match error {
        _ if is_one_line(text) => PemError::OneLine,
        pem::Error::NoItemsFound => PemError::Missing(what),
        pem::Error::MissingSectionEnd { .. } => PemError::CutOff,
        pem::Error::IllegalSectionStart { .. } => PemError::Begin,
        pem::Error::Base64Decode(_) => PemError::Base64,
        _ => PemError::NotPem,
    }
}

/// Whether BEGIN and END stand on the same line, as after a copy through something that takes line ends away.
fn is_one_line(text: &[u8]) -> bool {
    let has = |line: &[u8], words: &[u8]| line.windows(words.len()).any(|part| part == words);
    text.split(|byte| *byte == b'\n')
        .any(|line| has(line, b"-----BEGIN ") && has(line, b"-----END "))
}
