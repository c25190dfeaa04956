//! Calls that do not come back in time: nobody knows what they did.

use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use crate::env::SLOW;
use crate::expect::{LIMIT, attach_error_of, text};
use crate::scenario::{Group, Outcome, Scenario, demand, offered};
use crate::test::Test;

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("timeouts");
    detaching(attaching(group)).done()
}

fn attaching(group: Group) -> Group {
    group
        .demands("an attach that hangs is reported by its deadline, tried again and attached")
        .scenario("attach-hangs", |t| async move {
            t.script(t.on_publish().hang());
            t.given_all(|_| {}).await?;
            told_of_the_deadline(&t).await?;
            t.heal();
            t.attached().await?;
            t.published()
        })
        .demands("an attach that succeeds after its deadline is found out")
        .safety("attach-late", |t| async move {
            t.script(t.on_publish().times(1).late_success());
            t.given_all(|_| {}).await?;
            t.attached().await?;
            t.published()
        })
        .demands("an attach that only ever succeeds late is taken back when its attachment goes")
        .safety("attach-always-late", |t| async move {
            t.script(t.on_publish().late_success());
            t.given_all(|_| {}).await?;
            told_of_the_deadline(&t).await?;
            becomes_published(&t).await?;
            t.detach().await
        })
        .demands("an attachment deleted while its attach hangs is detached")
        .safety("deleted-attach-hangs", |t| async move {
            t.script(t.on_publish().hang());
            t.given_publishing().await?;
            t.delete_attachment().await?;
            t.attachment_gone().await?;
            demand(!t.unpublishes().is_empty(), || {
                "no ControllerUnpublishVolume".to_owned()
            })
        })
        .demands("an attachment deleted while its attach succeeds late is detached")
        .safety("deleted-attach-late", |t| async move {
            t.script(t.on_publish().late_success());
            t.given_publishing().await?;
            t.detach().await
        })
        .demands("an attachment deleted while its attach succeeds in time is detached")
        .safety("deleted-attach-in-time", |t| async move {
            t.script(t.on_publish().delay(SLOW));
            t.given_publishing().await?;
            t.detach().await
        })
}

/// Waits for an attachError about the deadline. Another one may come before it, about what a watch is late with.
async fn told_of_the_deadline(t: &Test) -> Outcome {
    let told = |it: &VolumeAttachment| {
        attach_error_of(it).is_some_and(|error| text(error).to_lowercase().contains("deadline"))
    };
    t.attachment_is("attachError about a deadline", LIMIT, told)
        .await
        .map(drop)
}

/// Waits until the driver has done the work of a late success. It hears that nobody waits any more by another way than the scenario
/// hears of the error.
async fn becomes_published(t: &Test) -> Outcome {
    let pair = (t.handle.clone(), t.node_id.clone());
    let published = t.env.driver.wait_for_published(move |all| all.contains(&pair));
    let published = tokio::time::timeout(LIMIT, published).await;
    demand(published.is_ok(), || {
        "the driver does not attach the volume late".to_owned()
    })
}

fn detaching(group: Group) -> Group {
    group
        .demands("a node that came back with another id while its attach was in doubt is taken back too")
        .unless("not supported when the volume stays attached under the old id")
        .extension("other-node-id", |t| async move {
            t.script(t.on_publish().late_success());
            t.given_all(|pv| pv["spec"]["accessModes"] = json!(["ReadWriteMany"]))
                .await?;
            t.publish_begins().await?;
            let fresh = format!("{}-fresh", t.node_id);
            t.patch_node(json!({ "spec": { "drivers": null } })).await?;
            let drivers = json!([{ "name": t.env.driver_name, "nodeID": fresh }]);
            t.patch_node(json!({ "spec": { "drivers": drivers } })).await?;
            t.attached().await?;
            t.heal();
            t.delete_attachment().await?;
            t.attachment_gone().await?;
            let left = t.is_published();
            t.env.driver.drift_detach(&t.handle, &t.node_id);
            offered(!left, || "the volume stays attached under the old id".to_owned())
        })
        .demands("a detach that hangs is reported, tried again and done")
        .scenario("detach-hangs", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().hang());
            t.delete_attachment().await?;
            let attachment = t.detach_error("DeadlineExceeded").await?;
            t.has_finalizer(&attachment)?;
            t.published()?;
            t.heal();
            t.detached().await
        })
        .demands("a detach that succeeds after its deadline is found out")
        .scenario("detach-late", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().times(1).late_success());
            t.delete_attachment().await?;
            t.attachment_gone_within(LIMIT).await?;
            t.not_published()
        })
}
