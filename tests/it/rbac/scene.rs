//! One scenario with the operator that it is about: one of its own, or one that many scenarios share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::MockDriverBuilder;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::other;
use super::scenarios::Row;
use crate::rig::{Driver, World, operator_options};
use crate::support::operator::release_lease;
use crate::support::proxy::{Fault, Proxy};
use crate::support::rbac::{Account, Grants};
use crate::support::{Operator, OperatorOptions, Result};

/// A scenario's own operator, which is started when the scenario wants it.
struct Own {
    kubeconfig: PathBuf,
    running: Mutex<Option<Operator>>,
    _proxy: Option<Proxy>,
}

pub struct Scene<'w> {
    pub world: &'w World,
    pub account: Account,
    /// What the driver and its objects are called after.
    pub short: String,
    own: Option<Own>,
    point: watch::Sender<bool>,
}

/// How an operator with this account is started: its Leases are in the namespace of the account.
pub fn options(account: &Account) -> OperatorOptions {
    operator_options()
        .argument("--inspection-interval=300ms")
        .argument("--stuck-after=1s")
        .variable("POD_NAMESPACE", &account.namespace)
}

/// Makes an account with these rights, and a kubeconfig for it.
pub async fn account(world: &World, account: &Account, grants: &Grants) -> Result<PathBuf> {
    let kubeconfig = world
        .cluster
        .kubeconfig_for_service_account(&account.namespace, &account.name)
        .await?;
    grants.apply(&world.cluster).await?;
    Ok(kubeconfig)
}

/// A proxy that lets no watch of this resource through.
async fn deaf(kubeconfig: &Path, resource: &'static str) -> Result<(Proxy, PathBuf)> {
    let proxy = Proxy::start(kubeconfig).await?;
    proxy.fault(Fault::Hang, usize::MAX, move |seen| {
        seen.is_watch() && seen.path.ends_with(resource)
    });
    let proxied = proxy.kubeconfig(kubeconfig)?;
    Ok((proxy, proxied))
}

impl<'w> Scene<'w> {
    /// A scenario for an operator that runs.
    pub fn beside(world: &'w World, account: &Account, name: &str) -> Self {
        Self {
            world,
            account: account.clone(),
            short: name.replace('_', "-"),
            own: None,
            point: watch::Sender::new(false),
        }
    }

    /// A scenario for an operator of its own, with these rights.
    pub async fn alone(world: &'w World, account: &Account, row: &Row, grants: &Grants) -> Result<Self> {
        let direct = self::account(world, account, grants).await?;
        let (proxy, kubeconfig) = match row.deaf_for {
            Some(resource) => {
                let (proxy, kubeconfig) = deaf(&direct, resource).await?;
                (Some(proxy), kubeconfig)
            }
            None => (None, direct),
        };
        let own = Own {
            kubeconfig,
            running: Mutex::new(None),
            _proxy: proxy,
        };
        Ok(Self {
            own: Some(own),
            short: account.name.clone(),
            ..Self::beside(world, account, row.name)
        })
    }

    /// Starts the operator, if it is not one that runs.
    pub fn start(&self) -> Result<()> {
        let Some(own) = &self.own else { return Ok(()) };
        let operator = Operator::start_with(&own.kubeconfig, options(&self.account))?;
        *own.running.lock() = Some(operator);
        Ok(())
    }

    /// A driver with its node, without an AttacherConfig. Nobody holds its Lease.
    pub async fn driver(&self) -> Result<Driver<'w>> {
        let driver = self.driver_without_lease().await?;
        release_lease(&self.world.client, &self.account.namespace, &driver.name).await?;
        Ok(driver)
    }

    /// The same, with changes to the mock driver.
    pub async fn driver_with(&self, build: impl FnOnce(MockDriverBuilder) -> MockDriverBuilder) -> Result<Driver<'w>> {
        let driver = self.world.unconfigured_driver(&self.short, build).await?;
        release_lease(&self.world.client, &self.account.namespace, &driver.name).await?;
        Ok(driver)
    }

    /// The same without a Lease in the namespace of the operator.
    pub async fn driver_without_lease(&self) -> Result<Driver<'w>> {
        self.world.unconfigured_driver(&self.short, |builder| builder).await
    }

    /// A driver that an operator works for, which is started now.
    pub async fn ready(&self, settings: Value) -> Result<Driver<'w>> {
        self.start()?;
        let driver = self.driver().await?;
        driver.configure(&settings).await?;
        driver.wait("Ready", "True", Some("Running")).await?;
        Ok(driver)
    }

    /// What follows needs the right.
    pub fn point(&self) {
        self.point.send_replace(true);
    }

    /// Waits until what follows needs the right.
    pub async fn point_reached(&self, limit: Duration) -> Result<()> {
        let mut point = self.point.subscribe();
        let reached = tokio::time::timeout(limit, point.wait_for(|reached| *reached)).await;
        let reached = reached.map_err(|_| other("the scenario did not come to its point"));
        reached.map(drop)
    }

    /// Ends the operator, and takes away what the next one would work on.
    pub async fn end(self) -> Result<()> {
        let Self { world, own, .. } = self;
        drop(own);
        clean(world).await
    }
}

/// Removes all AttacherConfigs.
pub async fn clean(world: &World) -> Result<()> {
    let configs: Api<AttacherConfig> = Api::all(world.client.clone());
    for config in configs.list(&ListParams::default()).await? {
        let name = config.name_any();
        configs.delete(&name, &DeleteParams::default()).await?;
        if config.finalizers().is_empty() {
            continue;
        }
        let free = json!({ "metadata": { "finalizers": null } });
        match configs
            .patch(&name, &PatchParams::default(), &Patch::Merge(&free))
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            outcome => drop(outcome?),
        }
    }
    Ok(())
}
