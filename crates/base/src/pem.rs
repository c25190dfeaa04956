//! Certificates and private keys in PEM form, read as Go reads them, with faults in words that say what to fix.
//!
//! Must not quote what it reads: the library's own words hold the line that is wrong, which may be of a private key.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};

use crate::server_certificate::parse;

/// How a certificate begins.
const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// What is wrong with a PEM text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the variants are")]
pub enum PemError {
    #[error("has lost its line ends: BEGIN, the data and END each need lines of their own")]
    OneLine,
    #[error("holds no {0} in PEM form")]
    Missing(&'static str),
    #[error("is cut off: an END line is missing")]
    CutOff,
    #[error("has a BEGIN line that cannot be read")]
    Begin,
    #[error("is not base64 between BEGIN and END")]
    Base64,
    #[error("is not PEM")]
    NotPem,
    /// None of its certificates is one, or the one that has to be.
    #[error("holds no certificate that can be read")]
    NoCertificate,
    #[error("is encrypted: store the key without a passphrase")]
    Encrypted,
    #[error("is not an RSA, ECDSA or Ed25519 key that can be used")]
    Key,
}

/// Why nobody can come as a client with these two texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The text of the certificate.
    #[error("the certificate {0}")]
    Certificate(PemError),
    /// The text of the private key.
    #[error("the private key {0}")]
    Key(PemError),
    /// Each of them is one.
    #[error("the private key is not that of the first certificate")]
    Mismatch,
}

/// The certificates of a PEM text that are to be trusted, at least one. What is PEM and no certificate that can be read is passed over.
pub fn authorities(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let mut found = certificates(text)?;
    found.retain(|certificate| parse(certificate).is_some());
    if found.is_empty() {
        return Err(PemError::NoCertificate);
    }
    Ok(found)
}

/// As whom a client comes: with the certificates of one PEM text, its own first, and the private key of another.
///
/// As in Go, its own has to be one, and that of the key; all else in it is for the server to judge. rustls itself takes none of X.509
/// version 1, as `openssl x509 -req` writes it, and none with a critical extension that it does not know.
pub fn identity(certificate: &[u8], key: &[u8], provider: &CryptoProvider) -> Result<CertifiedKey, IdentityError> {
    let chain = certificates(certificate).map_err(IdentityError::Certificate)?;
    let own = chain.first().and_then(parse);
    let own = own.map(|own| own.public_key().raw.to_vec());
    let own = own.ok_or(IdentityError::Certificate(PemError::NoCertificate))?;
    let key = private_key(key, provider).map_err(IdentityError::Key)?;
    if key.public_key().is_some_and(|public| *public != *own) {
        return Err(IdentityError::Mismatch);
    }
    Ok(CertifiedKey::new(chain, key))
}

/// All certificates of a PEM text, at least one. Everything else is passed over, also what is broken, up to the next BEGIN.
fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let starts: Vec<usize> = (0..text.len()).filter(|at| text[*at..].starts_with(BEGIN)).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let parts = starts.iter().zip(ends).map(|(start, end)| &text[*start..end]);
    let found: Vec<_> = parts
        .filter_map(|part| CertificateDer::from_pem_slice(part).ok())
        .collect();
    if found.is_empty() {
        let error = CertificateDer::from_pem_slice(text).err();
        return Err(problem("certificate", text, &error.unwrap_or(pem::Error::NoItemsFound)));
    }
    Ok(found)
}

/// The private key of a PEM text. It is tried here: what rustls finds wrong with it later could be put down to the certificate.
fn private_key(text: &[u8], provider: &CryptoProvider) -> Result<Arc<dyn SigningKey>, PemError> {
    let key = PrivateKeyDer::from_pem_slice(text).map_err(|error| match problem("private key", text, &error) {
        PemError::Missing(_) | PemError::Base64 if has(text, b"ENCRYPTED") => PemError::Encrypted,
        problem => problem,
    })?;
    provider.key_provider.load_private_key(key).map_err(|_| PemError::Key)
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
    text.split(|byte| *byte == b'\n')
        .any(|line| has(line, b"-----BEGIN ") && has(line, b"-----END "))
}

fn has(text: &[u8], words: &[u8]) -> bool {
    text.windows(words.len()).any(|part| part == words)
}
