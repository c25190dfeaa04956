use std::io::Write as _;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use super::*;
use crate::exporter::tests::span;
use crate::tests::swallowing_listener;

#[path = "collector_tests/keys.rs"]
mod keys;

fn transport() -> TransportSettings {
    TransportSettings {
        compression: None,
        timeout: Duration::from_secs(1),
        certificate: None,
        client_certificate: None,
        client_key: None,
        headers: HeaderMap::new(),
    }
}

fn collector(protocol: Protocol, endpoint: &str, transport: TransportSettings) -> OtlpSink {
    lasting_collector(protocol, endpoint, transport, Duration::from_secs(2))
}

fn lasting_collector(
    protocol: Protocol,
    endpoint: &str,
    transport: TransportSettings,
    batch_timeout: Duration,
) -> OtlpSink {
    let endpoint = endpoint.to_owned();
    let resource = Resource::builder_empty().build();
    let settings = OtlpSettings { protocol, endpoint };
    OtlpSink::new(settings, transport, batch_timeout, resource)
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Grpc, Protocol::HttpBinary, Protocol::HttpJson];

#[tokio::test]
async fn tls_files_are_read_for_all_transports() {
    let build = |protocol, transport| collector(protocol, "https://127.0.0.1:1", transport).build();
    let directory = tempfile::tempdir().unwrap();
    // Ours is for the collector to judge, also with what nobody here knows.
    let mut unknown = rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 99], vec![5, 0]);
    unknown.set_criticality(true);
    let mut params = rcgen::CertificateParams::new(vec!["collector".to_owned()]).unwrap();
    params.custom_extensions.push(unknown);
    let signing_key = rcgen::KeyPair::generate().unwrap();
    let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    std::fs::write(&certificate, params.self_signed(&signing_key).unwrap().pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for protocol in PROTOCOLS {
        let good = TransportSettings {
            certificate: Some(certificate.clone()),
            client_certificate: Some(certificate.clone()),
            client_key: Some(key.clone()),
            ..transport()
        };
        assert!(build(protocol, good.clone()).is_ok(), "{protocol:?}");

        let missing = TransportSettings {
            certificate: Some(directory.path().join("none.pem")),
            ..good.clone()
        };
        assert!(
            matches!(build(protocol, missing), Err(ExporterError::File(..))),
            "{protocol:?}"
        );
        let half = TransportSettings {
            client_key: None,
            ..good.clone()
        };
        assert!(
            matches!(build(protocol, half), Err(ExporterError::HalfIdentity)),
            "{protocol:?}"
        );
        let no_key = TransportSettings {
            client_key: Some(empty.clone()),
            ..good
        };
        assert!(build(protocol, no_key).is_err(), "{protocol:?}");
    }
    let no_roots = TransportSettings {
        certificate: Some(empty),
        ..transport()
    };
    assert!(matches!(
        build(Protocol::HttpBinary, no_roots),
        Err(ExporterError::Pem(..))
    ));
}

/// A certificate of `localhost` with its key, and the one to trust.
struct Pki {
    directory: tempfile::TempDir,
    certificate: String,
    key: String,
    /// Whether the certificate serves as the client's as well, and the server asks for it.
    is_mutual: bool,
}

impl Pki {
    fn new() -> Self {
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let mut authority = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority_certificate = authority.self_signed(&authority_key).unwrap();
        let issuer = rcgen::Issuer::new(authority, authority_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = leaf.signed_by(&key, &issuer).unwrap().pem();
        Self::with(&authority_certificate.pem(), certificate, &key, true)
    }

    /// What `openssl req -x509` makes: self-signed, with CA:TRUE.
    fn self_signed() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self::with(&certificate.clone(), certificate, &key, false)
    }

    fn with(trusted: &str, certificate: String, key: &rcgen::KeyPair, is_mutual: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), trusted).unwrap();
        std::fs::write(directory.path().join("cert.pem"), &certificate).unwrap();
        let key = key.serialize_pem();
        std::fs::write(directory.path().join("key.pem"), &key).unwrap();
        Self {
            directory,
            certificate,
            key,
            is_mutual,
        }
    }

    fn ca(&self) -> Vec<u8> {
        std::fs::read(self.directory.path().join("ca.pem")).unwrap()
    }

    fn transport(&self) -> TransportSettings {
        let file = |name: &str| Some(self.directory.path().join(name));
        TransportSettings {
            timeout: Duration::from_secs(20),
            certificate: file("ca.pem"),
            client_certificate: file("cert.pem").filter(|_| self.is_mutual),
            client_key: file("key.pem").filter(|_| self.is_mutual),
            ..transport()
        }
    }
}

/// Answers one HTTPS request, and returns the request line.
fn serve_one_https_request(pki: &Pki, listener: std::net::TcpListener) -> std::thread::JoinHandle<String> {
    use std::io::{BufRead, BufReader, Read};
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pki.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = if pki.is_mutual {
        verifier
    } else {
        verifier.allow_unauthenticated()
    };
    let chain = vec![CertificateDer::from_pem_slice(pki.certificate.as_bytes()).unwrap()];
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(pki.key.as_bytes()).unwrap())
        .unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut reader = BufReader::new(rustls::StreamOwned::new(connection, stream));
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_ascii_lowercase());
        }
        let length = head
            .iter()
            .find_map(|line| line.strip_prefix("content-length: "))
            .unwrap();
        reader.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        reader.get_mut().write_all(answer).unwrap();
        head.swap_remove(0)
    })
}

#[tokio::test]
async fn https_uses_the_configured_trust_and_identity() {
    let pki = Pki::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = serve_one_https_request(&pki, listener);
    let endpoint = format!("https://localhost:{port}/v1/traces");
    let mut collector = collector(Protocol::HttpBinary, &endpoint, pki.transport());
    collector.export(vec![span()]).await.unwrap();
    assert_eq!(server.join().unwrap(), "post /v1/traces http/1.1");
}

/// A collector over gRPC by TLS, and where it is. It has no service: UNIMPLEMENTED can only come through the handshake.
async fn serve_grpc(pki: &Pki) -> (tokio::task::JoinHandle<Result<(), tonic::transport::Error>>, String) {
    let mut tls = ServerTlsConfig::new().identity(Identity::from_pem(&pki.certificate, &pki.key));
    if pki.is_mutual {
        tls = tls.client_ca_root(Certificate::from_pem(pki.ca()));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let router = Server::builder()
        .tls_config(tls)
        .unwrap()
        .add_routes(tonic::service::Routes::default());
    let server = tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    (server, endpoint)
}

#[tokio::test]
async fn grpc_over_tls_uses_the_configured_trust_and_identity() {
    let pki = Pki::new();
    let (server, endpoint) = serve_grpc(&pki).await;
    let mut known = collector(Protocol::Grpc, &endpoint, pki.transport());
    let error = known.export(vec![span()]).await.unwrap_err();
    assert!(format!("{error:?}").contains("Unimplemented"), "{error:?}");
    // The same without our certificate does not get through.
    let anonymous = TransportSettings {
        client_certificate: None,
        client_key: None,
        timeout: Duration::from_secs(2),
        ..pki.transport()
    };
    let mut unknown = collector(Protocol::Grpc, &endpoint, anonymous);
    let error = unknown.export(vec![span()]).await.unwrap_err();
    assert!(!format!("{error:?}").contains("Unimplemented"), "{error:?}");
    server.abort();
}

#[tokio::test]
async fn a_self_signed_certificate_is_trusted_by_itself_over_all_transports() {
    let (pki, stranger) = (Pki::self_signed(), Pki::new());
    let (server, endpoint) = serve_grpc(&pki).await;
    let mut over_grpc = collector(Protocol::Grpc, &endpoint, pki.transport());
    let error = over_grpc.export(vec![span()]).await.unwrap_err();
    assert!(format!("{error:?}").contains("Unimplemented"), "{error:?}");
    // What is trusted is another one, and the error says what to do.
    let others = TransportSettings {
        certificate: stranger.transport().certificate,
        timeout: Duration::from_secs(2),
        ..pki.transport()
    };
    let mut refused = collector(Protocol::Grpc, &endpoint, others);
    let error = refused.export(vec![span()]).await.unwrap_err();
    let words = "to the file of OTEL_EXPORTER_OTLP_CERTIFICATE";
    assert!(format!("{error:?}").contains(words), "{error:?}");
    server.abort();
    for protocol in [Protocol::HttpBinary, Protocol::HttpJson] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("https://localhost:{}/v1/traces", listener.local_addr().unwrap().port());
        let mut over_http = collector(protocol, &endpoint, pki.transport());
        assert!(is_exported(&mut over_http, &pki, &listener).await, "{protocol:?}");
    }
}

/// A proxy that lost the way to the collector acknowledges what it gets over the connections that it has, and serves new ones.
#[tokio::test]
async fn a_connection_that_does_not_answer_is_replaced() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (accepted, first) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let given_up = listener.accept().await.unwrap();
        accepted.send(()).unwrap();
        let timed_out = listener.accept().await.unwrap();
        // No service is added: UNIMPLEMENTED can only come from the server.
        let router = Server::builder().add_routes(tonic::service::Routes::default());
        let served = router.serve_with_incoming(TcpListenerStream::new(listener)).await;
        drop((given_up, timed_out));
        served
    });
    let mut collector = collector(Protocol::Grpc, &endpoint, transport());
    tokio::select! {
        result = collector.export(vec![span()]) => panic!("{result:?}"),
        accepted = first => accepted.unwrap(),
    }
    for is_answered in [false, true] {
        let error = collector.export(vec![span()]).await.unwrap_err();
        assert_eq!(format!("{error:?}").contains("Unimplemented"), is_answered, "{error:?}");
    }
    server.abort();
}

/// A batch waits for a collector that restarts, for as long as there is time.
#[tokio::test]
async fn a_batch_is_sent_again_until_the_collector_is_back() {
    const AWAY: Duration = Duration::from_secs(3);
    let limit = Duration::from_secs(20);
    // Bound and not listening: connections are refused, and nobody else gets the port.
    let reserve = || {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    };
    let ((http_socket, http), (grpc_socket, grpc)) = (reserve(), reserve());
    let (listening, http_back) = std::sync::mpsc::channel::<std::net::TcpListener>();
    let server = std::thread::spawn(move || {
        use std::io::Read as _;
        let (mut stream, _) = http_back.recv().unwrap().accept().unwrap();
        let mut head = [0; 4096];
        let read = stream.read(&mut head).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            .unwrap();
        read
    });
    // No service is added: UNIMPLEMENTED can only come from the server, and ends the retries.
    let router = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
    let back = tokio::spawn(async move {
        tokio::time::sleep(AWAY).await;
        let listener = http_socket.listen(16).unwrap().into_std().unwrap();
        listener.set_nonblocking(false).unwrap();
        listening.send(listener).unwrap();
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(grpc_socket.listen(16).unwrap());
        router.serve_with_incoming(incoming).await
    });
    let mut over_http = lasting_collector(
        Protocol::HttpBinary,
        &format!("http://{http}/v1/traces"),
        transport(),
        limit,
    );
    let mut over_grpc = lasting_collector(Protocol::Grpc, &format!("http://{grpc}"), transport(), limit);
    let (sent, answered) = tokio::join!(over_http.export(vec![span()]), over_grpc.export(vec![span()]));
    sent.unwrap();
    let error = answered.unwrap_err();
    assert!(format!("{error:?}").contains("Unimplemented"), "{error:?}");
    assert!(server.join().unwrap() > 0);
    back.abort();
}

/// The SDK says of every error of HTTP that it is one of the network.
#[tokio::test]
async fn the_error_of_an_export_says_why() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let endpoint = format!("http://{nobody}/v1/traces");
    let mut collector = collector(Protocol::HttpBinary, &endpoint, transport());
    let error = collector.export(vec![span()]).await.unwrap_err();
    assert!(format!("{error:?}").contains("refused"), "{error:?}");
    let hint = "; gRPC is usually at port 4317, HTTP at 4318";
    for words in [&*format!("{endpoint} over http/protobuf: "), hint] {
        assert!(format!("{error:?}").contains(words), "{error:?}");
    }
}

/// Connecting takes a part of the time of a request, so that other addresses of a name are tried, and a batch ends at its time.
#[tokio::test]
async fn an_address_that_swallows_packets_does_not_take_the_time_of_a_request() {
    let (listener, _queued) = swallowing_listener();
    let address = listener.local_addr().unwrap();
    for (protocol, path) in [
        (Protocol::Grpc, ""),
        (Protocol::HttpBinary, "/v1/traces"),
        (Protocol::HttpJson, "/v1/traces"),
    ] {
        let started = std::time::Instant::now();
        let mut collector = collector(protocol, &format!("http://{address}{path}"), transport());
        let error = collector.export(vec![span()]).await.unwrap_err();
        // Otherwise the kernel goes on for two minutes, and the retries for much longer than 10 s.
        assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
        if protocol != Protocol::Grpc {
            assert!(format!("{error:?}").contains("tcp connect error"), "{error:?}");
        }
    }
}

/// Exports one span to a server of this authority.
async fn is_exported(collector: &mut OtlpSink, pki: &Pki, listener: &std::net::TcpListener) -> bool {
    let server = serve_one_https_request(pki, listener.try_clone().unwrap());
    let exported = collector.export(vec![span()]).await;
    exported.is_ok() && server.join().is_ok()
}

#[tokio::test]
async fn certificates_are_read_when_they_appear_and_when_they_change() {
    let pki = Pki::new();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let put = |pki: &Pki, names: &[&str]| {
        for name in names {
            std::fs::copy(pki.directory.path().join(name), file(name)).unwrap();
        }
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("https://localhost:{}/v1/traces", listener.local_addr().unwrap().port());
    let transport = TransportSettings {
        certificate: Some(file("ca.pem")),
        client_certificate: Some(file("cert.pem")),
        client_key: Some(file("key.pem")),
        ..pki.transport()
    };
    let mut collector = collector(Protocol::HttpBinary, &endpoint, transport);
    // Nothing is there, then only a part.
    assert_eq!(collector.export(vec![span()]).await, Err(ExportError::NotReady));
    put(&pki, &["ca.pem", "cert.pem"]);
    assert_eq!(collector.export(vec![span()]).await, Err(ExportError::NotReady));
    assert!(
        collector.logged.as_ref().unwrap().contains("key.pem"),
        "{:?}",
        collector.logged
    );
    put(&pki, &["key.pem"]);
    assert!(is_exported(&mut collector, &pki, &listener).await);
    assert_eq!(collector.logged, None);
    // What cannot be used leaves in use what was there.
    std::fs::write(file("ca.pem"), "half a file").unwrap();
    assert!(is_exported(&mut collector, &pki, &listener).await);
    assert!(
        collector.logged.as_ref().unwrap().contains("ca.pem"),
        "{:?}",
        collector.logged
    );
    // Another authority, of which the one before knows nothing.
    let renewed = Pki::new();
    put(&renewed, &["ca.pem", "cert.pem", "key.pem"]);
    assert!(is_exported(&mut collector, &renewed, &listener).await);
    assert_eq!(collector.logged, None);
}

#[test]
fn only_our_headers_are_sent() {
    let map = |pairs: &[(&'static str, &'static str)]| {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, http::HeaderValue::from_static(value))
        });
        pairs.collect::<HeaderMap>()
    };
    let mut all = map(&[
        ("content-type", "x"),
        ("authorization", "of another"),
        ("user-agent", "sdk"),
    ]);
    replace(&mut all, &map(&[("x-token", "1"), ("user-agent", "ours")]));
    assert_eq!(
        all,
        map(&[("content-type", "x"), ("user-agent", "ours"), ("x-token", "1")])
    );
}
