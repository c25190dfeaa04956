//! One control plane for all tests that start an operator of their own, which take turns: every operator serves every
//! AttacherConfig, so two of them at a time would work for each other's drivers.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{MockDriverBuilder, MockHandle};

use super::error::{Error, Result};
use super::operator::{self, IDENTITY, Operator, OperatorOptions, apply_config, release_lease, wait_condition};
use super::{ControlPlane, Fixtures, Options, Refusals};

/// Namespace and name of a secret which the operator may read once [`Stage::publish_secret`] was called.
pub const PUBLISH_SECRET: (&str, &str) = ("storage", "publish-secret");

/// A turn on the control plane. It ends when this is dropped.
pub struct Stage {
    /// The control plane: with the audit log, without kube-controller-manager.
    pub cluster: &'static ControlPlane,
    pub client: Client,
    pub fixtures: Fixtures,
    // It looks back before the next test has its turn.
    _refusals: Refusals,
    _turn: MutexGuard<'static, ()>,
}

/// A mock driver with an AttacherConfig of its own. Dropping it stops it.
pub struct Driver {
    pub handle: MockHandle,
    pub socket: String,
    _folder: tempfile::TempDir,
}

impl Stage {
    /// Waits for the turn. The first caller starts the control plane. What earlier tests left behind stays, except for
    /// their AttacherConfigs; so each test uses names of its own.
    pub async fn enter() -> Result<Self> {
        static TURN: Mutex<()> = Mutex::const_new(());
        static CLUSTER: OnceCell<std::result::Result<ControlPlane, String>> = OnceCell::const_new();
        let turn = TURN.lock().await;
        let options = Options {
            audit: true,
            ..Options::default()
        };
        let cluster = CLUSTER
            .get_or_init(|| async { ControlPlane::start(options).await.map_err(|error| error.to_string()) })
            .await
            .as_ref()
            .map_err(|message| Error::SharedControlPlane(message.clone()))?;
        Self::on(cluster, turn).await
    }

    /// A turn on another control plane, of those that take turns there.
    pub async fn on(cluster: &'static ControlPlane, turn: MutexGuard<'static, ()>) -> Result<Self> {
        operator::install(cluster).await?;
        let client = cluster.admin_client().await?;
        let configs: Api<AttacherConfig> = Api::all(client.clone());
        let (params, all) = (DeleteParams::default(), ListParams::default());
        configs.delete_collection(&params, &all).await?;
        let fixtures = Fixtures::new(client.clone());
        Ok(Self {
            cluster,
            client,
            fixtures,
            _refusals: Refusals::of(cluster)?,
            _turn: turn,
        })
    }

    /// Starts an operator and waits until it is ready.
    pub async fn operator(&self, options: OperatorOptions) -> Result<Operator> {
        let operator = Operator::start(self.cluster, options).await?;
        operator.wait_ready().await?;
        Ok(operator)
    }

    /// Starts a mock driver and makes an AttacherConfig for it, whose backoff is short.
    pub async fn driver(&self, builder: MockDriverBuilder, config: &str) -> Result<Driver> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("csi.sock");
        release_lease(&self.client, IDENTITY, builder.driver_name()).await?;
        let handle = builder.start(&socket).await?;
        let socket = socket.display().to_string();
        let backoff = json!({ "initial": "100ms", "max": "1s", "jitterPercent": 0 });
        // Nothing happens but what a test asks for: the passes of the comparison with ListVolumes are traced too.
        let sync = json!({ "mode": "Disabled" });
        // The namespace of the one Secret that a stage makes.
        let secrets = json!([{ "namespace": PUBLISH_SECRET.0 }]);
        let spec = json!({
            "endpoint": format!("unix://{socket}"), "backoff": backoff, "reconcileSync": sync, "publishSecrets": secrets,
        });
        apply_config(&self.client, config, spec).await?;
        Ok(Driver {
            handle,
            socket,
            _folder: folder,
        })
    }

    /// Waits until the driver of this AttacherConfig is worked for.
    pub async fn wait_working(&self, config: &str) -> Result<AttacherConfig> {
        wait_condition(&self.client, config, "Ready", "True", Some("Running")).await
    }

    /// Makes or replaces the secret [`PUBLISH_SECRET`] and lets the operator read it.
    pub async fn publish_secret(&self, data: &[(&str, &str)]) -> Result<()> {
        let (namespace, name) = PUBLISH_SECRET;
        let home = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
        self.cluster.apply_yaml(&home.to_string()).await?;
        // Applied over an old secret, the keys of the old one would stay.
        self.fixtures.delete_namespaced::<Secret>(namespace, name).await?;
        self.fixtures.secret(namespace, name, data).await?;
        operator::grant_secret(self.cluster, namespace, name).await
    }
}

/// Tells an operator to stop and waits for its end, which must be a good one. What it traced is exported then.
pub async fn stop(operator: &mut Operator) -> Result<()> {
    operator.signal("TERM")?;
    let status = operator.wait_ended(Duration::from_secs(30)).await?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Other(format!("operator: {status}\n{}", operator.log_text())))
}
