//! The finalizer on the PersistentVolume: it holds the volume while anything may need it, and not longer.

use serde_json::json;

use crate::expect::LIMIT;
use crate::scenario::{Group, Scenario, demand};

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("volume");
    shared(alone(group)).done()
}

fn alone(group: Group) -> Group {
    group
        .demands("deleted while attached: it stays until the detach, then goes")
        .safety("deleted-while-attached", |t| async move {
            t.given_attached().await?;
            t.delete_volume().await?;
            t.barrier("b").await?;
            t.has_finalizer(&t.get_volume().await?)?;
            t.published()?;
            t.detach().await?;
            t.volume_gone().await
        })
        .demands("deleted after the detach: it goes")
        .scenario("deleted-after-detach", |t| async move {
            t.given_attached().await?;
            t.detach().await?;
            t.delete_volume().await?;
            t.volume_gone().await
        })
        .demands("deleted while its detach fails: it stays")
        .safety("deleted-detach-fails", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().fail(tonic::Code::Internal, "busy"));
            t.delete_volume().await?;
            t.delete_attachment().await?;
            t.detach_error("busy").await?;
            t.barrier("b").await?;
            t.has_finalizer(&t.get_volume().await?)?;
            t.heal();
            t.attachment_gone().await?;
            t.volume_gone().await
        })
        .demands("deleted while ControllerPublishVolume runs: the volume is not lost")
        .safety("deleted-during-publish", |t| async move {
            t.script(t.on_publish().times(1).hang());
            t.given_publishing().await?;
            t.delete_volume().await?;
            t.barrier("b").await?;
            t.has_finalizer(&t.get_volume().await?)?;
            t.detach().await?;
            t.volume_gone().await
        })
        .demands("deleted with a finalizer that somebody left: it goes")
        .scenario("left-finalizer", |t| async move {
            let finalizers = json!([t.env.finalizer]);
            t.given_volume(|pv| pv["metadata"]["finalizers"] = finalizers).await?;
            t.delete_volume().await?;
            t.volume_gone().await
        })
        .demands("the finalizers of others in front of and behind the attacher's stay")
        .safety("others-finalizers", |t| async move {
            let finalizers = json!(["conformance.test/a", t.env.finalizer, "conformance.test/b"]);
            t.given_volume(|pv| pv["metadata"]["finalizers"] = finalizers).await?;
            t.delete_volume().await?;
            let volume = t.volume_is("released", |it| t.count_finalizers(it) == 0).await?;
            let left = volume.metadata.finalizers.unwrap_or_default();
            demand(left == ["conformance.test/a", "conformance.test/b"], || {
                format!("left are {left:?}")
            })
        })
}

fn shared(group: Group) -> Group {
    group
        .demands("with two attachments: it goes after the second detach")
        .safety("two-attachments", |t| async move {
            t.given_node().await?;
            t.given_volume(|pv| pv["spec"]["accessModes"] = json!(["ReadWriteMany"]))
                .await?;
            t.create_attachment(|_| {}).await?;
            let other = t.given_on_other_node("b").await?;
            t.attached().await?;
            other.attached().await?;
            t.delete_volume().await?;
            t.detach().await?;
            t.barrier("c").await?;
            t.has_finalizer(&t.get_volume().await?)?;
            other.published()?;
            other.detach().await?;
            t.volume_gone().await
        })
        .demands("not released while an attachment of another attacher names it")
        .safety("other-attacher-names-it", |t| async move {
            t.given_attached().await?;
            let other = t.on_other_node("b");
            other
                .create_attachment(|va| va["spec"]["attacher"] = json!("other.test"))
                .await?;
            t.delete_volume().await?;
            t.detach().await?;
            t.barrier("c").await?;
            t.has_finalizer(&t.get_volume().await?)?;
            other.delete_attachment().await?;
            other.attachment_gone_within(LIMIT).await?;
            t.volume_gone().await
        })
        .demands("the finalizer of another driver is left alone")
        .safety("other-drivers-finalizer", |t| async move {
            let finalizers = json!(["external-attacher/other-test"]);
            t.given_volume(|pv| pv["metadata"]["finalizers"] = finalizers).await?;
            t.delete_volume().await?;
            t.barrier("b").await?;
            let left = t.get_volume().await?.metadata.finalizers.unwrap_or_default();
            t.strip_finalizers::<k8s_openapi::api::core::v1::PersistentVolume>(&t.volume)
                .await?;
            demand(left == ["external-attacher/other-test"], || {
                format!("left are {left:?}")
            })
        })
}
