//! The driver goes away and comes back, sometimes as another one. An attacher may end because of that, as the Go sidecar
//! does; the suite starts it again, as a kubelet would.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use csi_mock_driver::{ControllerCapability, Method, ScriptAction};

use crate::expect::{LIMIT, SOON};
use crate::scenario::{Group, Outcome, Scenario, Stop, demand, offered, optional, same};
use crate::test::Test;

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("driver-restart");
    modes(connections(group)).done()
}

fn connections(group: Group) -> Group {
    group
        .demands("the driver was away for a moment")
        .scenario("moment", |t| async move {
            t.given_attached().await?;
            t.env.driver.stop().await;
            restart(&t).await?;
            t.detach().await?;
            t.create_attachment(|_| {}).await?;
            t.attached().await.map(drop)
        })
        .demands("attached and detached while the driver is away, done when it is back")
        .scenario("while-away", |t| async move {
            let other = t.other("b");
            other.given_attached().await?;
            t.env.driver.stop().await;
            t.given_all(|_| {}).await?;
            other.delete_attachment().await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
            other.has_finalizer(&other.get_attachment().await?)?;
            restart(&t).await?;
            t.attached().await?;
            t.published()?;
            other.detached().await
        })
        .demands("the driver dies during ControllerPublishVolume, before the work")
        .safety("during-publish-before", |t| async move {
            t.script(t.on_publish().times(1).drop_connection());
            t.given_all(|_| {}).await?;
            t.attached().await?;
            t.published()
        })
        .demands("the driver dies during ControllerPublishVolume, after the work")
        .safety("during-publish-after", |t| async move {
            t.script(t.on_publish().times(1).action(ScriptAction::DropConnectionAfterWork));
            t.given_all(|_| {}).await?;
            t.attached().await?;
            t.published()
        })
        .demands("the driver dies during ControllerUnpublishVolume, after the work")
        .safety("during-unpublish-after", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().times(1).action(ScriptAction::DropConnectionAfterWork));
            t.detach().await
        })
        .demands("the driver dies during ControllerPublishVolume and the attachment is deleted meanwhile")
        .safety("during-publish-deleted", |t| async move {
            t.script(
                t.on_publish()
                    .times(1)
                    .delay(Duration::from_millis(300))
                    .action(ScriptAction::DropConnectionAfterWork),
            );
            t.given_publishing().await?;
            t.detach().await
        })
        .demands("nothing is called before the driver is ready")
        .scenario("not-ready", |t| async move {
            t.env.driver.stop().await;
            t.env.driver.set_ready(false);
            let probes = t.env.driver.calls_of(Method::Probe).len();
            let outcome = not_ready(&t, probes).await;
            t.env.driver.set_ready(true);
            outcome?;
            t.attached().await.map(drop)
        })
}

async fn not_ready(t: &Test, before: usize) -> Outcome {
    restart(t).await?;
    t.given_all(|_| {}).await?;
    // Two refusals: an attacher that goes on after the first is found out.
    let probed = t
        .env
        .driver
        .wait_for_calls(before + 2, |call| call.method == Method::Probe);
    let probed = tokio::time::timeout(LIMIT, probed).await;
    demand(probed.is_ok(), || "the driver is not probed".to_owned())?;
    t.no_calls()
}

/// A driver that attaches is exchanged for one that does not, and back.
fn modes(group: Group) -> Group {
    group
        .demands("driver and attacher come back without ControllerPublishVolume, later with it again")
        .scenario("capability-back", |t| async move {
            let real = t.other("real");
            real.given_attached().await?;
            exchange(&t, false).await?;
            let outcome = attached_without_calls(&t).await;
            exchange(&t, true).await?;
            outcome?;
            real.detach().await
        })
        .demands("after that the finalizers from before are taken off")
        .unless("not supported when they stay")
        .extension("former-finalizers", |t| async move {
            t.given_attached().await?;
            exchange(&t, false).await?;
            t.env.driver.drift_detach(&t.handle, &t.node_id);
            let outcome = leftovers_go(&t).await;
            exchange(&t, true).await?;
            outcome
        })
        .demands("the driver alone comes back without ControllerPublishVolume, later with it again")
        .unless("not supported when it is not asked again for its capabilities")
        .extension("capability-asked-again", |t| async move {
            let outcome = async {
                switch(&t, false).await?;
                attached_without_calls(&t).await?;
                switch(&t, true).await
            };
            let outcome = outcome.await;
            if outcome.is_err() {
                exchange(&t, true).await?;
            }
            outcome?;
            t.other("b").given_attached().await.map(drop)
        })
}

async fn attached_without_calls(t: &Test) -> Outcome {
    t.given_all(|_| {}).await?;
    let attachment = t.attached().await?;
    same("finalizers", &attachment.finalizers().len(), &0)?;
    t.no_calls()?;
    t.detach().await
}

async fn leftovers_go(t: &Test) -> Outcome {
    // The new process works by then.
    attached_without_calls(&t.other("b")).await?;
    t.delete_attachment().await?;
    optional(
        t.attachment_gone_within(SOON).await,
        "the attachment keeps the finalizer",
    )?;
    t.delete_volume().await?;
    let released = |it: &PersistentVolume| t.count_finalizers(it) == 0;
    match t.get_volume().await {
        Ok(volume) if !released(&volume) => t.volume_gone().await,
        _ => Ok(()),
    }
}

/// What an administrator says of a driver whose new version attaches no volumes: it comes with the new version. Without that
/// word an attacher may well take the lost capability for a mistake, and keep what was published.
async fn announce(t: &Test, attaches: bool) -> Outcome {
    let drivers = t.api::<CSIDriver>();
    let name = &t.env.driver_name;
    match drivers.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        deleted => drop(deleted?),
    }
    if !attaches {
        let object = json!({ "metadata": { "name": name }, "spec": { "attachRequired": false } });
        let object = serde_json::from_value(object).map_err(|error| Stop::Failed(error.to_string()))?;
        drivers.create(&PostParams::default(), &object).await?;
    }
    Ok(())
}

/// A new version of the driver's pod, with the attacher in it: both come back.
async fn exchange(t: &Test, attaches: bool) -> Outcome {
    t.env.attacher.stop().await?;
    t.env.driver.stop().await;
    announce(t, attaches).await?;
    t.env
        .driver
        .set_capability(ControllerCapability::PublishUnpublishVolume, attaches);
    restart(t).await?;
    t.env.attacher.again()?;
    Ok(())
}

/// The driver alone stops and comes back.
async fn switch(t: &Test, attaches: bool) -> Outcome {
    let seen = t.env.driver.calls().last().map(|call| call.id);
    t.env.driver.stop().await;
    t.env
        .driver
        .set_capability(ControllerCapability::PublishUnpublishVolume, attaches);
    restart(t).await?;
    let asked = t.env.driver.wait_for_call(move |call| {
        call.method == Method::ControllerGetCapabilities && Some(call.id) > seen && call.finished.is_some()
    });
    let asked = tokio::time::timeout(SOON, asked).await;
    offered(asked.is_ok(), || {
        format!("not asked for its capabilities within {SOON:?}")
    })?;
    // An answer takes a moment to be heeded, in which an attachment may be claimed, or not, as before.
    for number in 0..20 {
        let next = t.other(&format!("{attaches}-{number}"));
        if next.given_attached().await?.finalizers().is_empty() != attaches {
            return Ok(());
        }
    }
    offered(false, || "the capabilities are not heeded".to_owned())
}

/// The driver listens again.
async fn restart(t: &Test) -> Outcome {
    t.env
        .driver
        .start_again()
        .await
        .map_err(|error| Stop::Failed(error.to_string()))
}
