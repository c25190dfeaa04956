//! A driver without a Controller service: its volumes count as attached without a call.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;
use serde_json::json;

use csi_mock_driver::MockDriverBuilder;

use crate::expect::SOON;
use crate::scenario::{Group, Outcome, Setup, demand, optional, same};
use crate::test::Test;

pub fn setup() -> Setup {
    let group = Group::new("no-attach");
    let scenarios = leftovers(ordinary(group));
    let driver = MockDriverBuilder::without_controller_service;
    Setup::new("trivial", 12, scenarios.done(), driver)
}

fn ordinary(group: Group) -> Group {
    group
        .demands("attached without a call, a finalizer or a node")
        .scenario("attached", |t| async move {
            t.given_volume_and_attachment().await?;
            let attachment = t.attached().await?;
            same("finalizers", &attachment.finalizers().len(), &0)?;
            demand(t.count_finalizers(&t.get_volume().await?) == 0, || {
                "the volume is protected".to_owned()
            })?;
            t.no_calls()
        })
        .demands("attached without its PersistentVolume")
        .scenario("without-volume", |t| async move {
            t.create_attachment(|_| {}).await?;
            t.attached().await.map(drop)
        })
        .demands("deleted, it goes at once")
        .scenario("deleted", |t| async move {
            t.given_all(|_| {}).await?;
            t.attached().await?;
            t.detach().await?;
            t.no_calls()
        })
        .demands("the VolumeAttachment of another attacher is left alone")
        .safety("other-attacher", |t| async move {
            t.create_attachment(|va| va["spec"]["attacher"] = json!("other.test"))
                .await?;
            t.barrier("b").await?;
            let status = t.get_attachment().await?.status.unwrap_or_default();
            demand(!status.attached, || "marked another attacher's attachment".to_owned())
        })
        .demands("the finalizers of others stay")
        .safety("others-finalizers", |t| async move {
            t.create_attachment(|va| va["metadata"]["finalizers"] = json!(["conformance.test/theirs"]))
                .await?;
            let attachment = t.attached().await?;
            same("finalizers", &attachment.finalizers().len(), &1)
        })
}

fn leftovers(group: Group) -> Group {
    group
        .demands("a deleted attachment with the finalizer from a former driver goes")
        .unless("not supported when it stays")
        .extension("former-finalizer-attachment", |t| async move {
            let finalizers = json!([t.env.finalizer]);
            t.create_attachment(|va| va["metadata"]["finalizers"] = finalizers)
                .await?;
            t.delete_attachment().await?;
            optional(
                t.attachment_gone_within(SOON).await,
                "the attachment keeps the finalizer",
            )?;
            t.no_calls()
        })
        .demands("a deleted volume with the finalizer from a former driver goes")
        .unless("not supported when it stays")
        .extension("former-finalizer-volume", |t| async move {
            let finalizers = json!([t.env.finalizer]);
            t.given_volume(|pv| pv["metadata"]["finalizers"] = finalizers).await?;
            t.delete_volume().await?;
            volume_gone_shortly(&t).await
        })
}

async fn volume_gone_shortly(t: &Test) -> Outcome {
    let gone = crate::support::wait::wait_for(t.api::<PersistentVolume>(), &t.volume, "gone", SOON, |it| it.is_none());
    optional(
        gone.await.map(drop).map_err(Into::into),
        "the volume keeps the finalizer",
    )
}
