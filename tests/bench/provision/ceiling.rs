//! What the API server takes when nothing but the writes of provisioning is sent: the same patches and the same PersistentVolume, as many
//! at a time, over the same HTTP/2 client.

use kube::Client;
use serde_json::{Value, json};

use csi_attacher_model::objects::{Claim, PersistentVolumeClaimWire, PersistentVolumeWire, Volume};
use csi_attacher_model::provision::{Marker, patch};

use super::world::{NOBODYS_CLASS, World, claim};
use crate::cluster::{NOBODYS_DRIVER, name};
use crate::recorder::Stage;
use crate::requests::{CLAIMS, Prepared, VOLUMES, claims, each};
use crate::support::{Error, Result};

/// What it takes for each kind of work.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    /// PersistentVolumes saved a second: marker on, PersistentVolume, marker off.
    pub made: f64,
    /// PersistentVolumes gone a second: the deletion, and the patch with which the object goes.
    pub deleted: f64,
}

/// Measures both, and removes what it made.
pub async fn measure(world: &World, group: &str, count: usize) -> Result<Ceiling> {
    let made = create(world, group, count).await?;
    let deleted = delete(world, group, count).await?;
    Ok(Ceiling { made, deleted })
}

async fn create(world: &World, group: &str, count: usize) -> Result<f64> {
    let client = world.bench.client.clone();
    let wanted = (0..count).map(|number| {
        let name = name(group, number);
        Prepared::create(&claims(), &claim(&name, NOBODYS_CLASS, NOBODYS_DRIVER))
    });
    let (made, _) = each(wanted.collect(), move |create: Prepared| {
        let client = client.clone();
        async move {
            create
                .send_for::<PersistentVolumeClaimWire>(&client)
                .await
                .map(Claim::from)
        }
    })
    .await?;
    let client = world.bench.client.clone();
    each(made, move |claim: Claim| {
        let client = client.clone();
        async move { provision(&client, &claim).await }
    })
    .await?;
    world.wait(group, Stage::Created, count).await?;
    world.quiet().await?;
    Ok(world.volumes.rate(group, Stage::Created))
}

async fn provision(client: &Client, claim: &Claim) -> Result<()> {
    let save = Prepared::create(VOLUMES, &volume(claim));
    let mark = Prepared::patch_claim(&patch::mark(claim, &serde_json::to_string(&marker(claim))?));
    let marked = Claim::from(mark.send_for::<PersistentVolumeClaimWire>(client).await?);
    save.send(client).await?;
    let unmark = patch::unmark(&marked).ok_or_else(|| Error::Other(format!("{} has no marker", marked.key)))?;
    Prepared::patch_claim(&unmark).send(client).await.map(drop)
}

async fn delete(world: &World, group: &str, count: usize) -> Result<f64> {
    world.release(group, count).await?;
    let there = world.saved_of(group, count)?;
    let client = world.bench.client.clone();
    each(there, move |(name, uid): (String, String)| {
        let client = client.clone();
        async move {
            let delete = Prepared::delete_volume_of(&name, &uid);
            let deleted = Volume::from(delete.send_for::<PersistentVolumeWire>(&client).await?);
            let release = patch::release_volume(&deleted);
            let release = release.ok_or_else(|| Error::Other(format!("{} has no finalizer", deleted.name)))?;
            Prepared::patch(&release).send(&client).await.map(drop)
        }
    })
    .await?;
    world.wait(group, Stage::Gone, count).await?;
    Ok(world.volumes.rate(group, Stage::Gone))
}

/// As long as one of the operator.
fn marker(claim: &Claim) -> Marker {
    let now = jiff::Timestamp::now();
    Marker {
        driver: NOBODYS_DRIVER.into(),
        uid: claim.uid.clone(),
        prefix: "pvc".into(),
        uuid_length: None,
        class_uid: claim.uid.clone(),
        class_hash: "0123456789abcdef".into(),
        arguments: Some("0123456789abcdef".into()),
        secret: None,
        node: None,
        segment: None,
        first: None,
        allowed: None,
        requisite: None,
        since: now,
        writer: format!("{}-1234567890-{NOBODYS_DRIVER}", now.as_millisecond()).into(),
    }
}

/// The PersistentVolume that the operator would write.
pub fn volume(claim: &Claim) -> Value {
    let name = format!("pvc-{}", claim.uid);
    let annotations = json!({
        "pv.kubernetes.io/provisioned-by": NOBODYS_DRIVER,
        "volume.kubernetes.io/provisioner-deletion-secret-name": "",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
    });
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": CLAIMS, "name": &*claim.name,
        "uid": &*claim.uid, "resourceVersion": claim.resource_version.0.to_string(),
    });
    let identity = format!("1700000000000-1234567890-{NOBODYS_DRIVER}");
    let csi = json!({
        "driver": NOBODYS_DRIVER, "volumeHandle": format!("vol-{name}"),
        "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": identity, "mock/name": name},
    });
    let spec = json!({
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": NOBODYS_CLASS,
        "claimRef": reference, "csi": csi, "volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Delete",
    });
    let finalizers = ["external-provisioner.volume.kubernetes.io/finalizer"];
    let metadata = json!({"name": name, "annotations": annotations, "finalizers": finalizers});
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec})
}
