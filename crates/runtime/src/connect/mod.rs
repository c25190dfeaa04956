//! The way to a driver: its endpoint and, for https, the certificates in use.
//!
//! A connection is dialled once, and the driver is asked over it who it is. [`replacement`] says when another one takes its place.

mod certificates;
pub mod handshake;
#[cfg(test)]
mod handshake_tests;
pub mod replacement;
mod socket_file;

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::api::condition::ConditionReason;
use crate::api::validated::{DriverConfig, Endpoint};
use crate::apiserver::Requests;
use crate::csi::{CsiClient, DriverConnection, TlsTarget, UnnamedCalls};
use crate::decide::DriverFacts;
use crate::objects::SecretReference;
use crate::pending::or_never;
use crate::state::DriverStateSender;
use crate::telemetry::Metrics;
use certificates::{CertificateState, CertificateWatcher, ValidCertificates};
use handshake::{Handshake, HandshakeError, RETRY, run_handshake};
use replacement::{HangingCalls, Replacement, certificate_warning};
use socket_file::{MissedSocket, SocketFile};

/// Longest pause between two attempts to make a second connection, while the first goes on.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// How many names a driver may have while its AttacherConfig and its endpoint stay the same. Each has a Lease, which nobody
/// may delete, and series of metrics.
const MAX_NAMES: usize = 3;

/// A driver that answered.
pub struct ConnectedDriver {
    /// Calls the driver over this connection.
    pub client: CsiClient,
    /// Who answered over it.
    pub handshake: Handshake,
    /// Which certificates the connection was made with.
    pub revision: u64,
    /// The unix socket that was dialled.
    pub socket: Option<SocketFile>,
    /// Whether what failed before may have failed for want of this connection, so that it is tried at once.
    pub restores: bool,
}

impl ConnectedDriver {
    /// What work has to know of the driver.
    pub fn facts(&self) -> DriverFacts {
        DriverFacts::new(&self.handshake.plugin.name, self.handshake.capabilities.bits)
    }
}

/// Why there is no driver to work with, and what to watch for a change.
pub struct ConnectFailure {
    /// What is wrong.
    pub obstacle: HandshakeError,
    /// The client over whose connection that was found, if there is one.
    pub client: Option<CsiClient>,
    revision: u64,
}

impl ConnectFailure {
    /// What was found over the connection in use.
    pub fn over(client: &CsiClient, obstacle: HandshakeError) -> Self {
        Self {
            obstacle,
            client: Some(client.clone()),
            // No change of the certificates ends this.
            revision: u64::MAX,
        }
    }

    /// Whether the driver answered: only what it answered can stall a connection that was made.
    pub fn has_answered(&self) -> bool {
        self.obstacle.is_stalled && self.client.is_some()
    }
}

/// How a driver is reached.
pub trait Connector: Send + Sync {
    /// Connects, and asks who answers. A driver that hangs up again and again is asked once in [`RETRY`].
    fn connect(&self) -> impl Future<Output = Result<ConnectedDriver, ConnectFailure>> + Send;

    /// Resolves when there are other certificates than at that time, or another reason why there are none.
    fn changed(&self, since: &ConnectFailure) -> impl Future<Output = ()> + Send;

    /// Resolves when another connection is to be used instead of the current one, or when the current one is of no use and there is no
    /// other.
    fn replaced(
        &self,
        current: &ConnectedDriver,
        status: &DriverStateSender,
    ) -> impl Future<Output = Replacement> + Send;
}

/// How a driver is reached over the network.
pub struct DriverConnector {
    name: Arc<str>,
    config: watch::Receiver<Arc<DriverConfig>>,
    metrics: Metrics,
    keys: Option<CertificateWatcher>,
    /// Names that the driver has had, in their order.
    names: Mutex<Vec<String>>,
    /// Calls of handshakes that failed before it was known whose they are.
    unnamed: UnnamedCalls,
    asked: Mutex<Option<Instant>>,
    /// The socket, when it was not worth the dial, and the settings that it was dialled with.
    missed: Mutex<Option<(Arc<DriverConfig>, MissedSocket)>>,
    hanging: Mutex<HangingCalls>,
}

impl Connector for DriverConnector {
    async fn connect(&self) -> Result<ConnectedDriver, ConnectFailure> {
        self.wait_for_retry().await;
        self.wait_for_socket().await;
        let Some(keys) = &self.keys else {
            return self.reach(None).await;
        };
        // Either the certificates or why there are none.
        let known = keys.since(0).await;
        // Certificates that came after these count as a change.
        let revision = known.revision;
        let reached = self.reach_with(&known).await;
        reached.map_err(|failure| ConnectFailure { revision, ..failure })
    }

    async fn changed(&self, since: &ConnectFailure) {
        or_never(self.keys.as_ref().map(|keys| keys.since(since.revision))).await;
    }

    async fn replaced(&self, current: &ConnectedDriver, status: &DriverStateSender) -> Replacement {
        tokio::select! {
            biased;
            renewed = self.renewed(current, status) => Replacement::Ready(Box::new(renewed)),
            moved = self.socket_replaced(current, status) => Replacement::Reconnected(Box::new(moved)),
            replacement = self.unanswered(current, status) => replacement,
        }
    }
}

impl DriverConnector {
    /// The way to the driver of the AttacherConfig `name`; endpoint and certificates' Secret stay the same.
    pub fn new(
        name: Arc<str>,
        config: watch::Receiver<Arc<DriverConfig>>,
        requests: &Requests,
        metrics: &Metrics,
    ) -> Self {
        let secret = config.borrow().tls.as_ref().map(|tls| SecretReference {
            namespace: tls.secret.namespace.as_str().into(),
            name: tls.secret.name.as_str().into(),
        });
        let keys = secret.map(|secret| CertificateWatcher::follow(requests.clone(), secret, name.clone()));
        Self {
            name,
            config,
            metrics: metrics.clone(),
            keys,
            names: Mutex::default(),
            unnamed: UnnamedCalls::default(),
            asked: Mutex::default(),
            missed: Mutex::default(),
            hanging: Mutex::default(),
        }
    }

    async fn wait_for_retry(&self) {
        let asked = *self.asked.lock();
        if let Some(asked) = asked {
            sleep_until(asked + RETRY).await;
        }
    }

    /// Waits as long as a socket is not worth another dial, or until there are other settings.
    async fn wait_for_socket(&self) {
        let missed = self.missed.lock().take();
        let mut config = self.config.clone();
        let current = config.borrow_and_update().clone();
        // Other settings are tried at once.
        let missed = missed.filter(|(dialled, _)| Arc::ptr_eq(dialled, &current));
        let (Some((_, missed)), Endpoint::Unix(path)) = (missed, &current.endpoint) else {
            return;
        };
        while !missed.is_worth_a_dial(path) {
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                _ = config.changed() => return,
            }
        }
    }

    /// Makes a connection with the last good certificates, and asks who answers. Never without any, unless it is known why.
    async fn reach_with(&self, known: &CertificateState) -> Result<ConnectedDriver, ConnectFailure> {
        match (&known.good, &known.trouble) {
            (Some(good), _) => self.reach(Some(good)).await.map_err(|mut failure| {
                // What fails may do so because they are not those of the Secret.
                if let Some(warning) = certificate_warning(known) {
                    failure.obstacle.message = format!("{}; {warning}", failure.obstacle.message);
                }
                failure
            }),
            (None, Some(trouble)) => Err(ConnectFailure {
                obstacle: trouble.clone(),
                client: None,
                revision: known.revision,
            }),
            (None, None) => std::future::pending().await,
        }
    }

    /// Makes a connection, with these certificates if there is to be TLS, and asks who answers.
    async fn reach(&self, good: Option<&ValidCertificates>) -> Result<ConnectedDriver, ConnectFailure> {
        let config = &self.config.borrow().clone();
        let revision = good.map_or(0, |good| good.revision);
        let connection = match good {
            None => DriverConnection::new(&config.endpoint),
            Some(good) => secured(config, good).map_err(|obstacle| ConnectFailure {
                obstacle,
                client: None,
                revision,
            })?,
        };
        let client = CsiClient::new(connection, self.metrics.clone()).keeping(self.unnamed.clone());
        let look = || match &config.endpoint {
            Endpoint::Unix(path) => Some(SocketFile::at(path)),
            _ => None,
        };
        let file = look();
        // A connection that is given up while it is made counts as well.
        *self.asked.lock() = Some(Instant::now());
        let answer = run_handshake(&client, config).await;
        let answer = answer.and_then(|handshake| self.take_name(config, handshake));
        *self.asked.lock() = Some(Instant::now());
        *self.missed.lock() = file
            .clone()
            .zip(client.connection().dial_error())
            .and_then(|(file, error)| Some((config.clone(), MissedSocket::new(file, &error)?)));
        match answer {
            Ok(handshake) => {
                let client = client.with_driver_name(handshake.plugin.name.as_str().into());
                Ok(ConnectedDriver {
                    client,
                    handshake,
                    revision,
                    // It may have been made between the look and the dial.
                    socket: file.filter(SocketFile::is_there).or_else(look),
                    restores: true,
                })
            }
            Err(obstacle) => {
                // Who is meant to answer, by the spec or as it did before: the calls are counted as that driver's.
                let name = config.driver_name.clone().or_else(|| self.names.lock().last().cloned());
                let named = name.map(|name| client.with_driver_name(name.into()));
                Err(ConnectFailure {
                    obstacle,
                    client: Some(named.unwrap_or(client)),
                    revision,
                })
            }
        }
    }

    /// Remembers what the driver calls itself; refused when it has had too many names.
    fn take_name(&self, config: &DriverConfig, handshake: Handshake) -> Result<Handshake, HandshakeError> {
        let mut names = self.names.lock();
        let name = &handshake.plugin.name;
        if names.contains(name) {
            return Ok(handshake);
        }
        if names.len() == MAX_NAMES {
            return Err(HandshakeError::stalled(
                ConditionReason::DriverNameMismatch,
                format!(
                    "the driver at {} calls itself {name:?}, after it had {MAX_NAMES} other names ({}); set spec.driverName of \
                     AttacherConfig {} to the correct name",
                    config.endpoint,
                    names.join(", "),
                    self.name,
                ),
            ));
        }
        names.push(name.clone());
        drop(names);
        Ok(handshake)
    }
}

fn secured(config: &DriverConfig, good: &ValidCertificates) -> Result<DriverConnection, HandshakeError> {
    let unusable = |message: String| HandshakeError::stalled(ConditionReason::InvalidSpec, message);
    let Endpoint::Https { host, port } = &config.endpoint else {
        return Err(unusable(format!("spec.tls cannot be used with {}", config.endpoint)));
    };
    let named = config.tls.as_ref().and_then(|tls| tls.server_name.as_deref());
    let (name, field) = named.map_or((&**host, "spec.endpoint"), |name| (name, "spec.tls.serverName"));
    match TlsTarget::new(good.certificates.clone(), name) {
        Some(tls) => Ok(DriverConnection::secured(host, *port, tls)),
        None => Err(unusable(format!(
            "{name} is not a DNS name or IP address that a certificate can contain; fix {field}"
        ))),
    }
}
