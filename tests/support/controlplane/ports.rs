//! Free loopback ports.

use std::net::{Ipv4Addr, TcpListener};

use super::super::error::{Context, Result};

/// A port of 127.0.0.1 that nobody listens on now.
///
/// It lies below the range which the kernel hands out for outgoing connections and for port 0 (it starts at 32768 on
/// Linux and higher elsewhere). So the many connections of a test cannot take it before the component does, or while
/// the component is stopped. Another harness can; the start is tried again then.
pub fn free_port() -> Result<u16> {
    let mut outcome = Err(std::io::Error::other("no port was tried"));
    for _ in 0..100 {
        let port = fastrand::u16(20_000..32_000);
        outcome = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(|_| port);
        if outcome.is_ok() {
            break;
        }
    }
    outcome.while_trying(|| "find a free loopback port".to_owned())
}

/// Whether a component says in its log that somebody else has its port.
pub fn was_taken(log: &str) -> bool {
    log.contains("address already in use")
}
