//! The end of every scenario of a provisioner: its claims are deleted, and then nothing may be left but what is to be kept.
//! A volume that got lost on the way is found here, whatever the scenario is about.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use csi_mock_driver::Method;

use super::NAMESPACE;
use super::claims::{Claim, claim_of, strip_claim};
use super::volumes::{handle_of, is_protected};
use crate::scenario::{Outcome, demand, same};
use crate::test::{FOREIGN, Test, delete};

impl Test {
    /// Removes all objects of the scenario the proper way; an error says what did not go, or what should not have gone.
    pub async fn end_provisioning(&self) -> Outcome {
        self.heal_claims();
        let claims = self.claims().await?;
        for (claim, object) in &claims {
            self.is_settled(claim, object).await?;
        }
        self.remove_all::<VolumeAttachment>().await?;
        for (claim, _) in &claims {
            claim.delete().await?;
            self.without_foreign_finalizers(claim).await?;
        }
        for (claim, _) in &claims {
            claim.gone().await?;
        }
        let kept = self.kept().await?;
        let left = self.handles_named(&self.made_names());
        demand(left.is_subset(&kept), || {
            format!("at the end the driver has volumes that no PersistentVolume names: {left:?}, named are {kept:?}")
        })?;
        self.forget().await
    }

    /// Removes all objects of the scenario by force, after it failed.
    pub async fn clear_provisioning(&self) -> Outcome {
        self.heal_claims();
        self.force_all::<VolumeAttachment>().await?;
        for (claim, _) in self.claims().await? {
            claim.delete().await?;
            strip_claim(&claim).await?;
        }
        self.forget().await
    }

    fn heal_claims(&self) {
        for rule in self.env.driver.rules() {
            if let Some(claim) = rule.claim.filter(|claim| self.owns(claim)) {
                self.env.driver.clear_rules_of_claim(&claim);
            }
            if let Some(volume) = rule.volume.filter(|volume| self.owns(volume)) {
                self.env.driver.clear_rules_of(&volume);
            }
        }
        for handle in self.handles_named(&self.made_names()) {
            self.env.driver.clear_rules_of(&handle);
        }
    }

    async fn claims(&self) -> Outcome<Vec<(Claim, PersistentVolumeClaim)>> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.env.client.clone(), NAMESPACE);
        let all = api.list(&ListParams::default()).await?.items.into_iter();
        let own = all.filter(|object| self.owns(&object.name_any()));
        let with_name = |object: PersistentVolumeClaim| {
            let claim = Claim {
                t: self.clone(),
                name: object.name_any(),
                namespace: NAMESPACE.to_owned(),
            };
            (claim, object)
        };
        Ok(own.map(with_name).collect())
    }

    /// A claim that is bound has one volume, its own, and nobody is at work for it.
    async fn is_settled(&self, claim: &Claim, object: &PersistentVolumeClaim) -> Outcome {
        let spec = object.spec.as_ref();
        let Some(volume) = spec.and_then(|spec| spec.volume_name.as_ref()) else {
            return Ok(());
        };
        claim.without_marker().await?;
        let made = claim.creates().iter().any(|call| call.volume.as_ref() == Some(volume));
        let count = claim.handles().len();
        demand(!made || count == 1, || {
            format!("the driver has {count} volumes for {}", claim.name)
        })
    }

    async fn without_foreign_finalizers(&self, claim: &Claim) -> Outcome {
        let Some(object) = claim.api().get_opt(&claim.name).await? else {
            return Ok(());
        };
        if object.finalizers().iter().any(|entry| entry.starts_with(FOREIGN)) {
            // Of the others, those that are needed are put on again or were done with.
            strip_claim(claim).await?;
        }
        Ok(())
    }

    /// Waits until the volumes that are to be deleted are gone, and returns the handles of the PersistentVolumes that stay.
    async fn kept(&self) -> Outcome<BTreeSet<String>> {
        let mut kept = BTreeSet::new();
        for volume in self.own_volumes().await? {
            let name = volume.name_any();
            if self.goes(&volume) {
                self.persistent_volume_gone(&name).await?;
                continue;
            }
            self.persistent_volume(&name, "without the provisioner's finalizer", |it| !is_protected(it))
                .await?;
            kept.insert(handle_of(&volume));
        }
        Ok(kept)
    }

    fn goes(&self, volume: &PersistentVolume) -> bool {
        let Some(spec) = &volume.spec else { return false };
        let driver = &self.env.driver_name;
        spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete")
            && spec.claim_ref.is_some()
            && spec.csi.as_ref().is_some_and(|csi| csi.driver == *driver)
            && volume.annotations().get("pv.kubernetes.io/provisioned-by") == Some(driver)
    }

    async fn own_volumes(&self) -> Outcome<Vec<PersistentVolume>> {
        let all = self.api::<PersistentVolume>().list(&ListParams::default()).await?;
        let of_claim = |volume: &PersistentVolume| {
            let claim = volume
                .spec
                .as_ref()
                .and_then(|spec| spec.claim_ref.as_ref()?.name.as_deref());
            claim.is_some_and(|claim| self.owns(claim))
        };
        let own = all
            .items
            .into_iter()
            .filter(|it| self.owns(&it.name_any()) || of_claim(it));
        Ok(own.collect())
    }

    /// The names under which volumes were made for the scenario's claims.
    fn made_names(&self) -> BTreeSet<String> {
        let calls = self.env.driver.calls_of(Method::CreateVolume);
        let own = calls
            .iter()
            .filter(|call| claim_of(call).is_some_and(|claim| self.owns(claim)));
        own.filter_map(|call| call.volume.clone()).collect()
    }

    /// Removes what nobody but the scenario would.
    async fn forget(&self) -> Outcome {
        self.forget_refusal().await?;
        delete::<Namespace>(&self.api(), &self.id).await?;
        for volume in self.own_volumes().await? {
            delete::<PersistentVolume>(&self.api(), &volume.name_any()).await?;
            self.strip_finalizers::<PersistentVolume>(&volume.name_any()).await?;
        }
        for handle in self.handles_named(&self.made_names()) {
            self.env.driver.delete_volume(&handle);
        }
        for name in self.names::<StorageClass>().await? {
            delete::<StorageClass>(&self.api(), &name).await?;
        }
        for name in self.names::<CSINode>().await? {
            delete::<CSINode>(&self.api(), &name).await?;
        }
        for name in self.names::<Node>().await? {
            delete::<Node>(&self.api(), &name).await?;
        }
        let secrets: Api<Secret> = Api::namespaced(self.env.client.clone(), NAMESPACE);
        for secret in secrets.list(&ListParams::default()).await? {
            if self.owns(&secret.name_any()) {
                delete(&secrets, &secret.name_any()).await?;
            }
        }
        Ok(())
    }
}

/// Ends the scenario as failed unless a PersistentVolume stays as it is to be kept.
pub async fn stays(t: &Test, name: &str) -> Outcome {
    let volume = t.api::<PersistentVolume>().get(name).await?;
    let is_deleted = volume.metadata.deletion_timestamp.is_some();
    same("deletionTimestamp", &is_deleted, &false)
}
