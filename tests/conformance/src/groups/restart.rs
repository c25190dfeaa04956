//! The attacher dies at the worst moments and comes back; the API server goes away and comes back.

use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use csi_mock_driver::{Method, Rule};

use crate::expect::LIMIT;
use crate::scenario::{Group, Outcome, Scenario, demand};
use crate::test::Test;

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("attacher-restart");
    api_server(away(detaching(attaching(group)))).done()
}

fn attaching(group: Group) -> Group {
    group
        .demands("killed after the claim, perhaps before ControllerPublishVolume")
        .safety("before-publish", |t| async move {
            t.given_all(|_| {}).await?;
            t.attachment_is("claimed", LIMIT, |it| t.count_finalizers(it) > 0)
                .await?;
            t.env.attacher.kill();
            t.env.attacher.again()?;
            t.attached().await?;
            t.published()
        })
        .demands("killed during ControllerPublishVolume, which did nothing")
        .safety("during-publish-nothing", |t| async move {
            t.script(t.on_publish().times(1).hang());
            t.given_publishing().await?;
            t.env.attacher.kill();
            t.env.attacher.again()?;
            t.attached().await?;
            t.published()
        })
        .demands("killed during ControllerPublishVolume, which succeeded; the attachment is deleted meanwhile")
        .safety("during-publish-deleted", |t| async move {
            t.script(t.on_publish().times(1).late_success());
            t.given_publishing().await?;
            t.env.attacher.kill();
            t.delete_attachment().await?;
            t.has_finalizer(&t.get_attachment().await?)?;
            t.env.attacher.again()?;
            t.detached().await
        })
        .demands("killed after ControllerPublishVolume, perhaps before the status is written")
        .safety("after-publish", |t| async move {
            t.given_all(|_| {}).await?;
            t.call(Method::ControllerPublishVolume, "ended", |call| call.finished.is_some())
                .await?;
            t.env.attacher.kill();
            t.published()?;
            t.env.attacher.again()?;
            t.attached().await?;
            t.detach().await
        })
        .demands("stopped (SIGTERM) during ControllerPublishVolume")
        .safety("sigterm-during-publish", |t| async move {
            t.script(t.on_publish().times(1).delay(Duration::from_millis(700)));
            t.given_publishing().await?;
            t.env.attacher.stop().await?;
            t.env.attacher.again()?;
            t.attached().await?;
            t.published()
        })
}

fn detaching(group: Group) -> Group {
    group
        .demands("killed during ControllerUnpublishVolume, which did nothing")
        .safety("during-unpublish", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().times(1).hang());
            t.delete_attachment().await?;
            t.unpublish_begins().await?;
            t.env.attacher.kill();
            t.has_finalizer(&t.get_attachment().await?)?;
            t.published()?;
            t.env.attacher.again()?;
            t.detached().await
        })
        .demands("killed after ControllerUnpublishVolume, perhaps before the finalizer is gone")
        .safety("after-unpublish", |t| async move {
            t.given_attached().await?;
            t.delete_attachment().await?;
            t.call(Method::ControllerUnpublishVolume, "ended", |call| {
                call.finished.is_some()
            })
            .await?;
            t.env.attacher.kill();
            t.env.attacher.again()?;
            t.detached().await
        })
        .demands("killed at every second call while volumes come and go")
        .safety("every-second-call", |t| async move {
            t.given_node().await?;
            t.script(Rule::any().node(&t.node_id).delay(Duration::from_millis(100)));
            let all: Vec<Test> = (0..6).map(|number| t.other_volume(&format!("v{number}"))).collect();
            for it in &all {
                it.given_volume(|_| {}).await?;
                it.create_attachment(|_| {}).await?;
            }
            let (going, staying) = all.split_at(2);
            for it in going {
                it.publish_begins().await?;
                it.delete_attachment().await?;
            }
            for _ in 0..4 {
                let seen = t.env.driver.calls().len();
                t.env.attacher.kill();
                t.env.attacher.again()?;
                some_call_or_all_done(&t, seen + 2, &all).await?;
            }
            for it in going {
                it.detached().await?;
            }
            for it in staying {
                it.attached().await?;
                it.published()?;
            }
            t.env.driver.clear_rules();
            Ok(())
        })
}

/// Waits until the driver got so many calls, or there is nothing left to call for.
async fn some_call_or_all_done(t: &Test, calls: usize, all: &[Test]) -> Outcome {
    let enough = t.env.driver.wait_for_call(move |call| call.id >= calls as u64);
    let settled = futures::future::join_all(all.iter().map(|it| async {
        // Settled is attached, or gone.
        let done = |it: Option<&VolumeAttachment>| it.is_none_or(crate::expect::is_attached);
        crate::support::wait::wait_for(it.api::<VolumeAttachment>(), &it.attachment, "settled", LIMIT, done).await
    }));
    tokio::select! {
        _ = enough => Ok(()),
        outcome = settled => outcome.into_iter().try_for_each(|one| one.map(drop).map_err(Into::into)),
    }
}

fn away(group: Group) -> Group {
    group
        .demands("what happened while it was away is made up for")
        .scenario("while-away", |t| async move {
            t.given_attached().await?;
            let (added, released) = (t.other("added"), t.other("released"));
            released.given_attached().await?;
            released.detach().await?;
            t.env.attacher.kill();
            t.delete_attachment().await?;
            t.delete_node().await?;
            released.delete_volume().await?;
            added.given_all(|_| {}).await?;
            t.env.attacher.again()?;
            t.detached().await?;
            released.volume_gone().await?;
            added.attached().await?;
            added.published()
        })
        .demands("an attached volume is not called for after a restart")
        .recommended("no-call-after-restart", |t| async move {
            t.given_attached().await?;
            t.barrier("a").await?;
            let before = t.publishes().len();
            t.env.attacher.stop().await?;
            t.env.attacher.again()?;
            t.barrier("b").await?;
            demand(t.publishes().len() == before, || {
                "published again though nothing changed".to_owned()
            })
        })
        .demands("volumes attached by an attacher before it are taken over without a call")
        .recommended("taken-over", |t| async move {
            t.given_node().await?;
            let finalizers = json!([t.env.finalizer]);
            let kept = finalizers.clone();
            t.given_volume(|pv| pv["metadata"]["finalizers"] = kept).await?;
            t.env.attacher.stop().await?;
            t.env.driver.drift_attach(&t.handle, &t.node_id);
            t.create_attachment(|va| {
                va["metadata"]["finalizers"] = finalizers;
                va["metadata"]["annotations"] = json!({ "csi.alpha.kubernetes.io/node-id": t.node_id });
            })
            .await?;
            mark_attached(&t).await?;
            t.env.attacher.again()?;
            t.barrier("b").await?;
            t.no_calls()?;
            t.delete_node().await?;
            t.detach().await?;
            t.delete_volume().await?;
            t.volume_gone().await
        })
}

/// As an attacher before this one has left it.
async fn mark_attached(t: &Test) -> Outcome {
    let patch = json!({ "status": { "attached": true, "attachmentMetadata": { "devicePath": "/dev/vdx" } } });
    let patch = kube::api::Patch::Merge(patch);
    t.api::<VolumeAttachment>()
        .patch_status(&t.attachment, &kube::api::PatchParams::default(), &patch)
        .await?;
    Ok(())
}

fn api_server(group: Group) -> Group {
    group
        .demands("the API server is killed during ControllerPublishVolume and comes back")
        .safety("api-server-killed", |t| async move {
            let detaching = t.other("detaching");
            detaching.given_attached().await?;
            t.script(t.on_publish().delay(Duration::from_millis(500)));
            t.script(detaching.on_unpublish().delay(Duration::from_millis(500)));
            t.given_all(|_| {}).await?;
            detaching.delete_attachment().await?;
            t.publish_begins().await?;
            detaching.unpublish_begins().await?;
            t.env.cluster.stop_apiserver();
            // The answers of the driver come now, and there is nobody to write them to.
            tokio::time::sleep(Duration::from_secs(1)).await;
            t.env.cluster.start_apiserver().await?;
            // The limit is long: watches come back after pauses of their own.
            t.attachment_is("attached", LIMIT * 2, crate::expect::is_attached)
                .await?;
            t.published()?;
            detaching.attachment_gone_within(LIMIT * 2).await?;
            detaching.not_published()
        })
}
