//! The life of a driver: phases, reconnects, changes of settings, the end.

use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::api::validated::DriverConfig;
use crate::connect::handshake::{HandshakeError, RETRY};
use crate::connect::replacement::Replacement;
use crate::connect::{ConnectFailure, ConnectedDriver, Connector, DriverConnector};
use crate::csi::CsiClient;
use crate::decide::DriverFacts;
use crate::fence::FencedClient;
use crate::leadership::Leadership;
use crate::lease::{LeaderElectionConfig, LeaderState};
use crate::reservation::Reservations;
use crate::role::{Engine, Refusal, Role, Start};
use crate::state::{DriverPhase, DriverState, DriverStateSender, Plugin};

/// A driver to run: everything that it is told and everything that it tells.
pub struct DriverTask<R> {
    /// What is done for the driver.
    pub role: R,
    /// Name of the AttacherConfig.
    pub name: Arc<str>,
    /// Its settings; endpoint and name stay the same for the life of the task.
    pub config: watch::Receiver<Arc<DriverConfig>>,
    /// How the driver's Lease is competed for; without, the driver is worked for as soon as it answers.
    pub campaign: Option<LeaderElectionConfig>,
    /// Which of several AttacherConfigs works for a driver.
    pub claims: Reservations,
    /// The name of the driver before it has answered, when it is known from somewhere.
    pub known_as: Arc<Mutex<Option<Arc<str>>>>,
    /// Where the candidate for the Lease can be followed while there is one.
    pub standing: Arc<Mutex<Option<watch::Receiver<LeaderState>>>>,
    /// Tells the task to finish.
    pub stop: CancellationToken,
    /// Cancels the calls that still run when there is no more time for them to finish.
    pub cut_off: CancellationToken,
    /// Whether it is to finish for good, since the AttacherConfig is gone: nobody goes on with what is pending.
    pub removed: Arc<AtomicBool>,
    /// Where the state goes.
    pub status: watch::Sender<DriverState>,
}

/// Why a wait ended.
pub enum TaskEvent {
    /// The task is told to finish.
    Stop,
    /// There are other settings.
    SettingsChanged,
    /// What the wait was for is lost, such as the connection.
    ConnectionLost,
    /// The pause is over.
    RetryDue,
    /// The Lease is not held any more.
    LeaseLost,
    /// Another connection is to be used, or there is none.
    Replaced(Replacement),
    /// An older AttacherConfig claims the driver.
    ReservationLost,
    /// The driver has to be admitted again.
    AdmissionDoubted,
}

impl<R: Role> DriverTask<R> {
    /// Runs until told to stop; returns when all calls in flight ended and were recorded.
    pub async fn run(self) {
        let access = {
            let (requests, metrics) = (self.role.requests(), self.role.metrics());
            DriverConnector::new(self.name.clone(), self.config.clone(), requests, metrics)
        };
        self.run_over(access).await;
    }

    /// As [`DriverTask::run`], with a driver that is reached this way.
    pub async fn run_over(mut self, access: impl Connector) {
        let publisher = DriverStateSender::new(self.status.clone());
        let mut held = Leadership::<R::Engine>::default();
        loop {
            if self.stop.is_cancelled() {
                break;
            }
            self.observe_known_lease(&mut held);
            if self.config.borrow_and_update().suspend {
                self.finish(&publisher, &mut held).await;
                held.claim = None;
                publisher.phase(DriverPhase::Suspended);
                self.wait(None, std::future::pending()).await;
                continue;
            }
            let stop = self.stop.clone();
            let reached = tokio::select! {
                biased;
                reached = access.connect() => reached,
                () = stop.cancelled() => break,
                () = held.engine_must_stop() => {
                    self.finish(&publisher, &mut held).await;
                    continue;
                }
            };
            match reached {
                Err(unreached) => {
                    let (given_up, mended) = (held.engine_must_stop(), access.changed(&unreached));
                    self.wait_for_driver(&publisher, &unreached, given_up, mended).await;
                }
                Ok(reached) => self.serve_connection(&publisher, reached, &access, &mut held).await,
            }
        }
        let end_pending = held.engine.as_ref().map(Engine::end_pending);
        self.drain(&publisher, &mut held).await;
        if let Some(end) = end_pending.filter(|_| self.removed.load(Ordering::Relaxed)) {
            end();
        }
        publisher.phase(DriverPhase::Stopped);
        held.release_all().await;
    }

    /// Shows why there is nothing to work with, and waits for a reason to try again. One is that what is held has to be
    /// given up, and `mended` is one for a driver that is stalled.
    pub(super) async fn wait_for_driver(
        &mut self,
        publisher: &DriverStateSender,
        unreached: &ConnectFailure,
        given_up: impl Future<Output = ()>,
        mended: impl Future<Output = ()>,
    ) {
        let phase = unreached.obstacle.phase();
        let stalled = matches!(phase, DriverPhase::Stalled { .. });
        if self.status.borrow().phase != phase {
            let (reason, message) = (unreached.obstacle.reason().as_str(), unreached.obstacle.message());
            warn!(config = &*self.name, reason, message, "cannot serve the driver");
        }
        self.set_driver_down();
        publisher.phase(phase);
        let connection_lost = async {
            match &unreached.client {
                Some(client) => client.connection().lost().await,
                None => std::future::pending().await,
            }
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
        self.wait(Some(unreached.obstacle.pause()), lost).await;
    }

    /// Works over a connection that answered, until it is lost or the task is told otherwise.
    async fn serve_connection(
        &mut self,
        publisher: &DriverStateSender,
        reached: ConnectedDriver,
        access: &impl Connector,
        held: &mut Leadership<R::Engine>,
    ) {
        held.connection_restored();
        publisher.connection_problem(None);
        let facts = reached.facts();
        let (mut reached, mut unanswered) = (reached, None);
        self.set_plugin(publisher, &reached.handshake);
        if !self.wait_for_lists(publisher, &facts).await {
            return;
        }
        loop {
            let client = &reached.client;
            if !self.acquire_reservation(publisher, &facts.name, client, held).await {
                break;
            }
            // Asked before the Lease is competed for: another replica may reach a driver that attaches.
            let Some(served) = self.serviceable(publisher, &facts, client, held).await else {
                break;
            };
            self.init_driver_metrics(&reached.handshake);
            if !self.acquire_lease(publisher, &reached, held).await
                || !self.resume_or_start(publisher, held, &served, &reached).await
            {
                break;
            }
            publisher.phase(DriverPhase::Running);
            // On the heap, as it is large.
            let replaced = Box::pin(access.replaced(&reached, publisher));
            match self.work(&facts.name, client, held, replaced).await {
                TaskEvent::ConnectionLost | TaskEvent::RetryDue => break,
                TaskEvent::Replaced(Replacement::Unanswered(obstacle)) => {
                    unanswered = Some(obstacle);
                    break;
                }
                TaskEvent::Replaced(Replacement::Ready(next)) if next.facts() == facts => {
                    reached = *next;
                    self.set_plugin(publisher, &reached.handshake);
                }
                // Replaced: by another driver than it was, so that everything starts over.
                TaskEvent::Stop | TaskEvent::SettingsChanged | TaskEvent::Replaced(_) => return,
                TaskEvent::LeaseLost => {
                    self.warn(&facts.name, "lost the Lease; resuming when this replica holds it again");
                    self.drain(publisher, held).await;
                }
                TaskEvent::AdmissionDoubted => {}
                TaskEvent::ReservationLost => {
                    self.warn(
                        &facts.name,
                        "an older AttacherConfig claims the driver; leaving it to that one",
                    );
                }
            }
        }
        if unanswered.is_some() || reached.client.connection().is_lost() {
            self.leave_connection(publisher, &facts.name, unanswered, held).await;
        }
    }

    /// The connection is lost, or the driver is `unanswered` over it and over a new one. Calls that run are let go on: the driver may
    /// answer them late.
    async fn leave_connection(
        &self,
        publisher: &DriverStateSender,
        driver: &str,
        unanswered: Option<HandshakeError>,
        held: &mut Leadership<R::Engine>,
    ) {
        let phase = if let Some(obstacle) = unanswered {
            let (reason, message) = (obstacle.reason().as_str(), obstacle.message());
            warn!(
                config = &*self.name,
                driver,
                reason,
                message,
                "the driver answers neither over its connection nor over a new one; connecting again"
            );
            obstacle.phase()
        } else {
            self.warn(driver, "connection to the driver lost; connecting again");
            DriverPhase::Connecting
        };
        held.connection_lost().await;
        publisher.phase(phase);
        self.set_driver_down();
        self.role.metrics().driver_reconnected(driver);
    }

    pub(super) fn warn(&self, driver: &str, what: &str) {
        warn!(config = &*self.name, driver, "{what}");
    }

    /// Keeps the engine's settings up to date until it has to stop, or there is another connection to go on with.
    async fn work(
        &mut self,
        driver: &str,
        client: &CsiClient,
        held: &mut Leadership<R::Engine>,
        replaced: impl Future<Output = Replacement>,
    ) -> TaskEvent {
        let mut replaced = pin!(replaced);
        loop {
            let (deposed, outranked) = (held.loses_term(), held.reservation_lost());
            let event = tokio::select! {
                biased;
                () = held.admission_doubted() => TaskEvent::AdmissionDoubted,
                event = self.wait(None, client.connection().lost()) => event,
                () = deposed => TaskEvent::LeaseLost,
                () = outranked => TaskEvent::ReservationLost,
                replacement = &mut replaced => TaskEvent::Replaced(replacement),
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
            let facts_differ = |engine: &R::Engine| engine.is_admitted_otherwise(&config);
            if held.engine.as_ref().is_some_and(facts_differ) {
                return TaskEvent::AdmissionDoubted;
            }
        }
    }

    /// Goes on with the running engine if the driver is the same as before and so is the term of the Lease, else with a new
    /// one. False when it must not work.
    pub async fn resume_or_start(
        &mut self,
        publisher: &DriverStateSender,
        held: &mut Leadership<R::Engine>,
        facts: &DriverFacts,
        reached: &ConnectedDriver,
    ) -> bool {
        let client = &reached.client;
        let fenced = FencedClient::new(client.clone(), held.term.clone());
        let same = |running: &&R::Engine| running.facts() == facts && running.term() == held.term;
        if let Some(running) = held.engine.as_ref().filter(same) {
            running.resume(fenced, reached.restores);
            return true;
        }
        // The driver came back as another, or with other capabilities.
        self.drain(publisher, held).await;
        if self.campaign.is_some() && !self.relist_before_start(publisher, client, held).await {
            return false;
        }
        // What another replica published, or the engine before, is known only now.
        let Some(facts) = self.serviceable(publisher, facts, client, held).await else {
            return false;
        };
        // Asked for before the attempt, so that no driver ends unseen between the two.
        let mut vacancies = self.role.vacancies();
        let started = self.role.start(Start {
            name: self.name.clone(),
            config: self.config.clone(),
            facts,
            client: fenced,
            publisher: publisher.clone(),
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
                self.give_up(publisher, refusal, client, held, vacancy).await;
                false
            }
        }
    }

    /// What the driver that answered `facts` is worked for with; none when it must not be, after the Lease was given up and a reason to
    /// look again was waited for.
    async fn serviceable(
        &mut self,
        publisher: &DriverStateSender,
        facts: &DriverFacts,
        client: &CsiClient,
        held: &mut Leadership<R::Engine>,
    ) -> Option<DriverFacts> {
        let config = self.config.borrow().clone();
        match self.role.admit(facts, &config, &self.name).await {
            Ok(admitted) => Some(admitted),
            Err(refusal) => {
                self.give_up(publisher, refusal, client, held, std::future::pending())
                    .await;
                None
            }
        }
    }

    /// The role does not work for the driver: gives up its Lease, and waits for a reason to look again, of which `mended` is one.
    async fn give_up(
        &mut self,
        publisher: &DriverStateSender,
        refusal: Refusal,
        client: &CsiClient,
        held: &mut Leadership<R::Engine>,
        mended: impl Future<Output = ()>,
    ) {
        let Refusal { reason, message } = refusal;
        self.finish(publisher, held).await;
        let unreached = ConnectFailure::over(client, HandshakeError::Stalled { reason, message });
        self.wait_for_driver(publisher, &unreached, std::future::pending(), mended)
            .await;
    }

    /// Whether a driver is asked again and again, and says what it said.
    pub(super) fn is_known_to_be_stalled(&self, plugin: &Plugin) -> bool {
        let status = self.status.borrow();
        matches!(status.phase, DriverPhase::Stalled { .. }) && status.plugin.as_ref() == Some(plugin)
    }

    /// Lets running calls end, and gives up the driver and its Lease.
    pub(super) async fn finish(&self, publisher: &DriverStateSender, held: &mut Leadership<R::Engine>) {
        self.drain(publisher, held).await;
        held.release_lease().await;
    }

    /// Lets running calls end.
    pub(super) async fn drain(&self, publisher: &DriverStateSender, held: &mut Leadership<R::Engine>) {
        if held.engine.is_none() {
            return;
        }
        publisher.phase(DriverPhase::Draining);
        let Some(driver) = held.drain(&self.cut_off).await else {
            return;
        };
        self.role.ended(publisher);
        self.role.metrics().forget_driver(&driver);
        info!(config = &*self.name, driver = &*driver, "driver drained");
    }

    pub(super) async fn wait(
        &mut self,
        pause: Option<std::time::Duration>,
        lost: impl Future<Output = ()>,
    ) -> TaskEvent {
        let due = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => TaskEvent::Stop,
            changed = self.config.changed() => if changed.is_ok() { TaskEvent::SettingsChanged } else { TaskEvent::Stop },
            () = lost => TaskEvent::ConnectionLost,
            () = due => TaskEvent::RetryDue,
        }
    }
}
