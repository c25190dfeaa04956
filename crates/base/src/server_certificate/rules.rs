//! Whether the certificate of a server is accepted, by the rules of Go's client.
//!
//! webpki builds and checks the paths. It is given the trusted certificates that may issue, because it asks nothing of them,
//! and Go asks the same of them as of all others: that they are valid, are CAs, may sign certificates and issue for servers.
//! Two things Go accepts that webpki does not: the certificate itself among the trusted ones, and what the copies are for. Which
//! forms Go accepts is in `tests/server-certificates/forms.json`.

use std::net::IpAddr;

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, ServerName, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeId, KeyPurposeIdIter, KeyUsage, VerifiedPath};
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::{Oid, oid};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::X509Version;

use super::copies::Copies;
use super::error::{CertificateProblem, IssuerProblem};

/// The least size of an RSA key, in bits.
const RSA_BITS: usize = 2048;

/// Checks what a server that was called `name` sent, its certificate and those above it, against the trusted certificates.
pub fn verify(
    trusted: &[CertificateDer<'_>],
    algorithms: &[&dyn SignatureVerificationAlgorithm],
    (server, sent): (&CertificateDer<'_>, &[CertificateDer<'_>]),
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), CertificateProblem> {
    let copies = Copies::new(server, sent);
    let certificate = EndEntityCert::try_from(&copies.server).map_err(CertificateProblem::Invalid)?;
    let parsed = parse(server);
    check_name(&certificate, parsed.as_ref(), name)?;
    if let Some(bits) = parsed.as_ref().and_then(short_key) {
        return Err(CertificateProblem::ShortKey(bits));
    }
    if trusted.contains(server) {
        return check_trusted_itself(parsed.as_ref(), now);
    }
    if parsed.as_ref().is_some_and(needs_policy) {
        return Err(CertificateProblem::Invalid(webpki::Error::UnsupportedCriticalExtension));
    }
    let issuers = Issuers::new(trusted, now);
    let checked = copies.verify(algorithms, |algorithms| {
        issuers.verify(&certificate, algorithms, &copies.sent, now)
    });
    checked.map_err(|error| issuers.explain(error, parsed.as_ref(), sent))
}

/// Go takes an IPv4 address for the same as that address within IPv6, whichever of the two is in the certificate.
fn check_name(
    certificate: &EndEntityCert<'_>,
    parsed: Option<&X509Certificate<'_>>,
    name: &ServerName<'_>,
) -> Result<(), CertificateProblem> {
    let Err(error) = certificate.verify_is_valid_for_subject_name(name) else {
        return Ok(());
    };
    if let ServerName::IpAddress(address) = name {
        let same = match IpAddr::from(*address) {
            IpAddr::V4(address) => Some(IpAddr::V6(address.to_ipv6_mapped())),
            IpAddr::V6(address) => address.to_ipv4_mapped().map(IpAddr::V4),
        };
        let is_for = |address: IpAddr| certificate.verify_is_valid_for_subject_name(&ServerName::from(address));
        if same.is_some_and(|address| is_for(address).is_ok()) {
            return Ok(());
        }
    }
    let webpki::Error::CertNotValidForName(_) = error else {
        return Err(CertificateProblem::Invalid(error));
    };
    let presented = parsed.map(|parsed| names(certificate, parsed)).unwrap_or_default();
    Err(CertificateProblem::Name(name.to_str().into_owned(), presented))
}

/// The names and addresses that a certificate is for, in words. Only those by which the server can be called: the certificate may hold others,
/// such as `a*.example.com`.
fn names(certificate: &EndEntityCert<'_>, parsed: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    let is_for = |name: &str| {
        let name = ServerName::try_from(name);
        name.is_ok_and(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok())
    };
    let name = |name: &GeneralName<'_>| match name {
        // Nobody can write a wildcard where the name of a server belongs.
        GeneralName::DNSName(name) => match name.strip_prefix("*.") {
            Some(above) => is_for(&format!("any.{above}")).then(|| format!("any name one label below {above}")),
            None => is_for(name).then(|| (*name).to_owned()),
        },
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    };
    extension.value.general_names.iter().filter_map(name).collect()
}

/// What Go asks of a certificate that is trusted itself: no issuer, and no CA.
fn check_trusted_itself(parsed: Option<&X509Certificate<'_>>, now: UnixTime) -> Result<(), CertificateProblem> {
    let parsed = parsed.ok_or(CertificateProblem::Invalid(webpki::Error::BadDer))?;
    let (from, to, now) = validity(parsed, now);
    if now < from {
        return Err(CertificateProblem::NotYetValid(moment(from)));
    }
    if now > to {
        return Err(CertificateProblem::Expired(moment(to)));
    }
    is_for_servers(parsed).then_some(()).ok_or(CertificateProblem::Usage)
}

/// The trusted certificates, by what they are good for.
struct Issuers<'a> {
    anchors: Vec<TrustAnchor<'a>>,
    /// How many intermediate CAs may be below each of the anchors.
    depths: Vec<Option<u32>>,
    /// Those that can issue nothing.
    others: Vec<(Vec<u8>, IssuerProblem)>,
}

impl<'a> Issuers<'a> {
    fn new(trusted: &'a [CertificateDer<'_>], now: UnixTime) -> Self {
        let mut issuers = Self {
            anchors: Vec::new(),
            depths: Vec::new(),
            others: Vec::new(),
        };
        for certificate in trusted {
            let Some(parsed) = parse(certificate) else { continue };
            let anchor = webpki::anchor_from_trusted_cert(certificate).map_err(|_| IssuerProblem::Unreadable);
            match may_issue(&parsed, now).and_then(|depth| Ok((anchor?, depth))) {
                Ok((anchor, depth)) => {
                    issuers.anchors.push(anchor);
                    issuers.depths.push(depth);
                }
                Err(problem) => issuers.others.push((parsed.subject().as_raw().to_vec(), problem)),
            }
        }
        issuers
    }

    fn verify(
        &self,
        certificate: &EndEntityCert<'_>,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        sent: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let check = |path: &VerifiedPath<'_>| self.check(path);
        certificate
            .verify_for_usage(algorithms, &self.anchors, sent, now, ForServers, None, Some(&check))
            .map(drop)
    }

    /// What Go asks of a path beyond what webpki does.
    fn check(&self, path: &VerifiedPath<'_>) -> Result<(), webpki::Error> {
        let mut known = self.anchors.iter().zip(&self.depths);
        let depth = known.find_map(|(anchor, depth)| depth.filter(|_| std::ptr::eq(anchor, path.anchor())));
        let between = path.intermediate_certificates().count();
        if depth.is_some_and(|depth| usize::try_from(depth).is_ok_and(|depth| between > depth)) {
            return Err(webpki::Error::PathLenConstraintViolated);
        }
        for certificate in path.intermediate_certificates() {
            let der = certificate.der();
            let parsed = parse(&der).filter(may_sign).ok_or(webpki::Error::EndEntityUsedAsCa)?;
            if needs_policy(&parsed) {
                return Err(webpki::Error::UnsupportedCriticalExtension);
            }
        }
        Ok(())
    }

    /// What the error means, with a trusted certificate that would be the issuer if it could.
    fn explain(
        &self,
        error: webpki::Error,
        server: Option<&X509Certificate<'_>>,
        sent: &[CertificateDer<'_>],
    ) -> CertificateProblem {
        use webpki::Error as E;
        match error {
            E::CertExpired { not_after, .. } => CertificateProblem::Expired(moment(not_after.as_secs())),
            E::CertNotValidYet { not_before, .. } => CertificateProblem::NotYetValid(moment(not_before.as_secs())),
            E::RequiredEkuNotFoundContext(_) => CertificateProblem::Usage,
            E::UnsupportedSignatureAlgorithmContext(_) | E::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
                CertificateProblem::Algorithm
            }
            E::UnknownIssuer | E::InvalidSignatureForPublicKey | E::EndEntityUsedAsCa => {
                let sent: Vec<_> = sent.iter().filter_map(parse).collect();
                let chain = || server.into_iter().chain(&sent);
                let is_signature = error == E::InvalidSignatureForPublicKey;
                let found = chain().find_map(|below| {
                    let is_issuer = |(subject, _): &&(Vec<u8>, IssuerProblem)| subject == below.issuer().as_raw();
                    Some((below, self.others.iter().find(is_issuer)?.1))
                });
                match (found, chain().last()) {
                    (Some((below, problem)), _) => CertificateProblem::Issuer(below.issuer().to_string(), problem),
                    // The signature is wrong where a CA was made again under its former name; which one of a chain, nothing says.
                    (None, Some(last)) if error == E::UnknownIssuer || is_signature && sent.is_empty() => {
                        CertificateProblem::UnknownIssuer(last.issuer().to_string())
                    }
                    _ => CertificateProblem::Invalid(error),
                }
            }
            other => CertificateProblem::Invalid(other),
        }
    }
}

/// How many intermediate CAs may be below this one, if it can issue certificates for servers.
fn may_issue(parsed: &X509Certificate<'_>, now: UnixTime) -> Result<Option<u32>, IssuerProblem> {
    let (from, to, now) = validity(parsed, now);
    let constraints = parsed.basic_constraints().map_err(|_| IssuerProblem::Unreadable)?;
    let constraints = constraints.map(|extension| extension.value);
    match constraints {
        Some(constraints) if !constraints.ca => return Err(IssuerProblem::NotCa),
        None if parsed.version() == X509Version::V3 => return Err(IssuerProblem::NotCa),
        _ => {}
    }
    if has_unknown(parsed) {
        Err(IssuerProblem::Unreadable)
    } else if !may_sign(parsed) {
        Err(IssuerProblem::NotSigner)
    } else if now < from {
        Err(IssuerProblem::NotYetValid)
    } else if now > to {
        Err(IssuerProblem::Expired)
    } else if !is_for_servers(parsed) {
        Err(IssuerProblem::Usage)
    } else if short_key(parsed).is_some() {
        Err(IssuerProblem::ShortKey)
    } else {
        Ok(constraints.and_then(|constraints| constraints.path_len_constraint))
    }
}

/// A certificate, or nothing if it is none that can be read.
pub(crate) fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
    rest.is_empty().then_some(parsed)
}

/// From when and until when it is valid, and what time it is.
fn validity(parsed: &X509Certificate<'_>, now: UnixTime) -> (u64, u64, u64) {
    let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or_default();
    let validity = parsed.validity();
    (seconds(validity.not_before), seconds(validity.not_after), now.as_secs())
}

fn moment(seconds: u64) -> Timestamp {
    let seconds = i64::try_from(seconds).ok();
    let at = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    at.unwrap_or(Timestamp::MAX)
}

/// Whether there is an extension that must not be ignored, and that nobody knows.
fn has_unknown(parsed: &X509Certificate<'_>) -> bool {
    use ParsedExtension::{ParseError, UnsupportedExtension};
    let is_unknown = |parsed: &ParsedExtension<'_>| matches!(parsed, UnsupportedExtension { .. } | ParseError { .. });
    let mut extensions = parsed.iter_extensions();
    extensions.any(|extension| extension.critical && is_unknown(extension.parsed_extension()))
}

/// Whether a path with this certificate is valid under a policy alone, which nobody looks at here, or never: one asks for a policy, or maps
/// all of them (RFC 5280, section 6.1.4).
fn needs_policy(parsed: &X509Certificate<'_>) -> bool {
    let is_any = |policy: &Oid<'_>| *policy == oid!(2.5.29.32.0);
    parsed
        .iter_extensions()
        .any(|extension| match extension.parsed_extension() {
            ParsedExtension::PolicyConstraints(constraints) => constraints.require_explicit_policy.is_some(),
            ParsedExtension::PolicyMappings(mappings) => {
                let mut mappings = mappings.mappings.iter();
                mappings.any(|mapping| is_any(&mapping.issuer_domain_policy) || is_any(&mapping.subject_domain_policy))
            }
            _ => false,
        })
}

/// Without a key usage it may do everything.
fn may_sign(parsed: &X509Certificate<'_>) -> bool {
    match parsed.key_usage() {
        Ok(Some(usage)) => usage.value.flags == 0 || usage.value.key_cert_sign(),
        Ok(None) => true,
        Err(_) => false,
    }
}

fn is_for_servers(parsed: &X509Certificate<'_>) -> bool {
    match parsed.extended_key_usage() {
        Ok(Some(usage)) => usage.value.any || usage.value.server_auth,
        Ok(None) => true,
        Err(_) => false,
    }
}

fn short_key(parsed: &X509Certificate<'_>) -> Option<usize> {
    match parsed.public_key().parsed() {
        Ok(PublicKey::RSA(key)) => Some(key.key_size()).filter(|bits| *bits < RSA_BITS),
        _ => None,
    }
}

/// The extended key usages of servers: none at all, that of servers, or any.
struct ForServers;

impl ExtendedKeyUsageValidator for ForServers {
    fn validate(&self, usages: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        const SERVERS: KeyPurposeId<'_> = KeyPurposeId::new(&[0x2b, 6, 1, 5, 5, 7, 3, 1]);
        const ANY: KeyPurposeId<'_> = KeyPurposeId::new(&[0x55, 0x1d, 0x25, 0]);
        let mut present = Vec::new();
        for usage in usages {
            let usage = usage?;
            if usage == SERVERS || usage == ANY {
                return Ok(());
            }
            present.push(usage.to_decoded_oid());
        }
        if present.is_empty() {
            return Ok(());
        }
        Err(webpki::Error::RequiredEkuNotFoundContext(
            webpki::RequiredEkuNotFoundContext {
                required: KeyUsage::server_auth(),
                present,
            },
        ))
    }
}
