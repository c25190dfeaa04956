//! PersistentVolumes whose claims are gone, in a cluster where only the test changes them.

use std::time::Duration;

use csi_mock_driver::Method;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::{NAMESPACE, grant, settings, soon};
use crate::rig::{Driver, LIMIT, World, merge, merge_status};
use crate::support::operator::{IDENTITY, release_provisioner_lease};
use crate::support::wait::wait_for;
use crate::support::{Error, Result};

const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

impl Driver<'_> {
    pub async fn delete_volume(&self, name: &str) -> Result<()> {
        let deleted = self.volumes().delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(Error::from)
    }

    pub async fn change(&self, name: &str, change: Value) -> Result<()> {
        merge(&self.volumes(), name, &change).await.map(drop)
    }

    /// A PersistentVolume as it is after its claim is gone.
    pub async fn released(&self, name: &str, handle: &str, change: Value) -> Result<()> {
        self.saved_as(name, handle, change).await?;
        self.phase(name, "Released").await
    }

    pub async fn saved_as(&self, name: &str, handle: &str, change: Value) -> Result<()> {
        let mut volume = json!({
            "metadata": {
                "name": name, "finalizers": [FINALIZER],
                "annotations": { "pv.kubernetes.io/provisioned-by": self.name },
            },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": self.short,
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": name, "uid": "gone",
                },
                "csi": { "driver": self.name, "volumeHandle": handle },
            },
        });
        json_patch::merge(&mut volume, &change);
        let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
        let made = self.volumes().create(&PostParams::default(), &volume).await;
        made.map(drop).map_err(Error::from)
    }

    pub async fn phase(&self, name: &str, phase: &str) -> Result<()> {
        let status = json!({ "status": { "phase": phase } });
        merge_status(&self.volumes(), name, &status).await.map(drop)
    }

    /// That DeleteVolume is called for a handle, and nothing of ours is left on the PersistentVolume; so often it was called.
    pub async fn is_deleted(&self, name: &str, handle: &str) -> Result<usize> {
        self.is_deleted_within(name, handle, LIMIT).await
    }

    /// As [`Driver::is_deleted`], with a limit of its own.
    pub async fn is_deleted_within(&self, name: &str, handle: &str, limit: Duration) -> Result<usize> {
        let released = |volume: Option<&PersistentVolume>| {
            volume.is_none_or(|volume| {
                volume.metadata.deletion_timestamp.is_some()
                    && !volume.finalizers().iter().any(|entry| entry == FINALIZER)
            })
        };
        wait_for(self.volumes(), name, "released by us", limit, released).await?;
        Ok(self.deletions(handle))
    }

    pub fn deletions(&self, handle: &str) -> usize {
        self.count(Method::DeleteVolume, handle)
    }
}

/// A cluster in which only the test binds and releases.
pub async fn unmanaged() -> Result<World> {
    let world = World::own().await?;
    grant(&world.cluster).await?;
    Ok(world)
}

pub async fn serves<'w>(world: &'w World, short: &str, change: &Value) -> Result<Driver<'w>> {
    let driver = world.unconfigured_driver(short, |builder| builder).await?;
    release_provisioner_lease(&world.client, IDENTITY, &driver.name).await?;
    let mut settings = settings(&driver, &soon());
    json_patch::merge(&mut settings["provisioning"], change);
    driver.configure(&settings).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    Ok(driver)
}
