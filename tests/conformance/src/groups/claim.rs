//! What must be on the objects before anything is called: without it a crash loses the volume.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Resource, ResourceExt as _};
use serde_json::json;

use crate::expect::is_attached;
use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::Test;

const THEIRS: &str = "conformance.test/theirs";

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("claim");
    foreign(before_the_call(group)).done()
}

fn before_the_call(group: Group) -> Group {
    group
        .demands("finalizers and node id are there while ControllerPublishVolume runs")
        .safety("finalizers-before-call", |t| async move {
            t.script(t.on_publish().times(1).until_released());
            let call = t.given_publishing().await?;
            let (attachment, volume) = (t.get_attachment().await?, t.get_volume().await?);
            t.release(&call)?;
            t.claimed(&attachment)?;
            t.has_finalizer(&volume)?;
            demand(!is_attached(&attachment), || {
                "attached before the driver has answered".to_owned()
            })?;
            t.attached().await.map(drop)
        })
        .demands("the finalizer of the attachment is the attacher's, once, also after many failures")
        .scenario("finalizer-once", |t| async move {
            t.script(t.on_publish().times(4).fail(tonic::Code::Internal, "no"));
            t.given_all(|_| {}).await?;
            t.attached_and_claimed().await?;
            t.has_finalizer(&t.get_volume().await?)
        })
        .demands("the node id is the one of this driver among several")
        .scenario("node-id-of-driver", |t| async move {
            t.given_node_of(json!([
                { "name": "other.test", "nodeID": "wrong-1" },
                { "name": t.env.driver_name, "nodeID": t.node_id },
                { "name": format!("x{}", t.env.driver_name), "nodeID": "wrong-2" },
            ]))
            .await?;
            t.given_volume_and_attachment().await?;
            t.attached_and_claimed().await?;
            t.published()
        })
        .demands("an old node id on the attachment is replaced before the call")
        .safety("old-node-id", |t| async move {
            let annotation = json!({ "csi.alpha.kubernetes.io/node-id": "an-older-node" });
            t.given_attachment(|va| va["metadata"]["annotations"] = annotation)
                .await?;
            t.attached_and_claimed().await?;
            t.published()
        })
        .demands("an attachment that carries the finalizer already is attached")
        .scenario("finalizer-there", |t| async move {
            t.given_node().await?;
            let finalizers = json!([t.env.finalizer]);
            let kept = finalizers.clone();
            t.given_volume(|pv| pv["metadata"]["finalizers"] = kept).await?;
            t.create_attachment(|va| va["metadata"]["finalizers"] = finalizers)
                .await?;
            t.attached_and_claimed().await?;
            t.has_finalizer(&t.get_volume().await?)
        })
}

fn foreign(group: Group) -> Group {
    group
        .demands("finalizers and annotations of others on the attachment stay")
        .safety("others-on-attachment", |t| async move {
            t.given_attachment(|va| va["metadata"] = theirs(&va["metadata"]["name"]))
                .await?;
            let attachment = t.attached_and_claimed().await?;
            kept::<VolumeAttachment>(&attachment)?;
            t.delete_attachment().await?;
            let attachment = t
                .attachment_is("released", crate::expect::LIMIT, |it| t.count_finalizers(it) == 0)
                .await?;
            kept::<VolumeAttachment>(&attachment)
        })
        .demands("finalizers and annotations of others on the PersistentVolume stay")
        .safety("others-on-volume", |t| async move {
            t.given_all(|pv| pv["metadata"] = theirs(&pv["metadata"]["name"]))
                .await?;
            t.attached().await?;
            let volume = t.get_volume().await?;
            t.has_finalizer(&volume)?;
            kept::<PersistentVolume>(&volume)?;
            released_with_theirs_kept(&t).await
        })
        .demands("an empty list of finalizers is no hindrance")
        .scenario("empty-finalizers", |t| async move {
            t.given_node().await?;
            t.given_volume(|pv| pv["metadata"]["finalizers"] = json!([])).await?;
            t.create_attachment(|va| va["metadata"]["finalizers"] = json!([]))
                .await?;
            let attachment = t.attached().await?;
            t.claimed(&attachment)
        })
}

async fn released_with_theirs_kept(t: &Test) -> Outcome {
    t.detach().await?;
    t.delete_volume().await?;
    let volume = t.volume_is("released", |it| t.count_finalizers(it) == 0).await?;
    kept::<PersistentVolume>(&volume)
}

fn theirs(name: &serde_json::Value) -> serde_json::Value {
    json!({
        "name": name,
        "finalizers": [THEIRS, "conformance.test/others"],
        "annotations": { THEIRS: "yes" },
    })
}

fn kept<K: Resource>(object: &K) -> Outcome {
    let finalizers = object
        .finalizers()
        .iter()
        .filter(|entry| entry.starts_with(crate::test::FOREIGN))
        .count();
    same("number of finalizers of others", &finalizers, &2)?;
    let theirs = object.annotations().get(THEIRS).map(String::as_str);
    same("annotation of others", &theirs, &Some("yes"))
}
