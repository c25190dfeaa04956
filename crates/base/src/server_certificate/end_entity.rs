//! A certificate with CA:TRUE, as a copy with CA:FALSE in its place.
//!
//! webpki refuses a CA as the certificate of a server and cannot be told otherwise; Go does not look at it, and `openssl req
//! -x509` writes it by default. Only webpki sees the copy: what the issuer signed is the original, and that is what the
//! signature is checked for.

use std::fmt;

use rustls::pki_types::{AlgorithmIdentifier, CertificateDer, InvalidSignature, SignatureVerificationAlgorithm};
use webpki::EndEntityCert;
use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::OID_X509_EXT_BASIC_CONSTRAINTS;

/// The copy, and what tells it from the original.
pub(super) struct EndEntityCopy<'a> {
    copy: CertificateDer<'static>,
    /// What the issuer signed.
    signed: &'a [u8],
    /// The same in the copy.
    signed_copy: Vec<u8>,
}

impl<'a> EndEntityCopy<'a> {
    /// Nothing for a certificate without CA:TRUE.
    pub(super) fn new(server: &'a CertificateDer<'_>, parsed: &'a X509Certificate<'a>) -> Option<Self> {
        // SEQUENCE, its length, and BOOLEAN TRUE.
        const TRUE_AT: usize = 4;
        let extension = parsed.get_extension_unique(&OID_X509_EXT_BASIC_CONSTRAINTS).ok()??;
        let ([0x30, _, 1, 1, 0xff, ..], signed) = (extension.value, parsed.tbs_certificate.as_ref()) else {
            return None;
        };
        let mut copy = server.to_vec();
        *copy.get_mut(offset(server, extension.value)? + TRUE_AT)? = 0;
        let start = offset(server, signed)?;
        let signed_copy = copy.get(start..start + signed.len())?.to_vec();
        Some(Self {
            copy: CertificateDer::from(copy),
            signed,
            signed_copy,
        })
    }

    /// Has the copy checked by `verify`, with algorithms that check the signature of the original.
    pub(super) fn verify(
        &self,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        verify: impl FnOnce(&EndEntityCert<'_>, &[&dyn SignatureVerificationAlgorithm]) -> Result<(), webpki::Error>,
    ) -> Result<(), webpki::Error> {
        let wrapped: Vec<_> = algorithms
            .iter()
            .map(|algorithm| SignatureOfOriginal {
                algorithm: *algorithm,
                certificate: self,
            })
            .collect();
        let wrapped: Vec<&dyn SignatureVerificationAlgorithm> = wrapped.iter().map(|one| one as _).collect();
        verify(&EndEntityCert::try_from(&self.copy)?, &wrapped)
    }
}

/// Where a part of a slice begins in it.
fn offset(whole: &[u8], part: &[u8]) -> Option<usize> {
    part.as_ptr().addr().checked_sub(whole.as_ptr().addr())
}

/// An algorithm that looks at the original where it is asked about the copy.
struct SignatureOfOriginal<'a> {
    algorithm: &'a dyn SignatureVerificationAlgorithm,
    certificate: &'a EndEntityCopy<'a>,
}

impl fmt::Debug for SignatureOfOriginal<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.algorithm.fmt(formatter)
    }
}

impl SignatureVerificationAlgorithm for SignatureOfOriginal<'_> {
    fn verify_signature(&self, public_key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let is_copy = message == self.certificate.signed_copy;
        let message = if is_copy { self.certificate.signed } else { message };
        self.algorithm.verify_signature(public_key, message, signature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.signature_alg_id()
    }
}
