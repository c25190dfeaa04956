//! The addresses of HTTP endpoints, as Go programs read them: `:8080` and `0.0.0.0:8080` mean all addresses of the machine, those of
//! IPv6 too, as the kubelet asks a pod at whichever address it has.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use tokio::net::{TcpListener, lookup_host};

/// Connections that wait to be accepted, as tokio's own listeners have it.
const BACKLOG: i32 = 1024;
const SERVICES: &str = "/etc/services";
/// The services that Go knows where there is no such file, as in an image without a distribution.
const KNOWN_SERVICES: [(&str, u16); 15] = [
    ("domain", 53),
    ("ftp", 21),
    ("ftps", 990),
    ("gopher", 70),
    ("http", 80),
    ("https", 443),
    ("imap2", 143),
    ("imap3", 220),
    ("imaps", 993),
    ("pop3", 110),
    ("pop3s", 995),
    ("smtp", 25),
    ("ssh", 22),
    ("submissions", 465),
    ("telnet", 23),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    /// All addresses of the machine.
    Any,
    Ip(IpAddr),
    /// A name, or an address with a zone; looked up when it is needed.
    Name(String),
}

/// Why a text is no address to listen on; the words are those of Go.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    #[error("missing port in address; expected HOST:PORT, or :PORT for all addresses")]
    MissingPort,
    #[error(
        "too many colons in address; an IPv6 address needs brackets: [{host}]:{port}, or in the manifest of a pod \
         [$(POD_IP)]:{port}"
    )]
    Brackets { host: Ipv6Addr, port: String },
    #[error("too many colons in address; expected HOST:PORT, with an IPv6 address in brackets")]
    TooManyColons,
    #[error("missing or unexpected bracket in address; expected [IPV6]:PORT")]
    Bracket,
    #[error("invalid port {0:?}; expected a number from 0 to 65535")]
    Port(String),
    #[error("unknown port {0:?}; expected a number, or the name of a TCP service such as http")]
    UnknownService(String),
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = split(text)?;
        let host = match host.parse::<IpAddr>() {
            Ok(ip) if ip.to_canonical().is_unspecified() => Host::Any,
            Ok(ip) => Host::Ip(ip),
            Err(_) if host.is_empty() => Host::Any,
            Err(_) => Host::Name(host.to_owned()),
        };
        let port = parse_port(port)?;
        Ok(Self { host, port })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Any => write!(formatter, ":{}", self.port),
            Host::Ip(ip) => SocketAddr::new(*ip, self.port).fmt(formatter),
            Host::Name(name) if name.contains(':') => write!(formatter, "[{name}]:{}", self.port),
            Host::Name(name) => write!(formatter, "{name}:{}", self.port),
        }
    }
}

impl ListenAddress {
    /// Listens. A name with several addresses is listened on at one of them, IPv4 if there is one.
    pub async fn bind(&self) -> io::Result<TcpListener> {
        match &self.host {
            Host::Any => listen_on_all(self.port),
            Host::Ip(ip) => TcpListener::bind(SocketAddr::new(*ip, self.port)).await,
            Host::Name(name) => {
                let found: Vec<SocketAddr> = lookup_host((name.as_str(), self.port)).await?.collect();
                let chosen = found.iter().find(|address| address.is_ipv4()).or(found.first());
                let chosen =
                    chosen.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address"))?;
                TcpListener::bind(chosen).await
            }
        }
    }
}

/// Host and port by Go's rules.
fn split(text: &str) -> Result<(&str, &str), AddressError> {
    let Some((before, port)) = text.rsplit_once(':') else {
        return Err(AddressError::MissingPort);
    };
    let host = if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or(AddressError::Bracket)?;
        match rest.strip_prefix(':') {
            Some(after) if after == port => host,
            Some(_) => return Err(AddressError::TooManyColons),
            None => return Err(AddressError::MissingPort),
        }
    } else if before.contains(':') {
        return Err(match before.parse() {
            Ok(host) => AddressError::Brackets {
                host,
                port: port.to_owned(),
            },
            Err(_) => AddressError::TooManyColons,
        });
    } else {
        before
    };
    if host.contains(['[', ']']) || port.contains(['[', ']']) {
        return Err(AddressError::Bracket);
    }
    Ok((host, port))
}

/// A number, none at all for any free port, or the name of a service.
fn parse_port(text: &str) -> Result<u16, AddressError> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let name = text.to_ascii_lowercase();
        let listed = fs::read_to_string(SERVICES).ok();
        let listed = listed.and_then(|services| find_service(&services, &name));
        let known = || KNOWN_SERVICES.iter().find(|(known, _)| *known == name);
        return listed
            .or_else(|| known().map(|(_, port)| *port))
            .ok_or_else(|| AddressError::UnknownService(text.to_owned()));
    }
    if digits.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| AddressError::Port(text.to_owned()))
}

/// The TCP port of a service by its name or alias, in a file as `services(5)` describes it.
fn find_service(services: &str, name: &str) -> Option<u16> {
    let lines = services.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.into_iter().find_map(|line| {
        let mut words = line.split_whitespace();
        let (service, number) = (words.next()?, words.next()?);
        let port = number.strip_suffix("/tcp")?.parse().ok()?;
        (service == name || words.any(|alias| alias == name)).then_some(port)
    })
}

/// Listens for IPv6 and IPv4; where there is no IPv6, for IPv4.
fn listen_on_all(port: u16) -> io::Result<TcpListener> {
    match listen(Domain::IPV6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => {
            listen(Domain::IPV4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
        }
        outcome => outcome,
    }
}

fn listen(domain: Domain, address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    if domain == Domain::IPV6 {
        // Whatever the machine's own default is (net.ipv6.bindv6only).
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    fn read(text: &str) -> Result<String, AddressError> {
        text.parse::<ListenAddress>().map(|address| address.to_string())
    }

    #[test]
    fn addresses_are_read_as_go_reads_them() {
        for (text, shown) in [
            (":8080", ":8080"),
            ("0.0.0.0:8080", ":8080"),
            ("[::]:8080", ":8080"),
            ("[::ffff:0.0.0.0]:8080", ":8080"),
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("[fd00::1]:8093", "[fd00::1]:8093"),
            ("[127.0.0.1]:1", "127.0.0.1:1"),
            ("[fe80::1%eth0]:1", "[fe80::1%eth0]:1"),
            ("localhost:8080", "localhost:8080"),
            ("pod.default:8080", "pod.default:8080"),
            (":http", ":80"),
            (":HTTPS", ":443"),
            (":", ":0"),
            (":0", ":0"),
            (":+8080", ":8080"),
            (":0008080", ":8080"),
        ] {
            assert_eq!(read(text), Ok(shown.to_owned()), "{text}");
        }
        for (text, problem) in [
            ("", "missing port in address"),
            ("8080", "missing port in address"),
            ("localhost", "missing port in address"),
            ("[::1]", "missing port in address"),
            ("[::1]8080", "missing port in address"),
            ("[::1", "bracket"),
            ("a]:1", "bracket"),
            ("[[::1]]:1", "missing port in address"),
            (
                "fd00::1:8093",
                "needs brackets: [fd00::1]:8093, or in the manifest of a pod [$(POD_IP)]:8093",
            ),
            (":::8080", "needs brackets: [::]:8080"),
            ("http://a:1", "too many colons"),
            ("a:b:1", "too many colons"),
            ("[::1]:1:2", "too many colons"),
            (":65536", "invalid port \"65536\""),
            (":-1", "invalid port \"-1\""),
            (":99999999999999999999", "invalid port"),
            (":nothing-such", "unknown port \"nothing-such\""),
            (": 8080", "unknown port"),
        ] {
            let refused = read(text).unwrap_err().to_string();
            assert!(refused.contains(problem), "{text}: {refused}");
        }
    }

    #[test]
    fn services_are_found_by_name_and_alias() {
        let services = "# comment\nhttp\t80/tcp  www # Web\nhttp 81/udp\nntp 123/udp\n";
        assert_eq!(find_service(services, "http"), Some(80));
        assert_eq!(find_service(services, "www"), Some(80));
        assert_eq!(find_service(services, "Web"), None);
        assert_eq!(find_service(services, "ntp"), None);
    }

    /// The kubelet asks a pod with an IPv6 address at that one.
    #[tokio::test]
    async fn all_addresses_are_those_of_ipv4_and_ipv6() {
        for text in [":0", "0.0.0.0:0", "[::]:0"] {
            let listener = text.parse::<ListenAddress>().unwrap().bind().await.unwrap();
            let port = listener.local_addr().unwrap().port();
            assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok(), "{text}");
            if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
                assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_ok(), "{text}");
            }
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_and_ipv4_preferred() {
        let listener = "localhost:0".parse::<ListenAddress>().unwrap().bind().await.unwrap();
        assert_eq!(listener.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
        let unknown = "no-such-host.invalid:0".parse::<ListenAddress>().unwrap();
        assert!(unknown.bind().await.is_err());
    }

    #[tokio::test]
    async fn an_address_in_use_is_refused() {
        let listener = ":0".parse::<ListenAddress>().unwrap().bind().await.unwrap();
        let taken = format!(":{}", listener.local_addr().unwrap().port());
        let refused = taken.parse::<ListenAddress>().unwrap().bind().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }
}
