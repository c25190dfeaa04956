//! The stock objects around a volume, made the way their usual owners would make them, and waits for what the
//! controllers make of them. A test that uses these plays the kubelet, the provisioner and the user.

mod attachments;
mod nodes;
mod volumes;

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{Context, Result};

pub use nodes::unique_volume_name;
pub use volumes::Volume;

/// Makes and removes stock objects through one client, and waits for their states with one limit.
#[derive(Clone)]
pub struct Fixtures {
    client: Client,
    limit: Duration,
}

/// An object with a fixed kind and nothing special about it, as all of them here are.
pub trait Object: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + 'static {}

impl<K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + 'static> Object for K {}

impl Fixtures {
    /// Uses this client, and 30 seconds as the limit of every wait.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            limit: Duration::from_secs(30),
        }
    }

    /// Another limit for every wait.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The client that is used.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// All objects of a cluster-scoped kind.
    pub fn cluster<K: Object + Resource<Scope = ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// The objects of a namespaced kind in one namespace.
    pub fn namespaced<K: Object + Resource<Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Deletes a cluster-scoped object; that it is not there is fine. Does not wait for its finalizers.
    pub async fn delete<K: Object + Resource<Scope = ClusterResourceScope>>(&self, name: &str) -> Result<()> {
        delete(&self.cluster::<K>(), name, &DeleteParams::default()).await
    }

    /// Deletes a namespaced object; that it is not there is fine. Does not wait for its finalizers.
    pub async fn delete_namespaced<K: Object + Resource<Scope = NamespaceResourceScope>>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<()> {
        delete(&self.namespaced::<K>(namespace), name, &DeleteParams::default()).await
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
