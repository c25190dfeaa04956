//! PersistentVolumes of in-tree plugins whose driver has taken over (CSI migration). The attach/detach controller makes
//! VolumeAttachments for the CSI driver; the attacher translates the volume.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Value, json};

use super::reconcile;
use crate::scenario::{Group, Outcome, Setup, demand, same};
use crate::test::Test;

const GCE: &str = "pd.csi.storage.gke.io";
const EBS: &str = "ebs.csi.aws.com";
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

pub fn gce() -> Setup {
    let group = Group::new("migration-gce");
    let group = listed(rollback(gce_handles(group)));
    Setup {
        driver: |driver| driver,
        flags: vec!["--reconcile-sync=1s".to_owned()],
        ..setup("gce", GCE, group)
    }
}

fn gce_handles(group: Group) -> Group {
    group
        .demands("zone and name make the handle; the partition is in the context")
        .scenario("zone-and-name", |t| async move {
            let t = named(t, "projects/UNSPECIFIED/zones/europe-west1-b/disks/{disk}");
            in_tree(&t, |pv| {
                pv["metadata"]["labels"] = json!({ "topology.kubernetes.io/zone": "europe-west1-b" });
                pv["spec"]["gcePersistentDisk"] = json!({ "pdName": t.volume });
            })
            .await?;
            same("partition", &context(&t, "partition").await?.as_deref(), &Some(""))?;
            t.detach().await
        })
        .demands("two zones make a region")
        .scenario("region", |t| async move {
            let t = named(t, "projects/UNSPECIFIED/regions/europe-west1/disks/{disk}");
            in_tree(&t, |pv| {
                let zones = "europe-west1-b__europe-west1-c";
                pv["metadata"]["labels"] = json!({ "failure-domain.beta.kubernetes.io/zone": zones });
                pv["spec"]["gcePersistentDisk"] = json!({ "pdName": t.volume, "partition": 2, "fsType": "ext4" });
            })
            .await?;
            same("partition", &context(&t, "partition").await?.as_deref(), &Some("2"))?;
            let capability = t.published_as().await?.capability;
            let wanted = Some("ext4");
            same("file system", &capability.and_then(|it| it.fs_type).as_deref(), &wanted)
        })
        .demands("without a zone the zone is left open; readOnly is kept")
        .safety("no-zone", |t| async move {
            let t = named(t, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{disk}");
            in_tree(&t, |pv| {
                pv["spec"]["gcePersistentDisk"] = json!({ "pdName": t.volume, "readOnly": true });
                pv["spec"]["accessModes"] = json!(["ReadOnlyMany"]);
            })
            .await?;
            let call = t.published_as().await?;
            same("readonly", &call.readonly, &Some(true))?;
            let wanted = Some("MULTI_NODE_READER_ONLY");
            same("access mode", &call.capability.map(|it| it.access_mode), &wanted)
        })
        .demands("ReadWriteMany becomes ReadWriteOnce")
        .scenario("access-mode", |t| async move {
            let t = named(t, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{disk}");
            in_tree(&t, |pv| {
                pv["spec"]["gcePersistentDisk"] = json!({ "pdName": t.volume });
                pv["spec"]["accessModes"] = json!(["ReadWriteMany"]);
            })
            .await?;
            let capability = t.published_as().await?.capability;
            let wanted = Some("SINGLE_NODE_MULTI_WRITER");
            same("access mode", &capability.map(|it| it.access_mode), &wanted)
        })
}

fn listed(group: Group) -> Group {
    group
        .demands("a volume that the driver lists under its full name counts as attached")
        .unless(reconcile::UNLESS)
        .extension("listed", |t| async move {
            let t = named(t, "projects/UNSPECIFIED/zones/here/disks/{disk}");
            let t = Test {
                node_id: format!("projects/ours/zones/here/instances/{}", t.node),
                ..t
            };
            in_tree(&t, |pv| {
                pv["metadata"]["labels"] = json!({ "topology.kubernetes.io/zone": "here" });
                pv["spec"]["gcePersistentDisk"] = json!({ "pdName": t.volume });
            })
            .await?;
            let full_name = t.handle.replace("UNSPECIFIED", "ours");
            t.env.driver.drift_attach(&full_name, &t.node_id);
            reconcile::reconciles(&t).await?;
            reconcile::passes(&t, 2).await?;
            let before = t.publishes().len();
            reconcile::passes(&t, 3).await?;
            demand(t.publishes().len() == before, || "attached again and again".to_owned())?;
            t.env.driver.drift_detach(&full_name, &t.node_id);
            t.detach().await
        })
}

fn rollback(group: Group) -> Group {
    group
        .demands("after a rollback (no migrated-to) the live volume is released")
        .safety("rolled-back", |t| async move {
            let finalizers = json!([t.env.finalizer, "conformance.test/theirs"]);
            volume(&t, |pv| {
                pv["metadata"]["annotations"] = json!(null);
                pv["metadata"]["finalizers"] = finalizers;
                pv["spec"]["gcePersistentDisk"] = json!({ "pdName": t.volume });
            })
            .await?;
            t.volume_is("released", |it| t.count_finalizers(it) == 0)
                .await
                .map(drop)
        })
        .demands("a migrated volume keeps the finalizer while it lives")
        .safety("keeps-finalizer", |t| async move {
            let finalizers = json!([t.env.finalizer]);
            volume(&t, |pv| {
                pv["metadata"]["finalizers"] = finalizers;
                pv["spec"]["gcePersistentDisk"] = json!({ "pdName": t.volume });
            })
            .await?;
            barrier(&t).await?;
            let kept: PersistentVolume = t.get_volume().await?;
            t.has_finalizer(&kept)?;
            t.delete_volume().await?;
            t.volume_gone().await
        })
        .demands("a migrated volume is released when deleted after its detach")
        .scenario("released", |t| async move {
            let t = named(t, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{disk}");
            in_tree(&t, |pv| pv["spec"]["gcePersistentDisk"] = json!({ "pdName": t.volume })).await?;
            t.has_finalizer(&t.get_volume().await?)?;
            t.detach().await?;
            t.delete_volume().await?;
            t.volume_gone().await
        })
}

pub fn ebs() -> Setup {
    let group = Group::new("migration-ebs")
        .demands("a bare volume id is the handle")
        .scenario("bare-id", |t| async move {
            let t = named(t, "vol-{disk}");
            in_tree(&t, |pv| {
                pv["spec"]["awsElasticBlockStore"] = json!({ "volumeID": t.handle, "fsType": "xfs" });
            })
            .await?;
            same("partition", &context(&t, "partition").await?.as_deref(), &Some("0"))?;
            t.detach().await
        })
        .demands("the last part of an aws:// address is the handle")
        .scenario("address", |t| async move {
            let t = named(t, "vol-{disk}");
            let address = format!("aws://us-east-1a/{}", t.handle);
            in_tree(&t, |pv| {
                pv["spec"]["awsElasticBlockStore"] = json!({ "volumeID": address, "partition": 3, "readOnly": true });
            })
            .await?;
            same("partition", &context(&t, "partition").await?.as_deref(), &Some("3"))?;
            same("readonly", &t.published_as().await?.readonly, &Some(true))
        })
        .demands("an address that names no volume is refused")
        .scenario("bad-address", |t| async move {
            volume(&t, |pv| {
                pv["spec"]["awsElasticBlockStore"] = json!({ "volumeID": "aws://us-east-1a/disk" });
            })
            .await?;
            t.given_node().await?;
            t.create_attachment(|_| {}).await?;
            t.attach_error("aws://us-east-1a/disk").await?;
            t.no_calls()
        });
    setup("ebs", EBS, group)
}

fn setup(name: &'static str, driver: &'static str, group: Group) -> Setup {
    Setup {
        driver_name: Some(driver),
        ..Setup::new(name, 12, group.done(), super::without_lists)
    }
}

/// The driver calls the volume so; `{disk}` stands for its name.
fn named(t: Test, handle: &str) -> Test {
    let handle = handle.replace("{disk}", &t.volume);
    Test { handle, ..t }
}

/// An in-tree volume of which the driver has taken over.
async fn volume(t: &Test, edit: impl FnOnce(&mut Value)) -> Outcome {
    t.given_volume(|pv| {
        pv["spec"]["csi"] = json!(null);
        pv["metadata"]["annotations"] = json!({ MIGRATED_TO: t.env.driver_name });
        edit(pv);
    })
    .await
}

/// The same, attached: the handle must be as expected for that.
async fn in_tree(t: &Test, edit: impl FnOnce(&mut Value)) -> Outcome {
    t.given_node().await?;
    volume(t, edit).await?;
    t.create_attachment(|_| {}).await?;
    t.attached_and_claimed().await?;
    t.published()
}

async fn context(t: &Test, key: &str) -> Outcome<Option<String>> {
    let context: BTreeMap<String, String> = t.published_as().await?.volume_context;
    demand(context.len() == 1, || format!("volume context is {context:?}"))?;
    Ok(context.get(key).cloned())
}

async fn barrier(t: &Test) -> Outcome {
    t.barrier("b").await
}
