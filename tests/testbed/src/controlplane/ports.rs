//! Free loopback ports.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};

use parking_lot::Mutex;

use super::super::error::{Context, Result};

/// The ports that were given out. etcd and kube-apiserver of one control plane know each other's certificates: with the
/// same port, etcd would answer what is asked of the API server.
static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A port of 127.0.0.1 that nobody listens on now, and that was not given to anybody else in this process.
///
/// It lies below the range which the kernel hands out for outgoing connections and for port 0 (it starts at 32768 on
/// Linux and higher elsewhere). So the many connections of a test cannot take it before the component does, or while
/// the component is stopped. Another harness can; the start is tried again then.
pub fn free_port() -> Result<u16> {
    let mut outcome = Err(std::io::Error::other("no port was tried"));
    for _ in 0..100 {
        let port = fastrand::u16(20_000..32_000);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) if GIVEN.lock().get_or_insert_default().insert(port) => return Ok(port),
            Ok(_) => outcome = Err(std::io::Error::other("every port that was tried was given out before")),
            Err(error) => outcome = Err(error),
        }
    }
    outcome.while_trying(|| "find a free loopback port".to_owned())
}

/// Whether a component says in its log that somebody else has its port.
pub fn was_taken(log: &str) -> bool {
    log.contains("address already in use")
}
