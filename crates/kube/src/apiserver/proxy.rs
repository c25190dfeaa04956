//! The way to the API server through a proxy. `csi_attacher_kubeconfig` chooses which.
//!
//! Must not show a proxy's user or password: errors and logs name its host and port.

use base64::Engine as _;
use csi_attacher_kubeconfig::port_of;
use http::uri::Authority;
use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use rustls::ClientConfig;
use thiserror::Error;
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt, service_fn};

/// What hyper-util, whose error has no public type, says of a SOCKS proxy that does not take user and password. hyper-util offers nothing else
/// beside them; Go's client offers to come without, and a proxy that asks nobody who he is takes that only.
const WANTS_NO_USER: &str = "server does not support user/pass authentication";

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// Opens the connections that TLS is spoken over.
pub(super) type Dialer = BoxCloneSyncService<Uri, Stream, BoxError>;

/// A dialer through the proxy, if there is one. As Go's client does, a proxy that speaks TLS is trusted by the CA data of the API
/// server.
pub(super) fn dialer(tcp: HttpConnector, proxy: Option<&Uri>, tls: &ClientConfig) -> Dialer {
    let Some((proxy, host)) = proxy.and_then(|proxy| Some((proxy, proxy.host()?))) else {
        return BoxCloneSyncService::new(tcp.map_response(Stream::Http).map_err(BoxError::from));
    };
    let authority = format!("{host}:{}", port_of(proxy));
    let scheme = proxy.scheme_str().unwrap_or_default();
    let spoken = if scheme == "https" { "https" } else { "http" };
    let address = format!("{spoken}://{authority}/").parse::<Uri>().unwrap_or_default();
    let user = proxy.authority().and_then(credentials);
    match scheme {
        "socks5" | "socks5h" => {
            let open = SocksV5::new(address, tcp);
            let signed_in = user.map(|(user, password)| open.clone().with_auth(user, password));
            let socks = service_fn(move |server: Uri| {
                let (signed_in, open) = (signed_in.clone(), open.clone());
                async move {
                    if let Some(signed_in) = signed_in {
                        let outcome = signed_in.oneshot(server.clone()).await;
                        if !matches!(&outcome, Err(error) if error.to_string().contains(WANTS_NO_USER)) {
                            return outcome;
                        }
                    }
                    open.oneshot(server).await
                }
            });
            through(authority, socks.map_response(Stream::Http))
        }
        "https" => {
            let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone());
            let https = https.https_or_http().enable_http1().wrap_connector(tcp);
            through(authority, with_basic(Tunnel::new(address, https), user))
        }
        _ => {
            let tunnel = with_basic(Tunnel::new(address, tcp), user);
            through(authority, tunnel.map_response(Stream::Http))
        }
    }
}

/// A proxy is always given the port of the server, and named in errors.
fn through<C>(proxy: String, connector: C) -> Dialer
where
    C: Service<Uri, Response = Stream> + Clone + Send + Sync + 'static,
    C::Error: Into<BoxError> + 'static,
    C::Future: Send + 'static,
{
    let failed = move |error: C::Error| -> BoxError {
        let (proxy, source) = (proxy.clone(), error.into());
        Box::new(ProxyFailure { proxy, source })
    };
    BoxCloneSyncService::new(connector.map_request(with_port).map_err(failed))
}

/// User and password of a URL.
fn credentials(authority: &Authority) -> Option<(String, String)> {
    let (user, _) = authority.as_str().rsplit_once('@')?;
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    Some((plain(user), plain(password)))
}

fn with_basic<C>(tunnel: Tunnel<C>, user: Option<(String, String)>) -> Tunnel<C> {
    let header = user.and_then(|(user, password)| {
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        HeaderValue::try_from(format!("Basic {encoded}")).ok()
    });
    match header {
        Some(header) => tunnel.with_auth(header),
        None => tunnel,
    }
}

/// The connection through the proxy failed.
#[derive(Debug, Error)]
#[error("through the proxy {proxy}")]
struct ProxyFailure {
    proxy: String,
    source: BoxError,
}

fn with_port(server: Uri) -> Uri {
    let Some(host) = server.host() else { return server };
    let authority = format!("{host}:{}", port_of(&server));
    with_authority(server, &authority)
}

/// The same URL with this host and port, and without user and password.
pub(super) fn with_authority(url: Uri, host_and_port: &str) -> Uri {
    let mut parts = url.into_parts();
    parts.authority = host_and_port.parse::<Authority>().ok();
    Uri::from_parts(parts).unwrap_or_default()
}
