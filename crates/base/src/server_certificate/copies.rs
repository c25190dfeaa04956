//! What a server sent, as webpki gets it: in copies where it refuses what Go accepts, and cannot be told otherwise.
//!
//! - In the server's certificate CA:TRUE becomes CA:FALSE. Go does not look at it, and `openssl req -x509` writes it by default.
//! - Extensions about policies are not critical any more. Like Go's client, nobody here asks for a policy. What they make invalid all the
//!   same is refused by the rules, critical or not.
//!
//! Only webpki sees a copy: what the issuer signed is the original, and that is what the signature is checked for.

use std::fmt;
use std::ops::Range;

use rustls::pki_types::{AlgorithmIdentifier, CertificateDer, InvalidSignature, SignatureVerificationAlgorithm};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ParsedExtension, X509Extension};
use x509_parser::oid_registry::OID_X509_EXT_BASIC_CONSTRAINTS;

use super::rules::parse;

/// The signed part of a copy, and that of its original.
type Signed<'a> = (Vec<u8>, &'a [u8]);

/// The certificates that a server sent, for webpki.
pub(super) struct Copies<'a> {
    /// Its own.
    pub server: CertificateDer<'a>,
    /// Those above it.
    pub sent: Vec<CertificateDer<'a>>,
    /// Of each one that differs from its original.
    signed: Vec<Signed<'a>>,
}

impl<'a> Copies<'a> {
    pub(super) fn new(server: &'a CertificateDer<'_>, sent: &'a [CertificateDer<'_>]) -> Self {
        let mut signed = Vec::new();
        let server = copy(server, true, &mut signed);
        let sent = sent.iter().map(|one| copy(one, false, &mut signed)).collect();
        Self { server, sent, signed }
    }

    /// Has the copies checked by `verify`, with algorithms that check the signatures of the originals.
    pub(super) fn verify(
        &self,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        verify: impl FnOnce(&[&dyn SignatureVerificationAlgorithm]) -> Result<(), webpki::Error>,
    ) -> Result<(), webpki::Error> {
        let wrapped: Vec<_> = algorithms
            .iter()
            .map(|algorithm| SignatureOfOriginal {
                algorithm: *algorithm,
                signed: &self.signed,
            })
            .collect();
        let wrapped: Vec<&dyn SignatureVerificationAlgorithm> = wrapped.iter().map(|one| one as _).collect();
        verify(&wrapped)
    }
}

/// A certificate as webpki gets it. If it differs from the original, its signed part is noted.
fn copy<'a>(original: &'a CertificateDer<'_>, is_server: bool, signed: &mut Vec<Signed<'a>>) -> CertificateDer<'a> {
    let bytes: &'a [u8] = original;
    let changes = parse(original).and_then(|parsed| {
        let places = places(bytes, &parsed, is_server);
        let part = range_of(bytes, parsed.tbs_certificate.as_ref())?;
        (!places.is_empty()).then_some((places, part))
    });
    let Some((places, part)) = changes else {
        return CertificateDer::from(bytes);
    };
    let mut copy = bytes.to_vec();
    for at in places {
        copy[at] = 0;
    }
    signed.push((copy[part.clone()].to_vec(), &bytes[part]));
    CertificateDer::from(copy)
}

/// Where a TRUE is that is FALSE in the copy.
fn places(bytes: &[u8], parsed: &X509Certificate<'_>, is_server: bool) -> Vec<usize> {
    let critical = parsed
        .iter_extensions()
        .filter(|extension| is_about_policies(extension));
    let critical = critical.filter_map(|extension| critical_at(bytes, extension));
    let authority = is_server.then(|| authority_at(bytes, parsed)).flatten();
    critical.chain(authority).collect()
}

/// Whether an extension is critical, and about policies, and can be read.
fn is_about_policies(extension: &X509Extension<'_>) -> bool {
    use ParsedExtension::{CertificatePolicies, InhibitAnyPolicy, PolicyConstraints, PolicyMappings};
    let parsed = extension.parsed_extension();
    extension.critical
        && matches!(
            parsed,
            CertificatePolicies(_) | PolicyMappings(_) | InhibitAnyPolicy(_) | PolicyConstraints(_)
        )
}

/// Where an extension is said to be critical: by BOOLEAN TRUE behind its OID.
fn critical_at(bytes: &[u8], extension: &X509Extension<'_>) -> Option<usize> {
    const TRUE: &[u8] = &[1, 1, 0xff];
    let behind = range_of(bytes, extension.oid.as_bytes())?.end;
    bytes.get(behind..)?.starts_with(TRUE).then_some(behind + 2)
}

/// Where a certificate is said to be that of a CA.
fn authority_at(bytes: &[u8], parsed: &X509Certificate<'_>) -> Option<usize> {
    // SEQUENCE, its length, and BOOLEAN TRUE.
    const TRUE_AT: usize = 4;
    let value = parsed
        .get_extension_unique(&OID_X509_EXT_BASIC_CONSTRAINTS)
        .ok()??
        .value;
    let [0x30, _, 1, 1, 0xff, ..] = value else {
        return None;
    };
    Some(range_of(bytes, value)?.start + TRUE_AT)
}

/// Where a part of a slice is in it.
fn range_of(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}

/// An algorithm that looks at the original where it is asked about a copy.
struct SignatureOfOriginal<'a> {
    algorithm: &'a dyn SignatureVerificationAlgorithm,
    signed: &'a [Signed<'a>],
}

impl fmt::Debug for SignatureOfOriginal<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.algorithm.fmt(formatter)
    }
}

impl SignatureVerificationAlgorithm for SignatureOfOriginal<'_> {
    fn verify_signature(&self, public_key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let original = self.signed.iter().find(|(copy, _)| copy.as_slice() == message);
        let message = original.map_or(message, |(_, original)| *original);
        self.algorithm.verify_signature(public_key, message, signature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.signature_alg_id()
    }
}
