//! The life of a PersistentVolumeClaim, from Pending until it and its volume are gone.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;

use crate::cluster::Cluster;
use crate::plan::{CLAIM, CLASS, DRIVERS, NAMESPACE, NODES, POD};
use crate::processes::{MockDriver, write_private};
use crate::say::Say;
use crate::support::{Error, Fixtures, Result};

/// Plays it, and answers the name of the PersistentVolume.
pub async fn life(cluster: &Cluster, drivers: &[MockDriver], say: Say) -> Result<String> {
    say.step("A StorageClass and a PersistentVolumeClaim: now the operator makes the volume, too");
    let path = cluster.folder().join("claim.yaml");
    write_private(&path, &manifest()).await?;
    say.line(manifest());
    let path = path.display().to_string();
    cluster.kubectl(&["apply", "-f", &path]).await?;
    let claim = format!("pvc/{CLAIM}");
    let bound = ["wait", "--for=jsonpath={.status.phase}=Bound", "--timeout=60s"];
    cluster
        .kubectl(&[&bound[..], &["-n", NAMESPACE, &claim]].concat())
        .await?;
    cluster.kubectl(&["get", "-n", NAMESPACE, &claim]).await?;
    let (volume, handle) = volume(&Fixtures::new(cluster.client.clone())).await?;

    say.step("A pod uses it; then the pod and the PersistentVolumeClaim are deleted, and the volume goes with them");
    use_and_delete(cluster, &volume, &handle, say).await?;
    let driver = drivers.iter().find(|driver| driver.driver.name == DRIVERS[0].name);
    let Some(driver) = driver else { return Ok(volume) };
    let made = driver.count_calls("CreateVolume").await?;
    let deleted = driver.count_calls("DeleteVolume").await?;
    say.line(format!(
        "{} was asked {made} time for CreateVolume, {deleted} time for DeleteVolume",
        driver.driver.name
    ));
    if (made, deleted) != (1, 1) {
        return Err(Error::Other("it should have been asked once for each".to_owned()));
    }
    Ok(volume)
}

/// The PersistentVolume of the claim, and its handle.
async fn volume(fixtures: &Fixtures) -> Result<(String, String)> {
    let claims: Api<PersistentVolumeClaim> = fixtures.namespaced(NAMESPACE);
    let claim = claims.get(CLAIM).await?;
    let name = claim.spec.and_then(|spec| spec.volume_name).unwrap_or_default();
    let volume = fixtures.cluster::<PersistentVolume>().get(&name).await;
    let volume = volume?;
    let handle = volume.spec.and_then(|spec| spec.csi).map(|csi| csi.volume_handle);
    Ok((name, handle.unwrap_or_default()))
}

/// Plays the user and the kubelet.
async fn use_and_delete(cluster: &Cluster, volume: &str, handle: &str, say: Say) -> Result<()> {
    let fixtures = Fixtures::new(cluster.client.clone());
    let (node, driver) = (NODES[0], DRIVERS[0].name);
    fixtures.pod(NAMESPACE, POD, node, &[CLAIM]).await?;
    fixtures.mark_volume_in_use(node, driver, handle).await?;
    let attachment = fixtures.wait_for_attachment_of(volume, node).await?;
    let attachment = attachment.metadata.name.unwrap_or_default();
    fixtures.wait_for_attached(&attachment).await?;
    fixtures.delete_pod(NAMESPACE, POD).await?;
    fixtures.unmark_volume_in_use(node, driver, handle).await?;
    fixtures
        .delete_namespaced::<PersistentVolumeClaim>(NAMESPACE, CLAIM)
        .await?;
    fixtures.wait_for_attachment_gone(&attachment).await?;
    fixtures.wait_for_volume_gone(volume).await?;
    say.line(format!(
        "PersistentVolume {volume} is gone, and so is its volume {handle}."
    ));
    Ok(())
}

fn manifest() -> String {
    format!(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata:\n  name: {CLASS}\nprovisioner: {}\n---\n\
         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: {CLAIM}\n  namespace: {NAMESPACE}\nspec:\n  \
         storageClassName: {CLASS}\n  accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: 1Gi}}}}\n",
        DRIVERS[0].name
    )
}
