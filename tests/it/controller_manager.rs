//! Proves that the operator and the stock attach/detach controller, in kube-controller-manager, work together: tests make
//! pods and play the kubelet, and that controller makes and deletes the VolumeAttachments.

mod losses;
mod migrated;
mod modes;

use csi_mock_driver::{CallRecord, Method};
use k8s_openapi::api::core::v1::{Event, Node};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use serde_json::json;

use crate::events::event;
use crate::rig::{Driver, LIMIT, World, merge};
use crate::support::wait::wait_for;
use crate::support::{Fixtures, Result, Volume};

const NAMESPACE: &str = "default";
/// An annotation of Nodes that kube-controller-manager puts right whenever it sees another value.
const TTL: &str = "node.alpha.kubernetes.io/ttl";

/// Waits until kube-controller-manager has seen all that happened to a Node before: until it puts right what is changed
/// afterwards. Its watches have no order, and a pod that it sees before the pod's Node is left alone for minutes.
pub async fn node_is_seen(fixtures: &Fixtures, name: &str) -> Result<()> {
    const WRONG: &str = "-1";
    let nodes = fixtures.cluster::<Node>();
    let wrong = json!({ "metadata": { "annotations": { TTL: WRONG } } });
    merge(&nodes, name, &wrong).await?;
    wait_for(nodes, name, "seen by kube-controller-manager", LIMIT, |node| {
        let ttl = node.and_then(|node| node.annotations().get(TTL));
        ttl.is_some_and(|ttl| ttl != WRONG)
    })
    .await
    .map(drop)
}

impl World {
    /// A driver with its AttacherConfig, CSIDriver and node, as [`World::driver`] but in a cluster with Nodes.
    pub async fn managed_driver(&self, short: &str) -> Result<Driver<'_>> {
        self.managed_driver_named(short, &format!("{short}.csi.test")).await
    }

    pub async fn managed_driver_named(&self, short: &str, name: &str) -> Result<Driver<'_>> {
        let driver = self.named_driver(short, name, |builder| builder).await?;
        self.fixtures.csi_driver(name, true).await?;
        self.fixtures.node(&driver.node()).await?;
        node_is_seen(&self.fixtures, &driver.node()).await?;
        let backoff = json!({ "initial": "100ms", "max": "500ms" });
        driver.configure(&json!({ "backoff": backoff })).await?;
        driver.wait("Ready", "True", Some("Running")).await?;
        Ok(driver)
    }
}

impl Driver<'_> {
    /// A second node with the driver on it; its name and node ID are the same.
    pub async fn second_node(&self) -> Result<String> {
        let name = format!("{}-node-2", self.short);
        self.world.fixtures.csi_node(&name, &self.name, &name).await?;
        self.world.fixtures.node(&name).await?;
        node_is_seen(&self.world.fixtures, &name).await?;
        Ok(name)
    }

    /// A volume with a claim of its name, bound to each other.
    pub async fn claimed(&self, volume: &Volume, name: &str) -> Result<()> {
        let bound = self.world.fixtures.bound_claim(volume, NAMESPACE, name).await;
        bound.map(drop)
    }

    /// A pod on a node that uses the claim `volume`; returns the VolumeAttachment once the pod could start.
    pub async fn run_pod(&self, pod: &str, node: &str, volume: &str) -> Result<VolumeAttachment> {
        let fixtures = &self.world.fixtures;
        fixtures.pod(NAMESPACE, pod, node, &[volume]).await?;
        let made = fixtures.wait_for_attachment_of(volume, node).await?;
        let name = made.metadata.name.unwrap_or_default();
        let attached = fixtures.wait_for_attached(&name).await?;
        fixtures.wait_for_volume_attached(node, &self.name, volume).await?;
        Ok(attached)
    }

    /// Ends a pod as a kubelet that has unmounted its volumes, and waits until the attachment is gone.
    async fn end_pod(&self, pod: &str, node: &str, attachment: &VolumeAttachment) -> Result<()> {
        let fixtures = &self.world.fixtures;
        fixtures.delete_pod(NAMESPACE, pod).await?;
        let name = attachment.metadata.name.as_deref().unwrap_or_default();
        fixtures.wait_for_attachment_gone(name).await?;
        let volume = attachment.spec.source.persistent_volume_name.as_deref();
        fixtures
            .wait_for_volume_detached(node, &self.name, volume.unwrap_or_default())
            .await
    }

    /// Waits for an event about a volume on the PersistentVolume and on the claim of the same name.
    async fn told(&self, volume: &str, reason: &str, part: &str) -> Result<Event> {
        event(self.world, "PersistentVolumeClaim", volume, reason, part).await?;
        event(self.world, "PersistentVolume", volume, reason, part).await
    }

    /// The calls for a volume that were answered OK, written as `pub NODE` and `unpub NODE`.
    fn answered(&self, volume: &str) -> Vec<String> {
        let calls = self.calls_for(volume);
        let ok = calls.iter().filter(|call| call.code == Some(tonic::Code::Ok));
        ok.map(short).collect()
    }
}

fn short(call: &CallRecord) -> String {
    let verb = match call.method {
        Method::ControllerPublishVolume => "pub",
        Method::ControllerUnpublishVolume => "unpub",
        _ => "?",
    };
    format!("{verb} {}", call.node.as_deref().unwrap_or_default())
}
