//! Which proxy is on the way to the API server: `proxy-url` of the kubeconfig, else what the environment says, as Go reads it.
//!
//! Must not show a proxy's user or password: errors name where its URL is from.

use std::net::IpAddr;

use http::Uri;
use http::uri::Scheme;
use ipnet::IpNet;

use crate::load_error::LoadError;

/// The proxy for this API server, with the variables of an environment. An entry of the kubeconfig holds for all that `NO_PROXY` says.
pub fn choose_proxy(
    server: &Uri,
    configured: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, LoadError> {
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
fn parse(from: &'static str, url: &str, is_lenient: bool) -> Result<Uri, LoadError> {
    let complete = |url: &str| {
        let uri = url.parse::<Uri>().ok()?;
        (uri.scheme().is_some() && uri.host().is_some_and(|host| !host.is_empty())).then_some(uri)
    };
    let found = complete(url).or_else(|| is_lenient.then(|| complete(&format!("http://{url}")))?);
    let found = found.ok_or(LoadError::ProxyUrl(from))?;
    match found.scheme_str() {
        Some("http" | "https" | "socks5") => Ok(found),
        // As in Go, where this is for variables alone.
        Some("socks5h") if is_lenient => Ok(found),
        _ => Err(LoadError::ProxyScheme(from)),
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

/// The port of a server or a proxy: the one of its URL, else the usual one of its scheme.
pub fn port_of(uri: &Uri) -> u16 {
    let usual = match uri.scheme_str() {
        Some("https") => 443,
        Some("socks5" | "socks5h") => 1080,
        _ => 80,
    };
    uri.port_u16().unwrap_or(usual)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// `tests/server-certificates` has what Go takes.
    #[test]
    fn the_environment_is_read_as_by_go() {
        let rows: Vec<Value> =
            serde_json::from_str(include_str!("../../../tests/server-certificates/proxies.json")).unwrap();
        assert!(rows.len() > 40);
        for row in rows {
            let server = row["server"].as_str().unwrap().parse().unwrap();
            let variable = |name: &str| row["environment"][name].as_str().map(str::to_owned);
            let chosen = choose_proxy(&server, None, variable).unwrap();
            let chosen = chosen.map(|uri| uri.to_string().trim_end_matches('/').to_owned());
            assert_eq!(chosen.unwrap_or_default(), row["proxy"], "{row}");
            // What stands in the kubeconfig holds whatever the environment says.
            let own = choose_proxy(&server, Some("http://own:1"), variable);
            assert_eq!(own.unwrap().unwrap().to_string(), "http://own:1/");
        }
    }
}
