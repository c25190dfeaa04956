//! etcd is restored to an earlier moment: what looks released may be in use in truth.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use csi_mock_driver::Method;

use super::claims::Claim;
use super::settings::WITHOUT_CONFIG;
use super::together::AFTER_OUTAGE;
use super::volumes::handle_of;
use crate::scenario::{Group, Outcome, Scenario, same};
use crate::test::{Test, delete};

pub fn scenarios() -> Vec<Scenario> {
    Group::new("provision-together")
        .demands(
            "after a restore of etcd nothing is deleted while deletions are held, and claims get the volumes that they had",
        )
        .unless(WITHOUT_CONFIG)
        .extension("restored", restored)
        .done()
}

/// Of two volumes one is released, with an attachment, when the copy is made, and kept by a person after that.
async fn restored(t: Test) -> Outcome {
    t.config().await?;
    t.given_delayed_class().await?;
    t.given_zone(&t.node, None).await?;
    let claim = t.given_claim("").await?;
    // The attachment first: kube-controller-manager finds at once that the volume is released, and then it may be deleted.
    t.given_attachment_of(&t.claim("released").name).await?;
    let released = t.given_released("released", |_| {}).await?;
    t.phase(&released, "Released").await?;
    t.told(&released, "", "still attached").await?;
    t.env.cluster.back_up_running()?;

    claim.select(&t.node).await?;
    let handle = handle_of(&claim.bound().await?);
    t.change_volume(
        &released,
        json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }),
    )
    .await?;
    t.env.attacher.kill();
    t.restore().await?;
    let deletions = || t.env.driver.calls_of(Method::DeleteVolume).len();
    let before = deletions();
    let hold = json!({ "provisioning": { "deletion": "Hold" } });
    t.with_settings(hold, Box::pin(is_kept(&t, &claim, &released, &handle)))
        .await?;
    same("number of DeleteVolume", &deletions(), &before)
}

async fn is_kept(t: &Test, claim: &Claim, released: &str, handle: &str) -> Outcome {
    t.env.attacher.again()?;
    delete::<VolumeAttachment>(&t.api(), &t.attachment).await?;
    claim.select(&t.node).await?;
    let volume = claim.bound_within(AFTER_OUTAGE).await?;
    same("handle", &handle_of(&volume).as_str(), &handle)?;
    same("volumes", &claim.handles().len(), &1)?;
    t.told(released, "VolumeDelete", "Hold").await?;
    // The person says it once more.
    t.change_volume(
        released,
        json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }),
    )
    .await?;
    let unprotected = |it: &PersistentVolume| !super::volumes::is_protected(it);
    t.persistent_volume(released, "without the provisioner's finalizer", unprotected)
        .await
        .map(drop)
}

impl Test {
    /// The cluster is as it was when the copy was made.
    async fn restore(&self) -> Outcome {
        let cluster = &self.env.cluster;
        cluster.stop_controller_manager();
        cluster.stop_storage();
        cluster.restore()?;
        cluster.start_storage().await?;
        Ok(cluster.start_controller_manager().await?)
    }
}
