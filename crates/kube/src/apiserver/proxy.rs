//! The proxy on the way to the API server: `proxy-url` of the kubeconfig, else what the environment says, as Go reads it.
//!
//! Must not show a proxy's user or password: errors and logs name its host and port.

use std::net::IpAddr;

use base64::Engine as _;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use rustls::ClientConfig;
use thiserror::Error;
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt, service_fn};

use super::connect_error::ConnectError;

/// The proxy for this API server. An entry of the kubeconfig holds for all that `NO_PROXY` says.
pub(super) fn choose(
    server: &Uri,
    configured: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, ConnectError> {
    if let Some(url) = configured.filter(|url| !url.is_empty()) {
        return parse("proxy-url of the kubeconfig", url, false).map(Some);
    }
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let names = if server.scheme() == Some(&Scheme::HTTPS) {
        ["HTTPS_PROXY", "https_proxy"]
    } else {
        ["HTTP_PROXY", "http_proxy"]
    };
    let Some((from, url)) = names.into_iter().find_map(|name| Some((name, set(name)?))) else {
        return Ok(None);
    };
    let without = ["NO_PROXY", "no_proxy"].into_iter().find_map(set).unwrap_or_default();
    if is_direct(server, &without) {
        return Ok(None);
    }
    parse(from, &url, true).map(Some)
}

/// In a variable the scheme may be left out.
fn parse(from: &'static str, url: &str, is_lenient: bool) -> Result<Uri, ConnectError> {
    let complete = |url: &str| {
        let uri = url.parse::<Uri>().ok()?;
        (uri.scheme().is_some() && uri.host().is_some_and(|host| !host.is_empty())).then_some(uri)
    };
    let found = complete(url).or_else(|| is_lenient.then(|| complete(&format!("http://{url}")))?);
    let found = found.ok_or(ConnectError::ProxyUrl(from))?;
    match found.scheme_str() {
        Some("http" | "https" | "socks5") => Ok(found),
        // As in Go, where this is for variables alone.
        Some("socks5h") if is_lenient => Ok(found),
        _ => Err(ConnectError::ProxyScheme(from)),
    }
}

/// Whether `NO_PROXY` excepts this server, or it is on this machine: the rules of golang.org/x/net/http/httpproxy.
fn is_direct(server: &Uri, without: &str) -> bool {
    let Some(host) = server.host() else { return true };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let port = port_of(server).to_string();
    let address = host.parse::<IpAddr>().ok();
    if host == "localhost" || address.is_some_and(|address| address.to_canonical().is_loopback()) {
        return true;
    }
    without
        .split(',')
        .any(|entry| is_excepted(&entry.trim().to_ascii_lowercase(), &host, &port, address))
}

fn is_excepted(entry: &str, host: &str, port: &str, address: Option<IpAddr>) -> bool {
    if entry.is_empty() || entry == "*" {
        return entry == "*";
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address.to_canonical()));
    }
    // An IPv6 address has a port after brackets only, and brackets before a port only.
    let (name, of_port) = match entry.rsplit_once(':') {
        Some((name, of_port)) if !name.contains(':') => (name, Some(of_port)),
        Some((name, of_port)) if name.starts_with('[') && name.ends_with(']') => {
            (&name[1..name.len() - 1], Some(of_port))
        }
        _ => (entry, None),
    };
    if of_port.is_some_and(|of_port| of_port != port) {
        return false;
    }
    if let Ok(excepted) = name.parse::<IpAddr>() {
        return address.is_some_and(|address| address.to_canonical() == excepted.to_canonical());
    }
    if address.is_some() || name.is_empty() {
        return false;
    }
    let name = name
        .strip_prefix('*')
        .filter(|rest| rest.starts_with('.'))
        .unwrap_or(name);
    match name.strip_prefix('.') {
        Some(domain) => host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
        None => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
    }
}

fn port_of(uri: &Uri) -> u16 {
    let usual = match uri.scheme_str() {
        Some("https") => 443,
        Some("socks5" | "socks5h") => 1080,
        _ => 80,
    };
    uri.port_u16().unwrap_or(usual)
}

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
