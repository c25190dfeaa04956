//! Tests that change a CSINode and then an attachment: the two come by different watches.

use csi_mock_driver::Method;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::Driver;
use crate::support::{Error, Result};

/// How many volumes are tried; each takes a full attach, in which a watch that works has brought the change long since.
const TRIES: usize = 100;

impl Driver<'_> {
    /// Waits until the operator has seen all that happened to CSINodes before: until it uses a node ID that was changed
    /// afterwards, which comes by the same watch. `when` keeps what is made for it apart from that of other calls.
    pub async fn nodes_are_seen(&self, when: &str) -> Result<()> {
        let node = format!("{}-seen-{when}", self.short);
        let fixtures = &self.world.fixtures;
        fixtures.csi_node(&node, &self.name, "before").await?;
        // Only what is not in its cache does the operator ask for.
        self.attached_as(&node, 0).await?;
        let changed = json!({ "spec": { "drivers": [{ "name": self.name, "nodeID": "after" }] } });
        let nodes = fixtures.cluster::<CSINode>();
        // The API server lets nobody change the ID of a driver, but the driver may go and come.
        for patch in [json!({ "spec": { "drivers": [] } }), changed] {
            nodes
                .patch(&node, &PatchParams::default(), &Patch::Merge(&patch))
                .await?;
        }
        for number in 1..TRIES {
            if self.attached_as(&node, number).await? == "after" {
                return Ok(());
            }
        }
        Err(Error::Other("the operator goes on with the old node ID".to_owned()))
    }

    /// Attaches and detaches a volume; returns the node ID that was used.
    async fn attached_as(&self, node: &str, number: usize) -> Result<String> {
        let fixtures = &self.world.fixtures;
        let name = format!("{node}-{number}");
        fixtures.persistent_volume(&self.volume(&name)).await?;
        fixtures.volume_attachment(&name, &self.name, &name, node).await?;
        fixtures.wait_for_attached(&name).await?;
        let called = self
            .call(Method::ControllerPublishVolume, &name, |call| call.code.is_some())
            .await?;
        fixtures.delete::<VolumeAttachment>(&name).await?;
        fixtures.wait_for_attachment_gone(&name).await?;
        Ok(called.node.unwrap_or_default())
    }
}
