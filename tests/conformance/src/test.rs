//! One scenario at play: the names of its objects, and the making of them.
//!
//! Every name begins with the scenario's own, so that many scenarios share one cluster, driver and attacher.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment, VolumeError};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tonic::Code;

use csi_mock_driver::{CallRecord, Method, MockCredentials, Rule};

use crate::env::Env;
use crate::scenario::Outcome;
use crate::support::fixtures::Object;

/// The namespace of publish secrets, which the attacher may read.
pub const SECRETS: &str = "conformance";
/// What the finalizers and annotations of others begin with.
pub const FOREIGN: &str = "conformance.test/";

/// The names of one volume on one node, and the surroundings.
#[derive(Clone)]
pub struct Test {
    pub env: Arc<Env>,
    /// Name of the scenario's objects; all begin with it.
    pub id: String,
    pub volume: String,
    pub handle: String,
    pub node: String,
    pub node_id: String,
    pub attachment: String,
    pub secret: String,
}

impl Test {
    pub fn new(env: Arc<Env>, id: &str) -> Self {
        Self {
            env,
            id: id.to_owned(),
            volume: id.to_owned(),
            handle: format!("{id}-volume"),
            node: id.to_owned(),
            node_id: format!("{id}-node"),
            attachment: id.to_owned(),
            secret: id.to_owned(),
        }
    }

    /// The same volume on another node, by another VolumeAttachment.
    pub fn on_other_node(&self, suffix: &str) -> Self {
        Self {
            node: format!("{}-{suffix}", self.id),
            node_id: format!("{}-{suffix}-node", self.id),
            attachment: format!("{}-{suffix}", self.id),
            ..self.clone()
        }
    }

    /// Another volume on the same node, by another VolumeAttachment.
    pub fn other_volume(&self, suffix: &str) -> Self {
        Self {
            volume: format!("{}-{suffix}", self.id),
            handle: format!("{}-{suffix}-volume", self.id),
            attachment: format!("{}-{suffix}", self.id),
            ..self.clone()
        }
    }

    pub fn other(&self, suffix: &str) -> Self {
        self.other_volume(suffix).on_other_node(suffix)
    }

    pub fn api<K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.env.client.clone())
    }

    pub fn on_publish(&self) -> Rule {
        Rule::on(Method::ControllerPublishVolume)
            .volume(&self.handle)
            .node(&self.node_id)
    }

    pub fn on_unpublish(&self) -> Rule {
        Rule::on(Method::ControllerUnpublishVolume).volume(&self.handle)
    }

    pub fn script(&self, rule: Rule) {
        self.env.driver.script(rule);
    }

    /// From now on the driver behaves well for this volume.
    pub fn heal(&self) {
        self.env.driver.clear_rules_of(&self.handle);
    }

    pub fn publish_context(&self, context: &[(&str, &str)]) {
        let context = owned(context);
        let handle = self.handle.clone();
        self.env
            .driver
            .settings(|settings| drop(settings.publish_contexts.insert(handle, context)));
    }

    /// The driver accepts calls for the volume with exactly these secrets only.
    pub fn wants_secrets(&self, secrets: &[(&str, &str)]) {
        let secrets = MockCredentials(owned(secrets));
        let handle = self.handle.clone();
        self.env
            .driver
            .settings(|settings| drop(settings.volume_secrets.insert(handle, secrets)));
    }

    /// The driver accepts calls for the volume with exactly these mount flags only.
    pub fn wants_mount_flags(&self, flags: &[&str]) {
        let flags = flags.iter().map(ToString::to_string).collect();
        let handle = self.handle.clone();
        self.env
            .driver
            .settings(|settings| drop(settings.volume_mount_flags.insert(handle, flags)));
    }

    /// A CSINode that says what the driver calls the node.
    pub async fn given_node(&self) -> Outcome {
        self.given_node_of(json!([{ "name": self.env.driver_name, "nodeID": self.node_id }]))
            .await
    }

    pub async fn given_node_of(&self, drivers: Value) -> Outcome {
        let object = json!({ "metadata": { "name": self.node }, "spec": { "drivers": drivers } });
        create::<CSINode>(&self.api(), object).await.map(drop)
    }

    /// A PersistentVolume: ReadWriteOnce and with a file system, unless `edit` says otherwise.
    pub async fn given_volume(&self, edit: impl FnOnce(&mut Value)) -> Outcome {
        let mut object = json!({
            "metadata": { "name": self.volume },
            "spec": {
                "capacity": { "storage": "1Gi" },
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": { "driver": self.env.driver_name, "volumeHandle": self.handle },
            },
        });
        edit(&mut object);
        create::<PersistentVolume>(&self.api(), object).await.map(drop)
    }

    pub async fn given_secret(&self, data: &[(&str, &str)]) -> Outcome {
        let object = json!({ "metadata": { "name": self.secret }, "stringData": owned(data) });
        let secrets: Api<Secret> = Api::namespaced(self.env.client.clone(), SECRETS);
        create(&secrets, object).await.map(drop)
    }

    /// Other content of the publish secret; without it, a removal.
    pub async fn change_secret(&self, data: Option<&[(&str, &str)]>) -> Outcome {
        let secrets: Api<Secret> = Api::namespaced(self.env.client.clone(), SECRETS);
        secrets.delete(&self.secret, &DeleteParams::default()).await?;
        match data {
            Some(data) => self.given_secret(data).await,
            None => Ok(()),
        }
    }

    /// The reference to the publish secret, for `controllerPublishSecretRef`.
    pub fn secret_reference(&self) -> Value {
        json!({ "namespace": SECRETS, "name": self.secret })
    }

    /// The VolumeAttachment of the PersistentVolume to the node, as the attach/detach controller makes it.
    pub async fn create_attachment(&self, edit: impl FnOnce(&mut Value)) -> Outcome {
        let mut object = json!({
            "metadata": { "name": self.attachment },
            "spec": {
                "attacher": self.env.driver_name,
                "nodeName": self.node,
                "source": { "persistentVolumeName": self.volume },
            },
        });
        edit(&mut object);
        create::<VolumeAttachment>(&self.api(), object).await.map(drop)
    }

    /// Node, volume and attachment: what an ordinary attach begins with.
    pub async fn given_all(&self, edit: impl FnOnce(&mut Value)) -> Outcome {
        self.given_node().await?;
        self.given_volume(edit).await?;
        self.create_attachment(|_| {}).await
    }

    /// Node and volume, and an attachment that `edit` makes another one than usual.
    pub async fn given_attachment(&self, edit: impl FnOnce(&mut Value)) -> Outcome {
        self.given_node().await?;
        self.given_volume(|_| {}).await?;
        self.create_attachment(edit).await
    }

    /// An attachment of the volume to another node.
    pub async fn given_on_other_node(&self, suffix: &str) -> Outcome<Self> {
        let other = self.on_other_node(suffix);
        other.given_node().await?;
        other.create_attachment(|_| {}).await?;
        Ok(other)
    }

    pub async fn given_attached(&self) -> Outcome<VolumeAttachment> {
        self.given_all(|_| {}).await?;
        self.attached().await
    }

    /// An ordinary volume, for which ControllerPublishVolume was called.
    pub async fn given_publishing(&self) -> Outcome<CallRecord> {
        self.given_all(|_| {}).await?;
        self.publish_begins().await
    }

    /// An ordinary volume, whose attaches fail with this text.
    pub async fn given_failing(&self, message: &str) -> Outcome<VolumeError> {
        self.script(self.on_publish().fail(Code::Internal, message));
        self.given_all(|_| {}).await?;
        self.attach_error(message).await
    }

    /// An ordinary volume and its attachment. The node is the scenario's business.
    pub async fn given_volume_and_attachment(&self) -> Outcome {
        self.given_volume(|_| {}).await?;
        self.create_attachment(|_| {}).await
    }

    pub async fn delete_attachment(&self) -> Outcome {
        delete::<VolumeAttachment>(&self.api(), &self.attachment).await
    }

    /// Deletes the PersistentVolume; finalizers may keep it.
    pub async fn delete_volume(&self) -> Outcome {
        delete::<PersistentVolume>(&self.api(), &self.volume).await
    }

    pub async fn delete_node(&self) -> Outcome {
        delete::<CSINode>(&self.api(), &self.node).await
    }

    pub async fn patch_attachment(&self, patch: Value) -> Outcome {
        merge::<VolumeAttachment>(&self.api(), &self.attachment, patch).await
    }

    pub async fn patch_volume(&self, patch: Value) -> Outcome {
        merge::<PersistentVolume>(&self.api(), &self.volume, patch).await
    }

    pub async fn patch_node(&self, patch: Value) -> Outcome {
        merge::<CSINode>(&self.api(), &self.node, patch).await
    }

    /// Appends a finalizer of somebody else to an object that has some already, without touching them.
    pub async fn append_finalizer<K>(&self, name: &str, finalizer: &str) -> Outcome
    where
        K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        let patch = json!([{ "op": "add", "path": "/metadata/finalizers/-", "value": finalizer }]);
        let patch: json_patch::Patch = serde_json::from_value(patch).map_err(crate::support::Error::from)?;
        self.api::<K>()
            .patch(name, &PatchParams::default(), &Patch::<()>::Json(patch))
            .await?;
        Ok(())
    }

    /// Takes all finalizers from an object, as somebody does who loses patience. That it is gone already is fine.
    pub async fn strip_finalizers<K>(&self, name: &str) -> Outcome
    where
        K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        match self.api::<K>().patch(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            outcome => Ok(outcome.map(drop)?),
        }
    }
}

fn owned(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

pub async fn create<K: Object>(api: &Api<K>, object: Value) -> Outcome<K> {
    let object: K = serde_json::from_value(object).map_err(crate::support::Error::from)?;
    Ok(api.create(&PostParams::default(), &object).await?)
}

pub async fn merge<K: Object>(api: &Api<K>, name: &str, patch: Value) -> Outcome {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Deletes an object; that it is gone already is fine.
pub async fn delete<K: Object>(api: &Api<K>, name: &str) -> Outcome {
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}
