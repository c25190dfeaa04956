//! The listener, with a judge that knows one token.

use std::net::SocketAddr;
use std::time::Duration;

use rcgen::generate_simple_self_signed;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::health::Health;

const LIMIT: Duration = Duration::from_secs(30);
const NAME: &str = "localhost";

struct OneToken;

impl TokenReviewer for OneToken {
    async fn review(&self, token: &str) -> Result<ReviewDecision, ReviewError> {
        match token {
            "good" => Ok(ReviewDecision::Allowed),
            "poor" => Ok(ReviewDecision::Forbidden),
            "outage" => Err(ReviewError("no answer".to_owned())),
            _ => Ok(ReviewDecision::Unauthenticated),
        }
    }
}

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

async fn start(certificates: ServerCertificate) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gatekeeper = Arc::new(MetricsAuthorizer::new(Duration::from_mins(1)));
    gatekeeper.ask(OneToken);
    let state = SecureState {
        metrics: Metrics::default(),
        path: "/metrics".to_owned(),
        gatekeeper,
    };
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(serve_secure(listener, state, certificates, shutdown.clone()));
    Server {
        address,
        shutdown,
        task,
    }
}

/// A certificate, and its files in a folder.
struct Pair {
    certificate: CertificateDer<'static>,
    pem: String,
    key: String,
}

fn pair() -> Pair {
    let made = generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    Pair {
        certificate: made.cert.der().clone(),
        pem: made.cert.pem(),
        key: made.signing_key.serialize_pem(),
    }
}

impl Server {
    /// What a request is answered by a server with this certificate.
    async fn ask(&self, trusted: &Pair, request: &str) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(NAME).unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        timeout(LIMIT, stream.read_to_string(&mut answer)).await.unwrap()?;
        Ok(answer)
    }

    async fn get(&self, trusted: &Pair, path: &str, token: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {token}\r\n\r\n");
        self.ask(trusted, &request).await.unwrap()
    }
}

/// A folder with the files of a certificate.
struct Files {
    folder: tempfile::TempDir,
    health: Health,
    stopped: CancellationToken,
}

impl Files {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            health: Health::new(),
            stopped: CancellationToken::new(),
        }
    }

    fn write(&self, pair: &Pair) {
        std::fs::write(self.folder.path().join("tls.key"), &pair.key).unwrap();
        std::fs::write(self.folder.path().join("tls.crt"), &pair.pem).unwrap();
    }

    async fn follow(&self) -> ServerCertificate {
        let files = CertificateFiles {
            certificate: self.folder.path().join("tls.crt"),
            key: self.folder.path().join("tls.key"),
        };
        let check = self.health.check("metrics/certificate");
        let (certificate, task) = ServerCertificate::follow(files, check, self.stopped.clone()).await;
        tokio::spawn(task);
        certificate
    }

    fn failure(&self) -> Option<String> {
        self.health.readiness().remove(0).failure
    }
}

#[tokio::test]
async fn each_token_is_answered_as_it_deserves() {
    let files = Files::new();
    let pair = pair();
    files.write(&pair);
    let server = start(files.follow().await).await;
    for (token, status) in [("good", 200), ("poor", 403), ("bad", 401), ("outage", 503)] {
        let answer = server.get(&pair, "/metrics", token).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{token}: {answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        assert_eq!(answer.contains("csi_attacher_build_info"), status == 200, "{answer}");
        assert!(!answer.contains(token), "{answer}");
    }
    assert!(
        server
            .get(&pair, "/metrics", "bad")
            .await
            .contains("www-authenticate: Bearer")
    );
    for path in ["/", "/livez", "/metrics/", "//metrics"] {
        assert!(
            server.get(&pair, path, "good").await.starts_with("HTTP/1.1 404 "),
            "{path}"
        );
    }
    let request = "POST /metrics HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer good\r\nContent-Length: 0\r\n\r\n";
    assert!(server.ask(&pair, request).await.unwrap().starts_with("HTTP/1.1 405 "));
    let none = server
        .ask(&pair, "GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n")
        .await
        .unwrap();
    assert!(none.starts_with("HTTP/1.1 401 "), "{none}");
}

#[tokio::test]
async fn plain_http_is_not_answered() {
    let files = Files::new();
    files.write(&pair());
    let server = start(files.follow().await).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer good\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A TLS alert, and maybe a reset behind it.
    let _read = timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert!(!text.contains("HTTP") && !text.contains("csi_attacher"), "{text}");
}

#[tokio::test]
async fn an_older_tls_is_refused() {
    let files = Files::new();
    files.write(&pair());
    let server = start(files.follow().await).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // A ClientHello of TLS 1.1 with one cipher and no extension.
    let mut hello = vec![0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 2];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0, 0x2f, 1, 0]);
    stream.write_all(&hello).await.unwrap();
    let mut answer = Vec::new();
    let _read = timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap();
    // An alert record that is fatal.
    assert_eq!((answer.first(), answer.get(5)), (Some(&0x15), Some(&2)), "{answer:?}");
}

/// More connections than there is room for say nothing.
#[tokio::test]
async fn who_says_nothing_is_hung_up_on_and_makes_room() {
    let files = Files::new();
    let pair = pair();
    files.write(&pair);
    let server = start(files.follow().await).await;
    let mut silent = Vec::new();
    for _ in 0..70 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let answer = timeout(LIMIT, server.get(&pair, "/metrics", "good")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut byte = [0; 1];
    assert_eq!(timeout(LIMIT, silent[0].read(&mut byte)).await.unwrap().unwrap_or(0), 0);
    server.shutdown.cancel();
    timeout(LIMIT, server.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_request_that_is_too_large_or_never_ends_is_not_answered_with_metrics() {
    let files = Files::new();
    let pair = pair();
    files.write(&pair);
    let server = start(files.follow().await).await;
    let filler = "x".repeat(64 << 10);
    let request =
        format!("GET /metrics HTTP/1.1\r\nHost: t\r\nX-Filler: {filler}\r\nAuthorization: Bearer good\r\n\r\n");
    if let Ok(answer) = server.ask(&pair, &request).await {
        assert!(!answer.contains("csi_attacher"), "{answer}");
    }
    let endless = server
        .ask(&pair, "GET /metrics HTTP/1.1\r\nAuthorization: Bearer good\r\n")
        .await;
    assert!(!endless.unwrap_or_default().contains("csi_attacher"));
    let fine = server.get(&pair, "/metrics", "good").await;
    assert!(fine.starts_with("HTTP/1.1 200 "), "{fine}");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_followed_and_one_that_cannot_be_used_leaves_the_one_before_it() {
    let files = Files::new();
    let (first, second) = (pair(), pair());
    let certificates = files.follow().await;
    assert!(certificates.current().is_none());
    let failure = files.failure().unwrap();
    assert!(
        failure.contains("tls.crt") && failure.contains("No such file"),
        "{failure}"
    );

    files.write(&Pair {
        key: second.key.clone(),
        ..pair()
    });
    let mut seen = certificates.0.clone();
    let mismatch = wait_for_failure(&files, "is not the private key of").await;
    assert!(mismatch.contains("tls.key"), "{mismatch}");

    files.write(&first);
    let one = changed(&mut seen).await;
    assert_eq!(files.failure(), None);
    std::fs::write(
        files.folder.path().join("tls.crt"),
        "-----BEGIN CERTIFICATE-----\nc2VjcmV0",
    )
    .unwrap();
    // Each look is over before the time of the next one comes.
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(Arc::ptr_eq(&one, &certificates.current().unwrap()), "the one before it");
    assert_eq!(files.failure(), None);
    files.write(&second);
    let two = changed(&mut seen).await;
    assert!(!Arc::ptr_eq(&one, &two));
    files.stopped.cancel();
}

/// The certificate that comes next.
async fn changed(
    seen: &mut tokio::sync::watch::Receiver<Option<Arc<rustls::ServerConfig>>>,
) -> Arc<rustls::ServerConfig> {
    timeout(Duration::from_mins(10), seen.changed()).await.unwrap().unwrap();
    seen.borrow_and_update().clone().unwrap()
}

async fn wait_for_failure(files: &Files, words: &str) -> String {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    for _ in 0..600 {
        seconds.tick().await;
        if let Some(failure) = files.failure().filter(|failure| failure.contains(words)) {
            return failure;
        }
    }
    panic!("{:?}", files.failure())
}

/// Takes any certificate: that of a server which made its own can only be pinned.
#[derive(Debug)]
struct Anything(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let supported = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, supported)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let supported = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, supported)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[tokio::test]
async fn a_certificate_serves_tls_1_2_and_1_3() {
    let files = Files::new();
    files.write(&pair());
    let server = start(files.follow().await).await;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anything(Arc::clone(&provider))))
            .with_no_client_auth();
        let stream = TcpStream::connect(server.address).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer good\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(LIMIT, stream.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}
