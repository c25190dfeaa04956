//! Objects in the sidecar's exact form.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::NODE_ID_ANNOTATION;
use crate::rig::{Driver, merge, merge_status};
use crate::support::Result;

/// A VolumeAttachment as the sidecar leaves it, and the PersistentVolume that it names, both of the same name.
#[derive(Clone)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one way in which an object can be left"
)]
pub struct Left<'d> {
    driver: &'d Driver<'d>,
    name: &'static str,
    finalizers: Vec<String>,
    annotated: bool,
    status: Value,
    node: String,
    inline: bool,
    deleted: bool,
    volume_finalizers: Vec<String>,
    volume_deleted: bool,
}

impl<'d> Driver<'d> {
    /// An attachment that nobody has worked on, of a volume that nobody has protected.
    pub fn left(&'d self, name: &'static str) -> Left<'d> {
        Left {
            driver: self,
            name,
            finalizers: Vec::new(),
            annotated: false,
            status: json!({}),
            node: self.node(),
            inline: false,
            deleted: false,
            volume_finalizers: Vec::new(),
            volume_deleted: false,
        }
    }
}

impl Left<'_> {
    /// The volume carries the driver's finalizer.
    pub fn protected(mut self) -> Self {
        self.volume_finalizers.push(self.driver.finalizer());
        self
    }

    /// The attachment carries the driver's finalizer and the node ID.
    pub fn claimed(mut self) -> Self {
        self.finalizers.push(self.driver.finalizer());
        self.annotated = true;
        self.protected()
    }

    /// Somebody else holds the attachment too.
    pub fn held(mut self) -> Self {
        self.finalizers.push("example.com/keep".to_owned());
        self
    }

    /// The volume is attached, and the status says so.
    pub fn attached(self) -> Self {
        self.driver.mock.drift_attach(self.name, &self.driver.node_id());
        self.status(&json!({ "attached": true, "attachmentMetadata": { "devicePath": "/dev/xvdba" } }))
    }

    /// The status holds this besides what it held.
    pub fn status(mut self, more: &Value) -> Self {
        json_patch::merge(&mut self.status, more);
        self
    }

    /// The status holds an error, without a code for a detach.
    pub fn error(self, kind: &str, message: &str, code: Option<i32>) -> Self {
        let mut error = json!({ "message": message, "time": "2026-01-02T03:04:05Z" });
        if let Some(code) = code {
            error["errorCode"] = code.into();
        }
        let attached = self.status.get("attached").is_some();
        self.status(&json!({ "attached": attached, kind: error }))
    }

    /// The node is gone, with its CSINode.
    pub fn on_lost_node(mut self) -> Self {
        "lost-node".clone_into(&mut self.node);
        self
    }

    /// The volume is described in the attachment; there is no PersistentVolume.
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    /// The attachment is being deleted.
    pub fn deleted(mut self) -> Self {
        self.deleted = true;
        self
    }

    /// The volume is being deleted.
    pub fn volume_deleted(mut self) -> Self {
        self.volume_deleted = true;
        self
    }

    /// Makes the objects, in an order in which the API server takes them.
    pub async fn make(self) -> Result<()> {
        if !self.inline {
            self.make_volume().await?;
        }
        self.make_attachment().await
    }

    /// Makes the volume alone.
    pub async fn make_volume(&self) -> Result<()> {
        let fixtures = &self.driver.world.fixtures;
        fixtures.persistent_volume(&self.driver.volume(self.name)).await?;
        let finalizers = json!({ "metadata": { "finalizers": self.volume_finalizers } });
        merge(&fixtures.cluster::<PersistentVolume>(), self.name, &finalizers).await?;
        if self.volume_deleted {
            fixtures.delete::<PersistentVolume>(self.name).await?;
        }
        Ok(())
    }

    async fn make_attachment(&self) -> Result<()> {
        let fixtures = &self.driver.world.fixtures;
        let attachments = fixtures.cluster::<VolumeAttachment>();
        let annotations = self
            .annotated
            .then(|| json!({ NODE_ID_ANNOTATION: self.driver.node_id() }));
        let source = if self.inline {
            let csi = json!({ "driver": self.driver.name, "volumeHandle": self.name });
            json!({ "inlineVolumeSpec": { "accessModes": ["ReadWriteOnce"], "csi": csi } })
        } else {
            json!({ "persistentVolumeName": self.name })
        };
        let object = json!({
            "metadata": { "name": self.name, "finalizers": self.finalizers, "annotations": annotations },
            "spec": { "attacher": self.driver.name, "nodeName": self.node, "source": source },
        });
        let object: VolumeAttachment = serde_json::from_value(object)?;
        let made = attachments.create(&PostParams::default(), &object).await;
        made.expect("a good object");
        if self.status != json!({}) {
            let status = json!({ "status": self.status });
            merge_status(&attachments, self.name, &status).await?;
        }
        if self.deleted {
            fixtures.delete::<VolumeAttachment>(self.name).await?;
        }
        Ok(())
    }
}
