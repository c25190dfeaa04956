//! Calls that do not come back in time: nobody knows what they did.

use serde_json::json;

use crate::env::SLOW;
use crate::expect::LIMIT;
use crate::scenario::{Group, Scenario, demand, offered};

pub fn scenarios() -> Vec<Scenario> {
    let group = Group::new("timeouts");
    detaching(attaching(group)).done()
}

fn attaching(group: Group) -> Group {
    group
        .scenario(
            "an attach that hangs is reported by its deadline, tried again and attached",
            |t| async move {
                t.script(t.on_publish().hang());
                t.given_all(|_| {}).await?;
                let error = t.attach_error("").await?;
                let message = crate::expect::text(&error).to_lowercase();
                demand(message.contains("deadline"), || {
                    format!("the error says {message:?}, nothing of a deadline")
                })?;
                t.heal();
                t.attached().await?;
                t.published()
            },
        )
        .scenario(
            "an attach that succeeds after its deadline is found out",
            |t| async move {
                t.script(t.on_publish().times(1).late_success());
                t.given_all(|_| {}).await?;
                t.attached().await?;
                t.published()
            },
        )
        .scenario(
            "an attach that only ever succeeds late is taken back when its attachment goes",
            |t| async move {
                t.script(t.on_publish().late_success());
                t.given_all(|_| {}).await?;
                t.attach_error("").await?;
                t.published()?;
                t.detach().await
            },
        )
        .scenario(
            "an attachment deleted while its attach hangs is detached",
            |t| async move {
                t.script(t.on_publish().hang());
                t.given_all(|_| {}).await?;
                t.publish_begins().await?;
                t.delete_attachment().await?;
                t.attachment_gone().await?;
                demand(!t.unpublishes().is_empty(), || {
                    "no ControllerUnpublishVolume".to_owned()
                })
            },
        )
        .scenario(
            "an attachment deleted while its attach succeeds late is detached",
            |t| async move {
                t.script(t.on_publish().late_success());
                t.given_all(|_| {}).await?;
                t.publish_begins().await?;
                t.delete_attachment().await?;
                t.attachment_gone().await?;
                t.not_published()
            },
        )
        .scenario(
            "an attachment deleted while its attach succeeds in time is detached",
            |t| async move {
                t.script(t.on_publish().delay(SLOW));
                t.given_all(|_| {}).await?;
                t.publish_begins().await?;
                t.delete_attachment().await?;
                t.attachment_gone().await?;
                t.not_published()
            },
        )
}

fn detaching(group: Group) -> Group {
    group
        .extension(
            "a node that came back with another id while its attach was in doubt is taken back too",
            "not supported when the volume stays attached under the old id",
            |t| async move {
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
            },
        )
        .scenario(
            "a detach that hangs is reported, tried again and done",
            |t| async move {
                t.given_attached().await?;
                t.script(t.on_unpublish().hang());
                t.delete_attachment().await?;
                let attachment = t.detach_error("").await?;
                t.has_finalizer(&attachment)?;
                t.published()?;
                t.heal();
                t.attachment_gone().await?;
                t.not_published()
            },
        )
        .scenario(
            "a detach that succeeds after its deadline is found out",
            |t| async move {
                t.given_attached().await?;
                t.script(t.on_unpublish().times(1).late_success());
                t.delete_attachment().await?;
                t.attachment_gone_within(LIMIT).await?;
                t.not_published()
            },
        )
}
