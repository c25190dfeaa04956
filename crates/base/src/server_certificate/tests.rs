//! What the forms that Go tried do not have: extensions about policies, addresses in both of their forms, and names of many kinds.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, SupportedProtocolVersion};

use super::{CertificateProblem, ServerCertificateError, ServerVerifier, Terms, TrustedCertificates, verify};

/// Within the validity of all certificates.
const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_hours(500_000));

const NAME: &str = "driver.example";

const TERMS: Terms = Terms {
    server: "the driver",
    trusted: "ca.crt",
    rename: "use one of these",
};

/// The certificate of a server, of the CA that issued it, and of the CA above, which is trusted.
struct Chain {
    server: CertificateDer<'static>,
    sent: CertificateDer<'static>,
    trusted: CertificateDer<'static>,
    /// The key of the server.
    key: PrivateKeyDer<'static>,
}

impl Chain {
    /// One for a server of this name, with these extensions in the server's certificate and in that of its CA.
    fn new(name: &str, of_server: Vec<CustomExtension>, of_sent: Vec<CustomExtension>) -> Self {
        let authority = |name: &str, extensions| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.custom_extensions = extensions;
            (params, KeyPair::generate().unwrap())
        };
        let (params, key) = authority("root", Vec::new());
        let trusted = params.self_signed(&key).unwrap().der().clone();
        let root = Issuer::new(params, key);
        let (params, key) = authority("between", of_sent);
        let sent = params.signed_by(&key, &root).unwrap().der().clone();
        let between = Issuer::new(params, key);
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.custom_extensions = of_server;
        let key = KeyPair::generate().unwrap();
        let server = params.signed_by(&key, &between).unwrap().der().clone();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Self {
            server,
            sent,
            trusted,
            key,
        }
    }

    /// A whole handshake, in memory.
    fn shake_hands(&self, version: &'static SupportedProtocolVersion) -> Result<(), rustls::Error> {
        let provider = Arc::new(default_provider());
        let key = provider.key_provider.load_private_key(self.key.clone_key())?;
        let own = CertifiedKey::new(vec![self.server.clone(), self.sent.clone()], key);
        let server = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[version])?;
        let server = server
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        let trusted = TrustedCertificates::from(vec![self.trusted.clone()]);
        let client = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[version])?;
        let verifier = ServerVerifier::new(trusted, TERMS, &provider);
        let client = client.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut server = ServerConnection::new(Arc::new(server))?;
        let name = ServerName::try_from(NAME).unwrap();
        let mut client = ClientConnection::new(Arc::new(client.with_no_client_auth()), name)?;
        while client.is_handshaking() {
            let mut sent = Vec::new();
            client.write_tls(&mut sent).unwrap();
            server.read_tls(&mut sent.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut answer = Vec::new();
            server.write_tls(&mut answer).unwrap();
            client.read_tls(&mut answer.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    fn verify(&self, name: &ServerName<'_>) -> Result<(), CertificateProblem> {
        let algorithms = default_provider().signature_verification_algorithms.all;
        let shown = (&self.server, std::slice::from_ref(&self.sent));
        verify(std::slice::from_ref(&self.trusted), algorithms, shown, name, NOW)
    }
}

/// A critical extension 2.5.29.`id`.
fn critical(id: u64, content: &[u8]) -> Vec<CustomExtension> {
    let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, id], content.to_vec());
    extension.set_criticality(true);
    vec![extension]
}

/// Any policy, as the only one of certificatePolicies.
const ANY_POLICY: &[u8] = &[0x30, 8, 0x30, 6, 6, 4, 0x55, 0x1d, 0x20, 0];

#[test]
fn critical_extensions_about_policies_are_accepted_where_no_policy_is_asked_for() {
    let name = ServerName::try_from(NAME).unwrap();
    let rows: [(&str, u64, &[u8], bool); 9] = [
        ("policies", 32, ANY_POLICY, true),
        ("mappings", 33, &[0x30, 10, 0x30, 8, 6, 2, 0x2a, 3, 6, 2, 0x2a, 4], true),
        (
            "mappings of any",
            33,
            &[0x30, 12, 0x30, 10, 6, 4, 0x55, 0x1d, 0x20, 0, 6, 2, 0x2a, 4],
            false,
        ),
        (
            "mappings to any",
            33,
            &[0x30, 12, 0x30, 10, 6, 2, 0x2a, 3, 6, 4, 0x55, 0x1d, 0x20, 0],
            false,
        ),
        ("constraints: no mapping", 36, &[0x30, 3, 0x81, 1, 0], true),
        ("constraints: a policy", 36, &[0x30, 3, 0x80, 1, 0], false),
        ("not any policy", 54, &[2, 1, 0], true),
        ("policies that cannot be read", 32, &[5, 0], false),
        ("unknown", 99, &[5, 0], false),
    ];
    for (what, id, content, is_accepted) in rows {
        for (place, chain) in [
            ("server", Chain::new(NAME, critical(id, content), Vec::new())),
            ("CA", Chain::new(NAME, Vec::new(), critical(id, content))),
        ] {
            let found = chain.verify(&name);
            assert_eq!(found.is_ok(), is_accepted, "{what}, {place}: {found:?}");
        }
    }
}

/// RFC 5280 does not let the end of a path depend on it.
#[test]
fn a_policy_that_is_needed_is_needed_by_what_is_not_critical_too() {
    let name = ServerName::try_from(NAME).unwrap();
    let mut extensions = critical(36, &[0x30, 3, 0x80, 1, 0]);
    extensions[0].set_criticality(false);
    let chain = Chain::new(NAME, Vec::new(), extensions);
    assert!(chain.verify(&name).is_err());
}

/// In the handshake rustls looks at the certificate once more.
#[test]
fn a_server_with_critical_policies_is_spoken_to() {
    for version in rustls::ALL_VERSIONS {
        for (extensions, is_accepted) in [(critical(32, ANY_POLICY), true), (critical(99, &[5, 0]), false)] {
            let chain = Chain::new(NAME, extensions, Vec::new());
            let found = chain.shake_hands(version);
            assert_eq!(found.is_ok(), is_accepted, "{version:?}: {found:?}");
        }
    }
}

/// What is signed is the original: a copy that is changed elsewhere too is found out.
#[test]
fn a_changed_certificate_between_is_refused() {
    let name = ServerName::try_from(NAME).unwrap();
    let mut chain = Chain::new(NAME, critical(32, ANY_POLICY), critical(32, ANY_POLICY));
    assert_eq!(chain.verify(&name), Ok(()));
    let sent = chain.sent.clone();
    for at in 0..sent.len() {
        let mut changed = sent.to_vec();
        changed[at] ^= 1;
        chain.sent = CertificateDer::from(changed);
        assert!(chain.verify(&name).is_err(), "accepted with another byte {at}");
    }
}

#[test]
fn an_address_is_the_same_in_both_of_its_forms() {
    for (of_certificate, called, is_accepted) in [
        ("10.0.0.7", "10.0.0.7", true),
        ("10.0.0.7", "::ffff:10.0.0.7", true),
        ("::ffff:10.0.0.7", "10.0.0.7", true),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.7", true),
        ("10.0.0.7", "::ffff:10.0.0.8", false),
        ("10.0.0.7", "::10.0.0.7", false),
    ] {
        let chain = Chain::new(of_certificate, Vec::new(), Vec::new());
        let name = ServerName::from(called.parse::<IpAddr>().unwrap());
        let found = chain.verify(&name);
        assert_eq!(found.is_ok(), is_accepted, "{of_certificate}, {called}: {found:?}");
    }
}

/// A name is offered only where somebody can write it and it is accepted then.
#[test]
fn what_a_certificate_is_for_is_told_as_it_can_be_used() {
    const NONE: &str = ": it has no usable DNS name or IP address in a subjectAltName (a common name or a URI does not count): \
                        add the name to the certificate";
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let uri = || SanType::URI("spiffe://cluster.local/ns/storage/sa/csi".try_into().unwrap());
    let address = SanType::IpAddress("fd00::7".parse().unwrap());
    let rows: [(Vec<SanType>, Option<&str>); 8] = [
        (vec![], None),
        (vec![uri()], None),
        (vec![dns("a*.example.com"), dns("*.com"), dns("10.0.0.7")], None),
        (vec![dns("csi.storage.svc"), uri()], Some("csi.storage.svc")),
        (vec![address], Some("fd00::7")),
        (vec![dns("*.storage.svc")], Some("any name one label below storage.svc")),
        (
            vec![dns("*.storage.svc"), dns("csi")],
            Some("any name one label below storage.svc, csi"),
        ),
        (vec![dns("*"), dns("csi.storage.svc."), dns("csi")], Some("csi")),
    ];
    let (algorithms, name) = (
        default_provider().signature_verification_algorithms.all,
        ServerName::try_from(NAME).unwrap(),
    );
    for (names, wanted) in rows {
        let mut params = CertificateParams::default();
        params.subject_alt_names.clone_from(&names);
        let key = KeyPair::generate().unwrap();
        let server = params.self_signed(&key).unwrap().der().clone();
        let problem = verify(&[], algorithms, (&server, &[]), &name, NOW).unwrap_err();
        let told = ServerCertificateError { terms: TERMS, problem }.to_string();
        let wanted = wanted.map_or(NONE.to_owned(), |offered| {
            format!(", only for {offered}: use one of these, or add the name to the certificate")
        });
        let wanted = format!("the certificate of the driver is not for {NAME}{wanted}");
        assert_eq!(told, wanted, "{names:?}");
    }
}
