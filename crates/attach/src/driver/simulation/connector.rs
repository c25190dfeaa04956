//! How a process reaches a driver: who answers, with which capabilities, and when the connection is lost.

use std::sync::Arc;
use std::time::Duration;

use csi_attacher_proto::v1::controller_server::ControllerServer;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use super::calls::ModelDriver;
use super::scenario::DRIVERS;
use crate::csi::{CapabilityReport, CsiClient, DriverConnection, PluginInfo};
use crate::decide::Capabilities;
use crate::telemetry::Metrics;
use csi_attacher_runtime::connect::handshake::Handshake;
use csi_attacher_runtime::connect::replacement::Replacement;
use csi_attacher_runtime::connect::{ConnectFailure, ConnectedDriver, Connector};
use csi_attacher_runtime::state::DriverStateSender;

/// The way of one process to one driver.
#[derive(Clone)]
pub struct ModelConnector {
    pub driver: Arc<ModelDriver>,
    pub metrics: Metrics,
    pub link: Arc<Mutex<Link>>,
}

impl ModelConnector {
    /// The same, for calls under this place of the Lease.
    pub fn under(&self, place: usize) -> Self {
        let driver = ModelDriver {
            place,
            ..ModelDriver::clone(&self.driver)
        };
        Self {
            driver: Arc::new(driver),
            ..self.clone()
        }
    }
}

/// The connection that stands, and until when there is none.
#[derive(Default)]
pub struct Link {
    connection: Option<DriverConnection>,
    down: Option<Instant>,
}

impl Link {
    /// The connection is lost and comes back after a while.
    pub fn lose(&mut self, pause: Duration) {
        self.down = Some(Instant::now() + pause);
        if let Some(connection) = self.connection.take() {
            connection.lose();
        }
    }
}

impl Connector for ModelConnector {
    async fn connect(&self) -> Result<ConnectedDriver, ConnectFailure> {
        sleep(Duration::from_millis(1)).await;
        let down = self.link.lock().down;
        if let Some(until) = down {
            sleep_until(until).await;
        }
        let index = self.driver.driver;
        let (publishes, lists) = self
            .driver
            .world
            .with(|state| (state.capable[index], state.scenario.lists.is_some()));
        let bits = Capabilities {
            publish_unpublish: publishes,
            publish_readonly: publishes,
            list_volumes: lists,
            list_volumes_published_nodes: lists,
            ..Capabilities::default()
        };
        let connection = DriverConnection::in_process(ControllerServer::from_arc(self.driver.clone()));
        self.link.lock().connection = Some(connection.clone());
        let plugin = PluginInfo {
            name: DRIVERS[index].to_owned(),
            vendor_version: "1".to_owned(),
        };
        let capabilities = CapabilityReport {
            bits,
            names: Vec::new(),
        };
        Ok(ConnectedDriver {
            client: CsiClient::new(connection, self.metrics.clone()).with_driver_name(DRIVERS[index].into()),
            handshake: Handshake { plugin, capabilities },
            revision: 0,
            socket: None,
            restores: true,
        })
    }

    async fn changed(&self, _since: &ConnectFailure) {
        std::future::pending().await
    }

    async fn replaced(&self, _current: &ConnectedDriver, _status: &DriverStateSender) -> Replacement {
        std::future::pending().await
    }
}
