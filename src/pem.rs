//! Certificates and private keys in PEM form, with faults in words that say what to mend.
//!
//! Must not quote what it reads: the library's own words hold the line that is wrong, which may be of a private key.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// All certificates of a PEM text, at least one; else what is wrong with it.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| problem("certificate", text, &error))?;
    if found.is_empty() {
        return Err(problem("certificate", text, &pem::Error::NoItemsFound));
    }
    Ok(found)
}

/// The private key of a PEM text, else what is wrong with it. It is tried here: what rustls finds wrong with it later could
/// be put down to the certificate.
pub(crate) fn private_key(text: &[u8], provider: &CryptoProvider) -> Result<PrivateKeyDer<'static>, String> {
    let key = PrivateKeyDer::from_pem_slice(text).map_err(|error| problem("private key", text, &error))?;
    match provider.key_provider.load_private_key(key.clone_key()) {
        Ok(_) => Ok(key),
        Err(_) => Err("is not an RSA, ECDSA or Ed25519 key that can be used".to_owned()),
    }
}

fn problem(what: &str, text: &[u8], error: &pem::Error) -> String {
    match error {
        _ if is_one_line(text) => {
            "has lost its line ends: BEGIN, the data and END each need lines of their own".to_owned()
        }
        pem::Error::NoItemsFound => format!("holds no {what} in PEM form"),
        pem::Error::MissingSectionEnd { .. } => "is cut off: an END line is missing".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "has a BEGIN line that cannot be read".to_owned(),
        pem::Error::Base64Decode(_) => "is not base64 between BEGIN and END".to_owned(),
        _ => "is not PEM".to_owned(),
    }
}

/// Whether BEGIN and END stand on the same line, as after a copy through something that takes line ends away.
fn is_one_line(text: &[u8]) -> bool {
    let has = |line: &[u8], words: &[u8]| line.windows(words.len()).any(|part| part == words);
    text.split(|byte| *byte == b'\n')
        .any(|line| has(line, b"-----BEGIN ") && has(line, b"-----END "))
}
