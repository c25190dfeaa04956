//! The end of every scenario: its volumes are detached and deleted, and then nothing may be left, neither object nor
//! attachment at the driver. A volume that an attacher lost on the way is found here, whatever the scenario is about.

use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::role::Role;
use crate::scenario::{Outcome, Stop, demand};
use crate::support::fixtures::Object;
use crate::support::wait::wait_for;
use crate::test::{FOREIGN, Test, delete};

const LIMIT: Duration = Duration::from_secs(30);

impl Test {
    /// Removes all objects of the scenario the proper way; an error says what did not go.
    pub async fn tear_down(&self) -> Outcome {
        if self.env.role == Role::Provision {
            return self.end_provisioning().await;
        }
        self.heal_all();
        self.remove_all::<VolumeAttachment>().await?;
        self.remove_all::<PersistentVolume>().await?;
        let left: Vec<_> = self
            .env
            .driver
            .published()
            .into_iter()
            .filter(|(_, node)| self.owns(node))
            .collect();
        demand(left.is_empty(), || {
            format!("at the end the driver still has attached: {left:?}")
        })?;
        self.forget_nodes().await
    }

    /// Removes all objects of the scenario by force, after it failed.
    pub async fn clear_away(&self) -> Outcome {
        if self.env.role == Role::Provision {
            return self.clear_provisioning().await;
        }
        self.heal_all();
        self.force_all::<VolumeAttachment>().await?;
        self.force_all::<PersistentVolume>().await?;
        self.forget_nodes().await
    }

    pub fn owns(&self, name: &str) -> bool {
        name.strip_prefix(&self.id)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    fn heal_all(&self) {
        self.heal();
        for rule in self.env.driver.rules() {
            if let Some(volume) = rule.volume.filter(|volume| self.owns(volume)) {
                self.env.driver.clear_rules_of(&volume);
            }
        }
    }

    pub async fn names<K>(&self) -> Outcome<Vec<String>>
    where
        K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        let all = self.api::<K>().list(&ListParams::default()).await?;
        Ok(all.iter().map(K::name_any).filter(|name| self.owns(name)).collect())
    }

    /// Deletes the scenario's objects of a kind and waits until they are gone.
    pub async fn remove_all<K>(&self) -> Outcome
    where
        K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        let names = self.names::<K>().await?;
        try_join_all(names.iter().map(|name| self.remove::<K>(name))).await?;
        Ok(())
    }

    async fn remove<K>(&self, name: &str) -> Outcome
    where
        K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        let api = self.api::<K>();
        delete(&api, name).await?;
        self.take_foreign_finalizers::<K>(name).await?;
        let gone = wait_for(api, name, "gone at the end of the scenario", LIMIT, |object| {
            object.is_none()
        });
        gone.await.map_err(|error| Stop::Failed(error.to_string())).map(drop)
    }

    /// Those who put them there are the scenarios; they are not asked to take them away again.
    async fn take_foreign_finalizers<K>(&self, name: &str) -> Outcome
    where
        K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        let api = self.api::<K>();
        while let Some(object) = api.get_opt(name).await? {
            let (foreign, kept): (Vec<_>, Vec<_>) =
                object.finalizers().iter().partition(|entry| entry.starts_with(FOREIGN));
            if foreign.is_empty() {
                break;
            }
            let version = object.resource_version();
            let patch = json!({ "metadata": { "finalizers": kept, "resourceVersion": version } });
            match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
                outcome => drop(outcome?),
            }
        }
        Ok(())
    }

    /// Deletes the scenario's objects of a kind and takes their finalizers off.
    pub async fn force_all<K>(&self) -> Outcome
    where
        K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        for name in self.names::<K>().await? {
            delete(&self.api::<K>(), &name).await?;
            self.strip_finalizers::<K>(&name).await?;
        }
        Ok(())
    }

    async fn forget_nodes(&self) -> Outcome {
        for name in self.names::<CSINode>().await? {
            delete(&self.api::<CSINode>(), &name).await?;
        }
        Ok(())
    }
}
