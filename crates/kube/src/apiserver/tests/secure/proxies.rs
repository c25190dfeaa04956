//! Proxies on the way to the API server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::server::{Authority, Kubeconfig, Server, acceptor, ask, base64};
use super::{HOST, P256};

/// Nobody but the proxy knows where this is.
const API: &str = "https://api.example.com:6443";
const USER: &str = "me";
const PASSWORD: &str = "p@ss:canary";
const IN_URL: &str = "me:p%40ss%3Acanary";

/// Passes everything on to one server, and keeps what it was asked for.
#[derive(Clone)]
struct Proxy {
    server: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// The address of the proxy.
    async fn start(server: &Server, tls: Option<TlsAcceptor>, is_socks: bool) -> (Self, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Self {
            server: server.address,
            asked: Arc::default(),
        };
        let serving = proxy.clone();
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (serving, tls) = (serving.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => serving.tunnel(tls.accept(tcp).await.unwrap()).await,
                        None if is_socks => serving.socks(tcp).await,
                        None => serving.tunnel(tcp).await,
                    }
                });
            }
        });
        (proxy, address)
    }

    async fn tunnel(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut stream = BufReader::new(stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_owned());
        }
        let authorization = format!("Proxy-Authorization: Basic {}", base64(&format!("{USER}:{PASSWORD}")));
        let is_known = head.iter().any(|line| line.eq_ignore_ascii_case(&authorization));
        self.asked.lock().push(head[0].clone());
        if !is_known {
            let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
            stream.write_all(refusal).await.unwrap();
            return;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        self.pass_on(stream).await;
    }

    /// SOCKS 5 (RFC 1928, RFC 1929), for one user, by the name of the server.
    async fn socks(self, mut stream: TcpStream) {
        let mut greeting = [0; 3];
        stream.read_exact(&mut greeting).await.unwrap();
        assert_eq!(greeting, [5, 1, 2], "user and password are offered");
        stream.write_all(&[5, 2]).await.unwrap();
        let mut sign_in = vec![0; 3 + USER.len() + PASSWORD.len()];
        stream.read_exact(&mut sign_in).await.unwrap();
        let parts = [&[1, 2], USER.as_bytes(), &[11], PASSWORD.as_bytes()];
        assert_eq!(sign_in, parts.concat());
        stream.write_all(&[1, 0]).await.unwrap();
        self.socks_request(stream).await;
    }

    /// What follows once it is settled who asks.
    async fn socks_request(self, mut stream: TcpStream) {
        let mut request = vec![0; 5 + "api.example.com".len() + 2];
        stream.read_exact(&mut request).await.unwrap();
        assert_eq!(request[..5], [5, 1, 0, 3, 15]);
        let name = String::from_utf8(request[5..20].to_vec()).unwrap();
        self.asked.lock().push(name);
        stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
        self.pass_on(stream).await;
    }

    async fn pass_on(self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut server = TcpStream::connect(self.server).await.unwrap();
        drop(copy_bidirectional(&mut stream, &mut server).await);
    }
}

#[tokio::test]
async fn the_api_server_is_reached_through_each_kind_of_proxy() {
    let authority = Authority::new("root", P256);
    let server = Server::start(acceptor(&authority.issue(&["api.example.com"], P256), None)).await;
    let of_proxy = authority.issue(&[HOST], P256);
    for (scheme, asked) in [
        ("http", "CONNECT api.example.com:6443 HTTP/1.1"),
        ("https", "CONNECT api.example.com:6443 HTTP/1.1"),
        ("socks5", "api.example.com"),
    ] {
        let tls = (scheme == "https").then(|| acceptor(&of_proxy, None));
        let (proxy, address) = Proxy::start(&server, tls, scheme == "socks5").await;
        let kubeconfig = Kubeconfig::new(API).trusts(&authority.certificate);
        let kubeconfig = kubeconfig.cluster("proxy-url", format!("{scheme}://{IN_URL}@{address}"));
        let client = kubeconfig.connect().await.unwrap();
        assert_eq!(ask(&client).await, Ok("@api.example.com".to_owned()), "{scheme}");
        assert_eq!(*proxy.asked.lock(), [asked], "{scheme}");
    }
}

/// As by Go's client.
#[tokio::test]
async fn a_socks_proxy_that_wants_no_user_is_asked_without_one() {
    let authority = Authority::new("root", P256);
    let server = Server::start(acceptor(&authority.issue(&["api.example.com"], P256), None)).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let proxy = Proxy {
        server: server.address,
        asked: Arc::default(),
    };
    let serving = proxy.clone();
    tokio::spawn(async move {
        // No method that is offered will do; then the one without a user does (RFC 1928, 3).
        for (offered, chosen) in [(2, 255), (0, 0)] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut greeting = [0; 3];
            stream.read_exact(&mut greeting).await.unwrap();
            assert_eq!(greeting, [5, 1, offered]);
            stream.write_all(&[5, chosen]).await.unwrap();
            if chosen == 0 {
                serving.clone().socks_request(stream).await;
            }
        }
    });
    let kubeconfig = Kubeconfig::new(API).trusts(&authority.certificate);
    let kubeconfig = kubeconfig.cluster("proxy-url", format!("socks5://{IN_URL}@{address}"));
    let client = kubeconfig.connect().await.unwrap();
    assert_eq!(ask(&client).await, Ok("@api.example.com".to_owned()));
    assert_eq!(*proxy.asked.lock(), ["api.example.com"]);
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_without_its_password() {
    let authority = Authority::new("root", P256);
    let server = Server::start(acceptor(&authority.issue(&["api.example.com"], P256), None)).await;
    let (_proxy, address) = Proxy::start(&server, None, false).await;
    let kubeconfig = Kubeconfig::new(API).trusts(&authority.certificate);
    let kubeconfig = kubeconfig.cluster("proxy-url", format!("http://me:other-canary@{address}"));
    let error = ask(&kubeconfig.connect().await.unwrap()).await.unwrap_err();
    let words = format!("through the proxy {address}: tunnel error: proxy auth");
    assert!(error.contains(&words), "{error}");
    assert!(!error.contains("canary"), "{error}");
}
