//! Odd histories, in a cluster with kube-controller-manager: what a person, a driver or a namespace that goes do at a bad moment.

use std::time::Duration;

use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Secret};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{MARKER, provisioning, settings, soon};
use crate::events::event;
use crate::rig::{Driver, LIMIT, World, merge, strip, wait_until};
use crate::support::wait::wait_for;
use crate::support::{Error, Result};

impl Driver<'_> {
    async fn delete_claim(&self, name: &str) -> Result<()> {
        let deleted = self.claims().delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(Error::from)
    }

    /// Waits for so many volumes that are left of those which the driver made.
    async fn volumes_left(&self, count: usize) -> Result<()> {
        wait_until("volumes that are left", || self.mock.volumes().len() == count).await
    }

    async fn claim_is_gone(&self, name: &str) -> Result<()> {
        let gone = wait_for(self.claims(), name, "gone", LIMIT, |claim| claim.is_none()).await;
        gone.map(drop)
    }

    /// What claims of the namespace that is called after the driver need, whose Secret and the right to read it are there as well.
    async fn serves_a_tenant(&self) -> Result<Api<PersistentVolumeClaim>> {
        let (world, tenant) = (self.world, &*self.short);
        let mut asked = settings(self, &soon());
        asked["provisioning"]["timeouts"] = json!({ "create": "8s" });
        self.logs_in_with(asked, tenant, "${pvc.namespace}").await?;
        let login = [("password", "word")];
        world.fixtures.secret(tenant, "login", &login).await?;
        Ok(Api::namespaced(world.client.clone(), tenant))
    }

    async fn tenant_goes(&self) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.world.client.clone());
        let deleted = namespaces.delete(&self.short, &DeleteParams::default()).await;
        deleted?;
        // kube-controller-manager takes two passes, with seconds between them for what goes late.
        let gone = wait_for(namespaces, &self.short, "gone", LIMIT * 4, |tenant| tenant.is_none()).await;
        gone.map(drop)
    }
}

/// The Secret of the volume goes with it, and so does the right to read that.
#[tokio::test]
async fn volumes_of_a_namespace_that_goes_are_deleted_without_its_secret() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = world.unconfigured_driver("o-space", |builder| builder).await?;
    let claims = driver.serves_a_tenant().await?;
    let mut wanted = driver.wanted("data");
    // Otherwise the volume may be released before its Secret is gone.
    wanted.metadata.finalizers = Some(vec!["attacher.csi.test/secret-first".to_owned()]);
    let claim = claims.create(&PostParams::default(), &wanted).await?;
    let volume = driver.saved(&claim).await?.name_any();
    let release = async {
        let secrets = Api::<Secret>::namespaced(world.client.clone(), &driver.short);
        wait_for(secrets, "login", "gone", LIMIT, |secret| secret.is_none()).await?;
        strip(&claims, "data").await.map(drop)
    };
    tokio::try_join!(driver.tenant_goes(), release)?;
    wait_for(driver.volumes(), &volume, "gone", LIMIT, |volume| volume.is_none()).await?;
    driver.volumes_left(0).await?;
    let part = "Secret o-space/login is not there";
    event(&world, "PersistentVolume", &volume, "VolumeFailedDelete", part).await?;
    let calls = driver.mock.calls_of(Method::DeleteVolume);
    assert_eq!(calls.iter().map(|call| call.secret_keys.len()).collect::<Vec<_>>(), [0]);
    Ok(())
}

/// The Secret is gone, and the right to read it, while nobody knows what became of the call that was made with it.
#[tokio::test]
async fn a_namespace_that_goes_during_a_call_is_not_held() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = world.unconfigured_driver("o-hung", |builder| builder).await?;
    let claims = driver.serves_a_tenant().await?;
    driver
        .mock
        .script(Rule::on(Method::CreateVolume).times(1).late_success());
    let wanted = driver.wanted("data");
    let claim = claims.create(&PostParams::default(), &wanted).await?;
    let name = format!("pvc-{}", claim.uid().unwrap_or_default());
    driver.call(Method::CreateVolume, &name, |_| true).await?;
    driver.tenant_goes().await?;
    driver.volumes_left(0).await
}

/// Another driver answers at the socket while the outcome of a call is not known, and then the first one again.
#[tokio::test]
async fn a_driver_that_is_swapped_for_another_and_back_finishes_what_was_open() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = provisioning(&world, "o-swap", &soon()).await?;
    driver.class("Delete").await?;
    driver
        .mock
        .script(Rule::on(Method::CreateVolume).times(1).late_success());
    driver.ask_for("swap-gone").await?;
    driver.ask_for("swap-kept").await?;
    driver.mock.stop().await;
    driver.mock.set_driver_name("other.example.com");
    driver.start_again().await?;
    driver
        .wait("ProvisioningReady", "False", Some("DriverNameMismatch"))
        .await?;
    let before = driver.mock.calls_of(Method::CreateVolume).len();
    driver.delete_claim("swap-gone").await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(driver.mock.calls_of(Method::CreateVolume).len(), before);
    driver.mock.stop().await;
    driver.mock.set_driver_name(driver.name.clone());
    driver.start_again().await?;
    driver.claim_is_gone("swap-gone").await?;
    driver.bound("swap-kept").await?;
    driver.volumes_left(1).await?;
    Ok(())
}

/// A person writes the name of the volume into the claim while it is made; and a claim is deleted while a pod uses it.
#[tokio::test]
async fn what_people_do_during_a_call_loses_no_volume() -> Result<()> {
    let world = World::provisioning().await?;
    let driver = provisioning(&world, "o-people", &soon()).await?;
    driver.class("Delete").await?;
    driver
        .mock
        .script(Rule::on(Method::CreateVolume).delay(Duration::from_secs(5)));
    let claims = driver.claims();
    let named = driver.ask_for("named").await?;
    let held = driver.ask_for("held").await?;
    let freed = driver.ask_for("freed").await?;
    let volume = |claim: &PersistentVolumeClaim| format!("pvc-{}", claim.uid().unwrap_or_default());
    for claim in [&named, &held, &freed] {
        driver.call(Method::CreateVolume, &volume(claim), |_| true).await?;
    }
    let change = json!({ "spec": { "volumeName": volume(&named) } });
    merge(&claims, "named", &change).await?;
    let change = json!({ "metadata": { "finalizers": ["example.com/held", MARKER] } });
    merge(&claims, "held", &change).await?;
    driver.delete_claim("held").await?;
    strip(&claims, "freed").await?;
    driver.bound("named").await?;
    driver.bound("freed").await?;
    driver.without_marker("held").await?;
    driver.without_marker("named").await?;
    driver.without_marker("freed").await?;
    strip(&claims, "held").await?;
    driver.claim_is_gone("held").await?;
    driver.volumes_left(2).await?;
    Ok(())
}
