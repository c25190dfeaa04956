//! What must hold without an API server.

mod connection;
mod goaway;
pub(crate) mod network;
mod pages;
mod patience;
mod requests;
mod secure;
mod slots;
mod throttle;
mod watches;

use std::collections::BTreeMap;

use super::SecretData;
use super::flow::ApiServerName;

const CANARY: &str = "canary-7f3a";

#[test]
fn secret_data_prints_as_a_count() {
    let data = BTreeMap::from([
        (CANARY.to_owned(), "x".to_owned()),
        ("key".to_owned(), CANARY.to_owned()),
    ]);
    let secret = SecretData::new(data);
    for text in [
        format!("{secret:?}"),
        format!("{secret:#?}"),
        format!("{:?}", Some(&secret)),
    ] {
        assert!(!text.contains(CANARY) && text.contains("<2 redacted>"), "{text}");
    }
    // The canary is really in there.
    assert_eq!(secret.expose()["key"], CANARY);
}

#[test]
fn an_api_server_is_called_by_its_url() {
    for (url, host, address, port) in [
        ("https://10.0.0.1:6443", "10.0.0.1:6443", "10.0.0.1", 6443),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", "fd00::1", 6443),
        ("https://[fd00::1]", "[fd00::1]", "fd00::1", 443),
        ("http://127.0.0.1:8001", "127.0.0.1:8001", "127.0.0.1", 8001),
        ("http://api", "api", "api", 80),
        ("https://rancher/k8s/clusters/c-1", "rancher", "rancher", 443),
    ] {
        for end in ["", "/"] {
            let named = ApiServerName {
                url: url.to_owned(),
                host: host.to_owned(),
                address: address.to_owned(),
                port,
            };
            let url: http::Uri = format!("{url}{end}").parse().unwrap();
            assert_eq!(ApiServerName::from(&url), named);
        }
    }
}
