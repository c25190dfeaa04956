//! [`Endpoint`]: where a driver listens, in the forms that are accepted.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use super::rules;
use super::validated::SpecProblem;

const UNIX_SCHEME: &str = "unix:";
const HTTP_SCHEME: &str = "http://";
const HTTPS_SCHEME: &str = "https://";

/// Where a driver listens. Two spellings of one path (`//`, `/./`) are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// The absolute path of a unix socket, at most 107 bytes.
    Unix(PathBuf),
    /// Plain HTTP/2 on the loopback interface.
    Http {
        /// The loopback host.
        host: LoopbackHost,
        /// The TCP port, never 0.
        port: u16,
    },
    /// HTTP/2 over TLS, anywhere.
    Https {
        /// A DNS name, an IPv4 address, or an IPv6 address in brackets: as it is written in a URL.
        host: String,
        /// The TCP port, never 0.
        port: u16,
    },
}

named! {
    /// The hosts that a plain http endpoint may name; the word is the host as it is written in a URL.
    #[allow(missing_docs, reason = "the words say it")]
    pub enum LoopbackHost {
        Ipv4 = "127.0.0.1",
        Ipv6 = "[::1]",
        Localhost = "localhost",
    }
}

/// The form that the spec uses.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Http { host, port } => write!(f, "{HTTP_SCHEME}{}:{port}", host.as_str()),
            Self::Https { host, port } => write!(f, "{HTTPS_SCHEME}{host}:{port}"),
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = SpecProblem;

    fn from_str(text: &str) -> Result<Self, SpecProblem> {
        if let Some(rest) = text.strip_prefix(UNIX_SCHEME) {
            parse_unix(rest)
        } else if let Some(authority) = text.strip_prefix(HTTP_SCHEME) {
            parse_http(authority).ok_or(SpecProblem::HttpEndpoint)
        } else if let Some(authority) = text.strip_prefix(HTTPS_SCHEME) {
            parse_https(authority)
        } else {
            Err(SpecProblem::EndpointScheme)
        }
    }
}

/// `rest` is what follows `unix:`.
fn parse_unix(rest: &str) -> Result<Endpoint, SpecProblem> {
    let path = rest
        .strip_prefix("//")
        .filter(|path| path.starts_with('/'))
        .ok_or(SpecProblem::UnixPath)?;
    if path.ends_with('/') || path.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(SpecProblem::UnixPath);
    }
    if path.len() > rules::MAX_SOCKET_PATH_BYTES {
        return Err(SpecProblem::UnixPathTooLong);
    }
    Ok(Endpoint::Unix(Path::new(path).to_owned()))
}

/// `authority` is what follows `http://`.
fn parse_http(authority: &str) -> Option<Endpoint> {
    let (host_text, port_text) = authority.rsplit_once(':')?;
    let host = LoopbackHost::of_word(host_text)?;
    let port = parse_port(port_text)?;
    Some(Endpoint::Http { host, port })
}

/// `authority` is what follows `https://`.
fn parse_https(authority: &str) -> Result<Endpoint, SpecProblem> {
    let (host, port) = https_parts(authority).ok_or(SpecProblem::HttpsEndpoint)?;
    if rules::is_numeric_name(host) {
        return Err(SpecProblem::NumericHost);
    }
    let host = host.to_owned();
    Ok(Endpoint::Https { host, port })
}

/// A host, by its characters, and a port.
fn https_parts(authority: &str) -> Option<(&str, u16)> {
    let (host, port_text) = authority.rsplit_once(':')?;
    let port = parse_port(port_text)?;
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let usable = match address {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => rules::is_host(host),
    };
    usable.then_some((host, port))
}

/// `u16::from_str` also reads a plus sign and leading zeros, which a URL should not have.
fn parse_port(text: &str) -> Option<u16> {
    if !text.starts_with(|c: char| matches!(c, '1'..='9')) {
        return None;
    }
    text.parse().ok()
}
