//! The volume of a released PersistentVolume is deleted, and none that may be in use.

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use csi_mock_driver::{CallResult, Method, Rule};

use super::teardown::stays;
use super::volumes::{handle_of, is_protected};
use crate::expect::{LIMIT, SOON};
use crate::scenario::{Group, Outcome, Scenario, demand, offered, same};
use crate::support::controlplane::audit::AuditEvent;
use crate::test::{Test, delete};

const CLAIMS: usize = 100;
/// Who writes for the program under test.
const WRITER: &str = "system:serviceaccount:conformance:attacher";

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("provision-delete");
    kept(simple(group)).done()
}

fn simple(group: Group) -> Group {
    group
        .demands("with Delete volume and PersistentVolume go, with Retain both stay")
        .safety("policy", policy)
        .demands("a PersistentVolume that is deleted before its claim goes with its volume, and not before")
        .safety("pv-first", |t| async move {
            let (claim, volume) = t.given_bound().await?;
            delete::<PersistentVolume>(&t.api(), &volume.name_any()).await?;
            t.served_after("b").await?;
            t.not_deleted(&handle_of(&volume))?;
            claim.delete().await?;
            t.persistent_volume_gone(&volume.name_any()).await?;
            same("volumes", &claim.handles().len(), &0)
        })
}

fn kept(group: Group) -> Group {
    group
        .demands("a volume is not deleted while a VolumeAttachment names it")
        .safety("attached", |t| async move {
            let (claim, volume) = t.given_bound().await?;
            let (name, handle) = (volume.name_any(), handle_of(&volume));
            t.given_attachment_of(&name).await?;
            t.served_after("b").await?;
            claim.delete().await?;
            t.told(&name, "", &format!("still attached to node {}", t.node)).await?;
            t.served_after("c").await?;
            t.not_deleted(&handle)?;
            delete::<VolumeAttachment>(&t.api(), &t.attachment).await?;
            t.persistent_volume_gone(&name).await
        })
        .demands("a policy that is Retain before the claim goes keeps the volume")
        .safety("retain-before", |t| async move {
            let (claim, volume) = t.given_bound().await?;
            t.retain(&volume).await?;
            claim.delete().await?;
            t.phase(&volume.name_any(), "Released").await?;
            t.served_after("b").await?;
            t.not_deleted(&handle_of(&volume))?;
            stays(&t, &volume.name_any()).await
        })
        .demands("a policy that is Retain during DeleteVolume keeps it from being called again")
        .safety("retain-late", |t| async move {
            let (claim, volume) = t.given_bound().await?;
            let (name, handle) = (volume.name_any(), handle_of(&volume));
            // The work is not done: the volume is there to be kept.
            t.script(Rule::on(Method::DeleteVolume).volume(&handle).times(1).hang());
            claim.delete().await?;
            t.deletion(&handle, "began", |_| true).await?;
            t.retain(&volume).await?;
            t.deletion(&handle, "ended", |call| call.outcome == CallResult::Cancelled)
                .await?;
            t.persistent_volume(&name, "without the provisioner's finalizer", |it| !is_protected(it))
                .await?;
            t.served_after("b").await?;
            same("number of DeleteVolume", &t.deletions(&handle).len(), &1)?;
            stays(&t, &name).await
        })
        .demands("an available PersistentVolume that is deleted waits for a person's decision")
        .scenario("available", |t| async move {
            let name = t
                .given_released("", |volume| volume["spec"]["claimRef"] = Value::Null)
                .await?;
            t.phase(&name, "Available").await?;
            delete::<PersistentVolume>(&t.api(), &name).await?;
            t.told(&name, "", "attacher.csi.dev/reclaim").await?;
            t.not_deleted(&format!("{name}-volume"))?;
            let decided = json!({ "metadata": { "annotations": { "attacher.csi.dev/reclaim": "Delete" } } });
            t.change_volume(&name, decided).await?;
            t.persistent_volume_gone(&name).await?;
            let count = t.deletions(&format!("{name}-volume")).len();
            same("number of DeleteVolume", &count, &1)
        })
        .peer_fails("it waits without a word")
        .demands("a volume that two PersistentVolumes name is not deleted for one of them")
        .safety("shared-handle", |t| async move {
            let other = t
                .given_released("other", |volume| {
                    volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
                    volume["spec"]["csi"]["volumeHandle"] = json!(t.handle);
                })
                .await?;
            t.phase(&other, "Released").await?;
            t.served_after("b").await?;
            let name = t
                .given_released("", |volume| volume["spec"]["csi"]["volumeHandle"] = json!(t.handle))
                .await?;
            t.phase(&name, "Released").await?;
            t.served_after("c").await?;
            t.not_deleted(&t.handle)?;
            t.told(&name, "", &other).await?;
            t.delete_released(&other).await?;
            t.persistent_volume_gone(&name).await?;
            same("number of DeleteVolume", &t.deletions(&t.handle).len(), &1)
        })
        .peer_fails("it does not look at other PersistentVolumes")
        .demands("PersistentVolumes of others are left alone")
        .safety("not-ours", not_ours)
}

impl Test {
    async fn retain(&self, volume: &PersistentVolume) -> Outcome {
        let retain = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
        self.change_volume(&volume.name_any(), retain).await
    }
}

async fn policy(t: Test) -> Outcome {
    let (claim, volume) = t.given_bound().await?;
    let kept = t
        .given_claim_with("kept", |it| it["reclaimPolicy"] = json!("Retain"))
        .await?;
    let retained = kept.bound().await?;
    kept.delete().await?;
    kept.gone().await?;
    t.phase(&retained.name_any(), "Released").await?;

    claim.delete().await?;
    t.persistent_volume_gone(&volume.name_any()).await?;
    same("volumes", &claim.handles().len(), &0)?;
    demand(!t.deletions(&handle_of(&volume)).is_empty(), || {
        "no DeleteVolume".to_owned()
    })?;
    // It was released before, so that it was looked at.
    t.not_deleted(&handle_of(&retained))?;
    stays(&t, &retained.name_any()).await?;
    t.persistent_volume(&retained.name_any(), "without the provisioner's finalizer", |it| {
        !is_protected(it)
    })
    .await
    .map(drop)
}

async fn once(t: Test) -> Outcome {
    t.given_class(|_| {}).await?;
    let claims: Vec<_> = (0..CLAIMS).map(|number| t.claim(&number.to_string())).collect();
    try_join_all(claims.iter().map(|claim| claim.create(|_| {}))).await?;
    let volumes = try_join_all(claims.iter().map(super::claims::Claim::bound)).await?;
    try_join_all(claims.iter().map(super::claims::Claim::delete)).await?;
    let names: Vec<String> = volumes.iter().map(kube::ResourceExt::name_any).collect();
    try_join_all(names.iter().map(|name| t.persistent_volume_gone(name))).await?;
    let counts = volumes.iter().map(|volume| t.deletions(&handle_of(volume)).len());
    let other: Vec<usize> = counts.filter(|count| *count != 1).collect();
    demand(other.is_empty(), || {
        format!(
            "for {} of {CLAIMS} volumes DeleteVolume was not called once: {other:?}",
            other.len()
        )
    })?;
    // The claim made now is served after them, and so is what the API server writes down of it.
    t.served_after("b").await?;
    let cluster = &t.env.cluster;
    for name in &names {
        // It is written down after its answer, and read by another thread.
        let is_delete = |event: &AuditEvent| {
            event.username == WRITER && event.is("delete", "persistentvolumes") && event.name == *name
        };
        cluster.wait_for_audit_event("a DELETE", LIMIT, is_delete).await?;
    }
    let all = cluster.audit_events()?;
    let writes = all
        .iter()
        .filter(|event| event.username == WRITER && event.verb == "delete" && event.resource == "persistentvolumes");
    let count = writes.filter(|event| names.contains(&event.name)).count();
    same("number of DELETE", &count, &CLAIMS)
}

async fn not_ours(t: Test) -> Outcome {
    let by = "pv.kubernetes.io/provisioned-by";
    let other = "other.conformance.test";
    let theirs = |volume: &mut Value| volume["metadata"]["finalizers"] = json!(["conformance.test/theirs"]);
    let mut names = Vec::new();
    names.push(
        t.given_released("provisioner", |volume| {
            theirs(volume);
            volume["metadata"]["annotations"][by] = json!(other);
        })
        .await?,
    );
    names.push(
        t.given_released("driver", |volume| {
            theirs(volume);
            volume["metadata"]["annotations"][by] = json!(other);
            volume["spec"]["csi"]["driver"] = json!(other);
        })
        .await?,
    );
    names.push(
        t.given_released("static", |volume| {
            theirs(volume);
            volume["metadata"]["annotations"] = json!({});
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        })
        .await?,
    );
    for name in &names {
        t.phase(name, "Released").await?;
    }
    let last = t.given_released("last", |_| {}).await?;
    t.persistent_volume_gone(&last).await?;
    for name in &names {
        t.not_deleted(&format!("{name}-volume"))?;
        stays(&t, name).await?;
        let volume = t.api::<PersistentVolume>().get(name).await?;
        let wanted = Some("conformance.test/theirs");
        same("finalizers", &volume.finalizers().first().map(String::as_str), &wanted)?;
    }
    Ok(())
}

/// These stop the process, or kube-controller-manager.
pub fn alone() -> Vec<Scenario> {
    Group::new("provision-delete")
        .demands("killed during DeleteVolume: volume and PersistentVolume go")
        .safety("crash", |t| async move {
            let (claim, volume) = t.given_bound().await?;
            let handle = handle_of(&volume);
            t.script(Rule::on(Method::DeleteVolume).volume(&handle).times(1).late_success());
            claim.delete().await?;
            t.deletion(&handle, "began", |_| true).await?;
            t.env.attacher.kill();
            t.deletion(&handle, "came late", |call| call.outcome == CallResult::Late)
                .await?;
            t.env.attacher.again()?;
            t.persistent_volume_gone(&volume.name_any()).await
        })
        .demands("killed after DeleteVolume: the PersistentVolume goes")
        .safety(
            "crash-after",
            |t| async move { t.killed_after_deletion().await.map(drop) },
        )
        .demands("killed after DeleteVolume, which is repeated once at most")
        .unless("not supported when it is repeated more often")
        .extension("crash-once", |t| async move {
            let count = t.killed_after_deletion().await?;
            offered(count <= 2, || {
                format!("{count} calls; allowed, as the call is idempotent")
            })
        })
        .demands("a volume whose claim is there is not deleted, though it is marked as released")
        .safety("released-by-mistake", by_mistake)
        .peer_fails("EP#507")
        .done()
}

impl Test {
    /// Kills the process after it has deleted a volume, and returns how often the call was made when all is over.
    async fn killed_after_deletion(&self) -> Outcome<usize> {
        let (claim, volume) = self.given_bound().await?;
        let handle = handle_of(&volume);
        claim.delete().await?;
        self.deletion(&handle, "ended", |call| call.finished.is_some()).await?;
        self.env.attacher.kill();
        self.env.attacher.again()?;
        self.persistent_volume_gone(&volume.name_any()).await?;
        Ok(self.deletions(&handle).len())
    }
}

async fn by_mistake(t: Test) -> Outcome {
    let (claim, volume) = t.given_bound().await?;
    // It would mark the PersistentVolume as bound again.
    t.env.cluster.stop_controller_manager();
    let outcome = deleted_by_mistake(&t, &claim.name, &volume).await;
    t.env.cluster.start_controller_manager().await?;
    outcome?;
    t.phase(&volume.name_any(), "Bound").await.map(drop)
}

async fn deleted_by_mistake(t: &Test, claim: &str, volume: &PersistentVolume) -> Outcome {
    let (name, handle) = (volume.name_any(), handle_of(volume));
    let released = Patch::Merge(json!({ "status": { "phase": "Released" } }));
    let volumes = t.api::<PersistentVolume>();
    volumes.patch_status(&name, &PatchParams::default(), &released).await?;
    // Another one is begun and ended after it.
    let last = t.given_released("last", |_| {}).await?;
    volumes.patch_status(&last, &PatchParams::default(), &released).await?;
    let ended = |call: &csi_mock_driver::CallRecord| call.finished.is_some();
    t.deletion(&format!("{last}-volume"), "ended", ended).await?;
    t.not_deleted(&handle)?;
    t.told(&name, "", claim).await.map(drop)
}

/// So many that the Events of others would have to wait.
pub fn many() -> Vec<Scenario> {
    Group::new("provision-delete")
        .demands("the volumes of 100 claims are deleted with one DeleteVolume and one DELETE each")
        .recommended("once", once)
        .peer_fails("EP#1235")
        .done()
}

/// With pauses after failures that are longer than the suite waits.
pub fn wake() -> Vec<Scenario> {
    Group::new("provision-delete")
        .demands("a deletion goes on as soon as the last VolumeAttachment is gone")
        .scenario("attached-wakes", |t| async move {
            let (claim, volume) = t.given_bound().await?;
            let name = volume.name_any();
            t.given_attachment_of(&name).await?;
            t.served_after("b").await?;
            claim.delete().await?;
            t.told(&name, "", &format!("still attached to node {}", t.node)).await?;
            delete::<VolumeAttachment>(&t.api(), &t.attachment).await?;
            t.persistent_volume_gone_within(&name, SOON).await
        })
        .peer_fails("nothing but its backoff wakes it")
        .done()
}
