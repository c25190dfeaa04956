//! [`Endpoint`]: where a driver listens, in the forms that are accepted.

use std::fmt;
use std::path::{Path, PathBuf};

use super::rules;
use super::validated::Problem;

const UNIX_SCHEME: &str = "unix:";
const HTTP_SCHEME: &str = "http://";

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
}

/// The hosts that a plain http endpoint may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoopbackHost {
    /// `127.0.0.1`
    Ipv4,
    /// `[::1]`
    Ipv6,
    /// `localhost`
    Localhost,
}

impl LoopbackHost {
    const ALL: [Self; 3] = [Self::Ipv4, Self::Ipv6, Self::Localhost];

    /// The host as it is written in a URL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4 => "127.0.0.1",
            Self::Ipv6 => "[::1]",
            Self::Localhost => "localhost",
        }
    }
}

/// The form that the spec uses.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Http { host, port } => write!(f, "{HTTP_SCHEME}{}:{port}", host.as_str()),
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        if let Some(rest) = text.strip_prefix(UNIX_SCHEME) {
            parse_unix(rest)
        } else if let Some(authority) = text.strip_prefix(HTTP_SCHEME) {
            parse_http(authority).ok_or(Problem::HttpEndpoint)
        } else {
            Err(Problem::EndpointScheme)
        }
    }
}

/// `rest` is what follows `unix:`.
fn parse_unix(rest: &str) -> Result<Endpoint, Problem> {
    let path = rest
        .strip_prefix("//")
        .filter(|path| path.starts_with('/'))
        .ok_or(Problem::UnixPath)?;
    if path.ends_with('/') || path.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(Problem::UnixPath);
    }
    if path.len() > rules::MAX_SOCKET_PATH_BYTES {
        return Err(Problem::UnixPathTooLong);
    }
    Ok(Endpoint::Unix(Path::new(path).to_owned()))
}

/// `authority` is what follows `http://`.
fn parse_http(authority: &str) -> Option<Endpoint> {
    let (host_text, port_text) = authority.rsplit_once(':')?;
    let host = LoopbackHost::ALL.into_iter().find(|host| host.as_str() == host_text)?;
    // `u16::from_str` also reads a plus sign and leading zeros, which a URL should not have.
    if !port_text.starts_with(|c: char| matches!(c, '1'..='9')) {
        return None;
    }
    let port = port_text.parse().ok()?;
    Some(Endpoint::Http { host, port })
}
