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
use super::flow::server;

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
fn host_and_port_are_told_apart() {
    for (authority, host, port) in [
        ("10.0.0.1:6443", "10.0.0.1", 6443),
        ("[fd00::1]:6443", "fd00::1", 6443),
        ("[fd00::1]", "fd00::1", 443),
        ("api.example.com", "api.example.com", 443),
        ("", "", 443),
    ] {
        assert_eq!(server(authority), (host.to_owned(), port), "{authority}");
    }
}
