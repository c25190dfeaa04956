//! What needs each right: a course of events that comes to its end with the right, and not without.

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{Method, Rule};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tonic::Code;

use super::scene::{self, Scene};
use super::{LIMIT, everything, no_refusals, other};
use crate::events::event;
use crate::rig::{Driver, World, merge, merge_status, renewals};
use crate::support::operator::release_provisioner_lease;
use crate::support::rbac::{Account, Right};
use crate::support::wait::{wait_for, wait_for_any};
use crate::support::{Operator, Result, Volume};

/// The Secret of the scenario that has one, in the namespace of the operator's account.
pub const SECRET: &str = "publish";

type Run = for<'s, 'w> fn(&'s Scene<'w>) -> LocalBoxFuture<'s, Result<()>>;

/// A right and what needs it.
pub struct Row {
    /// Kind of the role, API group, resource and verb.
    pub right: &'static str,
    /// What it is for, in the words of the documentation.
    pub purpose: &'static str,
    /// The scenario.
    pub name: &'static str,
    pub run: Run,
    /// The resource whose watch brings nothing, for which it needs an operator of its own with all rights too.
    pub deaf_for: Option<&'static str>,
    /// How long the outcome is waited for after the request that would bring it about was refused; with the right it comes
    /// sooner.
    pub grace: Duration,
    /// Whether it is run by itself, as it takes long.
    pub long: bool,
}

impl Row {
    /// Whether it is the row of this right.
    pub fn is_about(&self, right: &Right) -> bool {
        self.right == right.to_string()
    }
}

/// What most rows have in common.
const USUAL: Row = Row {
    right: "",
    purpose: "",
    name: "",
    run: |_| async { Ok(()) }.boxed_local(),
    deaf_for: None,
    grace: Duration::from_millis(2500),
    long: false,
};

macro_rules! rows {
    ($($right:literal, $purpose:literal => $scenario:ident $(, $field:ident = $value:expr)?;)*) => {
        &[$(Row {
            right: $right,
            purpose: $purpose,
            name: stringify!($scenario),
            run: |scene| $scenario(scene).boxed_local(),
            $($field: $value,)?
            ..USUAL
        }),*]
    };
}

/// A row for each right that the chart renders, whatever the values.
pub const ROWS: &[Row] = rows! {
    "ClusterRole /events:create", "record Events on VolumeAttachments, PVs, PVCs and AttacherConfigs"
        => what_happens_is_told_as_an_event;
    "ClusterRole /events:patch", "count repeated Events on the existing Event"
        => what_happens_again_is_counted, long = true;
    "ClusterRole /nodes:list", "read the labels of the nodes at the start; only with spec.provisioning, for a driver with topology"
        => a_driver_with_topology_provisions;
    "ClusterRole /nodes:watch", "retry when a missing label or node appears; only with spec.provisioning, for a driver with topology"
        => labels_that_come_late_end_the_wait, grace = GRACE_IN_TURN;
    "ClusterRole /persistentvolumeclaims:get", "read a claim again after a write from a stale copy; only with spec.provisioning"
        => a_claim_that_changed_unseen_is_provisioned, deaf_for = Some("/persistentvolumeclaims");
    "ClusterRole /persistentvolumeclaims:list", "read the claims at the start; only with spec.provisioning" => a_driver_provisions;
    "ClusterRole /persistentvolumeclaims:patch", "put the marker on a claim before its volume is created, and take it off; only with spec.provisioning"
        => a_claim_is_provisioned;
    "ClusterRole /persistentvolumeclaims:watch", "provision claims that are made later; only with spec.provisioning"
        => claims_that_are_made_later_are_provisioned, grace = GRACE_IN_TURN;
    "ClusterRole /persistentvolumes:create", "save the PersistentVolume of a volume that was created; only with spec.provisioning"
        => a_claim_is_provisioned;
    "ClusterRole /persistentvolumes:delete", "delete a PersistentVolume whose volume was deleted; only with spec.provisioning"
        => a_released_volume_is_deleted;
    "ClusterRole /persistentvolumes:get", "attach a volume that the watch has not delivered yet; read it again after a write from a stale copy"
        => a_volume_is_attached_that_the_watch_is_late_with, deaf_for = Some("/persistentvolumes");
    "ClusterRole /persistentvolumes:list", "read the volumes at the start" => a_driver_becomes_ready;
    "ClusterRole /persistentvolumes:patch", "add the finalizer to a volume that is attached, and remove it" => a_volume_is_attached;
    "ClusterRole /persistentvolumes:watch", "retry when a missing volume appears; release a volume that is deleted"
        => volumes_that_come_late_end_the_wait, grace = GRACE_IN_TURN;
    "ClusterRole attacher.csi.dev/attacherconfigs/status:patch", "report the state of a driver in the status" => a_driver_becomes_ready;
    "ClusterRole attacher.csi.dev/attacherconfigs:list", "read the AttacherConfigs at the start" => a_driver_becomes_ready;
    "ClusterRole attacher.csi.dev/attacherconfigs:patch", "add the finalizer of spec.deletionPolicy WaitForDetach to an AttacherConfig, and remove it; remove a confirmation that was used"
        => a_config_waits_for_its_volumes;
    "ClusterRole attacher.csi.dev/attacherconfigs:watch", "serve AttacherConfigs that are created or changed later"
        => a_config_that_is_made_and_changed_later_is_served, grace = GRACE_IN_TURN;
    "ClusterRole storage.k8s.io/csidrivers:get", "report that a CSIDriver is missing, or says that attaching is not required, also for a driver that lost PUBLISH_UNPUBLISH_VOLUME"
        => a_missing_csi_driver_is_told, grace = Duration::from_secs(4);
    "ClusterRole storage.k8s.io/csinodes:get", "attach to a node that the watch has not delivered yet"
        => a_node_is_used_that_the_watch_is_late_with, deaf_for = Some("/csinodes");
    "ClusterRole storage.k8s.io/csinodes:list", "read the IDs of the nodes at the start" => a_driver_becomes_ready;
    "ClusterRole storage.k8s.io/csinodes:watch", "retry when a missing node appears"
        => nodes_that_come_late_end_the_wait, grace = GRACE_IN_TURN;
    "ClusterRole storage.k8s.io/csistoragecapacities:list", "see whether the nodes of a driver provision for it; only with spec.provisioning"
        => a_driver_provisions;
    "ClusterRole storage.k8s.io/storageclasses:list", "read the classes at the start; only with spec.provisioning" => a_driver_provisions;
    "ClusterRole storage.k8s.io/storageclasses:watch", "retry when a missing class appears; only with spec.provisioning"
        => classes_that_come_late_end_the_wait, grace = GRACE_IN_TURN;
    "ClusterRole storage.k8s.io/volumeattachments/status:patch", "report that a volume is attached, or why not" => a_volume_is_attached;
    "ClusterRole storage.k8s.io/volumeattachments:get", "read it again after a write from a stale copy"
        => an_attachment_that_changed_unseen_is_attached, deaf_for = Some("/volumeattachments");
    "ClusterRole storage.k8s.io/volumeattachments:list", "read the attachments at the start" => a_driver_becomes_ready;
    "ClusterRole storage.k8s.io/volumeattachments:patch", "add the finalizer and the node ID to an attachment, and remove the finalizer"
        => a_volume_is_attached;
    "ClusterRole storage.k8s.io/volumeattachments:watch", "attach and detach volumes that are requested later"
        => attachments_that_are_made_later_are_served, grace = GRACE_IN_TURN;
    "Role /secrets:get", "read the publish secret of a volume, or the certificates of an endpoint; only for the named Secrets"
        => a_volume_with_a_secret_is_attached;
    "Role coordination.k8s.io/leases:create", "create the Lease of a driver that has none" => a_driver_without_a_lease_becomes_ready;
    "Role coordination.k8s.io/leases:get", "read a Lease that another client has written, before it is renewed"
        => a_lease_that_another_wrote_on_is_kept;
    "Role coordination.k8s.io/leases:list", "check whether a Lease is free" => a_lease_that_becomes_free_is_taken_at_once;
    "Role coordination.k8s.io/leases:update", "acquire a free Lease, renew it, release it" => a_free_lease_is_taken;
    "Role coordination.k8s.io/leases:watch", "take over as soon as another replica releases a Lease"
        => a_lease_that_becomes_free_is_taken_at_once;
};

/// So many objects that come one after another, each when the one before has had its effect, need a watch. A watch that is
/// refused is followed by a list, and each list tells of one of them: but five lists at most come soon, with pauses between
/// them (`LISTS` in crates/kube/src/reflect/reflector.rs, and the first one).
const IN_TURN: usize = 6;

/// Longer than all of them take with the watch, and shorter than the time for which the sixth list is put off.
const GRACE_IN_TURN: Duration = Duration::from_secs(10);

/// The names of objects that come one after another.
fn in_turn(driver: &Driver<'_>) -> Vec<String> {
    (0..IN_TURN)
        .map(|number| format!("{}-{number}", driver.short))
        .collect()
}

/// Settings with which only an event can bring about a second try.
fn patient() -> Value {
    json!({ "backoff": { "initial": "1h", "max": "1h" }, "reconcileSync": { "mode": "Disabled" } })
}

/// The name of the one volume and the one attachment of a scenario.
fn volume_of(driver: &Driver<'_>) -> String {
    format!("{}-volume", driver.short)
}

async fn a_driver_becomes_ready(scene: &Scene<'_>) -> Result<()> {
    scene.start()?;
    let driver = scene.driver().await?;
    driver.configure(&json!({})).await?;
    scene.point();
    driver.wait("Ready", "True", Some("Running")).await
}

async fn a_driver_without_a_lease_becomes_ready(scene: &Scene<'_>) -> Result<()> {
    scene.start()?;
    let driver = scene.driver_without_lease().await?;
    driver.configure(&json!({})).await?;
    scene.point();
    driver.wait("Ready", "True", Some("Running")).await
}

/// A driver that is provisioned for, by an operator that is started now. Nothing but an event can bring about a second try.
async fn provisions<'w>(scene: &Scene<'w>) -> Result<Driver<'w>> {
    let driver = scene.driver().await?;
    provision_for(scene, &driver).await?;
    Ok(driver)
}

async fn provision_for(scene: &Scene<'_>, driver: &Driver<'_>) -> Result<()> {
    release_provisioner_lease(&scene.world.client, &scene.account.namespace, &driver.name).await?;
    scene.start()?;
    let never = json!({ "initial": "1h", "max": "1h" });
    let provisioning = json!({ "backoff": never });
    driver
        .configure(&json!({ "driverName": driver.name, "provisioning": provisioning }))
        .await
}

async fn a_driver_provisions(scene: &Scene<'_>) -> Result<()> {
    let driver = provisions(scene).await?;
    scene.point();
    driver.wait("ProvisioningReady", "True", Some("Running")).await
}

/// The topology key of a driver with topology.
const ZONE: &str = "topology.example.com/zone";

async fn a_driver_with_topology_provisions(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.driver_with(|builder| builder.topology([ZONE])).await?;
    provision_for(scene, &driver).await?;
    scene.point();
    driver.wait("ProvisioningReady", "True", Some("Running")).await
}

async fn labels_that_come_late_end_the_wait(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.driver_with(|builder| builder.topology([ZONE])).await?;
    // The nodes are there at the start: who cannot watch lists.
    for name in in_turn(&driver) {
        scene.world.fixtures.node(&name).await?;
        let csi_node = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": name },
            "spec": { "drivers": [{ "name": driver.name, "nodeID": name, "topologyKeys": [ZONE] }] },
        });
        scene.world.cluster.apply_yaml(&csi_node.to_string()).await?;
    }
    provision_for(scene, &driver).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": driver.short },
        "provisioner": driver.name, "volumeBindingMode": "WaitForFirstConsumer",
    });
    scene.world.cluster.apply_yaml(&class.to_string()).await?;
    let claims = Api::<PersistentVolumeClaim>::namespaced(scene.world.client.clone(), "default");
    let mut made = Vec::new();
    for name in in_turn(&driver) {
        made.push(claim(scene, &driver, &name, &driver.short).await?);
        let selected = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": name } } });
        merge(&claims, &name, &selected).await?;
    }
    for name in in_turn(&driver) {
        event(
            scene.world,
            "PersistentVolumeClaim",
            &name,
            "ProvisioningFailed",
            "has no label",
        )
        .await?;
    }
    scene.point();
    let nodes = scene.world.fixtures.cluster::<Node>();
    for (name, claim) in in_turn(&driver).iter().zip(&made) {
        let labels = json!({ "metadata": { "labels": { ZONE: "a" } } });
        merge(&nodes, name, &labels).await?;
        saved(scene, claim).await?;
    }
    Ok(())
}

/// A class of the driver.
async fn class(scene: &Scene<'_>, driver: &Driver<'_>, name: &str, parameters: Value) -> Result<()> {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
        "provisioner": driver.name, "parameters": parameters,
    });
    scene.world.cluster.apply_yaml(&class.to_string()).await.map(drop)
}

/// A claim as kube-controller-manager leaves it for the driver.
async fn claim(scene: &Scene<'_>, driver: &Driver<'_>, name: &str, class: &str) -> Result<PersistentVolumeClaim> {
    let claim = json!({
        "metadata": { "name": name, "annotations": { "volume.kubernetes.io/storage-provisioner": driver.name } },
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let claim = serde_json::from_value(claim)?;
    let claims = Api::<PersistentVolumeClaim>::namespaced(scene.world.client.clone(), "default");
    let made = claims.create(&PostParams::default(), &claim).await;
    made.map_err(|error| other(error.to_string()))
}

async fn saved(scene: &Scene<'_>, claim: &PersistentVolumeClaim) -> Result<()> {
    let volumes = Api::<PersistentVolume>::all(scene.world.client.clone());
    let name = format!("pvc-{}", claim.uid().unwrap_or_default());
    let saved = wait_for(volumes, &name, "saved", LIMIT, |volume| volume.is_some());
    saved.await.map(drop)
}

async fn a_claim_is_provisioned(scene: &Scene<'_>) -> Result<()> {
    let driver = provisions(scene).await?;
    let name = driver.short.clone();
    class(scene, &driver, &name, json!({})).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    scene.point();
    saved(scene, &claim(scene, &driver, &name, &name).await?).await
}

async fn a_released_volume_is_deleted(scene: &Scene<'_>) -> Result<()> {
    let driver = provisions(scene).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    let name = driver.short.clone();
    let volume = driver.volume(&name).claim("default", &name, Some("gone"));
    scene.world.fixtures.persistent_volume(&volume).await?;
    let volumes = Api::<PersistentVolume>::all(scene.world.client.clone());
    let policy = json!({
        "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": driver.name } },
        "spec": { "persistentVolumeReclaimPolicy": "Delete" },
    });
    merge(&volumes, &name, &policy).await?;
    scene.point();
    let released = json!({ "status": { "phase": "Released" } });
    merge_status(&volumes, &name, &released).await?;
    let is_going =
        |volume: Option<&PersistentVolume>| volume.is_none_or(|volume| volume.metadata.deletion_timestamp.is_some());
    wait_for(volumes, &name, "being deleted", LIMIT, is_going)
        .await
        .map(drop)
}

async fn claims_that_are_made_later_are_provisioned(scene: &Scene<'_>) -> Result<()> {
    let driver = provisions(scene).await?;
    class(scene, &driver, &driver.short, json!({})).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    scene.point();
    for name in in_turn(&driver) {
        saved(scene, &claim(scene, &driver, &name, &driver.short).await?).await?;
    }
    Ok(())
}

async fn classes_that_come_late_end_the_wait(scene: &Scene<'_>) -> Result<()> {
    let driver = provisions(scene).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    let mut claims = Vec::new();
    for name in in_turn(&driver) {
        claims.push(claim(scene, &driver, &name, &name).await?);
    }
    for name in in_turn(&driver) {
        event(
            scene.world,
            "PersistentVolumeClaim",
            &name,
            "ProvisioningFailed",
            "not found",
        )
        .await?;
    }
    scene.point();
    for (name, claim) in in_turn(&driver).iter().zip(&claims) {
        class(scene, &driver, name, json!({})).await?;
        saved(scene, claim).await?;
    }
    Ok(())
}

async fn a_claim_that_changed_unseen_is_provisioned(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.driver().await?;
    let name = driver.short.clone();
    let made = claim(scene, &driver, &name, &name).await?;
    provision_for(scene, &driver).await?;
    driver.wait("ProvisioningReady", "True", Some("Running")).await?;
    let claims = Api::<PersistentVolumeClaim>::namespaced(scene.world.client.clone(), "default");
    let foreign = json!({ "metadata": { "finalizers": ["example.com/keeps"] } });
    merge(&claims, &name, &foreign).await?;
    scene.point();
    class(scene, &driver, &name, json!({})).await?;
    saved(scene, &made).await
}

async fn a_config_that_is_made_and_changed_later_is_served(scene: &Scene<'_>) -> Result<()> {
    scene.start()?;
    let user = scene.account.user();
    let listed = scene
        .world
        .cluster
        .wait_for_audit_event("the list of AttacherConfigs", LIMIT, |event| {
            event.is("list", "attacherconfigs") && event.username == user && event.response_code == 200
        });
    listed.await?;
    let driver = scene.driver().await?;
    scene.point();
    for number in 1..=IN_TURN {
        driver
            .configure(&json!({ "concurrency": { "perNode": number } }))
            .await?;
        // Of the generation that was just made.
        driver.wait("Ready", "True", Some("Running")).await?;
    }
    Ok(())
}

async fn a_config_waits_for_its_volumes(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.ready(json!({ "deletionPolicy": "WaitForDetach" })).await?;
    scene.point();
    let configs: Api<AttacherConfig> = Api::all(scene.world.client.clone());
    let kept = wait_for(configs, &driver.short, "a finalizer", LIMIT, |config| {
        config.is_some_and(|config| !config.finalizers().is_empty())
    });
    kept.await.map(drop)
}

async fn a_missing_csi_driver_is_told(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.ready(json!({})).await?;
    scene.point();
    driver
        .wait("AttachmentsConsistent", "False", Some("CSIDriverMissing"))
        .await
}

async fn a_volume_is_attached(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.ready(patient()).await?;
    scene.point();
    driver.attach(&volume_of(&driver)).await.map(drop)
}

async fn what_happens_is_told_as_an_event(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.ready(patient()).await?;
    scene.point();
    let name = volume_of(&driver);
    driver.attach(&name).await?;
    event(scene.world, "VolumeAttachment", &name, "Attached", "")
        .await
        .map(drop)
}

async fn attachments_that_are_made_later_are_served(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.ready(patient()).await?;
    scene.point();
    for name in in_turn(&driver) {
        driver.attach(&name).await?;
    }
    Ok(())
}

async fn volumes_that_come_late_end_the_wait(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.ready(patient()).await?;
    let (names, fixtures) = (in_turn(&driver), &scene.world.fixtures);
    for name in &names {
        driver.attachment(name, name).await?;
        // One after the other: of many errors at a time some are written at the next try.
        fixtures.wait_for_attach_error(name).await?;
    }
    scene.point();
    for name in &names {
        fixtures.persistent_volume(&driver.volume(name)).await?;
        fixtures.wait_for_attached(name).await?;
    }
    Ok(())
}

async fn nodes_that_come_late_end_the_wait(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.ready(patient()).await?;
    let (names, fixtures) = (in_turn(&driver), &scene.world.fixtures);
    for name in &names {
        driver.claim_at(name, name).await?;
        fixtures.wait_for_attach_error(name).await?;
    }
    scene.point();
    for name in &names {
        fixtures.csi_node(name, &driver.name, "id").await?;
        fixtures.wait_for_attached(name).await?;
    }
    Ok(())
}

async fn a_volume_is_attached_that_the_watch_is_late_with(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.ready(patient()).await?;
    scene.point();
    driver.attach(&volume_of(&driver)).await.map(drop)
}

async fn a_node_is_used_that_the_watch_is_late_with(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.ready(patient()).await?;
    let (name, node) = (volume_of(&driver), format!("{}-late", driver.short));
    let fixtures = &scene.world.fixtures;
    fixtures.persistent_volume(&driver.volume(&name)).await?;
    fixtures.csi_node(&node, &driver.name, "id").await?;
    scene.point();
    fixtures.volume_attachment(&name, &driver.name, &name, &node).await?;
    fixtures.wait_for_attached(&name).await.map(drop)
}

async fn an_attachment_that_changed_unseen_is_attached(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.driver().await?;
    let (name, fixtures) = (volume_of(&driver), &scene.world.fixtures);
    driver.attachment(&name, &name).await?;
    scene.start()?;
    driver.configure(&patient()).await?;
    fixtures.wait_for_attach_error(&name).await?;
    let attachments: Api<VolumeAttachment> = fixtures.cluster();
    let foreign = json!({ "metadata": { "finalizers": ["example.com/keeps"] } });
    merge(&attachments, &name, &foreign).await?;
    scene.point();
    fixtures.persistent_volume(&driver.volume(&name)).await?;
    fixtures.wait_for_attached(&name).await.map(drop)
}

async fn a_volume_with_a_secret_is_attached(scene: &Scene<'_>) -> Result<()> {
    let mut settings = patient();
    settings["publishSecrets"] = json!([{ "namespace": scene.account.namespace, "names": [SECRET] }]);
    let driver = scene.ready(settings).await?;
    let (name, fixtures) = (volume_of(&driver), &scene.world.fixtures);
    let namespace = &scene.account.namespace;
    fixtures.secret(namespace, SECRET, &[("password", "swordfish")]).await?;
    scene.point();
    fixtures
        .persistent_volume(&driver.volume(&name).publish_secret(namespace, SECRET))
        .await?;
    driver.attachment(&name, &name).await?;
    fixtures.wait_for_attached(&name).await.map(drop)
}

/// The Lease of a driver, held by this identity, for an hour from now.
async fn lease(scene: &Scene<'_>, driver: &str, holder: &str) -> Result<()> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": lease_name(driver), "namespace": scene.account.namespace },
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 3600, "leaseTransitions": 0,
            "acquireTime": now(), "renewTime": now(),
        },
    });
    scene.world.cluster.apply_yaml(&lease.to_string()).await.map(drop)
}

fn now() -> String {
    format!("{:.6}", Timestamp::now())
}

async fn a_free_lease_is_taken(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.driver().await?;
    lease(scene, &driver.name, "").await?;
    scene.start()?;
    driver.configure(&json!({})).await?;
    scene.point();
    driver.wait("Ready", "True", Some("Running")).await
}

/// The times are such that only the watch can tell in time.
async fn a_lease_that_becomes_free_is_taken_at_once(scene: &Scene<'_>) -> Result<()> {
    let driver = scene.driver().await?;
    lease(scene, &driver.name, "another").await?;
    scene.start()?;
    let election = json!({ "leaseDuration": "1h", "renewDeadline": "50m", "retryPeriod": "10m" });
    driver.configure(&json!({ "leaderElection": election })).await?;
    driver.wait("Ready", "True", Some("Standby")).await?;
    scene.point();
    lease(scene, &driver.name, "").await?;
    driver.wait("Ready", "True", Some("Running")).await
}

async fn a_lease_that_another_wrote_on_is_kept(scene: &Scene<'_>) -> Result<()> {
    let election = json!({ "leaseDuration": "3m", "renewDeadline": "2m", "retryPeriod": "1s" });
    let driver = scene.ready(json!({ "leaderElection": election })).await?;
    let leases: Api<Lease> = scene.world.fixtures.namespaced(&scene.account.namespace);
    let name = lease_name(&driver.name);
    let note = json!({ "metadata": { "annotations": { "example.com/note": "x" } } });
    merge(&leases, &name, &note).await?;
    scene.point();
    renewals(&leases, &name, 1).await
}

/// See [`repeated_events`].
async fn what_happens_again_is_counted(_: &Scene<'_>) -> Result<()> {
    Err(other("it is run by itself"))
}

/// The scenario of the right to change events, with it and without: a count is written half a minute after the event, so both
/// are run at the same time, by operators that know one driver each.
pub async fn repeated_events(world: &World) -> Result<()> {
    let (with, without) = (Account::new("r-count"), Account::new("r-no-count"));
    let right = "ClusterRole /events:patch";
    let counted = async {
        let _running = failing_driver(world, &with, None).await?;
        let events: Api<Event> = Api::namespaced(world.client.clone(), "default");
        let is_counted = |event: &Event| {
            event.involved_object.name.as_deref() == Some(&*with.name) && event.count.is_some_and(|count| count > 1)
        };
        // Written half a minute after the event at the earliest.
        wait_for_any(events, "an event with a count", LIMIT * 2, is_counted).await?;
        no_refusals(world, &with, None)
    };
    let refused = async {
        let _running = failing_driver(world, &without, Some(right)).await?;
        let user = without.user();
        let event = world
            .cluster
            .wait_for_audit_event("a change of an event refused", LIMIT * 2, |event| {
                event.response_code == 403 && event.username == user
            });
        let event = event.await?;
        if !event.is("patch", "events") {
            return Err(other(format!(
                "without {right}: {} {} is refused",
                event.verb, event.uri
            )));
        }
        let events: Api<Event> = Api::namespaced(world.client.clone(), "default");
        let listed = events.list(&kube::api::ListParams::default()).await;
        let listed = listed?;
        let about = |event: &&Event| event.involved_object.name.as_deref() == Some(&*without.name);
        let counts: Vec<_> = listed.iter().filter(about).map(|event| event.count).collect();
        if counts.iter().any(|count| *count != Some(1)) || counts.is_empty() {
            return Err(other(format!("counts are written without {right}: {counts:?}")));
        }
        println!("{right:<62} what_happens_again_is_counted: fails without it");
        Ok(())
    };
    tokio::try_join!(counted, refused).map(drop)
}

/// An operator for one driver that fails each attach, with an attachment called after the account.
async fn failing_driver(world: &World, account: &Account, without: Option<&str>) -> Result<(Operator, impl Sized)> {
    let grants = everything(account)?.without(|right| Some(&*right.to_string()) == without);
    let kubeconfig = scene::account(world, account, &grants).await?;
    let (short, name) = (&account.name, format!("{}.csi.test", account.name));
    let driver = world.unconfigured_driver(short, |builder| builder).await?;
    let rule = Rule::on(Method::ControllerPublishVolume);
    driver
        .mock
        .script(rule.fail(Code::FailedPrecondition, "as the test wants"));
    let mut options = scene::options(account);
    options.arguments = vec![
        format!("--csi-address={}", world.socket(short).display()),
        "--retry-interval-start=200ms".to_owned(),
        "--retry-interval-max=1s".to_owned(),
    ];
    let operator = Operator::start_with(&kubeconfig, options)?;
    world
        .fixtures
        .persistent_volume(&Volume::new(short, &name, short))
        .await?;
    driver.attachment(short, short).await?;
    Ok((operator, driver))
}
