//! The life of a driver: phases, reconnects, changes of settings, the end.

use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Context;
use super::engine::Engine;
use super::handshake::{Handshake, Obstacle, RETRY, shake};
use super::status::{DriverStatus, Phase, Plugin, Publisher};
use crate::api::validated::DriverConfig;
use crate::csi::{Connection, CsiClient};
use crate::decide::DriverFacts;
use crate::queue::Queue;
use crate::store::AttacherKey;

/// A driver to run: everything that it is told and everything that it tells.
pub struct DriverTask {
    /// What all drivers share.
    pub context: Context,
    /// Name of the AttacherConfig.
    pub name: Arc<str>,
    /// Its settings; endpoint and name stay the same for the life of the task.
    pub config: watch::Receiver<Arc<DriverConfig>>,
    /// Tells the task to finish.
    pub stop: CancellationToken,
    /// Where the state goes.
    pub status: watch::Sender<DriverStatus>,
    /// Where the queue can be looked at while there is one.
    pub queue: Arc<Mutex<Option<Queue<AttacherKey>>>>,
}

/// Why a wait ended.
enum Event {
    Stop,
    Changed,
    Lost,
    Due,
}

impl DriverTask {
    /// Runs until told to stop; returns when all calls in flight ended and were recorded.
    pub async fn run(mut self) {
        let publisher = Publisher::new(self.status.clone());
        let mut engine: Option<Engine> = None;
        loop {
            if self.stop.is_cancelled() {
                break;
            }
            if self.config.borrow_and_update().suspend {
                self.finish(&publisher, engine.take()).await;
                publisher.phase(Phase::Suspended);
                self.wait(None, std::future::pending()).await;
                continue;
            }
            let config = self.config.borrow().clone();
            let client = CsiClient::new(Connection::new(&config.endpoint), self.context.metrics.clone());
            let stop = self.stop.clone();
            let shaken = tokio::select! {
                shaken = shake(&client, &config) => shaken,
                () = stop.cancelled() => break,
            };
            match shaken {
                Err(obstacle) => {
                    self.blocked(&publisher, obstacle, &client, std::future::pending())
                        .await;
                }
                Ok(handshake) => self.session(&publisher, handshake, &client, &mut engine).await,
            }
        }
        self.finish(&publisher, engine.take()).await;
    }

    /// Shows why there is nothing to work with, and waits for a reason to try again; `mended` is one of them for a
    /// driver that is stalled.
    async fn blocked(
        &mut self,
        publisher: &Publisher,
        obstacle: Obstacle,
        client: &CsiClient,
        mended: impl Future<Output = ()>,
    ) {
        let (phase, reason, message) = match obstacle {
            Obstacle::Unreachable { reason, message } => (
                Phase::Unreachable {
                    reason,
                    message: message.clone(),
                },
                reason,
                message,
            ),
            Obstacle::Stalled { reason, message } => (
                Phase::Stalled {
                    reason,
                    message: message.clone(),
                },
                reason,
                message,
            ),
        };
        let stalled = matches!(phase, Phase::Stalled { .. });
        if self.status.borrow().phase != phase {
            warn!(
                config = &*self.name,
                reason = reason.as_str(),
                message,
                "cannot work with the driver"
            );
        }
        self.down();
        publisher.phase(phase);
        let lost = async {
            if stalled {
                tokio::select! {
                    () = client.connection().lost() => {}
                    () = mended => {}
                }
            } else {
                std::future::pending::<()>().await;
            }
        };
        // A driver of the wrong name is asked again when it restarts, or after a while.
        let pause = if stalled { RETRY * 30 } else { RETRY };
        self.wait(Some(pause), lost).await;
    }

    /// Works over a connection that answered, until it is lost or the task is told otherwise.
    async fn session(
        &mut self,
        publisher: &Publisher,
        handshake: Handshake,
        client: &CsiClient,
        engine: &mut Option<Engine>,
    ) {
        let facts = DriverFacts::new(&handshake.plugin.name, handshake.capabilities.bits);
        let client = client.named(facts.name.clone());
        self.introduce(publisher, &handshake);
        if !self.context.store.is_synced() {
            publisher.phase(Phase::Syncing);
            let stop = self.stop.clone();
            let store = self.context.store.clone();
            tokio::select! {
                () = store.wait_synced() => {}
                () = stop.cancelled() => return,
            }
        }
        let lost = client.connection().clone();
        if !self.resume_or_start(publisher, engine, facts, &client).await {
            return;
        }
        publisher.phase(Phase::Running);
        self.context.metrics.driver_up(&handshake.plugin.name);
        loop {
            match self.wait(None, lost.lost()).await {
                Event::Stop => return,
                Event::Changed => {
                    let config = self.config.borrow_and_update().clone();
                    if config.suspend {
                        self.config.mark_changed();
                        return;
                    }
                    if let Some(engine) = engine {
                        engine.reconfigure(&config);
                    }
                    info!(
                        config = &*self.name,
                        driver = handshake.plugin.name,
                        "settings taken over"
                    );
                }
                Event::Lost | Event::Due => break,
            }
        }
        warn!(
            config = &*self.name,
            driver = handshake.plugin.name,
            "connection to the driver lost; connecting again"
        );
        if let Some(engine) = engine {
            engine.pause();
        }
        publisher.phase(Phase::Connecting);
        self.down();
        self.context.metrics.driver_reconnected(&handshake.plugin.name);
    }

    /// Goes on with the running engine if the driver is the same as before, else with a new one. False when it must not
    /// work.
    async fn resume_or_start(
        &mut self,
        publisher: &Publisher,
        engine: &mut Option<Engine>,
        facts: DriverFacts,
        client: &CsiClient,
    ) -> bool {
        match engine.take() {
            Some(running) if *running.facts() == facts => {
                running.resume(Arc::new(client.clone()));
                *engine = Some(running);
                return true;
            }
            // The driver came back as another, or with other capabilities.
            other => self.finish(publisher, other).await,
        }
        // Asked for before the attempt, so that no driver ends unseen between the two.
        let mut vacancies = self.context.store.vacancies();
        let started = Engine::start(
            self.context.clone(),
            self.config.clone(),
            self.name.clone(),
            facts,
            Arc::new(client.clone()),
            publisher.clone(),
        );
        match started {
            Ok(started) => {
                *self.queue.lock() = Some(started.queue().clone());
                *engine = Some(started);
                true
            }
            Err(conflict) => {
                let (reason, message) = (conflict.reason(), conflict.to_string());
                // The driver in the way may be about to end: its AttacherConfig was deleted, say, and its last call runs.
                let vacancy = async move {
                    if vacancies.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                self.blocked(publisher, Obstacle::Stalled { reason, message }, client, vacancy)
                    .await;
                false
            }
        }
    }

    fn introduce(&self, publisher: &Publisher, handshake: &Handshake) {
        let attaches = handshake.capabilities.bits.publish_unpublish;
        let mode = if attaches { "Attach" } else { "Trivial" };
        let plugin = &handshake.plugin;
        info!(
            config = &*self.name,
            driver = plugin.name,
            version = plugin.vendor_version,
            mode,
            capabilities = handshake.capabilities.names.join(","),
            "driver connected"
        );
        self.context
            .metrics
            .driver_info(&plugin.name, &plugin.vendor_version, mode);
        publisher.plugin(Plugin {
            name: plugin.name.clone(),
            vendor_version: plugin.vendor_version.clone(),
            publishes: attaches,
            capabilities: handshake.capabilities.names.clone(),
        });
    }

    fn down(&self) {
        let told = self.status.borrow().plugin.as_ref().map(|plugin| plugin.name.clone());
        if let Some(name) = told.or_else(|| self.config.borrow().driver_name.clone()) {
            self.context.metrics.driver_down(&name);
        }
    }

    /// Lets running calls end, and gives up the driver.
    async fn finish(&self, publisher: &Publisher, engine: Option<Engine>) {
        let Some(engine) = engine else { return };
        publisher.phase(Phase::Draining);
        let driver = engine.facts().name.clone();
        engine.drain().await;
        *self.queue.lock() = None;
        self.context.metrics.forget_driver(&driver);
        info!(config = &*self.name, driver = &*driver, "driver drained");
    }

    async fn wait(&mut self, pause: Option<std::time::Duration>, lost: impl Future<Output = ()>) -> Event {
        let due = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => Event::Stop,
            changed = self.config.changed() => if changed.is_ok() { Event::Changed } else { Event::Stop },
            () = lost => Event::Lost,
            () = due => Event::Due,
        }
    }
}
