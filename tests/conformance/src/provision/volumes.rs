//! PersistentVolumes of a scenario, and what becomes of their volumes.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use csi_mock_driver::{CallRecord, Method};

use super::{FINALIZER, NAMESPACE};
use crate::expect::LIMIT;
use crate::scenario::{Outcome, Stop, demand};
use crate::support::wait::wait_for;
use crate::test::{Test, create, delete, merge};

impl Test {
    /// A VolumeAttachment of somebody else that names a PersistentVolume.
    pub async fn given_attachment_of(&self, volume: &str) -> Outcome {
        self.create_attachment(|it| {
            it["spec"]["attacher"] = json!("another.conformance.test");
            it["spec"]["source"]["persistentVolumeName"] = json!(volume);
        })
        .await
    }

    /// A PersistentVolume of the driver that was provisioned for a claim which is gone: kube-controller-manager finds it released.
    pub async fn given_released(&self, suffix: &str, edit: impl FnOnce(&mut Value)) -> Outcome<String> {
        let name = self.claim(suffix).name;
        let mut volume = json!({
            "metadata": {
                "name": name, "finalizers": [FINALIZER],
                "annotations": { "pv.kubernetes.io/provisioned-by": self.env.driver_name },
            },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": { "namespace": NAMESPACE, "name": name, "uid": "00000000-0000-0000-0000-000000000000" },
                "csi": { "driver": self.env.driver_name, "volumeHandle": format!("{name}-volume") },
            },
        });
        edit(&mut volume);
        create::<PersistentVolume>(&self.api(), volume).await?;
        Ok(name)
    }

    pub async fn phase(&self, volume: &str, phase: &str) -> Outcome<PersistentVolume> {
        let is = |it: &PersistentVolume| it.status.as_ref().and_then(|it| it.phase.as_deref()) == Some(phase);
        self.persistent_volume(volume, phase, is).await
    }

    pub async fn persistent_volume(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&PersistentVolume) -> bool,
    ) -> Outcome<PersistentVolume> {
        let found = wait_for(self.api::<PersistentVolume>(), name, what, LIMIT, |it| {
            it.is_some_and(&wanted)
        });
        found.await?.ok_or_else(|| Stop::Failed(format!("{name} is gone")))
    }

    pub async fn persistent_volume_gone(&self, name: &str) -> Outcome {
        self.persistent_volume_gone_within(name, LIMIT).await
    }

    pub async fn persistent_volume_gone_within(&self, name: &str, limit: Duration) -> Outcome {
        let api = self.api::<PersistentVolume>();
        wait_for(api, name, "gone", limit, |it| it.is_none()).await?;
        Ok(())
    }

    /// Deletes a PersistentVolume that is not bound, and waits until it is gone.
    pub async fn delete_released(&self, name: &str) -> Outcome {
        delete::<PersistentVolume>(&self.api(), name).await?;
        self.persistent_volume_gone(name).await
    }

    pub async fn change_volume(&self, name: &str, patch: Value) -> Outcome {
        merge::<PersistentVolume>(&self.api(), name, patch).await
    }

    pub fn deletions(&self, handle: &str) -> Vec<CallRecord> {
        let calls = self.env.driver.calls_of(Method::DeleteVolume);
        let is = |call: &CallRecord| call.volume.as_deref() == Some(handle);
        calls.into_iter().filter(is).collect()
    }

    pub fn not_deleted(&self, handle: &str) -> Outcome {
        demand(self.deletions(handle).is_empty(), || {
            format!("DeleteVolume was called for {handle}, which must not be deleted")
        })
    }

    pub async fn deletion(
        &self,
        handle: &str,
        what: &str,
        wanted: impl Fn(&CallRecord) -> bool + Send + 'static,
    ) -> Outcome<CallRecord> {
        let handle = handle.to_owned();
        self.some_call(what, move |call| {
            call.method == Method::DeleteVolume && call.volume.as_ref() == Some(&handle) && wanted(call)
        })
        .await
    }
}

pub fn handle_of(volume: &PersistentVolume) -> String {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    csi.map(|csi| csi.volume_handle.clone()).unwrap_or_default()
}

pub fn is_protected(volume: &PersistentVolume) -> bool {
    volume.finalizers().iter().any(|entry| entry == FINALIZER)
}
