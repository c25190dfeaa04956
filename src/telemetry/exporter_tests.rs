use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};

use super::*;

fn settings(protocol: OtlpProtocol) -> OtlpSettings {
    OtlpSettings {
        protocol,
        endpoint: "https://127.0.0.1:1".to_owned(),
        headers: http::HeaderMap::new(),
        timeout: Duration::from_secs(1),
        certificate: None,
        client_certificate: None,
        client_key: None,
    }
}

fn build(settings: OtlpSettings) -> Result<Exporters, ExporterError> {
    Exporters::build(
        &[ExporterSettings::Otlp(Box::new(settings))],
        &Resource::builder_empty().build(),
    )
}

#[tokio::test]
async fn tls_files_are_read_for_both_transports() {
    let directory = tempfile::tempdir().unwrap();
    let identity = rcgen::generate_simple_self_signed(vec!["collector".to_owned()]).unwrap();
    let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    std::fs::write(&certificate, identity.cert.pem()).unwrap();
    std::fs::write(&key, identity.signing_key.serialize_pem()).unwrap();
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::HttpProtobuf] {
        let mut good = settings(protocol);
        good.certificate = Some(certificate.clone());
        good.client_certificate = Some(certificate.clone());
        good.client_key = Some(key.clone());
        assert!(build(good.clone()).is_ok(), "{protocol:?}");

        let missing = OtlpSettings {
            certificate: Some(directory.path().join("none.pem")),
            ..good.clone()
        };
        assert!(
            matches!(build(missing), Err(ExporterError::File { .. })),
            "{protocol:?}"
        );
        let half = OtlpSettings {
            client_key: None,
            ..good.clone()
        };
        assert!(matches!(build(half), Err(ExporterError::HalfIdentity)), "{protocol:?}");
        let no_key = OtlpSettings {
            client_key: Some(empty.clone()),
            ..good
        };
        assert!(build(no_key).is_err(), "{protocol:?}");
    }
    let mut http = settings(OtlpProtocol::HttpProtobuf);
    http.certificate = Some(empty);
    assert!(matches!(build(http), Err(ExporterError::Pem { .. })));
}

/// A certificate authority that signed the certificate of `localhost`, which serves as the client's as well.
struct Pki {
    directory: tempfile::TempDir,
    certificate: String,
    key: String,
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
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), authority_certificate.pem()).unwrap();
        std::fs::write(directory.path().join("cert.pem"), &certificate).unwrap();
        let key = key.serialize_pem();
        std::fs::write(directory.path().join("key.pem"), &key).unwrap();
        Self {
            directory,
            certificate,
            key,
        }
    }

    fn ca(&self) -> Vec<u8> {
        std::fs::read(self.directory.path().join("ca.pem")).unwrap()
    }

    fn settings(&self, protocol: OtlpProtocol, endpoint: String) -> OtlpSettings {
        let file = |name: &str| Some(self.directory.path().join(name));
        OtlpSettings {
            endpoint,
            timeout: Duration::from_secs(20),
            certificate: file("ca.pem"),
            client_certificate: file("cert.pem"),
            client_key: file("key.pem"),
            ..settings(protocol)
        }
    }
}

/// Answers one HTTPS request of a client with a certificate, and returns the request line.
fn serve_one_https_request(pki: &Pki, listener: std::net::TcpListener) -> std::thread::JoinHandle<String> {
    use std::io::{BufRead, BufReader, Read};
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pki.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
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
    let exporters = build(pki.settings(OtlpProtocol::HttpProtobuf, endpoint)).unwrap();
    exporters.export(vec![span()]).await.unwrap();
    assert_eq!(server.join().unwrap(), "post /v1/traces http/1.1");
}

#[tokio::test]
async fn grpc_over_tls_uses_the_configured_trust_and_identity() {
    use tonic::transport::{Server, ServerTlsConfig};
    let pki = Pki::new();
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&pki.certificate, &pki.key))
        .client_ca_root(Certificate::from_pem(pki.ca()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    // No service is added: UNIMPLEMENTED can only come through the handshake.
    let router = Server::builder()
        .tls_config(tls)
        .unwrap()
        .add_routes(tonic::service::Routes::default());
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tokio::spawn(router.serve_with_incoming(incoming));
    let exporters = build(pki.settings(OtlpProtocol::Grpc, endpoint.clone())).unwrap();
    let error = exporters.export(vec![span()]).await.unwrap_err();
    assert!(error.contains("Unimplemented"), "{error}");
    // The same without our certificate does not get through.
    let anonymous = pki.settings(OtlpProtocol::Grpc, endpoint);
    let anonymous = OtlpSettings {
        client_certificate: None,
        client_key: None,
        timeout: Duration::from_secs(2),
        ..anonymous
    };
    let error = build(anonymous).unwrap().export(vec![span()]).await.unwrap_err();
    assert!(!error.contains("Unimplemented"), "{error}");
    server.abort();
}

fn span() -> SpanData {
    SpanData {
        span_context: SpanContext::new(
            TraceId::from(1),
            SpanId::from(2),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: SpanId::from(3),
        parent_span_is_remote: false,
        span_kind: SpanKind::Client,
        name: "GET \"x\"".into(),
        start_time: UNIX_EPOCH,
        end_time: UNIX_EPOCH + Duration::from_secs(1),
        attributes: vec![KeyValue::new("a", "b\n")],
        dropped_attributes_count: 0,
        events: opentelemetry_sdk::trace::SpanEvents::default(),
        links: opentelemetry_sdk::trace::SpanLinks::default(),
        status: Status::error("refused"),
        instrumentation_scope: InstrumentationScope::default(),
    }
}

#[test]
fn the_console_writes_one_json_object_a_line() {
    let span = span();
    let mut output = Vec::new();
    write_lines(&[span.clone(), span], &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    assert_eq!(text.lines().count(), 2);
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let expected = serde_json::json!({
            "name": "GET \"x\"", "kind": "Client", "trace_id": "00000000000000000000000000000001",
            "span_id": "0000000000000002", "parent_span_id": "0000000000000003", "start": "1970-01-01T00:00:00Z",
            "end": "1970-01-01T00:00:01Z", "error": "refused", "events": [], "attributes": {"a": "b\n"},
        });
        assert_eq!(line, expected);
    }
}
