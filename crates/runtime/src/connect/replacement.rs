//! When another connection takes the place of the one in use, and when there is none to take it (invariant 9 of ARCHITECTURE): when the
//! certificates or the socket were replaced, and when the driver does not answer. A second connection is made while the first goes on, and
//! the driver is asked over it who it is. Work moves to it only then; the first is left, and ends with its last call. If Probe is answered
//! over the first and calls are not, the driver is slow or hangs in some of them, or the endpoint leads to another process by now.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::certificates::CertificateState;
use super::handshake::{HandshakeError, RETRY};
use super::socket_file::SocketFile;
use super::{ConnectedDriver, DriverConnector, MAX_BACKOFF};
use crate::api::validated::Endpoint;
use crate::csi::{DriverConnection, Probe};
use crate::state::DriverStateSender;
use crate::telemetry::Span;

/// So long a call may be out, without an answer to it or to another one, before the driver is asked by Probe. Its deadline may be many
/// minutes.
const SILENCE: Duration = Duration::from_secs(15);
/// So often in a row Probe is answered and calls are not before the driver is connected to again.
const PROBES_BEFORE_MOVE: u32 = 3;
/// Pauses between two connections to a driver that answers Probe and not its calls.
const INITIAL_MOVE_PAUSE: Duration = Duration::from_mins(1);
const MAX_MOVE_PAUSE: Duration = Duration::from_mins(16);

/// What is shown of a driver that answers Probe only.
const HANGING_CALLS: &str = "calls get no answer that can be read, or none in time, though Probe is answered; is the driver or its \
     backend hanging, or does a proxy answer in its place?";

/// What comes after a connection that is in use.
pub enum Replacement {
    /// The driver answered over another connection, and the one in use is lost: nobody answers over it, or another process than the one
    /// that serves the endpoint.
    Reconnected(Box<ConnectedDriver>),
    /// The driver answered over another connection, and may do so over the one in use.
    Ready(Box<ConnectedDriver>),
    /// The driver answers neither over the connection in use nor over another one.
    Unanswered(HandshakeError),
}

/// What is known of a driver that answers Probe while its calls get no answer.
#[derive(Debug, Default)]
pub(super) struct HangingCalls {
    /// Probes that were answered since a call was.
    probes: u32,
    /// Connections that were made since a call was answered.
    moves: u32,
    last_move: Option<Instant>,
    /// When a call was last found to have got no answer.
    last_missing: Option<Instant>,
}

impl HangingCalls {
    fn is_noted(&self) -> bool {
        self.probes >= PROBES_BEFORE_MOVE
    }

    /// Notes that Probe was answered and a call before was not. True when it is time for another connection.
    fn note(&mut self, now: Instant) -> bool {
        self.last_missing = Some(now);
        self.probes = self.probes.saturating_add(1);
        if !self.is_noted() {
            return false;
        }
        let pause = INITIAL_MOVE_PAUSE.saturating_mul(2_u32.saturating_pow(self.moves));
        let pause = pause.min(MAX_MOVE_PAUSE);
        if self.last_move.is_some_and(|last| now < last + pause) {
            return false;
        }
        self.moves = self.last_move.map_or(0, |_| self.moves.saturating_add(1));
        self.last_move = Some(now);
        true
    }

    /// Whether nobody tries again, as attempts wait for `longest_wait` at most, and for twice that with jitter.
    fn is_past(&self, now: Instant, longest_wait: Duration) -> bool {
        self.last_missing.is_some_and(|last| now >= last + 2 * longest_wait)
    }

    /// A call was answered, or none is made any more. The shortest pause is kept all the same: a driver that is slow answers some calls.
    fn clear(&mut self) {
        (self.probes, self.moves, self.last_missing) = (0, 0, None);
    }
}

impl DriverConnector {
    /// Resolves when calls get no answer, with what comes of another connection.
    pub(super) async fn unanswered(&self, current: &ConnectedDriver, status: &DriverStateSender) -> Replacement {
        let mut answers = current.client.connection().answers();
        let mut of_controller = answers.borrow().of_controller;
        loop {
            let noted = self.hanging.lock().is_noted();
            tokio::select! {
                // The sender lives as long as the client.
                _ = answers.wait_for(|answers| answers.missing > 0) => {}
                // An answer that nobody waits for is not shown, nor that nothing is asked any more.
                () = sleep(RETRY), if noted => {}
                () = silence(current.client.connection()) => {}
            }
            let is_silent = is_silent(current.client.connection());
            let seen = *answers.borrow_and_update();
            let is_idle = seen.missing == 0 && current.client.connection().silent_since().is_none();
            if seen.of_controller != of_controller || (is_idle && self.is_hanging_past()) {
                of_controller = seen.of_controller;
                self.hanging_is_over(status);
            }
            if seen.missing == 0 && !is_silent {
                continue;
            }
            let deadline = self.config.borrow().timeouts.probe;
            // What counts is whether anything is answered, this or another call.
            drop(current.client.call(&Probe, deadline, &Span::disabled()).await);
            if answers.borrow().count == seen.count {
                return self.connect_after_silence().await;
            }
            if seen.missing == 0 {
                // The call has its time still.
                continue;
            }
            let is_due = self.hanging.lock().note(Instant::now());
            if self.hanging.lock().is_noted() {
                status.unanswered_calls(Some(HANGING_CALLS.to_owned()));
            }
            if is_due && let Some(moved) = self.connect_beside_hanging_calls().await {
                return Replacement::Ready(Box::new(moved));
            }
            // Deadlines may be short.
            sleep(RETRY).await;
        }
    }

    /// Whether the calls that got no answer are not made again: what they were for may be gone.
    fn is_hanging_past(&self) -> bool {
        let config = self.config.borrow().clone();
        let provisioning = config.provisioning.as_ref();
        let longest_wait = provisioning.map_or(Duration::ZERO, |provisioning| provisioning.backoff.max);
        let longest_wait = longest_wait.max(config.backoff.max);
        self.hanging.lock().is_past(Instant::now(), longest_wait)
    }

    fn hanging_is_over(&self, status: &DriverStateSender) {
        self.hanging.lock().clear();
        status.unanswered_calls(None);
    }

    /// Neither a call nor Probe was answered over the connection in use.
    async fn connect_after_silence(&self) -> Replacement {
        match self.connect_again().await {
            Ok(reached) => {
                warn!(
                    config = &*self.name,
                    driver = reached.handshake.plugin.name,
                    "calls and Probe got no answer over the connection to the driver; connected again, and the old connection is \
                     closed after its last call"
                );
                Replacement::Reconnected(Box::new(reached))
            }
            Err(obstacle) => Replacement::Unanswered(obstacle),
        }
    }

    /// Calls get no answer, and Probe does. What failed keeps its backoff: the driver may only be slow.
    async fn connect_beside_hanging_calls(&self) -> Option<ConnectedDriver> {
        match self.connect_again().await {
            Ok(reached) => {
                info!(
                    config = &*self.name,
                    driver = reached.handshake.plugin.name,
                    "calls to the driver get no answer, though Probe is answered; connected again, as another process may serve \
                     the endpoint, and the old connection is closed after its last call"
                );
                let restores = false;
                Some(ConnectedDriver { restores, ..reached })
            }
            Err(obstacle) => {
                let reason = obstacle.reason.as_str();
                debug!(config = &*self.name, reason, "no second connection to the driver");
                None
            }
        }
    }

    /// Resolves when another socket is at the path that was dialled, and the driver answered there; never without a socket.
    pub(super) async fn socket_replaced(
        &self,
        current: &ConnectedDriver,
        status: &DriverStateSender,
    ) -> ConnectedDriver {
        let endpoint = self.config.borrow().endpoint.clone();
        let (Some(dialled), Endpoint::Unix(path)) = (&current.socket, &endpoint) else {
            return std::future::pending().await;
        };
        let (mut refused, mut pause): (Option<(SocketFile, Instant)>, _) = (None, RETRY);
        loop {
            if dialled.is_replaced_at(path) {
                let found = SocketFile::at(path);
                let rests = |(file, until): &(SocketFile, Instant)| *file == found && Instant::now() < *until;
                if !refused.as_ref().is_some_and(rests) {
                    match self.connect_again().await {
                        Ok(reached) => return self.moved_to_socket(reached, status),
                        Err(obstacle) => self.socket_refused(path, &obstacle, status),
                    }
                    refused = Some((found, Instant::now() + pause));
                    pause = (pause * 2).min(MAX_BACKOFF);
                }
            } else if refused.take().is_some() {
                pause = RETRY;
                status.connection_problem(None);
            }
            sleep(RETRY).await;
        }
    }

    fn moved_to_socket(&self, reached: ConnectedDriver, status: &DriverStateSender) -> ConnectedDriver {
        status.connection_problem(None);
        // That was another process.
        self.hanging_is_over(status);
        info!(
            config = &*self.name,
            driver = reached.handshake.plugin.name,
            "the driver's socket was replaced; connected to the new one, and the old connection is closed after its last call"
        );
        reached
    }

    fn socket_refused(&self, path: &Path, obstacle: &HandshakeError, status: &DriverStateSender) {
        let reason = obstacle.reason.as_str();
        let text = format!(
            "the socket at {} was replaced and the driver does not answer at the new one ({reason}); the connection to the old one is \
             kept",
            path.display()
        );
        if status.connection_problem(Some(text)) {
            let error = &*obstacle.message;
            warn!(
                config = &*self.name,
                reason,
                error,
                "the driver's socket was replaced, and the driver does not answer at the new one; keeping the old connection"
            );
        }
    }

    /// Makes another connection, with the certificates in use, and asks who answers.
    async fn connect_again(&self) -> Result<ConnectedDriver, HandshakeError> {
        self.wait_for_retry().await;
        let reached = match &self.keys {
            None => self.reach(None).await,
            // The connection in use was made with some, and the last good ones are kept.
            Some(keys) => self.reach_with(&keys.now()).await,
        };
        reached.map_err(|failure| failure.obstacle)
    }

    /// Resolves when the certificates of a connection were replaced and the driver answered over one made with the new
    /// ones; never without certificates. Meanwhile it tells what is wrong with them.
    pub(super) async fn renewed(&self, current: &ConnectedDriver, status: &DriverStateSender) -> ConnectedDriver {
        let Some(keys) = &self.keys else {
            return std::future::pending().await;
        };
        let mut pause = RETRY;
        loop {
            let known = keys.now();
            let fresh = known.good.as_ref().filter(|good| good.revision != current.revision);
            if let Some(good) = fresh {
                match self.reach(Some(good)).await {
                    Ok(reached) => {
                        status.concern(certificate_warning(&known));
                        info!(
                            config = &*self.name,
                            "connected with the new certificates; closing the old connection after its last call"
                        );
                        return reached;
                    }
                    Err(failure) => self.refused(status, &failure.obstacle),
                }
                tokio::select! {
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(MAX_BACKOFF),
                    _ = keys.since(known.revision) => pause = RETRY,
                }
            } else {
                status.concern(certificate_warning(&known));
                keys.since(known.revision).await;
            }
        }
    }

    fn refused(&self, status: &DriverStateSender, obstacle: &HandshakeError) {
        let message = &obstacle.message;
        let text = format!("the new certificates do not work, the connection with the old ones is kept: {message}");
        if status.concern(Some(text.clone())) {
            warn!(config = &*self.name, "{text}");
        }
    }
}

/// Resolves when a call is out for [`SILENCE`] and nothing is answered.
async fn silence(connection: &DriverConnection) {
    while !is_silent(connection) {
        // What begins meanwhile is looked at before it is out for that long.
        let since = connection.silent_since().unwrap_or_else(Instant::now);
        sleep_until(since + SILENCE).await;
    }
}

fn is_silent(connection: &DriverConnection) -> bool {
    connection
        .silent_since()
        .is_some_and(|since| since.elapsed() >= SILENCE)
}

/// What is wrong with a Secret whose former contents are in use.
pub(super) fn certificate_warning(known: &CertificateState) -> Option<String> {
    let trouble = known.trouble.as_ref()?;
    Some(format!("the last valid certificates are in use: {}", trouble.message))
}
