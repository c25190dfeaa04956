//! Tests that change a CSINode or a PersistentVolume and then an attachment: each comes by a watch of its own.

use csi_mock_driver::Method;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::CSINode;
use serde_json::json;

use super::{Driver, LIMIT, detach, merge, strip};
use crate::support::wait::wait_for;
use crate::support::{Error, Result};

/// How many volumes are tried; each takes a full attach, in which a watch that works has brought the change long since.
const TRIES: usize = 100;

impl Driver<'_> {
    /// Waits until the operator has seen all that happened to CSINodes before: until it uses a node ID that was changed
    /// afterwards, which comes by the same watch. A driver can be asked for this once.
    pub async fn nodes_are_seen(&self) -> Result<()> {
        let node = format!("{}-seen", self.short);
        let fixtures = &self.world.fixtures;
        fixtures.csi_node(&node, &self.name, "before").await?;
        // Only what is not in its cache does the operator ask for.
        self.attached_as(&node, 0).await?;
        let changed = json!({ "spec": { "drivers": [{ "name": self.name, "nodeID": "after" }] } });
        let nodes = fixtures.cluster::<CSINode>();
        // The API server lets nobody change the ID of a driver, but the driver may go and come.
        for patch in [json!({ "spec": { "drivers": [] } }), changed] {
            merge(&nodes, &node, &patch).await?;
        }
        for number in 1..TRIES {
            if self.attached_as(&node, number).await? == "after" {
                return Ok(());
            }
        }
        Err(Error::Other("the operator goes on with the old node ID".to_owned()))
    }

    /// Waits until the operator has seen all that happened to PersistentVolumes before: until it puts its finalizer back onto one
    /// that is attached, from which it is taken now.
    pub async fn volumes_are_seen(&self) -> Result<()> {
        let name = format!("{}-seen-volume", self.short);
        self.attach(&name).await?;
        let volumes = self.world.fixtures.cluster::<PersistentVolume>();
        let bare = strip(&volumes, &name).await?;
        wait_for(volumes, &name, "is protected again", LIMIT, |volume| {
            volume.is_some_and(|volume| {
                volume.metadata.resource_version != bare.metadata.resource_version
                    && volume
                        .metadata
                        .finalizers
                        .iter()
                        .flatten()
                        .any(|one| one.contains("external-attacher"))
            })
        })
        .await
        .map(drop)
    }

    /// Attaches and detaches a volume; returns the node ID that was used.
    async fn attached_as(&self, node: &str, number: usize) -> Result<String> {
        let fixtures = &self.world.fixtures;
        let name = format!("{node}-{number}");
        self.claim_at(&name, node).await?;
        fixtures.wait_for_attached(&name).await?;
        let called = self
            .call(Method::ControllerPublishVolume, &name, |call| call.code.is_some())
            .await?;
        detach(fixtures, &name).await?;
        Ok(called.node.unwrap_or_default())
    }
}
