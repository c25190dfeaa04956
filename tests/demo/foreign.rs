//! Good manners on a cluster that belongs to somebody: nothing is overwritten, and everything made is removed.

use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Client, ResourceExt as _};

use csi_attacher_model::api::AttacherConfig;

use crate::plan::{
    self, CLAIM, CLASS, CLUSTER_ROLES, DEFINITION, DRIVERS, NAMESPACE, NODES, POD, PODS, PRODUCT, PROVISIONING,
};
use crate::say::Say;
use crate::support::fixtures::Object;
use crate::support::wait::wait_for;
use crate::support::{Error, Fixtures, Result};

/// How long finalizers of objects that were deleted may take.
const GONE_WITHIN: Duration = Duration::from_mins(1);

/// Fails when an object is there that the demonstration would create.
pub async fn refuse_if_taken(client: &Client) -> Result<()> {
    let fixtures = Fixtures::new(client.clone());
    let mut taken = Vec::new();
    find::<Namespace>(&fixtures, [PRODUCT, NAMESPACE], &mut taken).await?;
    find::<ClusterRole>(&fixtures, CLUSTER_ROLES, &mut taken).await?;
    find::<ClusterRoleBinding>(&fixtures, [PRODUCT, PROVISIONING], &mut taken).await?;
    find::<StorageClass>(&fixtures, [CLASS], &mut taken).await?;
    find::<CustomResourceDefinition>(&fixtures, [DEFINITION], &mut taken).await?;
    find::<Node>(&fixtures, NODES, &mut taken).await?;
    find::<CSINode>(&fixtures, NODES, &mut taken).await?;
    find::<CSIDriver>(&fixtures, DRIVERS.map(|driver| driver.name), &mut taken).await?;
    find::<PersistentVolume>(&fixtures, plan::volumes().map(|(volume, _)| volume.name), &mut taken).await?;
    if taken.is_empty() {
        return Ok(());
    }
    Err(Error::Other(format!(
        "the cluster has objects which this demonstration would create, so it did nothing: {}. If they are left of \
         an earlier run, delete them; if csi-attacher-operator is installed there, use another cluster.",
        taken.join(", ")
    )))
}

async fn find<K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>>(
    fixtures: &Fixtures,
    names: impl IntoIterator<Item = &str>,
    taken: &mut Vec<String>,
) -> Result<()> {
    for name in names {
        let found = fixtures.cluster::<K>().get_opt(name).await;
        let found = found.map_err(|error| Error::Other(format!("cannot look for {} {name}: {error}", K::kind(&()))))?;
        taken.extend(found.map(|object| format!("{} {}", K::kind(&()), object.name_any())));
    }
    Ok(())
}

/// Removes all objects of the demonstration while the operator still runs, which has to detach what is attached and to
/// release the PersistentVolumes. Goes on after a failure and says at last what is left.
pub async fn clean_up(client: &Client, say: Say) -> Result<()> {
    say.step("Cleaning up");
    let fixtures = Fixtures::new(client.clone()).with_limit(GONE_WITHIN);
    let mut left = Vec::new();
    let mut note = |outcome: Result<()>| left.extend(outcome.err().map(|error| error.to_string()));
    for pod in PODS {
        note(fixtures.delete_pod(NAMESPACE, pod.name).await);
        for volume in pod.volumes {
            let unmarked = fixtures
                .unmark_volume_in_use(pod.node, volume.driver, volume.handle)
                .await;
            note(unmarked);
        }
    }
    note(fixtures.delete_pod(NAMESPACE, POD).await);
    note(attachments_gone(&fixtures).await);
    // The operator deletes its volume and its PersistentVolume.
    let claim = fixtures
        .delete_namespaced::<PersistentVolumeClaim>(NAMESPACE, CLAIM)
        .await;
    note(claim);
    note(fixtures.delete::<StorageClass>(CLASS).await);
    for (volume, _) in plan::volumes() {
        note(
            fixtures
                .delete_namespaced::<PersistentVolumeClaim>(NAMESPACE, volume.name)
                .await,
        );
        note(fixtures.delete::<PersistentVolume>(volume.name).await);
    }
    let gone = plan::volumes().map(|(volume, _)| fixtures.wait_for_volume_gone(volume.name));
    join_all(gone).await.into_iter().for_each(&mut note);
    for driver in DRIVERS {
        note(fixtures.delete::<AttacherConfig>(driver.config).await);
        note(fixtures.delete::<CSIDriver>(driver.name).await);
    }
    for node in NODES {
        note(fixtures.delete::<CSINode>(node).await);
        note(fixtures.delete::<Node>(node).await);
    }
    note(definition_gone(&fixtures).await);
    for name in [PRODUCT, PROVISIONING] {
        note(fixtures.delete::<ClusterRoleBinding>(name).await);
    }
    for name in CLUSTER_ROLES {
        note(fixtures.delete::<ClusterRole>(name).await);
    }
    for namespace in [NAMESPACE, PRODUCT] {
        note(fixtures.delete::<Namespace>(namespace).await);
    }
    let gone = [NAMESPACE, PRODUCT].map(|namespace| wait_gone::<Namespace>(&fixtures, namespace));
    join_all(gone).await.into_iter().for_each(&mut note);
    if left.is_empty() {
        say.line("All objects of the demonstration are gone.");
        return Ok(());
    }
    Err(Error::Other(format!(
        "objects may be left on the cluster:\n{}",
        left.join("\n")
    )))
}

/// It goes after the AttacherConfigs, which the operator has to let go.
async fn definition_gone(fixtures: &Fixtures) -> Result<()> {
    fixtures.delete::<CustomResourceDefinition>(DEFINITION).await?;
    wait_gone::<CustomResourceDefinition>(fixtures, DEFINITION).await
}

/// Waits until an object is gone. Without kube-controller-manager, which empties it, a namespace never goes.
async fn wait_gone<K>(fixtures: &Fixtures, name: &str) -> Result<()>
where
    K: Object + kube::Resource<Scope = k8s_openapi::ClusterResourceScope>,
{
    let gone = |object: Option<&K>| object.is_none();
    let outcome = wait_for::<K>(fixtures.cluster(), name, "gone", GONE_WITHIN, gone).await;
    outcome.map(drop)
}

async fn attachments_gone(fixtures: &Fixtures) -> Result<()> {
    let all = fixtures
        .cluster::<VolumeAttachment>()
        .list(&kube::api::ListParams::default())
        .await;
    let all = all.map_err(|error| Error::Other(format!("cannot list VolumeAttachments: {error}")))?;
    let ours = all
        .items
        .into_iter()
        .filter(|attachment| DRIVERS.iter().any(|driver| driver.name == attachment.spec.attacher))
        .map(|attachment| attachment.name_any());
    let mut waits = stream::iter(ours)
        .map(|name| async move { fixtures.wait_for_attachment_gone(&name).await })
        .buffer_unordered(16);
    while let Some(outcome) = waits.next().await {
        outcome?;
    }
    Ok(())
}
