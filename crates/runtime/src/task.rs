//! The life of a driver: connect, wait for its turn among the AttacherConfigs of the process and among the replicas, work until the
//! connection is lost, start over.

use futures::future::join_all;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::api::condition::{ConditionReason, whole_seconds};
use crate::api::validated::DriverConfig;
use crate::clock;
use crate::connect::handshake::{Handshake, HandshakeError, RETRY};
use crate::connect::replacement::Replacement;
use crate::connect::{ConnectFailure, ConnectedDriver, Connector, DriverConnector};
use crate::csi::CsiClient;
use crate::decide::DriverFacts;
use crate::engine::{Engine, Work as _};
use crate::fence::FencedClient;
use crate::leadership::{Leadership, LeaseStatus};
use crate::lease::{CandidateStatus, LeaderElectionConfig, LeaderElectionHandle, NewLease};
use crate::pending::or_never;
use crate::reflect::Lists;
use crate::reservation::{Reservation, ReservationState, Reservations};
use crate::role::{Refusal, Role, Start};
use crate::state::{DriverPhase, DriverStateSender};
use crate::telemetry::Metrics;

/// What the log says when the reservation of an AttacherConfig is refused while it works.
const LEFT_TO_RIVAL: &str =
    "another AttacherConfig claims the driver, which goes before this one; leaving it to that one";

/// A driver to run, with its settings, the ways to stop it, and where its state goes.
pub struct DriverTask<R> {
    /// What is done for the driver.
    pub role: R,
    /// Name of the AttacherConfig.
    pub name: Arc<str>,
    /// Its settings; endpoint and name stay the same for the life of the task.
    pub config: watch::Receiver<Arc<DriverConfig>>,
    /// How the driver's Lease is competed for; without, the driver is worked for as soon as it answers.
    pub election: Option<LeaderElectionConfig>,
    /// Which of several AttacherConfigs works for a driver.
    pub reservations: Reservations,
    /// The name of the driver before it has answered, when it is known from somewhere.
    pub known_as: Arc<watch::Sender<Option<Arc<str>>>>,
    /// Where the candidate for the Lease can be followed while there is one.
    pub lease_status: LeaseStatus,
    /// Tells the task to finish.
    pub stop: CancellationToken,
    /// Cancels the calls that still run when there is no more time for them to finish.
    pub cut_off: CancellationToken,
    /// Whether it is to finish for good, since the AttacherConfig is gone: nobody goes on with what is pending.
    pub removed: Arc<AtomicBool>,
    /// Where the state goes.
    pub status: DriverStateSender,
}

/// Why a wait ended.
enum TaskEvent {
    Stop,
    SettingsChanged,
    /// What was waited for, such as the loss of the connection, or that it is time to try again.
    ConnectionLost,
    LeaseLost,
    Replaced(Box<ConnectedDriver>),
    /// The driver answers neither over its connection nor over another one.
    Unanswered(HandshakeError),
    /// An AttacherConfig that goes before this one claims the driver.
    ReservationLost,
    AdmissionDoubted,
}

impl<R: Role> DriverTask<R> {
    /// Runs until it is stopped; returns when all calls in flight ended and were recorded.
    pub async fn run(self) {
        let (requests, metrics) = (self.role.requests(), self.role.metrics());
        let access = DriverConnector::new(self.name.clone(), self.config.clone(), requests, metrics);
        self.run_over(access).await;
    }

    /// As [`DriverTask::run`], with a driver that is reached this way.
    pub async fn run_over(mut self, access: impl Connector) {
        let mut held = Leadership::<R::Work>::new(self.lease_status.clone());
        loop {
            if self.stop.is_cancelled() {
                break;
            }
            self.observe_known_lease(&mut held);
            if self.config.borrow_and_update().suspend {
                self.rest(&mut held).await;
                continue;
            }
            let stop = self.stop.clone();
            let reached = tokio::select! {
                biased;
                reached = access.connect() => reached,
                () = stop.cancelled() => break,
                () = self.connect_superseded() => continue,
                // Another replica reaches the driver, and may lead it.
                () = self.name_is_known(), if held.candidate.is_none() && self.election.is_some() => continue,
                () = held.engine_must_stop() => {
                    self.finish(&mut held).await;
                    continue;
                }
            };
            match reached {
                Err(unreached) => {
                    held.unreached().await;
                    self.show_driver(false);
                    let (given_up, mended) = (held.engine_must_stop(), access.changed(&unreached));
                    self.wait_for_driver(&unreached, given_up, mended).await;
                }
                Ok(reached) => self.serve_connection(reached, &access, &mut held).await,
            }
        }
        let end_pending = held.engine.as_ref().map(|engine| engine.work().end_pending());
        self.drain(&mut held).await;
        if let Some(end) = end_pending.filter(|_| self.removed.load(Ordering::Relaxed)) {
            end();
        }
        self.forget_connection();
        self.status.phase(DriverPhase::Stopped);
        held.release_all().await;
    }

    /// Ends the work, and waits for other settings.
    async fn rest(&mut self, held: &mut Leadership<R::Work>) {
        self.finish(held).await;
        // A candidate that could not release the Lease in time is gone, and with it what it knew last.
        self.observe_known_lease(held);
        held.reservation = None;
        self.forget_connection();
        // The first connection after the rest follows no loss.
        let _was_away = held.connection_restored();
        self.status.connected(false);
        self.status.phase(DriverPhase::Suspended);
        self.wait(std::future::pending::<()>()).await;
    }

    /// Resolves when the driver is suspended, or the handshake has other deadlines. A connection that is being made goes on through all other
    /// edits, so that it is made however often there are some.
    async fn connect_superseded(&self) {
        let mut config = self.config.clone();
        let deadlines = handshake_deadlines(&config.borrow());
        let superseded = config.wait_for(|now| now.suspend || handshake_deadlines(now) != deadlines);
        let is_over = superseded.await.is_err();
        if is_over {
            std::future::pending::<()>().await;
        }
    }

    /// Shows why there is nothing to work with, and waits for a reason to try again. One is that what is held has to be
    /// given up, and `mended` is one for a driver that is stalled.
    async fn wait_for_driver(
        &mut self,
        unreached: &ConnectFailure,
        given_up: impl Future<Output = ()>,
        mended: impl Future<Output = ()>,
    ) {
        let stalled = unreached.obstacle.is_stalled;
        self.show(&unreached.obstacle, unreached.has_answered());
        let connection_lost = async {
            or_never(unreached.client.as_ref().map(|client| client.connection().lost())).await;
            // One that hangs up at once is not asked in a loop.
            tokio::time::sleep(RETRY).await;
        };
        let lost = async {
            tokio::select! {
                biased;
                () = given_up => {}
                () = connection_lost, if stalled => {}
                () = mended, if stalled => {}
            }
        };
        self.wait(timeout(unreached.obstacle.pause(), lost)).await;
    }

    /// Works over a connection that answered, until the connection is lost, or the settings or the Lease change.
    async fn serve_connection(
        &mut self,
        reached: ConnectedDriver,
        access: &impl Connector,
        held: &mut Leadership<R::Work>,
    ) {
        let facts = reached.facts();
        if held.connection_restored() {
            self.count_reconnect(&facts.name);
        }
        self.status.connected(true);
        self.status.connection_problem(None);
        self.status.unanswered_calls(None);
        let (mut reached, mut unanswered) = (reached, None);
        self.set_plugin(&reached.handshake);
        if !self.wait_for_lists(&facts, &reached.client).await {
            if reached.client.connection().is_lost() {
                self.leave_connection(&facts.name, None, held).await;
            }
            return;
        }
        loop {
            let client = &reached.client;
            if !self.acquire_reservation(&facts.name, client, held).await {
                break;
            }
            // Asked before the Lease is competed for: another replica may reach a driver that attaches.
            let Some(served) = self.serviceable(&facts, client, held).await else {
                break;
            };
            self.init_driver_metrics(&reached.handshake);
            if !self.acquire_lease(&reached, held).await || !self.resume_or_start(held, &served, &reached).await {
                // Told, and left to the rival, before anything is asked over another connection.
                if held.has_lost_reservation() {
                    continue;
                }
                break;
            }
            self.status.phase(DriverPhase::Running);
            let status = self.status.clone();
            // On the heap, as it is large.
            let replaced = Box::pin(access.replaced(&reached, &status));
            match self.work(&facts.name, client, held, replaced).await {
                TaskEvent::ConnectionLost => break,
                TaskEvent::Unanswered(obstacle) => {
                    unanswered = Some(obstacle);
                    break;
                }
                TaskEvent::Replaced(next) if next.facts() == facts => {
                    reached = *next;
                    self.set_plugin(&reached.handshake);
                }
                // Replaced: by another driver than it was, so that everything starts over.
                TaskEvent::Stop | TaskEvent::SettingsChanged | TaskEvent::Replaced(_) => return,
                TaskEvent::LeaseLost => {
                    self.warn(&facts.name, "lost the Lease; resuming when this replica holds it again");
                    self.drain(held).await;
                }
                TaskEvent::AdmissionDoubted => {}
                TaskEvent::ReservationLost => self.warn(&facts.name, LEFT_TO_RIVAL),
            }
        }
        if unanswered.is_some() || reached.client.connection().is_lost() {
            self.leave_connection(&facts.name, unanswered, held).await;
        }
    }

    /// The connection is lost, or the driver is `unanswered` over it and over a new one. Calls that run are let go on: the driver may
    /// answer them late.
    async fn leave_connection(&self, driver: &str, unanswered: Option<HandshakeError>, held: &mut Leadership<R::Work>) {
        let phase = if let Some(obstacle) = unanswered {
            let (reason, error) = (obstacle.reason.as_str(), &*obstacle.message);
            warn!(
                config = &*self.name,
                driver,
                reason,
                error,
                "the driver answers neither over its connection nor over a new one; connecting again"
            );
            obstacle.phase()
        } else {
            self.warn(driver, "connection to the driver lost; connecting again");
            DriverPhase::Connecting
        };
        held.connection_lost().await;
        self.status.unserved(phase, false);
        self.show_driver(false);
    }

    fn warn(&self, driver: &str, what: &str) {
        warn!(config = &*self.name, driver, "{what}");
    }

    /// Keeps the engine's settings up to date until it has to stop, or there is another connection to go on with.
    async fn work(
        &mut self,
        driver: &str,
        client: &CsiClient,
        held: &mut Leadership<R::Work>,
        replaced: impl Future<Output = Replacement>,
    ) -> TaskEvent {
        let mut replaced = pin!(replaced);
        loop {
            let (deposed, outranked) = (held.loses_term(), held.reservation_lost());
            let event = tokio::select! {
                biased;
                () = held.admission_doubted() => TaskEvent::AdmissionDoubted,
                event = self.wait(client.connection().lost()) => event,
                () = deposed => TaskEvent::LeaseLost,
                () = outranked => TaskEvent::ReservationLost,
                replacement = &mut replaced => self.replaced(replacement),
            };
            let TaskEvent::SettingsChanged = event else {
                return event;
            };
            let config = self.config.borrow_and_update().clone();
            if config.suspend {
                self.config.mark_changed();
                return event;
            }
            if let Some(engine) = &held.engine {
                engine.reconfigure(&config);
            }
            info!(config = &*self.name, driver, "new settings in use");
            let facts_differ = |engine: &Engine<R::Work>| engine.work().is_admitted_otherwise(&config);
            if held.engine.as_ref().is_some_and(facts_differ) {
                return TaskEvent::AdmissionDoubted;
            }
        }
    }

    /// What comes of another connection. One that was made after a loss is counted.
    fn replaced(&self, replacement: Replacement) -> TaskEvent {
        match replacement {
            Replacement::Reconnected(next) => {
                self.count_reconnect(&next.handshake.plugin.name);
                TaskEvent::Replaced(next)
            }
            Replacement::Ready(next) => TaskEvent::Replaced(next),
            Replacement::Unanswered(obstacle) => TaskEvent::Unanswered(obstacle),
        }
    }

    /// Goes on with the running engine if the driver is the same as before and so is the term of the Lease, else with a new
    /// one. False when it must not work.
    pub async fn resume_or_start(
        &mut self,
        held: &mut Leadership<R::Work>,
        facts: &DriverFacts,
        reached: &ConnectedDriver,
    ) -> bool {
        let client = &reached.client;
        let fenced = FencedClient::new(client.clone(), held.term.clone());
        let config = self.config.borrow().clone();
        let same = |running: &&Engine<R::Work>| {
            running.facts() == facts && running.term() == held.term && !running.work().is_admitted_otherwise(&config)
        };
        if let Some(running) = held.engine.as_ref().filter(same) {
            // They may have changed while the driver was away.
            running.reconfigure(&config);
            running.resume(fenced, reached.restores);
            return true;
        }
        // The driver came back as another, or with other capabilities.
        self.drain(held).await;
        // The engine that ended took them along.
        self.init_driver_metrics(&reached.handshake);
        if self.election.is_some() && !self.relist_before_start(facts, client, held).await {
            return false;
        }
        // What another replica published, or the engine before, is known only now.
        let Some(facts) = self.serviceable(facts, client, held).await else {
            return false;
        };
        // Asked for before the attempt, so that no driver ends unseen between the two.
        let mut vacancies = self.role.vacancies();
        let started = self.role.start(Start {
            name: self.name.clone(),
            config: self.config.clone(),
            facts,
            client: fenced,
            status: self.status.clone(),
        });
        match started {
            Ok(started) => {
                held.engine = Some(started);
                true
            }
            Err(refusal) => {
                // The driver in the way may be about to end: its AttacherConfig was deleted, say, and its last call runs.
                let vacancy = async move {
                    if vacancies.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                self.give_up(refusal, client, held, vacancy).await;
                false
            }
        }
    }

    /// What the driver that answered `facts` is worked for with; none when it must not be, after the Lease was given up and a reason to
    /// look again was waited for, or when the task is to stop.
    async fn serviceable(
        &mut self,
        facts: &DriverFacts,
        client: &CsiClient,
        held: &mut Leadership<R::Work>,
    ) -> Option<DriverFacts> {
        let config = self.config.borrow().clone();
        let refusal = tokio::select! {
            biased;
            () = self.stop.cancelled() => return None,
            admitted = self.role.admit(facts, &config, &self.name) => match admitted {
                Ok(admitted) => return Some(admitted),
                Err(refusal) => refusal,
            },
        };
        self.give_up(refusal, client, held, std::future::pending()).await;
        None
    }

    /// The role does not work for the driver: gives up its Lease, and waits for a reason to look again, of which `mended` is one.
    async fn give_up(
        &mut self,
        refusal: Refusal,
        client: &CsiClient,
        held: &mut Leadership<R::Work>,
        mended: impl Future<Output = ()>,
    ) {
        let Refusal { reason, message } = refusal;
        self.finish(held).await;
        // It answers, and an engine that ended has taken its metrics away.
        self.show_driver(true);
        let unreached = ConnectFailure::over(client, HandshakeError::stalled(reason, message));
        self.wait_for_driver(&unreached, std::future::pending(), mended).await;
    }

    /// Lets running calls end, and gives up the driver and its Lease. One that answers nothing goes on doing so: its calls end at their
    /// deadlines.
    pub async fn finish(&self, held: &mut Leadership<R::Work>) {
        if matches!(self.status.borrow().phase, DriverPhase::Unreachable { .. }) {
            self.end_calls(held).await;
        } else {
            self.drain(held).await;
        }
        held.release_lease().await;
    }

    async fn drain(&self, held: &mut Leadership<R::Work>) {
        if held.engine.is_some() {
            self.status.phase(DriverPhase::Draining);
        }
        self.end_calls(held).await;
    }

    async fn end_calls(&self, held: &mut Leadership<R::Work>) {
        let Some(driver) = held.drain(&self.cut_off).await else {
            return;
        };
        self.role.ended(&self.status);
        self.forget_driver(&driver, held.is_away());
        info!(config = &*self.name, driver = &*driver, "driver drained");
    }

    async fn wait<T>(&mut self, lost: impl Future<Output = T>) -> TaskEvent {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => TaskEvent::Stop,
            changed = self.config.changed() => if changed.is_ok() { TaskEvent::SettingsChanged } else { TaskEvent::Stop },
            _ = lost => TaskEvent::ConnectionLost,
        }
    }

    fn set_plugin(&self, handshake: &Handshake) {
        let plugin = handshake.described();
        let is_stalled = matches!(self.status.borrow().phase, DriverPhase::Stalled { .. });
        if is_stalled && self.status.borrow().plugin.as_ref() == Some(&plugin) {
            // It is asked again and again, and says what it said.
            return;
        }
        info!(
            config = &*self.name,
            driver = plugin.name,
            version = plugin.vendor_version,
            mode = handshake.mode(),
            capabilities = handshake.capabilities.names.join(","),
            "driver connected"
        );
        self.status.plugin(plugin);
    }

    /// Shows in the metrics whether the driver answers.
    fn show_driver(&self, is_up: bool) {
        if let Some(name) = self.driver_name()
            && let Some(metrics) = self.metrics_of(&name)
        {
            metrics.driver_up(&name, is_up);
        }
    }

    /// Removes from the metrics a driver that is not worked for any more. One that is looked for is shown to be away.
    fn forget_driver(&self, name: &str, is_away: bool) {
        match self.metrics_of(name) {
            Some(metrics) if is_away => metrics.forget_work(name),
            Some(metrics) => metrics.forget_attaching(name),
            None => {}
        }
    }

    /// Removes the driver from the metrics, as it is not looked for any more. An engine that ended took its metrics along; where none ran, or
    /// the driver was away, nothing else would while an AttacherConfig names the driver.
    fn forget_connection(&self) {
        if let Some(driver) = self.driver_name() {
            self.forget_driver(&driver, false);
        }
    }

    /// Counts a connection to `driver` that was made after a loss; not one that leads to another driver than the last.
    fn count_reconnect(&self, driver: &str) {
        if self.driver_name().as_deref() == Some(driver)
            && let Some(metrics) = self.metrics_of(driver)
        {
            metrics.driver_reconnected(driver);
        }
    }

    /// Where a driver is shown, unless another AttacherConfig works for it.
    fn metrics_of(&self, name: &str) -> Option<&Metrics> {
        let is_of_another = self.reservations.is_served_by_another(&self.name, name);
        self.role.driver_metrics().filter(|_| !is_of_another)
    }

    /// The name that the driver answered last, or that the spec has.
    fn driver_name(&self) -> Option<String> {
        let answered = self.status.borrow().plugin.as_ref().map(|plugin| plugin.name.clone());
        answered.or_else(|| self.config.borrow().driver_name.clone())
    }

    /// The metrics of a driver that answered. They are made anew after an engine ended, whose end removes them.
    fn init_driver_metrics(&self, handshake: &Handshake) {
        if let Some(metrics) = self.role.driver_metrics() {
            let plugin = &handshake.plugin;
            metrics.driver_info(&plugin.name, &plugin.vendor_version, handshake.mode());
            metrics.driver_up(&plugin.name, true);
        }
    }

    /// Resolves when the driver's name is known from somewhere.
    async fn name_is_known(&self) {
        let mut name = self.known_as.subscribe();
        let _ended = name.wait_for(Option::is_some).await;
    }

    /// Watches the Lease of a driver that has not answered yet, if its name is known.
    fn observe_known_lease(&self, held: &mut Leadership<R::Work>) {
        if held.candidate.is_some() {
            return;
        }
        let set = self.config.borrow().driver_name.as_deref().map(Arc::from);
        if let Some(driver) = set.or_else(|| self.known_as.borrow().clone()) {
            self.observe_lease(held, &driver);
        }
    }

    /// Watches the Lease of a driver, if there is an election at all.
    fn observe_lease(&self, held: &mut Leadership<R::Work>, driver: &str) {
        let Some(election) = self.election.clone() else { return };
        if held.candidate.is_none() {
            let candidate =
                LeaderElectionHandle::observe(election, self.role.lease(driver), self.role.metrics().clone());
            held.set_candidate(candidate);
        }
    }

    /// Waits until the driver is ours among the AttacherConfigs of this process. False when something else comes first.
    async fn acquire_reservation(
        &mut self,
        driver: &Arc<str>,
        client: &CsiClient,
        held: &mut Leadership<R::Work>,
    ) -> bool {
        let lease = self.role.lease(driver);
        let other_claim = held.reservation.as_ref().is_some_and(|claim| claim.driver() != driver);
        let other_lease = held.candidate.as_ref().is_some_and(|held| held.lease() != lease);
        if other_claim || other_lease {
            // The driver came back under another name, or has another one than was thought.
            let former = held.reservation.as_ref().map(|claim| claim.driver().clone());
            self.finish(held).await;
            held.release_all().await;
            // An engine that ends takes its metrics along; where none ever ran, nothing else would.
            if let Some(former) = former {
                self.forget_driver(&former, false);
            }
        }
        self.observe_lease(held, driver);
        if held.reservation.is_none() {
            held.reservation = Some(self.reservations.reserve(&self.name, driver));
        }
        loop {
            let Some(claim) = &held.reservation else { return false };
            let verdict = claim.activate();
            match &verdict {
                ReservationState::Granted => return true,
                ReservationState::Waiting { after } => {
                    let after = after.clone();
                    self.status.phase(DriverPhase::AwaitingReservation { after });
                    let changed = reservation_changed(claim, &verdict, client);
                    if self.wait_or_interrupted(changed, client).await {
                        return false;
                    }
                }
                ReservationState::Refused(rival) => {
                    self.drain(held).await;
                    held.release_lease().await;
                    let message = rival.message(|name| self.role.lease(name), |name| self.role.finalizer(name));
                    let obstacle = HandshakeError::stalled(rival.reason(), message);
                    self.show(&obstacle, true);
                    let Some(claim) = &held.reservation else { return false };
                    let changed = reservation_changed(claim, &verdict, client);
                    self.wait(timeout(obstacle.pause(), changed)).await;
                    return false;
                }
            }
        }
    }

    /// Shows why the driver is not worked for, and whether it is connected all the same. The log has each reason and text once.
    fn show(&self, obstacle: &HandshakeError, is_connected: bool) {
        if self.status.unserved(obstacle.phase(), is_connected) {
            let (reason, error) = (obstacle.reason.as_str(), &*obstacle.message);
            warn!(config = &*self.name, reason, error, "cannot serve the driver");
        }
    }

    /// Waits until the driver's Lease is held, if there is an election at all, and notes the term. False when something else
    /// comes first.
    ///
    /// An engine that is there works on only if the Lease was held without interruption: what it knows of the objects may be
    /// from before another replica worked.
    pub async fn acquire_lease(&mut self, reached: &ConnectedDriver, held: &mut Leadership<R::Work>) -> bool {
        if self.election.is_none() {
            return true;
        }
        loop {
            let Some(candidate) = &held.candidate else { return false };
            if candidate.has_ended() {
                // As by a panic. There is another one with the next look at the connection.
                held.drop_candidate();
                self.wait(tokio::time::sleep(RETRY)).await;
                return false;
            }
            candidate.start_acquiring();
            let seen = candidate.status();
            // Of the same look: the Lease may be lost at any moment, and without a term nothing would be checked.
            held.term = seen.state.term().cloned();
            if held.has_engine_of_another_term() {
                self.warn(
                    &reached.handshake.plugin.name,
                    "the Lease was lost meanwhile; its running calls end",
                );
                self.drain(held).await;
                self.init_driver_metrics(&reached.handshake);
                continue;
            }
            if held.term.is_some() {
                return true;
            }
            self.status.phase(self.without_lease(&seen, candidate.lease()));
            let connection = reached.client.connection();
            let changed = async {
                tokio::select! {
                    biased;
                    () = candidate.differs_from(&seen) => {}
                    () = connection.lost() => {}
                    () = held.reservation_lost() => {}
                }
            };
            if self.wait_or_interrupted(changed, &reached.client).await || held.has_lost_reservation() {
                return false;
            }
        }
    }

    /// What the driver is at while its Lease is not held.
    fn without_lease(&self, seen: &CandidateStatus, lease: &str) -> DriverPhase {
        match (seen.state.holder(), &seen.permission_error) {
            (None, Some(message)) => DriverPhase::Stalled {
                reason: ConditionReason::LeaseForbidden,
                message: message.clone(),
            },
            (Some(holder), _) if holder.namesake => DriverPhase::Stalled {
                reason: ConditionReason::IdentityConflict,
                message: same_name(&holder.identity, lease),
            },
            (holder, _) => DriverPhase::Standby {
                holder: holder.map(|holder| holder.identity.clone()),
                namespace: self.elsewhere(seen.state.namespace()),
                new_lease: seen.new_lease.as_ref().map(|new| waiting_for_new(new, lease)),
            },
        }
    }

    /// The namespace of a Lease that is not the own one.
    fn elsewhere(&self, namespace: Option<&str>) -> Option<String> {
        let own = self.election.as_ref().map(|election| &*election.namespace);
        namespace.filter(|namespace| own != Some(*namespace)).map(str::to_owned)
    }

    /// Waits for a change; true when waiting on is of no use: the task is stopped or suspended, or the connection is lost.
    async fn wait_or_interrupted(&mut self, changed: impl Future<Output = ()>, client: &CsiClient) -> bool {
        match self.wait(changed).await {
            TaskEvent::Stop => true,
            TaskEvent::SettingsChanged if self.config.borrow().suspend => {
                self.config.mark_changed();
                true
            }
            _ => client.connection().is_lost(),
        }
    }

    /// Waits until as much was listed as is needed before the driver is competed for. False when something else comes first.
    ///
    /// A driver is competed for as soon as lists come in, as with its Lease everything is listed anew; see [`Role::needs_lists_first`].
    /// Not before: a replica that may not list could do nothing with the Lease.
    pub async fn wait_for_lists(&mut self, facts: &DriverFacts, client: &CsiClient) -> bool {
        let (lists, others) = (self.role.lists(facts), self.role.lists_of(facts));
        if lists.is_synced() && others.as_ref().is_none_or(Lists::is_synced) {
            return true;
        }
        self.status.phase(DriverPhase::Syncing);
        let first_parts = self.election.is_some() && !self.role.needs_lists_first(facts);
        let listed = async {
            if first_parts {
                lists.wait_answered().await;
            } else {
                lists.wait_synced().await;
            }
            if let Some(others) = &others {
                others.wait_synced().await;
            }
        };
        self.wait_unless_interrupted(listed, client).await
    }

    /// Makes sure that the cache shows everything that another replica did before us. False when something else comes first.
    async fn relist_before_start(
        &mut self,
        facts: &DriverFacts,
        client: &CsiClient,
        held: &Leadership<R::Work>,
    ) -> bool {
        self.status.phase(DriverPhase::Syncing);
        let (lists, others) = (self.role.lists(facts), self.role.proofs_of(facts));
        tokio::select! {
            biased;
            is_listed = self.wait_unless_interrupted(list_again(&lists, others), client) => is_listed,
            () = held.loses_term() => false,
            () = held.reservation_lost() => false,
        }
    }

    /// Waits for what must be there first. False when waiting on is of no use, see [`Self::wait_or_interrupted`].
    async fn wait_unless_interrupted(&mut self, done: impl Future<Output = ()>, client: &CsiClient) -> bool {
        let mut done = pin!(done);
        loop {
            tokio::select! {
                biased;
                () = &mut done => return true,
                is_interrupted = self.wait_or_interrupted(client.connection().lost(), client) => if is_interrupted {
                    return false;
                },
            }
        }
    }
}

/// Lists everything again: all of `lists`, and of the others what may be listed.
pub(crate) async fn list_again(lists: &Lists, others: Vec<Lists>) {
    tokio::join!(
        lists.relist(),
        join_all(others.into_iter().map(Lists::relist_permitted))
    );
}

/// The deadlines of the calls by which a driver is asked who it is.
fn handshake_deadlines(config: &DriverConfig) -> (Duration, Duration) {
    (config.timeouts.probe, config.timeouts.identity)
}

/// Resolves when the reservation is in another state, or the connection is lost.
async fn reservation_changed(claim: &Reservation, seen: &ReservationState, client: &CsiClient) {
    tokio::select! {
        biased;
        () = claim.differs_from(seen) => {}
        () = client.connection().lost() => {}
    }
}

/// Until when a Lease that is new is waited for. How long that is says the Lease, whatever the settings say by now.
fn waiting_for_new(new: &NewLease, lease: &str) -> String {
    let (namespace, seconds) = (&new.namespace, new.duration.as_secs());
    let until = clock::wall(new.since).checked_add(new.duration);
    let until = until.map_or_else(|_| String::new(), |until| format!(", at {}", whole_seconds(until)));
    format!(
        "Lease {namespace}/{lease} is new: nobody works for the driver until its leaseDurationSeconds ({seconds} s) are \
         over{until}"
    )
}

/// What is wrong when another process has our name, and how to fix it.
fn same_name(identity: &str, lease: &str) -> String {
    format!(
        "another process with the identity {identity} has taken the Lease {lease} from this replica, and each needs an identity of \
         its own: remove that process, or give one of the two another --identity (by default it is the name of the host, \
         which a sidecar in the same pod has, too, and one on the same node with hostNetwork)"
    )
}
