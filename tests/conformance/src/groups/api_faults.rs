//! Other people edit the objects while the attacher works on them.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt as _;
use serde_json::json;

use crate::expect::{LIMIT, NODE_ID};
use crate::scenario::{Group, Outcome, Scenario, demand, offered, same};
use crate::test::Test;

const THEIRS: &str = "conformance.test/theirs";

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("edits");
    removals(edits(group)).done()
}

fn edits(group: Group) -> Group {
    group
        .demands("a finalizer and an annotation put on the attachment while it attaches stay")
        .safety("attachment-while-attaching", |t| async move {
            t.script(t.on_publish().times(1).until_released());
            let call = t.given_publishing().await?;
            t.append_finalizer::<VolumeAttachment>(&t.attachment, THEIRS).await?;
            t.patch_attachment(json!({ "metadata": { "annotations": { THEIRS: "yes" } } }))
                .await?;
            t.release(&call)?;
            let attachment = t.attached_and_claimed().await?;
            theirs_is_there(&attachment)?;
            let theirs = attachment.annotations().get(THEIRS).map(String::as_str);
            same("annotation", &theirs, &Some("yes"))
        })
        .demands("a finalizer put on the attachment while it detaches stays")
        .unless("not supported when it is lost")
        .extension("attachment-while-detaching", |t| async move {
            t.given_attached().await?;
            // The API server takes no new finalizers on an object that is being deleted, so it comes right before.
            t.append_finalizer::<VolumeAttachment>(&t.attachment, THEIRS).await?;
            t.delete_attachment().await?;
            t.unpublish_begins().await?;
            let released = |it: &VolumeAttachment| t.count_finalizers(it) == 0;
            let kept = t.attachment_is("released", LIMIT, released).await;
            let kept = kept.is_ok_and(|attachment| theirs_is_there(&attachment).is_ok());
            offered(kept, || "the finalizer of another is gone".to_owned())
        })
        .demands("many finalizers put on the volume at the same time stay")
        .safety("volume-finalizers", |t| async move {
            t.given_node().await?;
            t.given_volume(|pv| pv["metadata"]["finalizers"] = json!(["conformance.test/0"]))
                .await?;
            t.create_attachment(|_| {}).await?;
            for number in 1..10 {
                t.append_finalizer::<PersistentVolume>(&t.volume, &format!("conformance.test/{number}"))
                    .await?;
            }
            t.attached().await?;
            let volume = t.get_volume().await?;
            t.has_finalizer(&volume)?;
            same("number of finalizers", &volume.finalizers().len(), &11)
        })
        .demands("labels edited all the time do not keep the volume from being attached and detached")
        .scenario("labels-all-the-time", |t| async move {
            t.script(t.on_publish().times(2).fail(tonic::Code::Internal, "no"));
            t.given_all(|_| {}).await?;
            let editor = edit_for_ever(t.clone());
            tokio::select! {
                outcome = async { t.attached().await?; t.detach().await } => outcome,
                outcome = editor => outcome,
            }
        })
}

/// Ends only with an error.
async fn edit_for_ever(t: Test) -> Outcome {
    let mut number = 0;
    loop {
        number += 1;
        let patch = json!({ "metadata": { "labels": { "conformance.test/number": number.to_string() } } });
        // The attachment goes away while it is edited, and that is the wanted end.
        t.patch_attachment(patch.clone()).await.ok();
        t.patch_volume(patch).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn removals(group: Group) -> Group {
    group
        .demands("an attachment removed by force while it attaches is detached")
        .unless("not supported when it stays attached")
        .extension("removed-by-force", |t| async move {
            t.script(t.on_publish().times(1).until_released());
            let call = t.given_publishing().await?;
            remove_by_force(&t).await?;
            t.release(&call)?;
            let pair = (t.handle.clone(), t.node_id.clone());
            t.call(call.method, "ended", move |it| {
                it.id == call.id && it.finished.is_some()
            })
            .await?;
            let gone = t.env.driver.wait_for_published(move |all| !all.contains(&pair));
            let gone = tokio::time::timeout(LIMIT, gone).await.is_ok();
            if !gone {
                t.env.driver.drift_detach(&t.handle, &t.node_id);
            }
            offered(gone, || {
                "the volume stays attached though no object names it".to_owned()
            })
        })
        .demands("an attachment removed by force and made anew while it attaches is claimed anew")
        .unless("not supported when the old answer is taken for the new one's")
        .extension("made-again", |t| async move {
            t.script(t.on_publish().times(1).until_released());
            let call = t.given_publishing().await?;
            remove_by_force(&t).await?;
            t.create_attachment(|_| {}).await?;
            t.release(&call)?;
            let attachment = t.attached().await?;
            let claimed = t.claimed(&attachment).is_ok();
            offered(claimed, || "attached without finalizer and node id".to_owned())?;
            t.barrier("b").await?;
            t.published()?;
            t.detach().await
        })
        .demands("an attached attachment removed by force and made anew ends attached")
        .safety("attached-made-again", |t| async move {
            t.given_attached().await?;
            remove_by_force(&t).await?;
            t.create_attachment(|_| {}).await?;
            t.attached_and_claimed().await?;
            t.published()
        })
        .demands("the node id taken from the attachment during the attach does not hurt the detach")
        .safety("node-id-removed", |t| async move {
            t.script(t.on_publish().times(1).until_released());
            let call = t.given_publishing().await?;
            t.patch_attachment(json!({ "metadata": { "annotations": { NODE_ID: null } } }))
                .await?;
            t.release(&call)?;
            t.attached().await?;
            t.detach().await
        })
}

async fn remove_by_force(t: &Test) -> Outcome {
    t.delete_attachment().await?;
    t.strip_finalizers::<VolumeAttachment>(&t.attachment).await?;
    t.attachment_gone().await
}

fn theirs_is_there(attachment: &VolumeAttachment) -> Outcome {
    let there = attachment.finalizers().iter().any(|entry| entry == THEIRS);
    demand(there, || "the finalizer of another is gone".to_owned())
}
