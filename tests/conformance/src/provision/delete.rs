//! The volume of a released PersistentVolume is deleted, and none that may be in use.

use kube::ResourceExt as _;
use serde_json::json;

use super::claims::{handle_of, is_protected};
use super::teardown::stays;
use crate::scenario::{Group, Outcome, Scenario, same};
use crate::test::Test;

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("provision-delete");
    simple(group).done()
}

fn simple(group: Group) -> Group {
    group.safety(
        "policy",
        "with Delete volume and PersistentVolume go, with Retain both stay",
        policy,
    )
}

async fn policy(t: Test) -> Outcome {
    let (claim, volume) = t.given_bound().await?;
    let kept = t.claim("kept");
    let class = format!("{}-kept", t.id);
    t.given_class(|it| {
        it["metadata"]["name"] = json!(class);
        it["reclaimPolicy"] = json!("Retain");
    })
    .await?;
    kept.create(|it| it["spec"]["storageClassName"] = json!(class)).await?;
    let retained = kept.bound().await?;
    kept.delete().await?;
    kept.gone().await?;
    t.phase(&retained.name_any(), "Released").await?;

    claim.delete().await?;
    t.persistent_volume_gone(&volume.name_any()).await?;
    same("volumes", &claim.handles().len(), &0)?;
    same(
        "number of DeleteVolume",
        &t.deletions(&handle_of(&volume)).len().min(1),
        &1,
    )?;
    // It was released before, so that it was looked at.
    t.not_deleted(&handle_of(&retained))?;
    stays(&t, &retained.name_any()).await?;
    t.persistent_volume(&retained.name_any(), "without the provisioner's finalizer", |it| {
        !is_protected(it)
    })
    .await
    .map(drop)
}
