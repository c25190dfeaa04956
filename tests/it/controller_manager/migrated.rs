//! Volumes of an in-tree plug-in whose CSI driver took over: the controller translates those in a pod's spec, the operator
//! those of a PersistentVolume.

use csi_attacher_model::objects::{InTreePlugin, MIGRATED_TO_ANNOTATION};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::{NAMESPACE, node_is_seen};
use crate::events::event;
use crate::rig::{Driver, LIMIT, World, delete_volume, merge};
use crate::support::Result;
use crate::support::wait::{wait_for, wait_for_any};

const PLUGIN: InTreePlugin = InTreePlugin::GcePersistentDisk;

/// A driver that took over the plug-in, on a node whose kubelet says so.
async fn driver(world: &World) -> Result<Driver<'_>> {
    let driver = world.managed_driver_named("disks", PLUGIN.as_str()).await?;
    let migrated = json!({ "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/gce-pd" });
    let patch = json!({ "metadata": { "annotations": migrated } });
    let nodes = world.fixtures.cluster::<CSINode>();
    merge(&nodes, &driver.node(), &patch).await?;
    // CSINodes come to kube-controller-manager by a watch of their own. What shows that it sees Nodes also shows that it does
    // not stand still, and takes longer than an event that came before.
    node_is_seen(&world.fixtures, &driver.node()).await?;
    Ok(driver)
}

async fn pod(driver: &Driver<'_>, name: &str, volume: Value) -> Result<()> {
    let mut volume = volume;
    volume["name"] = "data".into();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": driver.node(),
            "containers": [{ "name": "main", "image": "never-pulled", "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }],
            "volumes": [volume],
        },
    }))?;
    let pods = driver.world.fixtures.namespaced::<Pod>(NAMESPACE);
    pods.create(&PostParams::default(), &pod).await.expect("a good pod");
    Ok(())
}

/// Ends a pod and waits for its volume to be detached.
async fn end(driver: &Driver<'_>, name: &str, attachment: &VolumeAttachment, handle: &str) -> Result<()> {
    let fixtures = &driver.world.fixtures;
    fixtures
        .wait_for_volume_attached(&driver.node(), &driver.name, handle)
        .await?;
    fixtures.delete_pod(NAMESPACE, name).await?;
    fixtures.wait_for_attachment_gone(&attachment.name_any()).await?;
    fixtures
        .wait_for_volume_detached(&driver.node(), &driver.name, handle)
        .await?;
    let id = driver.node_id();
    assert_eq!(driver.answered(handle), [format!("pub {id}"), format!("unpub {id}")]);
    Ok(())
}

async fn in_pod(driver: &Driver<'_>) -> Result<()> {
    let handle = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/in-pod";
    pod(
        driver,
        "in-pod",
        json!({ "gcePersistentDisk": { "pdName": "in-pod", "fsType": "ext4" } }),
    )
    .await?;
    let fixtures = &driver.world.fixtures;
    let made = wait_for_any(
        fixtures.cluster(),
        "with the disk in line",
        LIMIT,
        |made: &VolumeAttachment| {
            let inline = made.spec.source.inline_volume_spec.as_ref();
            inline
                .and_then(|spec| spec.csi.as_ref())
                .is_some_and(|csi| csi.volume_handle == handle)
        },
    )
    .await?;
    let attached = fixtures.wait_for_attached(&made.name_any()).await?;
    event(driver.world, "VolumeAttachment", &made.name_any(), "Attached", handle).await?;
    end(driver, "in-pod", &attached, handle).await?;
    event(driver.world, "VolumeAttachment", &made.name_any(), "Detached", handle)
        .await
        .map(drop)
}

/// A volume that an in-tree provisioner made: kube-controller-manager marks it as migrated.
async fn provisioned(driver: &Driver<'_>) -> Result<()> {
    let volumes = driver.world.fixtures.cluster::<PersistentVolume>();
    let annotations = json!({ "pv.kubernetes.io/provisioned-by": "kubernetes.io/gce-pd" });
    claimed(driver, "provisioned", annotations).await?;
    wait_for::<PersistentVolume>(volumes.clone(), "provisioned", "marked", LIMIT, |volume| {
        let marked = volume.and_then(|volume| volume.annotations().get(MIGRATED_TO_ANNOTATION));
        marked.is_some_and(|driver| driver == PLUGIN.as_str())
    })
    .await?;
    by_claim(driver, "provisioned").await?;
    let kept = volumes.get("provisioned").await.expect("it is there");
    assert!(
        kept.finalizers().contains(&driver.finalizer()),
        "{:?}",
        kept.finalizers()
    );
    remove(driver, "provisioned").await
}

/// A volume that a person made: it is not marked, so that nothing says who is to serve it when it is not attached.
async fn made_by_hand(driver: &Driver<'_>) -> Result<()> {
    claimed(driver, "by-hand", json!({})).await?;
    by_claim(driver, "by-hand").await?;
    let fixtures = &driver.world.fixtures;
    fixtures
        .wait_for_volume_finalizer("by-hand", &driver.finalizer(), false)
        .await?;
    remove(driver, "by-hand").await
}

/// A volume with a claim, both of this name, which kube-controller-manager binds.
async fn claimed(driver: &Driver<'_>, name: &str, annotations: Value) -> Result<()> {
    let fixtures = &driver.world.fixtures;
    let claim = json!({
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let claims = fixtures.namespaced::<PersistentVolumeClaim>(NAMESPACE);
    let claim = claims
        .create(&PostParams::default(), &serde_json::from_value(claim)?)
        .await;
    claim.expect("a good claim");
    let labels = json!({ "topology.kubernetes.io/zone": "us-central1-a" });
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": labels, "annotations": annotations },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" }, "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "namespace": NAMESPACE, "name": name },
            "gcePersistentDisk": { "pdName": name, "fsType": "ext4" },
        },
    }))?;
    let volumes = fixtures.cluster::<PersistentVolume>();
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .expect("a good volume");
    wait_for::<PersistentVolumeClaim>(claims, name, "bound", LIMIT, |claim| {
        let phase = claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref());
        phase == Some("Bound")
    })
    .await
    .map(drop)
}

/// A pod that uses the claim, up to its end.
async fn by_claim(driver: &Driver<'_>, name: &str) -> Result<()> {
    let fixtures = &driver.world.fixtures;
    let handle = format!("projects/UNSPECIFIED/zones/us-central1-a/disks/{name}");
    pod(driver, name, json!({ "persistentVolumeClaim": { "claimName": name } })).await?;
    let made = fixtures.wait_for_attachment_of(name, &driver.node()).await?;
    let attached = fixtures.wait_for_attached(&made.name_any()).await?;
    driver.told(name, "Attached", &handle).await?;
    end(driver, name, &attached, &handle).await?;
    driver.told(name, "Detached", &handle).await.map(drop)
}

async fn remove(driver: &Driver<'_>, name: &str) -> Result<()> {
    let fixtures = &driver.world.fixtures;
    fixtures
        .delete_namespaced::<PersistentVolumeClaim>(NAMESPACE, name)
        .await?;
    delete_volume(fixtures, name).await
}

#[tokio::test]
async fn volumes_of_a_migrated_plug_in() -> Result<()> {
    let world = World::managed().await?;
    let driver = driver(&world).await?;
    in_pod(&driver).await?;
    provisioned(&driver).await?;
    made_by_hand(&driver).await?;
    assert!(driver.mock.published().is_empty());
    Ok(())
}
