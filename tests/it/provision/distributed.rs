//! A driver that has a csi-provisioner on each node, as the CSIStorageCapacities show that those wrote.

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::Method;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::{NAMESPACE, carries_marker, provisioning, serving, settings, soon};
use crate::rig::{Driver, LIMIT, operator_options};
use crate::support::operator::{IDENTITY, release_provisioner_lease};
use crate::support::wait::wait_for;
use crate::support::{Error, Result};

const REASON: &str = "DistributedProvisioner";

impl Driver<'_> {
    fn capacities(&self) -> Api<CSIStorageCapacity> {
        Api::namespaced(self.world.client.clone(), NAMESPACE)
    }

    /// What an external-provisioner of this name writes.
    async fn has_capacity(&self, name: &str, managed_by: &str) -> Result<()> {
        let capacity: CSIStorageCapacity = serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "labels": { "csi.storage.k8s.io/drivername": self.name, "csi.storage.k8s.io/managed-by": managed_by },
            },
            "storageClassName": self.short, "capacity": "1Gi",
        }))
        .unwrap();
        let made = self.capacities().create(&PostParams::default(), &capacity).await;
        made.map(drop).map_err(Error::from)
    }

    /// Waits until the condition says this, with these words in its message, for longer than until the operator looks again.
    async fn provisioning_is(&self, status: &str, reason: &str, words: &str) -> Result<()> {
        let says = |config: Option<&AttacherConfig>| {
            let status_now = config.and_then(|config| config.status.as_ref());
            let mut conditions = status_now.into_iter().flat_map(|status| &status.conditions);
            conditions.any(|condition| {
                let found = (&*condition.type_, &*condition.status, &*condition.reason);
                found == ("ProvisioningReady", status, reason) && condition.message.contains(words)
            })
        };
        let configs = Api::<AttacherConfig>::all(self.world.client.clone());
        let what = format!("ProvisioningReady {status} {reason}");
        wait_for(configs, &self.short, &what, LIMIT * 2, says).await.map(drop)
    }
}

/// Capacities of a central provisioner, which stay, are in nobody's way.
#[tokio::test]
async fn a_driver_with_provisioners_on_its_nodes_waits_until_their_capacities_are_gone() -> Result<()> {
    let (world, _operator) = serving(operator_options()).await?;
    let driver = world.unconfigured_driver("p-nodes", |builder| builder).await?;
    release_provisioner_lease(&world.client, IDENTITY, &driver.name).await?;
    driver.class("Delete").await?;
    driver.has_capacity("central", "external-provisioner").await?;
    driver.has_capacity("left", "external-provisioner-node-1").await?;
    driver.configure(&settings(&driver, &soon())).await?;
    let label = "csi.storage.k8s.io/managed-by=external-provisioner-node-1";
    let words = format!("CSIStorageCapacity {NAMESPACE}/left has the label {label}");
    driver.provisioning_is("False", REASON, &words).await?;
    driver.wait("Ready", "False", Some(REASON)).await?;
    driver.wait("Stalled", "True", Some(REASON)).await?;
    driver.wait("DriverReachable", "True", Some("Connected")).await?;

    driver.ask_for("data").await?;
    // One that came after it is bound: the operator has heard of both.
    let other = provisioning(&world, "p-central", &soon()).await?;
    other.class("Delete").await?;
    other.ask_for("later").await?;
    other.bound("later").await?;
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    let claim = driver.claims().get("data").await;
    assert!(!carries_marker(Some(&claim?)));

    let deleted = driver.capacities().delete("left", &DeleteParams::default()).await;
    deleted?;
    driver.provisioning_is("True", "Running", "").await?;
    driver.bound("data").await?;
    driver.wait("Ready", "True", Some("Running")).await
}
