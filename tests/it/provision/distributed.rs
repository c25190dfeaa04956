//! A driver that has a csi-provisioner on each node, as the CSIStorageCapacities show that those wrote.

use csi_mock_driver::Method;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::{NAMESPACE, carries_marker, provisioning, settings, soon};
use crate::insight::told;
use crate::rig::{Driver, World};
use crate::support::operator::{IDENTITY, release_provisioner_lease};
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
}

/// Capacities of a central provisioner, which stay, are in nobody's way.
#[tokio::test]
async fn a_driver_with_provisioners_on_its_nodes_waits_until_their_capacities_are_gone() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = world.unconfigured_driver("p-nodes", |builder| builder).await?;
    release_provisioner_lease(&world.client, IDENTITY, &driver.name).await?;
    driver.class("Delete").await?;
    driver.has_capacity("central", "external-provisioner").await?;
    driver.has_capacity("left", "external-provisioner-node-1").await?;
    driver.configure(&settings(&driver, &soon())).await?;
    let label = "csi.storage.k8s.io/managed-by=external-provisioner-node-1";
    let words = format!("CSIStorageCapacity {NAMESPACE}/left has the label {label}");
    told(&driver, "ProvisioningReady", "False", REASON, &[&words]).await?;
    driver.wait("Ready", "False", Some(REASON)).await?;
    driver.wait("Stalled", "True", Some(REASON)).await?;
    driver.wait("DriverReachable", "True", Some("Connected")).await?;

    driver.ask_for("nodes-data").await?;
    // One that came after it is bound: the operator has heard of both.
    let other = provisioning(&world, "p-central", &soon()).await?;
    other.class("Delete").await?;
    other.ask_for("later").await?;
    other.bound("later").await?;
    assert!(driver.mock.calls_of(Method::CreateVolume).is_empty());
    let claim = driver.claims().get("nodes-data").await;
    assert!(!carries_marker(Some(&claim?)));

    let deleted = driver.capacities().delete("left", &DeleteParams::default()).await;
    deleted?;
    told(&driver, "ProvisioningReady", "True", "Running", &[]).await?;
    driver.bound("nodes-data").await?;
    driver.wait("Ready", "True", Some("Running")).await
}
