//! The stock objects around a volume, made the way their usual owners would make them, and waits for what the
//! controllers make of them. A test that uses these plays the kubelet, the provisioner and the user.

mod attachments;
mod nodes;
mod volumes;

use std::time::Duration;

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::Value;

use super::error::{Context, Result};
use super::wait::wait_for;

pub use super::wait::Object;
pub use volumes::Volume;

/// Makes and removes stock objects through one client, and waits for their states with one limit.
#[derive(Clone)]
pub struct Fixtures {
    client: Client,
    limit: Duration,
}

impl Fixtures {
    /// Uses this client, and 30 seconds as the limit of every wait.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            limit: Duration::from_secs(30),
        }
    }

    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn cluster<K: Object + Resource<Scope = ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub fn namespaced<K: Object + Resource<Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// That it is not there is fine. Does not wait for its finalizers.
    pub async fn delete<K: Object + Resource<Scope = ClusterResourceScope>>(&self, name: &str) -> Result<()> {
        delete(&self.cluster::<K>(), name, &DeleteParams::default()).await
    }

    /// As [`Fixtures::delete`].
    pub async fn delete_namespaced<K: Object + Resource<Scope = NamespaceResourceScope>>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<()> {
        delete(&self.namespaced::<K>(namespace), name, &DeleteParams::default()).await
    }

    async fn wait_for_gone<K: Object + Resource<Scope = ClusterResourceScope>>(&self, name: &str) -> Result<()> {
        let gone = wait_for::<K>(self.cluster(), name, "gone", self.limit, |object| object.is_none());
        gone.await.map(drop)
    }
}

/// Creates an object from its JSON form.
async fn create<K: Object>(api: &Api<K>, object: Value) -> Result<K> {
    let object: K = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object)
        .await
        .while_trying(|| format!("create a {}", K::kind(&())))
}

/// Merges into the status of an object.
async fn merge_status<K: Object>(api: &Api<K>, name: &str, patch: Value) -> Result<K> {
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .while_trying(|| format!("patch the status of {} {name}", K::kind(&())))
}

async fn delete<K: Object>(api: &Api<K>, name: &str, params: &DeleteParams) -> Result<()> {
    match api.delete(name, params).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        outcome => outcome
            .map(drop)
            .while_trying(|| format!("delete {} {name}", K::kind(&()))),
    }
}
