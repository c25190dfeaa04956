//! Free loopback ports.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};

use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::super::error::{Context, Error, Result};

/// How often a start is tried when a port that was free is taken by the time a component wants it.
const START_ATTEMPTS: u32 = 5;

/// The ports that were given out. etcd and kube-apiserver of one control plane know each other's certificates: with the
/// same port, etcd would answer what is asked of the API server.
static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A port of 127.0.0.1 that nobody listens on now, and that was not given to anybody else in this process.
///
/// It lies below the range which the kernel hands out for outgoing connections and for port 0 (it starts at 32768 on
/// Linux and higher elsewhere). So the many connections of a test cannot take it before the component does, or while
/// the component is stopped. Another harness can; the start is tried again then.
pub fn free_port() -> Result<u16> {
    let mut ports = (0..100).map(|_| fastrand::u16(20_000..32_000));
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let is_new = |port: &u16| GIVEN.lock().get_or_insert_default().insert(*port);
    let found = ports.find(|port| is_free(port) && is_new(port));
    found.ok_or_else(|| Error::Other("none of 100 loopback ports is free".to_owned()))
}

/// Whether somebody listens on this port of 127.0.0.1.
pub async fn takes_connections(port: u16) -> Result<()> {
    let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
    connected.map(drop).while_trying(|| format!("connect to port {port}"))
}

/// Starts something, and again when it says in its log that somebody else has its port.
pub async fn retry<T, F: Future<Output = Result<T>>>(start: impl Fn() -> F) -> Result<T> {
    let mut attempt = 1;
    loop {
        match start().await {
            Err(Error::Ended { log, .. }) if attempt < START_ATTEMPTS && log.contains("address already in use") => {
                attempt += 1;
            }
            outcome => return outcome,
        }
    }
}
