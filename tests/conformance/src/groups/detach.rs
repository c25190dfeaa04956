//! From the deletion of a VolumeAttachment to its end.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt as _;
use serde_json::json;
use tonic::Code;

use csi_mock_driver::Method;

use crate::expect::{LIMIT, NODE_ID, detach_error_of, is_attached};
use crate::scenario::{Group, Scenario, Stop, demand, offered, optional};

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("detach");
    without_volume(nodes(order(group))).done()
}

fn order(group: Group) -> Group {
    group
        .demands("the attachment goes after ControllerUnpublishVolume answered OK")
        .safety("after-ok", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().times(1).until_released());
            t.delete_attachment().await?;
            let call = t.unpublish_begins().await?;
            let attachment = t.get_attachment().await?;
            t.release(&call)?;
            t.has_finalizer(&attachment)?;
            demand(is_attached(&attachment), || {
                "detached before the driver has answered".to_owned()
            })?;
            t.detached().await
        })
        .demands("one detach is one ControllerUnpublishVolume")
        .unless("not supported when the call is repeated")
        .extension("one-call", |t| async move {
            t.given_attached().await?;
            t.detach().await?;
            t.barrier("b").await?;
            let count = t.unpublishes().len();
            offered(count == 1, || {
                format!("{count} calls; allowed, as the call is idempotent")
            })
        })
        .demands("an attachment kept by others says that it is detached")
        .scenario("kept-by-others", |t| async move {
            t.given_attachment(|va| va["metadata"]["finalizers"] = json!(["conformance.test/theirs"]))
                .await?;
            t.attached().await?;
            t.script(t.on_unpublish().times(2).fail(Code::Internal, "no"));
            t.delete_attachment().await?;
            let detached = |it: &VolumeAttachment| t.count_finalizers(it) == 0 && !is_attached(it);
            let attachment = t.attachment_is("detached", LIMIT, detached).await?;
            t.not_published()?;
            demand(detach_error_of(&attachment).is_none(), || {
                "a detachError is left".to_owned()
            })?;
            let status = attachment.status.unwrap_or_default();
            demand(
                status.attachment_metadata.is_none_or(|metadata| metadata.is_empty()),
                || "the publish context is left".to_owned(),
            )
        })
        .demands("an attachment kept by others is not detached again")
        .scenario("kept-by-others-once", |t| async move {
            t.given_attachment(|va| va["metadata"]["finalizers"] = json!(["conformance.test/theirs"]))
                .await?;
            t.attached().await?;
            t.delete_attachment().await?;
            t.attachment_is("released", LIMIT, |it| t.count_finalizers(it) == 0)
                .await?;
            t.barrier("b").await?;
            let before = t.unpublishes().len();
            t.patch_attachment(json!({ "metadata": { "labels": { "conformance.test/touched": "yes" } } }))
                .await?;
            t.barrier("c").await?;
            demand(t.unpublishes().len() == before, || {
                "detached a volume that was detached already".to_owned()
            })
        })
        .demands("an attachment whose attach keeps failing is detached when deleted")
        .safety("attach-keeps-failing", |t| async move {
            t.given_failing("never").await?;
            t.delete_attachment().await?;
            t.attachment_gone().await?;
            demand(!t.unpublishes().is_empty(), || {
                "no ControllerUnpublishVolume after failed attaches".to_owned()
            })
        })
        .demands("an attachment that is being deleted is not attached any more")
        .safety("not-attached-again", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().times(3).fail(Code::Internal, "no"));
            t.delete_attachment().await?;
            t.detach_error("no").await?;
            let before = t.publishes().len();
            t.attachment_gone().await?;
            demand(t.publishes().len() == before, || {
                "published during the detach".to_owned()
            })
        })
        .demands("detached and attached again under the same name")
        .safety("same-name", |t| async move {
            t.given_attached().await?;
            for _ in 0..3 {
                t.detach().await?;
                t.create_attachment(|_| {}).await?;
                t.attached_and_claimed().await?;
                t.published()?;
            }
            Ok(())
        })
}

fn nodes(group: Group) -> Group {
    group
        .demands("a missing CSINode: the node id on the attachment is used")
        .safety("missing-csinode", |t| async move {
            t.given_attached().await?;
            t.delete_node().await?;
            t.detach().await
        })
        .demands("a CSINode without the driver: the node id on the attachment is used")
        .safety("csinode-without-driver", |t| async move {
            t.given_attached().await?;
            t.delete_node().await?;
            t.given_node_of(json!([{ "name": "other.test", "nodeID": "x" }]))
                .await?;
            t.detach().await
        })
        .demands("the node came back with another id: one of both ids is used")
        .scenario("other-node-id", |t| async move {
            t.given_attached().await?;
            t.delete_node().await?;
            let fresh = format!("{}-fresh", t.node_id);
            t.given_node_of(json!([{ "name": t.env.driver_name, "nodeID": fresh }]))
                .await?;
            t.delete_attachment().await?;
            t.attachment_gone().await?;
            let nodes = t.env.driver.calls_of(Method::ControllerUnpublishVolume).into_iter();
            let nodes: Vec<_> = nodes.filter(|call| call.volume.as_ref() == Some(&t.handle)).collect();
            let known = |id: Option<&String>| id == Some(&t.node_id) || id == Some(&fresh);
            demand(
                !nodes.is_empty() && nodes.iter().all(|call| known(call.node.as_ref())),
                || "detached from a node that was never there".to_owned(),
            )?;
            // An attacher that goes by the new id leaves the old attachment, as there is nobody to ask for it.
            t.env.driver.drift_detach(&t.handle, &t.node_id);
            Ok(())
        })
        .demands("the node id was taken from the attachment: the CSINode has it")
        .safety("node-id-removed", |t| async move {
            t.given_attached().await?;
            t.patch_attachment(json!({ "metadata": { "annotations": { NODE_ID: null } } }))
                .await?;
            t.detach().await
        })
}

fn without_volume(group: Group) -> Group {
    group
        .demands("the PersistentVolume was removed by force")
        .unless("not supported when the detach waits for it")
        .extension("volume-removed", |t| async move {
            t.given_attached().await?;
            t.delete_volume().await?;
            t.strip_finalizers::<PersistentVolume>(&t.volume).await?;
            t.volume_gone().await?;
            t.delete_attachment().await?;
            let gone = t.attachment_gone_within(Duration::from_secs(20)).await;
            match (gone, t.get_attachment().await) {
                (Ok(()), _) => t.not_published(),
                (_, Ok(attachment)) => {
                    t.has_finalizer(&attachment)?;
                    let why = "the detach waits for a PersistentVolume that is gone";
                    optional(demand(detach_error_of(&attachment).is_none(), || why.to_owned()), why)?;
                    Err(Stop::Failed("neither detached nor a detachError".to_owned()))
                }
                (Err(stop), Err(_)) => Err(stop),
            }
        })
        .demands("a volume gone by force does not make the attacher drop the finalizer")
        .safety("volume-removed-finalizer", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().fail(Code::Internal, "no"));
            t.delete_volume().await?;
            t.strip_finalizers::<PersistentVolume>(&t.volume).await?;
            t.volume_gone().await?;
            t.delete_attachment().await?;
            let attachment = t.some_detach_error().await?;
            t.has_finalizer(&attachment)?;
            t.published()?;
            t.heal();
            // Whoever needs the volume to detach gets it back.
            t.given_volume(|_| {}).await?;
            t.detached().await
        })
        .demands("a volume that the driver does not know any more is detached by its OK")
        .scenario("unknown-to-driver", |t| async move {
            t.given_attached().await?;
            t.env.driver.delete_volume(&t.handle);
            t.detach().await?;
            demand(!t.unpublishes().is_empty(), || {
                "no ControllerUnpublishVolume".to_owned()
            })
        })
        .demands("the finalizers of an attached volume outlive edits of its labels")
        .safety("labels-edited", |t| async move {
            t.given_attached().await?;
            t.patch_attachment(json!({ "metadata": { "labels": { "conformance.test/a": "b" } } }))
                .await?;
            t.barrier("b").await?;
            let attachment = t.get_attachment().await?;
            t.claimed(&attachment)?;
            demand(attachment.labels().len() == 1, || "the label is gone".to_owned())
        })
}
