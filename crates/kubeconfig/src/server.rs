//! The URL of the API server: which ones can be used, and what client-go makes of one without a scheme.

use http::Uri;
use http::uri::Authority;
use thiserror::Error;

/// Why a URL cannot be used. Never quotes it: it may hold a password.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ServerError {
    /// It has no host, or is no URL at all.
    #[error("is not the URL of an API server, such as https://HOST:PORT")]
    Url,
    /// HTTP is not spoken by this scheme.
    #[error("has an unsupported scheme: must be https or http")]
    Scheme,
}

/// Whether requests can be sent to this URL. kube panics with the first one where the scheme is missing.
pub fn check_server(url: &Uri) -> Result<(), ServerError> {
    match url.scheme_str() {
        Some("https" | "http") => {}
        Some(_) => return Err(ServerError::Scheme),
        None => return Err(ServerError::Url),
    }
    let authority = url.authority().map_or("", Authority::as_str);
    let (_, address) = authority.rsplit_once('@').unwrap_or(("", authority));
    let address = address.parse::<Authority>().map_err(|_| ServerError::Url)?;
    let host = address.host();
    let port = address.as_str().strip_prefix(host).unwrap_or_default();
    let port = port.trim_start_matches(':');
    // A port that is no number would count as none.
    if host.trim_matches(['[', ']']).is_empty() || (!port.is_empty() && port.parse::<u16>().is_err()) {
        return Err(ServerError::Url);
    }
    Ok(())
}

/// The URL that stands here.
pub(crate) fn parse(url: &str) -> Result<Uri, ServerError> {
    let url = url.parse::<Uri>().map_err(|_| ServerError::Url)?;
    check_server(&url)?;
    Ok(url)
}

/// Adds the scheme where it is missing; whether it was. client-go takes `http` then, also beside CA data: it looks at these
/// only where the URL says `https`. No path may follow.
pub(crate) fn complete(server: &mut String) -> Result<bool, ServerError> {
    if let Ok(url) = server.parse::<Uri>()
        && url.scheme().is_some()
    {
        return check_server(&url).map(|()| false);
    }
    let completed = format!("http://{server}");
    if parse(&completed)?.path() != "/" {
        return Err(ServerError::Url);
    }
    *server = completed;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_scheme_is_added_and_what_is_no_url_is_refused() {
        let is_complete = |server: &str| Ok((server.to_owned(), false));
        let added = |server: &str| Ok((server.to_owned(), true));
        for (server, wanted) in [
            ("https://10.0.0.1:6443", is_complete("https://10.0.0.1:6443")),
            ("HTTPS://api:", is_complete("HTTPS://api:")),
            ("http://[fd00::1]:80/a?b#c", is_complete("http://[fd00::1]:80/a?b#c")),
            ("https://me:s3cret@api", is_complete("https://me:s3cret@api")),
            ("10.0.0.1:6443", added("http://10.0.0.1:6443")),
            ("localhost:8001/", added("http://localhost:8001/")),
            ("[fd00::1]:6443", added("http://[fd00::1]:6443")),
            ("me:s3cret@api", added("http://me:s3cret@api")),
            ("api", added("http://api")),
            ("api?a=b", added("http://api?a=b")),
            ("ftp://api", Err(ServerError::Scheme)),
            ("", Err(ServerError::Url)),
            (" ", Err(ServerError::Url)),
            ("/", Err(ServerError::Url)),
            ("/clusters/c", Err(ServerError::Url)),
            ("//api", Err(ServerError::Url)),
            ("?a=b", Err(ServerError::Url)),
            ("#a", Err(ServerError::Url)),
            ("api/clusters/c", Err(ServerError::Url)),
            ("https://", Err(ServerError::Url)),
            ("https:///clusters/c", Err(ServerError::Url)),
            ("https://:6443", Err(ServerError::Url)),
            ("https://[]:6443", Err(ServerError::Url)),
            ("https://me:s3cret@", Err(ServerError::Url)),
            ("https://me:s3cret@:6443", Err(ServerError::Url)),
            ("https://[me@api]", Err(ServerError::Url)),
            ("https://api:port", Err(ServerError::Url)),
            ("https://api:66000", Err(ServerError::Url)),
            ("https://api\n", Err(ServerError::Url)),
            (" https://api", Err(ServerError::Url)),
            ("https://a b", Err(ServerError::Url)),
        ] {
            let mut found = server.to_owned();
            let outcome = complete(&mut found).map(|is_added| (found, is_added));
            assert_eq!(outcome, wanted, "{server:?}");
        }
    }
}
