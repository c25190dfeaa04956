//! The driver goes away and comes back, sometimes as another one. An attacher may end because of that, as the Go sidecar
//! does; the suite starts it again, as a kubelet would.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;

use csi_attacher_operator::mock::{Action, ControllerCapability, Method};

use crate::expect::LIMIT;
use crate::scenario::{Group, Outcome, Scenario, Stop, demand, optional, same};
use crate::test::Test;

/// A driver that lost its connection is given up or found again within this time.
const SOON: Duration = Duration::from_secs(10);

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("restart of the driver");
    modes(connections(group)).done()
}

fn connections(group: Group) -> Group {
    group
        .scenario("the driver was away for a moment", |t| async move {
            t.given_attached().await?;
            t.env.driver.stop().await;
            restart(&t).await?;
            t.detach().await?;
            t.create_attachment(|_| {}).await?;
            t.attached().await.map(drop)
        })
        .scenario(
            "attached and detached while the driver is away, done when it is back",
            |t| async move {
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
                other.attachment_gone().await?;
                other.not_published()
            },
        )
        .scenario(
            "the driver dies during ControllerPublishVolume, before the work",
            |t| async move {
                t.script(t.on_publish().times(1).drop_connection());
                t.given_all(|_| {}).await?;
                t.attached().await?;
                t.published()
            },
        )
        .scenario(
            "the driver dies during ControllerPublishVolume, after the work",
            |t| async move {
                t.script(t.on_publish().times(1).action(Action::DropConnectionAfterWork));
                t.given_all(|_| {}).await?;
                t.attached().await?;
                t.published()
            },
        )
        .scenario(
            "the driver dies during ControllerUnpublishVolume, after the work",
            |t| async move {
                t.given_attached().await?;
                t.script(t.on_unpublish().times(1).action(Action::DropConnectionAfterWork));
                t.detach().await
            },
        )
        .scenario(
            "the driver dies during ControllerPublishVolume and the attachment is deleted meanwhile",
            |t| async move {
                t.script(
                    t.on_publish()
                        .times(1)
                        .delay(Duration::from_millis(300))
                        .action(Action::DropConnectionAfterWork),
                );
                t.given_all(|_| {}).await?;
                t.publish_begins().await?;
                t.delete_attachment().await?;
                t.attachment_gone().await?;
                t.not_published()
            },
        )
        .scenario("nothing is called before the driver is ready", |t| async move {
            t.env.driver.stop().await;
            t.env.driver.set_ready(false);
            let probes = t.env.driver.calls_of(Method::Probe).len();
            let outcome = not_ready(&t, probes).await;
            t.env.driver.set_ready(true);
            outcome?;
            t.attached().await.map(drop)
        })
}

async fn not_ready(t: &Test, probes: usize) -> Outcome {
    restart(t).await?;
    t.given_all(|_| {}).await?;
    // Two refusals: an attacher that goes on after the first is found out.
    let wanted = probes as u64 + 2;
    let deadline = tokio::time::Instant::now() + LIMIT;
    while (t.env.driver.calls_of(Method::Probe).len() as u64) < wanted {
        demand(tokio::time::Instant::now() < deadline, || {
            "the driver is not probed".to_owned()
        })?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    t.no_calls()
}

fn modes(group: Group) -> Group {
    group
        .scenario(
            "the driver comes back without ControllerPublishVolume, later with it again",
            |t| async move {
                let real = t.other("real");
                real.given_attached().await?;
                switch(&t, false).await?;
                let outcome = attached_without_calls(&t).await;
                switch(&t, true).await?;
                outcome?;
                real.detach().await
            },
        )
        .scenario(
            "a driver without ControllerPublishVolume: finalizers from before are taken off \
             (extension: not supported when they stay)",
            |t| async move {
                t.given_attached().await?;
                switch(&t, false).await?;
                t.env.driver.drift_detach(&t.handle, &t.node_id);
                let outcome = leftovers_go(&t).await;
                switch(&t, true).await?;
                outcome
            },
        )
}

async fn attached_without_calls(t: &Test) -> Outcome {
    t.given_all(|_| {}).await?;
    let attachment = t.attached().await?;
    same("finalizers", &attachment.finalizers().len(), &0)?;
    t.no_calls()?;
    t.detach().await
}

async fn leftovers_go(t: &Test) -> Outcome {
    t.delete_attachment().await?;
    optional(
        t.attachment_gone_within(Duration::from_secs(4)).await,
        "the attachment keeps the finalizer",
    )?;
    t.delete_volume().await?;
    let released = |it: &PersistentVolume| t.count_finalizers(it) == 0;
    match t.get_volume().await {
        Ok(volume) if !released(&volume) => t.volume_gone().await,
        _ => Ok(()),
    }
}

/// The driver stops and comes back with or without the capability to attach.
async fn switch(t: &Test, attaches: bool) -> Outcome {
    t.env.driver.stop().await;
    t.env
        .driver
        .set_capability(ControllerCapability::PublishUnpublishVolume, attaches);
    restart(t).await
}

/// The driver listens again, and the attacher has asked it what it can do.
async fn restart(t: &Test) -> Outcome {
    let seen = t.env.driver.calls().last().map(|call| call.id);
    let started = t.env.driver.start_again().await;
    started.map_err(|error| Stop::Failed(error.to_string()))?;
    let found = t
        .env
        .driver
        .wait_for_call(move |call| call.method == Method::Probe && Some(call.id) > seen);
    let found = tokio::time::timeout(SOON, found).await;
    found
        .map(drop)
        .map_err(|_| Stop::Failed(format!("the driver that came back was not asked within {SOON:?}")))
}
