//! What a Secret may hold, and what a dial by TLS is told about each way to fail. Every server is the mock driver.

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::AlertDescription;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tonic::Code;

use super::client_tests::within;
use super::span_tests::RecordedSpans;
use super::{
    ClientCertificates, CsiClient, DialFault, DriverConnection, Probe, TlsConnectError, TlsSecretError, TlsTarget,
};
use crate::api::condition::ConditionReason;
use crate::server_certificate::CertificateProblem;
use crate::telemetry::{Metrics, Span};
use csi_attacher_testbed::otlp::Attribute;
use csi_mock_driver::{ListenEndpoint, MockDriver, MockHandle, Rule, ServerTls};

const LONG: Duration = Duration::from_secs(15);

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate and its key in PEM form.
type Pair = (String, String);

impl Authority {
    fn new() -> Self {
        Self::named("authority")
    }

    fn named(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    fn server(&self, name: &str) -> Pair {
        self.server_until(name, 2100)
    }

    fn server_until(&self, name: &str, year: i32) -> Pair {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn client(&self) -> Pair {
        self.sign(CertificateParams::default(), ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Pair {
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// What a Secret holds.
type Entries = BTreeMap<String, Vec<u8>>;

fn secret(entries: &[(&str, &str)]) -> Entries {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), value.as_bytes().to_vec());
    entries.iter().map(owned).collect()
}

fn with_client(authority: &str, (certificate, key): &Pair) -> Entries {
    secret(&[("ca.crt", authority), ("tls.crt", certificate), ("tls.key", key)])
}

async fn serve((certificate, key): Pair, client_authority: Option<&Authority>) -> MockHandle {
    let tls = ServerTls {
        certificate,
        key,
        client_authority: client_authority.map(|authority| authority.certificate.clone()),
    };
    let anywhere = ListenEndpoint::Tcp("127.0.0.1:0".parse().unwrap());
    let builder = MockDriver::builder("tls.test").tls(tls);
    builder.start_on(anywhere).await.unwrap()
}

fn port_of(driver: &MockHandle) -> u16 {
    match driver.endpoint() {
        ListenEndpoint::Tcp(address) => address.port(),
        ListenEndpoint::Unix(_) => panic!("no port"),
    }
}

fn client(port: u16, secret: &Entries, name: &str) -> CsiClient {
    let certificates = ClientCertificates::read(secret).unwrap();
    let tls = TlsTarget::new(certificates, name).unwrap();
    CsiClient::new(DriverConnection::secured("127.0.0.1", port, tls), Metrics::default())
}

/// How TLS with this server fails.
async fn fault(port: u16, secret: &Entries, name: &str) -> TlsConnectError {
    let client = client(port, secret, name);
    let error = within(client.call(&Probe, LONG, &Span::disabled())).await.unwrap_err();
    assert!(error.transport && error.code == Code::Unavailable, "{error}");
    let dial = client.connection().dial_error().unwrap();
    assert_eq!(dial.reason(), ConditionReason::TlsFailed);
    assert_eq!(error.message, dial.fault.without_address());
    assert!(!error.message.contains(name), "{error}");
    assert_eq!(dial.address, format!("127.0.0.1:{port}"));
    match dial.fault {
        DialFault::Tls(fault) => fault,
        other => panic!("{other}"),
    }
}

/// What is wrong with the driver's certificate, by which TLS fails.
fn problem(found: TlsConnectError) -> CertificateProblem {
    match found {
        TlsConnectError::Certificate(error) => error.problem,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_driver_is_called_by_tls_with_and_without_a_client_certificate() {
    let authority = Authority::new();
    let alone = secret(&[("ca.crt", &authority.certificate)]);
    let known = with_client(&authority.certificate, &authority.client());
    for (demands, secret) in [(None, &alone), (None, &known), (Some(&authority), &known)] {
        // The name is that of the certificate, not of the host that is dialled.
        let driver = serve(authority.server("driver.example"), demands).await;
        let client = client(port_of(&driver), secret, "driver.example");
        assert!(within(client.call(&Probe, LONG, &Span::disabled())).await.unwrap());
        assert_eq!(client.connection().dial_error(), None);
        within(driver.stop()).await;
        within(client.connection().lost()).await;
    }
}

/// A server with this certificate, for HTTP/2.
fn acceptor((certificate, key): &Pair) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.unwrap(), key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// A proxy may serve several drivers at one port, and tell them apart by the authority. The name in the certificate is not it. The mock
/// driver does not show it, so that this is a server of its own.
#[tokio::test]
async fn calls_name_the_endpoint_as_their_server() {
    let authority = Authority::new();
    let tls = acceptor(&authority.server("driver.example"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, mut told) = mpsc::unbounded_channel();
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = tls.accept(stream).await.unwrap();
        let service = service_fn(move |request: http::Request<Incoming>| {
            tell.send(request.uri().clone()).unwrap();
            std::future::pending::<Result<http::Response<tonic::body::Body>, Infallible>>()
        });
        let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
        builder.serve_connection(TokioIo::new(stream), service).await.ok();
    };
    let client = client(port, &secret(&[("ca.crt", &authority.certificate)]), "driver.example");
    let span = Span::disabled();
    let calls = async { tokio::join!(server, client.call(&Probe, LONG, &span)) };
    let uri = within(Box::pin(async {
        tokio::select! {
            _ = calls => panic!("no call is answered"),
            uri = told.recv() => uri.unwrap(),
        }
    }));
    let uri = uri.await;
    assert_eq!(uri.scheme_str(), Some("https"));
    assert_eq!(uri.authority().unwrap().as_str(), format!("127.0.0.1:{port}"));
}

/// What `openssl req -x509` makes: self-signed, with CA:TRUE.
#[tokio::test]
async fn a_self_signed_certificate_is_trusted_when_ca_crt_has_it() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["driver.example".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().pem();
    let trusted = secret(&[("ca.crt", &certificate)]);
    let driver = serve((certificate, key.serialize_pem()), None).await;
    let client = client(port_of(&driver), &trusted, "driver.example");
    assert!(within(client.call(&Probe, LONG, &Span::disabled())).await.unwrap());
    let found = fault(port_of(&driver), &trusted, "other.example").await;
    assert!(matches!(problem(found), CertificateProblem::Name(..)));
    let stranger = secret(&[("ca.crt", &Authority::new().certificate)]);
    let found = fault(port_of(&driver), &stranger, "driver.example").await;
    assert!(matches!(problem(found), CertificateProblem::UnknownIssuer(_)));
}

#[tokio::test]
async fn an_address_is_a_name_as_well() {
    let authority = Authority::new();
    let driver = serve(authority.server("127.0.0.1"), None).await;
    let trusted = secret(&[("ca.crt", &authority.certificate)]);
    let client = client(port_of(&driver), &trusted, "127.0.0.1");
    assert!(within(client.call(&Probe, LONG, &Span::disabled())).await.unwrap());
}

/// What is configured, and where that led; a call for which there is no connection led nowhere.
#[tokio::test]
async fn spans_name_the_server_and_the_peer_of_an_https_endpoint() {
    const WHERE: [&str; 4] = [
        "network.peer.address",
        "network.peer.port",
        "server.address",
        "server.port",
    ];
    let authority = Authority::new();
    let driver = serve(authority.server("localhost"), None).await;
    let port = port_of(&driver);
    let trusted = secret(&[("ca.crt", &authority.certificate)]);
    let number = Attribute::I64(i64::from(port));
    let told = RecordedSpans::start().await;
    let tls = |name| TlsTarget::new(ClientCertificates::read(&trusted).unwrap(), name).unwrap();
    let client = |name| {
        CsiClient::new(
            DriverConnection::secured("localhost", port, tls(name)),
            Metrics::default(),
        )
    };
    within(client("localhost").call(&Probe, LONG, &told.parent()))
        .await
        .unwrap();
    within(client("other").call(&Probe, LONG, &told.parent()))
        .await
        .unwrap_err();
    let spans = told.calls().await;
    let told: Vec<_> = spans
        .iter()
        .map(|span| WHERE.map(|key| span.attributes.get(key).cloned()))
        .collect();
    let (server, port) = (Some("localhost".into()), Some(number));
    let connected = [Some("127.0.0.1".into()), port.clone(), server.clone(), port.clone()];
    assert_eq!(told, [connected, [None, None, server, port]]);
}

#[tokio::test]
async fn each_way_that_tls_fails_is_told_apart() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let alone = secret(&[("ca.crt", &ours.certificate)]);
    // One authority has the same name as ours.
    for authority in [theirs, Authority::named("other")] {
        let driver = serve(authority.server("driver.example"), None).await;
        let found = fault(port_of(&driver), &alone, "driver.example").await;
        let words = found.to_string();
        assert!(words.contains("is not signed by ca.crt"), "{words}");
        assert!(matches!(problem(found), CertificateProblem::UnknownIssuer(_)));
    }

    let driver = serve(ours.server("driver.example"), None).await;
    let found = fault(port_of(&driver), &alone, "other.example").await;
    let words = found.to_string();
    assert!(words.contains("set spec.tls.serverName to one of these"), "{words}");
    let CertificateProblem::Name(name, presented) = problem(found) else {
        panic!("{words}")
    };
    assert_eq!(name, "other.example");
    assert_eq!(presented, ["driver.example"]);

    let driver = serve(ours.server_until("driver.example", 2020), None).await;
    let found = fault(port_of(&driver), &alone, "driver.example").await;
    assert_eq!(
        found.to_string(),
        "the certificate of the driver, or of an intermediate CA, expired at 2020-01-01T00:00:00Z: renew it"
    );

    // The certificate of another server is in ca.crt, and stands for no CA.
    let mut params = CertificateParams::new(["driver.example".to_owned()]).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "no authority");
    params.is_ca = IsCa::ExplicitNoCa;
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let none = Authority { issuer, certificate };
    let driver = serve(none.server("driver.example"), None).await;
    let found = fault(
        port_of(&driver),
        &secret(&[("ca.crt", &none.certificate)]),
        "driver.example",
    )
    .await;
    assert!(found.to_string().contains("which is in ca.crt but is no CA"), "{found}");
}

#[tokio::test]
async fn a_driver_that_does_not_accept_us_says_so() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let driver = serve(ours.server("driver.example"), Some(&ours)).await;
    let alone = secret(&[("ca.crt", &ours.certificate)]);
    let found = fault(port_of(&driver), &alone, "driver.example").await;
    assert_eq!(found, TlsConnectError::ClientUnknown);
    let stranger = with_client(&ours.certificate, &theirs.client());
    let found = fault(port_of(&driver), &stranger, "driver.example").await;
    assert!(matches!(&found, TlsConnectError::ClientRefused(_)), "{found}");
}

/// Servers of TLS 1.2 have one word for several causes.
#[test]
fn a_driver_that_ends_the_handshake_is_told_with_each_cause_that_there_may_be() {
    use AlertDescription as Alert;
    let (in_common, demands) = ("in common with the operator", "demands a client certificate");
    let rows: [(Alert, bool, &[&str]); 7] = [
        // What it refuses where we show none is not our certificate.
        (Alert::AccessDenied, false, &[]),
        (Alert::HandshakeFailure, false, &[in_common, demands]),
        (Alert::HandshakeFailure, true, &[in_common]),
        (Alert::ProtocolVersion, false, &[in_common]),
        (Alert::InsufficientSecurity, false, &[in_common]),
        (Alert::CertificateRequired, false, &[demands]),
        (Alert::BadCertificate, false, &[demands]),
    ];
    for (alert, identifies_us, wanted) in rows {
        let words = TlsConnectError::of(&rustls::Error::AlertReceived(alert), identifies_us).to_string();
        let told: Vec<&str> = [in_common, demands]
            .into_iter()
            .filter(|cause| words.contains(cause))
            .collect();
        assert_eq!(told, wanted, "{alert:?} {identifies_us}: {words}");
    }
}

#[tokio::test]
async fn what_speaks_no_tls_is_told() {
    let authority = Authority::new();
    let trusted = secret(&[("ca.crt", &authority.certificate)]);
    let anywhere = ListenEndpoint::Tcp("127.0.0.1:0".parse().unwrap());
    let plain = MockDriver::builder("plain.test").start_on(anywhere).await.unwrap();
    let found = fault(port_of(&plain), &trusted, "driver.example").await;
    assert!(
        matches!(found, TlsConnectError::NotTls | TlsConnectError::HungUp),
        "{found}"
    );

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (found, ()) = tokio::join!(fault(port, &trusted, "driver.example"), async {
        drop(listener.accept().await.unwrap());
    });
    assert_eq!(found, TlsConnectError::HungUp);
}

/// Whoever accepts and says nothing is given up within the deadline of the call.
#[tokio::test]
async fn the_deadline_covers_the_handshake() {
    let authority = Authority::new();
    let trusted = secret(&[("ca.crt", &authority.certificate)]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client(listener.local_addr().unwrap().port(), &trusted, "driver.example");
    let error = within(client.call(&Probe, Duration::from_millis(200), &Span::disabled()))
        .await
        .unwrap_err();
    assert_eq!((error.code, error.transport), (Code::DeadlineExceeded, false));
}

/// A connection that stands keeps the certificates that it was made with; the next one has the new ones.
#[tokio::test]
async fn other_certificates_count_for_new_connections() {
    let (old, new) = (Authority::new(), Authority::new());
    let driver = serve(old.server("driver.example"), Some(&old)).await;
    let before = client(
        port_of(&driver),
        &with_client(&old.certificate, &old.client()),
        "driver.example",
    );
    let quiet = Span::disabled();
    assert!(within(before.call(&Probe, LONG, &quiet)).await.unwrap());
    let (certificate, key) = new.server("driver.example");
    let changed = ServerTls {
        certificate,
        key,
        client_authority: Some(new.certificate.clone()),
    };
    driver.set_tls(&changed).unwrap();
    let after = client(
        port_of(&driver),
        &with_client(&new.certificate, &new.client()),
        "driver.example",
    );
    assert!(within(after.call(&Probe, LONG, &quiet)).await.unwrap());
    driver.script(Rule::any().times(1).delay(Duration::from_millis(1)));
    assert!(within(before.call(&Probe, LONG, &quiet)).await.unwrap());
    assert!(!before.connection().is_lost());
}

#[test]
fn each_fault_of_a_secret_names_its_key() {
    let authority = Authority::new();
    let ca = authority.certificate.as_str();
    let (certificate, key) = authority.client();
    let (other, _) = authority.client();
    let cut = |text: &str| text.replace("-----END", "-----DNE");
    let broken = "-----BEGIN PRIVATE KEY-----\ncanary!\n-----END PRIVATE KEY-----\n";
    let stranger = key.replace("PRIVATE KEY", "CERTIFICATE");
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let cases: [(&[(&str, &str)], &str); 14] = [
        (&[], "it has no key ca.crt"),
        (&[("ca.crt", " \n")], "its key ca.crt is empty"),
        (&[("ca.crt", "hello")], "its key ca.crt holds no certificate"),
        (&[("ca.crt", &key)], "its key ca.crt holds no certificate"),
        (&[("ca.crt", &cut(ca))], "its key ca.crt is cut off"),
        (
            &[("ca.crt", &stranger)],
            "its key ca.crt holds no certificate that can be read",
        ),
        (
            &[("ca.crt", ca), ("tls.crt", &certificate)],
            "it has tls.crt but no tls.key",
        ),
        (&[("ca.crt", ca), ("tls.key", &key)], "it has tls.key but no tls.crt"),
        (
            &[("ca.crt", ca), ("tls.crt", "x"), ("tls.key", &key)],
            "its key tls.crt holds no certificate",
        ),
        (
            &[("ca.crt", ca), ("tls.crt", &certificate), ("tls.key", &certificate)],
            "its key tls.key holds no private key",
        ),
        (
            &[("ca.crt", ca), ("tls.crt", &certificate), ("tls.key", &cut(&key))],
            "its key tls.key is cut off",
        ),
        (
            &[("ca.crt", ca), ("tls.crt", &certificate), ("tls.key", broken)],
            "its key tls.key is not base64",
        ),
        (
            &[("ca.crt", ca), ("tls.crt", &certificate), ("tls.key", &encrypted)],
            "its key tls.key is encrypted",
        ),
        (
            &[("ca.crt", ca), ("tls.crt", &other), ("tls.key", &key)],
            "its tls.key is not the private key of the first certificate in tls.crt",
        ),
    ];
    for (entries, wanted) in cases {
        let error: TlsSecretError = ClientCertificates::read(&secret(entries)).unwrap_err();
        assert!(error.to_string().starts_with(wanted), "{error}, wanted {wanted}");
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    }
}

/// A Secret of the type kubernetes.io/tls must have both parts of a client certificate, be they empty.
#[test]
fn a_key_without_content_is_told_as_empty_and_not_as_missing() {
    let authority = Authority::new();
    let ca = authority.certificate.as_str();
    let (certificate, key) = authority.client();
    for (authorities, certificate, key, wanted) in [
        ("", "", "", Some("its key ca.crt is empty")),
        (ca, certificate.as_str(), " \n", Some("its key tls.key is empty")),
        (ca, "", key.as_str(), Some("its key tls.crt is empty")),
        (ca, "", "\n", None),
    ] {
        let entries = secret(&[("ca.crt", authorities), ("tls.crt", certificate), ("tls.key", key)]);
        let found = ClientCertificates::read(&entries).err().map(|error| error.to_string());
        assert_eq!(found.as_deref(), wanted);
    }
}

/// Bundles have comments in whatever letters, and leftovers; only what is no PEM at all holds nothing.
#[test]
fn values_that_are_no_text_are_read_too() {
    let authority = Authority::new();
    let latin = [&b"subject=/O=Soci\xe9t\xe9\n"[..], authority.certificate.as_bytes()].concat();
    let wide: Vec<u8> = authority
        .certificate
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    for (value, wanted) in [
        (latin, None),
        (wide, Some("its key ca.crt holds no certificate in PEM form")),
    ] {
        let found = ClientCertificates::read(&Entries::from([("ca.crt".to_owned(), value)]));
        assert_eq!(found.err().map(|error| error.to_string()).as_deref(), wanted);
    }
}

#[test]
fn our_certificate_is_for_the_driver_to_judge() {
    let authority = Authority::new();
    let mut unknown = rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 99], vec![5, 0]);
    unknown.set_criticality(true);
    let mut params = CertificateParams::default();
    params.custom_extensions.push(unknown);
    let pair = authority.sign(params, ExtendedKeyUsagePurpose::ClientAuth);
    let found = ClientCertificates::read(&with_client(&authority.certificate, &pair));
    assert_eq!(found.err(), None);
}

#[test]
fn a_key_is_printed_nowhere() {
    let authority = Authority::new();
    let (certificate, key) = authority.client();
    let certificates = ClientCertificates::read(&with_client(&authority.certificate, &(certificate, key))).unwrap();
    let tls = TlsTarget::new(certificates, "driver.example").unwrap();
    assert_eq!(
        format!("{tls:?}"),
        "TlsTarget { certificates: ClientCertificates { identifies_us: true, .. }, server_name: DnsName(\"driver.example\") }"
    );
    let found = ClientCertificates::read(&secret(&[("ca.crt", &authority.certificate)])).unwrap();
    assert!(TlsTarget::new(found.clone(), "[::1]").is_some());
    assert!(TlsTarget::new(found, "no name").is_none());
}
