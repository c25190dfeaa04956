//! An API server in this process that speaks TLS, certificates for it and its clients, and kubeconfigs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube::{Client, Config};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SignatureAlgorithm};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::apiserver::{ConnectError, connect, load_config};
use crate::error_chain::chain;

/// A certificate and its key.
#[derive(Clone)]
pub(super) struct Pair {
    pub certificate: String,
    pub key: String,
    der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

impl Pair {
    fn new(certificate: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
            key_der: key.serialize_der(),
        }
    }
}

/// A CA.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub certificate: String,
    der: CertificateDer<'static>,
}

impl Authority {
    pub fn new(name: &str, kind: &'static SignatureAlgorithm) -> Self {
        let key = KeyPair::generate_for(kind).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self {
            certificate: certificate.pem(),
            der: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate for a server of these names, or for a client that is called by the first of them.
    pub fn issue(&self, names: &[&str], kind: &'static SignatureAlgorithm) -> Pair {
        let key = KeyPair::generate_for(kind).unwrap();
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, names[0]);
        Pair::new(&params.signed_by(&key, &self.issuer).unwrap(), &key)
    }
}

/// What `openssl req -x509` makes: self-signed, with CA:TRUE.
pub(super) fn self_signed(name: &str, kind: &'static SignatureAlgorithm) -> Pair {
    let key = KeyPair::generate_for(kind).unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Pair::new(&params.self_signed(&key).unwrap(), &key)
}

/// How a server shows itself, and whose clients it knows.
pub(super) fn acceptor(pair: &Pair, clients: Option<&Authority>) -> TlsAcceptor {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.der.clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        }
    };
    let key = PrivateKeyDer::try_from(pair.key_der.clone()).unwrap();
    let mut config = builder.with_single_cert(vec![pair.der.clone()], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// The server. Clones share it.
#[derive(Clone)]
pub(super) struct Server {
    pub address: SocketAddr,
    acceptor: Arc<Mutex<TlsAcceptor>>,
    /// Clients, and values of `Authorization`, that get 401.
    refused: Arc<Mutex<Vec<String>>>,
    /// What the last request had in its header `Authorization`.
    pub authorization: Arc<Mutex<String>>,
}

impl Server {
    pub async fn start(acceptor: TlsAcceptor) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            acceptor: Arc::new(Mutex::new(acceptor)),
            refused: Arc::default(),
            authorization: Arc::default(),
        };
        let serving = server.clone();
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                tokio::spawn(serving.clone().serve(tcp));
            }
        });
        server
    }

    /// Answers each request with the names that the client was called in the handshake: itself and the server.
    async fn serve(self, tcp: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let acceptor = self.acceptor.lock().clone();
        let Ok(stream) = acceptor.accept(tcp).await else { return };
        let tls = stream.get_ref().1;
        let client = tls
            .peer_certificates()
            .map(|chain| common_name(&chain[0]))
            .unwrap_or_default();
        let server = tls.server_name().unwrap_or_default().to_owned();
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let sent = request.headers().get(hyper::header::AUTHORIZATION);
            let sent = sent.map(|sent| sent.to_str().unwrap().to_owned());
            let sent = sent.unwrap_or_default();
            let is_refused = |who: &String| self.refused.lock().contains(who);
            let status = if is_refused(&client) || is_refused(&sent) {
                StatusCode::UNAUTHORIZED
            } else {
                StatusCode::OK
            };
            *self.authorization.lock() = sent;
            let mut answer = Response::new(Full::new(Bytes::from(format!("{client}@{server}"))));
            *answer.status_mut() = status;
            async move { Ok::<_, hyper::Error>(answer) }
        });
        let connection = auto::Builder::new(TokioExecutor::new());
        drop(connection.serve_connection(TokioIo::new(stream), service).await);
    }

    /// What new connections meet.
    pub fn show(&self, acceptor: TlsAcceptor) {
        *self.acceptor.lock() = acceptor;
    }

    pub fn refuse(&self, who: &str) {
        self.refused.lock().push(who.to_owned());
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }
}

fn common_name(certificate: &CertificateDer<'_>) -> String {
    let (_, parsed) = X509Certificate::from_der(certificate).unwrap();
    let name = parsed.subject().iter_common_name().next().unwrap();
    name.as_str().unwrap().to_owned()
}

/// A kubeconfig and the files that it names.
pub(super) struct Kubeconfig {
    folder: TempDir,
    cluster: Value,
    user: Value,
}

impl Kubeconfig {
    pub fn new(server: &str) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            cluster: json!({ "server": server }),
            user: json!({}),
        }
    }

    pub fn cluster(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.cluster[field] = value.into();
        self
    }

    pub fn user(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.user[field] = value.into();
        self
    }

    pub fn trusts(self, certificate: &str) -> Self {
        self.cluster("certificate-authority-data", base64(certificate))
    }

    pub fn is(self, pair: &Pair) -> Self {
        let with = self.user("client-certificate-data", base64(&pair.certificate));
        with.user("client-key-data", base64(&pair.key))
    }

    /// The kubeconfig names its files without a folder.
    pub fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(file);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub async fn load(&self) -> Result<Config, ConnectError> {
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
            "clusters": [{ "name": "k", "cluster": self.cluster }],
            "users": [{ "name": "u", "user": self.user }],
        });
        load_config(Some(&self.write("kubeconfig", &text.to_string()))).await
    }

    pub async fn connect(&self) -> Result<Client, ConnectError> {
        connect(&self.load().await?)
    }
}

pub(super) fn base64(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// The answer to a request, or the whole error.
pub(super) async fn ask(client: &Client) -> Result<String, String> {
    let request = Request::get("/version").body(Vec::new()).unwrap();
    client.request_text(request).await.map_err(|error| chain(&error))
}
