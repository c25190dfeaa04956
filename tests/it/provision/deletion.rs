//! Volumes of Released PersistentVolumes are deleted, once, and none that may be in use.

use std::time::Duration;

use csi_mock_driver::{CallResult, Method, Rule, ScriptAction};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tonic::Code;

use super::{FINALIZER, NAMESPACE, grant, provisioning, serving, settings, soon};
use crate::events::event;
use crate::rig::{Driver, LIMIT, World, operator_options};
use crate::support::operator::{IDENTITY, release_provisioner_lease};
use crate::support::wait::wait_for;
use crate::support::{Error, Result};

impl Driver<'_> {
    async fn delete_claim(&self, name: &str) -> Result<()> {
        let deleted = self.claims().delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(other)
    }

    pub async fn delete_volume(&self, name: &str) -> Result<()> {
        let deleted = self.volumes().delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(other)
    }

    async fn volume_is_gone(&self, name: &str) -> Result<()> {
        let gone = wait_for(self.volumes(), name, "gone", LIMIT, |volume| volume.is_none());
        gone.await.map(drop)
    }

    pub async fn change(&self, name: &str, change: Value) -> Result<()> {
        let patched = self
            .volumes()
            .patch(name, &PatchParams::default(), &Patch::Merge(&change))
            .await;
        patched.map(drop).map_err(other)
    }

    /// A PersistentVolume as it is after its claim is gone. Nothing but the test changes it.
    pub async fn released(&self, name: &str, handle: &str, change: Value) -> Result<()> {
        self.saved_as(name, handle, change).await?;
        self.phase(name, "Released").await
    }

    pub async fn saved_as(&self, name: &str, handle: &str, change: Value) -> Result<()> {
        let mut volume = json!({
            "metadata": {
                "name": name, "finalizers": [FINALIZER],
                "annotations": { "pv.kubernetes.io/provisioned-by": self.name },
            },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": self.short,
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": name, "uid": "gone",
                },
                "csi": { "driver": self.name, "volumeHandle": handle },
            },
        });
        json_patch::merge(&mut volume, &change);
        let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
        let made = self.volumes().create(&PostParams::default(), &volume).await;
        made.map(drop).map_err(other)
    }

    pub async fn phase(&self, name: &str, phase: &str) -> Result<()> {
        let status = json!({ "status": { "phase": phase } });
        let patched = self
            .volumes()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await;
        patched.map(drop).map_err(other)
    }

    /// That DeleteVolume is called for a handle, and nothing of ours is left on the PersistentVolume; so often it was called.
    pub async fn is_deleted(&self, name: &str, handle: &str) -> Result<usize> {
        let released = |volume: Option<&PersistentVolume>| {
            volume.is_none_or(|volume| {
                volume.metadata.deletion_timestamp.is_some()
                    && !volume.finalizers().iter().any(|entry| entry == FINALIZER)
            })
        };
        wait_for(self.volumes(), name, "released by us", LIMIT, released).await?;
        Ok(self.deletions(handle))
    }

    pub fn deletions(&self, handle: &str) -> usize {
        let calls = self.mock.calls_of(Method::DeleteVolume);
        calls
            .iter()
            .filter(|call| call.volume.as_deref() == Some(handle))
            .count()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn other(error: kube::Error) -> Error {
    Error::Other(error.to_string())
}

/// A cluster in which only the test binds and releases.
pub async fn unmanaged() -> Result<World> {
    let world = World::own().await?;
    grant(&world.cluster).await?;
    Ok(world)
}

pub async fn serves<'w>(world: &'w World, short: &str, change: &Value) -> Result<Driver<'w>> {
    let driver = world.unconfigured_driver(short, |builder| builder).await?;
    release_provisioner_lease(&world.client, IDENTITY, &driver.name).await?;
    let mut settings = settings(&driver, &soon());
    json_patch::merge(&mut settings["provisioning"], change);
    driver.configure(&settings).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    Ok(driver)
}

#[tokio::test]
async fn the_volumes_of_deleted_claims_are_deleted_once() -> Result<()> {
    const CLAIMS: usize = 20;
    let (world, operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "d-once", &soon()).await?;
    driver.class("Delete").await?;
    let names: Vec<String> = (0..CLAIMS).map(|number| format!("data-{number}")).collect();
    let mut volumes = Vec::new();
    for name in &names {
        let claim = driver.ask_for(name).await?;
        volumes.push(format!("pvc-{}", claim.uid().unwrap_or_default()));
    }
    for name in &names {
        driver.bound(name).await?;
    }
    let handles: Vec<String> = driver.mock.volumes().into_keys().collect();
    for name in &names {
        driver.delete_claim(name).await?;
    }
    for volume in &volumes {
        driver.volume_is_gone(volume).await?;
    }
    assert!(driver.mock.volumes().is_empty());
    for handle in &handles {
        assert_eq!(driver.deletions(handle), 1, "{handle}");
    }
    event(
        &world,
        "PersistentVolume",
        &volumes[0],
        "VolumeDeleted",
        "Successfully deleted volume",
    )
    .await?;
    let succeeded = format!(
        "csi_attacher_operation_e2e_seconds_count{{driver_name=\"{}\",operation=\"delete\",outcome=\"succeeded\"}} {CLAIMS}",
        driver.name
    );
    operator
        .wait_for_answer("/metrics", |status, text| status == 200 && text.contains(&succeeded))
        .await?;

    // A claim that is deleted while its volume is made: the volume is undone, and no PersistentVolume is written for it.
    let slow = Rule::on(Method::CreateVolume).times(1).delay(Duration::from_secs(3));
    driver.mock.script(slow);
    let claim = driver.ask_for("late").await?;
    driver
        .mock
        .wait_for_call(|call| call.method == Method::CreateVolume && call.outcome == CallResult::Running)
        .await;
    driver.delete_claim("late").await?;
    wait_for(driver.claims(), "late", "gone", LIMIT, |claim| claim.is_none()).await?;
    assert!(driver.mock.volumes().is_empty());
    let saved = driver
        .volumes()
        .get_opt(&format!("pvc-{}", claim.uid().unwrap_or_default()))
        .await;
    assert!(saved.map_err(other)?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_volume_that_may_be_in_use_is_kept() -> Result<()> {
    let world = unmanaged().await?;
    let _operator = world.operator(operator_options()).await?;
    let driver = serves(&world, "d-kept", &json!({})).await?;
    is_kept_while_attached(&driver).await?;
    is_kept_while_another_has_the_handle(&driver).await?;
    is_kept_while_its_claim_is_there(&driver).await?;
    is_kept_until_a_person_decides(&driver).await?;
    // The policy that keeps, and another provisioner's.
    let retain = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
    driver.released("d-retain", "vol-retain", retain).await?;
    let foreign = json!({ "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": "other.example.com" } } });
    driver.released("d-foreign", "vol-foreign", foreign).await?;
    let unprotected = |volume: Option<&PersistentVolume>| {
        volume.is_some_and(|volume| !volume.finalizers().iter().any(|entry| entry == FINALIZER))
    };
    wait_for(
        driver.volumes(),
        "d-retain",
        "without our finalizer",
        LIMIT,
        unprotected,
    )
    .await?;
    // Another one is begun and ended after them.
    driver.released("d-last", "vol-last", json!({})).await?;
    assert_eq!(driver.is_deleted("d-last", "vol-last").await?, 1);
    assert_eq!(driver.deletions("vol-foreign") + driver.deletions("vol-retain"), 0);
    Ok(())
}

/// A VolumeAttachment of any driver names it, attached or not.
async fn is_kept_while_attached(driver: &Driver<'_>) -> Result<()> {
    let fixtures = &driver.world.fixtures;
    fixtures
        .volume_attachment("d-kept-va", "another.example.com", "d-attached", "n-far")
        .await?;
    driver.released("d-attached", "vol-attached", json!({})).await?;
    let waits = "persistentvolume d-attached is still attached to node n-far, waiting for detach";
    event(driver.world, "PersistentVolume", "d-attached", "VolumeDelete", waits).await?;
    assert_eq!(driver.deletions("vol-attached"), 0);
    fixtures.delete::<VolumeAttachment>("d-kept-va").await?;
    assert_eq!(driver.is_deleted("d-attached", "vol-attached").await?, 1);
    Ok(())
}

async fn is_kept_while_another_has_the_handle(driver: &Driver<'_>) -> Result<()> {
    let retain = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
    driver.saved_as("d-other", "vol-shared", retain).await?;
    driver.released("d-shared", "vol-shared", json!({})).await?;
    let shared = "volume vol-shared is that of PersistentVolume d-other as well";
    event(driver.world, "PersistentVolume", "d-shared", "VolumeDelete", shared).await?;
    assert_eq!(driver.deletions("vol-shared"), 0);
    driver
        .change("d-other", json!({ "metadata": { "finalizers": null } }))
        .await?;
    driver.delete_volume("d-other").await?;
    assert_eq!(driver.is_deleted("d-shared", "vol-shared").await?, 1);
    Ok(())
}

/// It was marked Released by mistake.
async fn is_kept_while_its_claim_is_there(driver: &Driver<'_>) -> Result<()> {
    let mut wanted = driver.wanted("d-mistake");
    wanted.spec.get_or_insert_default().volume_name = Some("d-mistake".to_owned());
    let claim = driver.claims().create(&PostParams::default(), &wanted).await;
    let uid = json!({ "spec": { "claimRef": { "uid": claim.map_err(other)?.uid() } } });
    driver.released("d-mistake", "vol-mistake", uid).await?;
    let there = "default/d-mistake is there";
    event(
        driver.world,
        "PersistentVolume",
        "d-mistake",
        "ReleasedWhileBound",
        there,
    )
    .await?;
    let kept = "its volume is not deleted";
    event(
        driver.world,
        "PersistentVolumeClaim",
        "d-mistake",
        "ReleasedWhileBound",
        kept,
    )
    .await?;
    assert_eq!(driver.deletions("vol-mistake"), 0);
    let gone = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let claims = driver.claims();
    claims
        .patch("d-mistake", &PatchParams::default(), &gone)
        .await
        .map_err(other)?;
    driver.delete_claim("d-mistake").await?;
    assert_eq!(driver.is_deleted("d-mistake", "vol-mistake").await?, 1);
    Ok(())
}

/// It is deleted and was never bound.
async fn is_kept_until_a_person_decides(driver: &Driver<'_>) -> Result<()> {
    let unbound = json!({ "spec": { "claimRef": null } });
    driver.saved_as("d-unbound", "vol-unbound", unbound).await?;
    driver.phase("d-unbound", "Available").await?;
    driver.delete_volume("d-unbound").await?;
    let asks = "set the annotation attacher.csi.dev/reclaim to Delete";
    event(driver.world, "PersistentVolume", "d-unbound", "VolumeDelete", asks).await?;
    assert_eq!(driver.deletions("vol-unbound"), 0);
    let decided = json!({ "metadata": { "annotations": { "attacher.csi.dev/reclaim": "Delete" } } });
    driver.change("d-unbound", decided).await?;
    assert_eq!(driver.is_deleted("d-unbound", "vol-unbound").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_deletion_goes_on_until_the_driver_says_ok() -> Result<()> {
    let world = unmanaged().await?;
    let mut operator = world.operator(operator_options()).await?;
    let driver = serves(&world, "d-codes", &json!({ "timeouts": { "delete": "2s" } })).await?;
    driver.mock.script(
        Rule::on(Method::DeleteVolume)
            .times(1)
            .fail(Code::FailedPrecondition, "the volume has snapshots"),
    );
    driver.released("d-snapshots", "vol-1", json!({})).await?;
    let told = event(
        &world,
        "PersistentVolume",
        "d-snapshots",
        "VolumeFailedDelete",
        "the volume has snapshots",
    )
    .await?;
    let message = told.message.unwrap_or_default();
    assert!(
        message.contains("code = FailedPrecondition") && message.contains("next retry in "),
        "{message}"
    );
    assert_eq!(driver.is_deleted("d-snapshots", "vol-1").await?, 2);

    // The work is done, and nobody hears of it.
    let lost = Rule::on(Method::DeleteVolume)
        .times(1)
        .action(ScriptAction::DropConnectionAfterWork);
    driver.mock.script(lost);
    driver.released("d-lost", "vol-2", json!({})).await?;
    assert_eq!(driver.is_deleted("d-lost", "vol-2").await?, 2);

    // Nor does the process that asked for it.
    driver
        .mock
        .script(Rule::on(Method::DeleteVolume).times(1).late_success());
    driver.released("d-killed", "vol-3", json!({})).await?;
    driver
        .mock
        .wait_for_call(|call| call.volume.as_deref() == Some("vol-3") && call.outcome == CallResult::Late)
        .await;
    operator.signal("KILL")?;
    operator.wait_ended(LIMIT).await?;
    let _next = world.operator(operator_options()).await?;
    assert!((1..=3).contains(&driver.is_deleted("d-killed", "vol-3").await?));

    is_not_called_for_again_when_the_policy_keeps_it(&driver).await
}

/// The policy changes while a call runs that is not answered: it is told.
async fn is_not_called_for_again_when_the_policy_keeps_it(driver: &Driver<'_>) -> Result<()> {
    driver.mock.script(Rule::on(Method::DeleteVolume).late_success());
    driver.released("d-late", "vol-4", json!({})).await?;
    driver
        .mock
        .wait_for_call(|call| call.volume.as_deref() == Some("vol-4"))
        .await;
    let retain = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
    driver.change("d-late", retain).await?;
    let told = "it is not known what an earlier DeleteVolume did";
    event(driver.world, "PersistentVolume", "d-late", "VolumeFailedDelete", told).await?;
    assert_eq!(driver.deletions("vol-4"), 1);
    let volume = driver.volumes().get("d-late").await.map_err(other)?;
    assert!(volume.metadata.deletion_timestamp.is_none());
    Ok(())
}

/// As users do it who want a volume back: first the PersistentVolume, then the claim.
#[tokio::test]
async fn a_persistent_volume_that_is_deleted_first_goes_with_its_volume() -> Result<()> {
    let (world, _operator) = serving(operator_options()).await?;
    let driver = provisioning(&world, "d-first", &soon()).await?;
    driver.class("Delete").await?;
    let claim = driver.ask_for("data").await?;
    driver.bound("data").await?;
    let name = format!("pvc-{}", claim.uid().unwrap_or_default());
    driver.delete_volume(&name).await?;
    assert!(driver.mock.calls_of(Method::DeleteVolume).is_empty());
    driver.delete_claim("data").await?;
    driver.volume_is_gone(&name).await?;
    assert!(driver.mock.volumes().is_empty());

    // Another one that is attached here, so that both roles have a finalizer on it.
    let claim = driver.ask_for("attached").await?;
    driver.bound("attached").await?;
    let name = format!("pvc-{}", claim.uid().unwrap_or_default());
    driver.attachment("d-first-va", &name).await?;
    world.fixtures.wait_for_attached("d-first-va").await?;
    driver.delete_claim("attached").await?;
    let waits = format!("persistentvolume {name} is still attached to node {}", driver.node());
    event(&world, "PersistentVolume", &name, "VolumeDelete", &waits).await?;
    assert_eq!(driver.mock.volumes().len(), 1);
    world.fixtures.delete::<VolumeAttachment>("d-first-va").await?;
    driver.volume_is_gone(&name).await?;
    assert!(driver.mock.volumes().is_empty());
    let calls = driver.mock.calls_of(Method::DeleteVolume);
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(
        Api::<PersistentVolume>::all(world.client.clone())
            .get_opt(&name)
            .await
            .map_err(other)?
            .is_none()
    );
    Ok(())
}
