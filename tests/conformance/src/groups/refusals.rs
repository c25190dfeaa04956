//! What cannot be attached says so on the VolumeAttachment, is never called for, and attaches once the reason is gone.

use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::json;

use crate::scenario::{Group, Scenario, demand, offered};

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("refusals");
    others(waiting(group)).done()
}

fn waiting(group: Group) -> Group {
    group
        .demands("an unknown PersistentVolume is named; it attaches when the volume comes")
        .scenario("unknown-volume", |t| async move {
            t.given_node().await?;
            t.create_attachment(|_| {}).await?;
            t.attach_error(&t.volume).await?;
            t.no_calls()?;
            t.given_volume(|_| {}).await?;
            t.attached().await.map(drop)
        })
        .demands("a missing CSINode is named; it attaches when the node comes")
        .scenario("missing-csinode", |t| async move {
            t.given_volume_and_attachment().await?;
            t.attach_error(&t.node).await?;
            t.no_calls()?;
            t.given_node().await?;
            t.attached().await.map(drop)
        })
        .demands("a CSINode without the driver is named; it attaches when the driver registers")
        .scenario("csinode-without-driver", |t| async move {
            t.given_node_of(json!([{ "name": "other.test", "nodeID": "x" }]))
                .await?;
            t.given_volume_and_attachment().await?;
            t.attach_error(&t.node).await?;
            t.no_calls()?;
            t.delete_node().await?;
            t.given_node().await?;
            t.attached().await.map(drop)
        })
        .demands("the node id on an attachment is not used to attach")
        .safety("node-id-of-attachment", |t| async move {
            t.given_volume(|_| {}).await?;
            let annotation = json!({ "csi.alpha.kubernetes.io/node-id": t.node_id });
            t.create_attachment(|va| va["metadata"]["annotations"] = annotation)
                .await?;
            t.attach_error(&t.node).await?;
            t.no_calls()
        })
        .demands("a PersistentVolume that is being deleted is not attached")
        .safety("volume-deleted", |t| async move {
            t.given_node().await?;
            let finalizers = json!([t.env.finalizer, "conformance.test/theirs"]);
            t.given_volume(|pv| pv["metadata"]["finalizers"] = finalizers).await?;
            t.delete_volume().await?;
            // The watches of volumes and attachments have no order. An attacher that takes its finalizer off has seen the
            // deletion.
            t.volume_is("released", |it| t.count_finalizers(it) == 0).await?;
            t.create_attachment(|_| {}).await?;
            t.attach_error(&t.volume).await?;
            t.no_calls()
        })
        .demands("a PersistentVolume that is being deleted is not attached to a second node")
        .safety("volume-deleted-second-node", |t| async move {
            t.given_all(|pv| pv["spec"]["accessModes"] = json!(["ReadWriteMany"]))
                .await?;
            t.attached().await?;
            t.delete_volume().await?;
            // The watches of volumes and attachments have no order: until it has seen the deletion, it may attach.
            t.barrier("c").await?;
            let other = t.given_on_other_node("b").await?;
            other.attach_error(&t.volume).await?;
            other.no_calls()?;
            t.published()
        })
        .demands("an attachment that never got anywhere is deleted without a call")
        .scenario("deleted-before-attach", |t| async move {
            t.given_node().await?;
            t.create_attachment(|_| {}).await?;
            t.attach_error(&t.volume).await?;
            t.detach().await?;
            t.no_calls()
        })
}

fn others(group: Group) -> Group {
    group
        .demands("the VolumeAttachment of another attacher is left alone")
        .safety("other-attacher", |t| async move {
            t.given_attachment(|va| va["spec"]["attacher"] = json!("other.test"))
                .await?;
            t.barrier("b").await?;
            let attachment = t.get_attachment().await?;
            demand(t.count_finalizers(&attachment) == 0, || {
                "claimed another attacher's attachment".to_owned()
            })?;
            let status = attachment.status.unwrap_or_default();
            demand(!status.attached && status.attach_error.is_none(), || {
                "wrote to another attacher's attachment".to_owned()
            })?;
            demand(t.count_finalizers(&t.get_volume().await?) == 0, || {
                "protected its volume".to_owned()
            })?;
            t.no_calls()
        })
        .demands("a volume that is not a CSI volume is refused")
        .scenario("no-csi-volume", |t| async move {
            t.given_node().await?;
            t.given_volume(|pv| {
                pv["spec"]["csi"] = json!(null);
                pv["spec"]["nfs"] = json!({ "server": "localhost", "path": "/" });
            })
            .await?;
            t.create_attachment(|_| {}).await?;
            t.some_attach_error().await?;
            t.no_calls()
        })
        .demands("a volume of another driver is refused")
        .unless("not supported when it is attached all the same")
        .extension("other-driver", |t| async move {
            t.given_node().await?;
            t.given_volume(|pv| pv["spec"]["csi"]["driver"] = json!("other.test"))
                .await?;
            t.create_attachment(|_| {}).await?;
            let said = |it: &_| crate::expect::is_attached(it) || crate::expect::attach_error_of(it).is_some();
            let attachment = t
                .attachment_is("attached or refused", crate::expect::LIMIT, said)
                .await?;
            offered(!crate::expect::is_attached(&attachment), || {
                "attached another driver's volume".to_owned()
            })?;
            t.no_calls()
        })
        .demands("a PersistentVolume that nothing names is left alone")
        .safety("unnamed-volume", |t| async move {
            t.given_volume(|_| {}).await?;
            t.barrier("b").await?;
            let volume: PersistentVolume = t.get_volume().await?;
            demand(t.count_finalizers(&volume) == 0, || {
                "protected a volume that is not attached".to_owned()
            })
        })
}
