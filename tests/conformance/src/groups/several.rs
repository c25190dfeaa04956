//! Several volumes and nodes that have to do with each other.

use jiff::SignedDuration;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;
use tonic::Code;

use csi_mock_driver::CallRecord;

use crate::env::SLOW;
use crate::expect::{LIMIT, detach_error_of};
use crate::scenario::{Group, Scenario, demand, offered};
use crate::support::wait::wait_for;
use crate::test::Test;

/// The driver may hear of the end of a call, which its caller has given up, no sooner than of the next one. Those that were made
/// beside each other would both run until a deadline.
fn one_after_the_other(pair: &[CallRecord]) -> bool {
    let ended = pair[0].finished;
    ended.is_some_and(|ended| ended.duration_since(pair[1].started) < SignedDuration::from_secs(1))
}

pub fn scenarios() -> Vec<Scenario> {
    Group::new("nodes")
        .scenario(
            "two-nodes",
            "a ReadWriteMany volume is on two nodes at the same time",
            |t| async move {
                t.given_all(|pv| pv["spec"]["accessModes"] = json!(["ReadWriteMany"]))
                    .await?;
                let other = t.on_other_node("b");
                other.given_node().await?;
                other.create_attachment(|_| {}).await?;
                t.claimed(&t.attached().await?)?;
                other.claimed(&other.attached().await?)?;
                t.published()?;
                other.published()?;
                t.detach().await?;
                other.published()
            },
        )
        .scenario(
            "moves",
            "a ReadWriteOnce volume moves to another node",
            |t| async move {
                t.given_attached().await?;
                let other = t.on_other_node("b");
                other.given_node().await?;
                other.create_attachment(|_| {}).await?;
                other.attach_error("FailedPrecondition").await?;
                t.detach().await?;
                other.attached().await?;
                other.published()
            },
        )
        .scenario(
            "dead-node",
            "a volume that cannot be detached from a dead node does not block its next node for ever",
            |t| async move {
                t.given_all(|pv| pv["spec"]["accessModes"] = json!(["ReadWriteMany"]))
                    .await?;
                t.attached().await?;
                t.script(
                    t.on_unpublish()
                        .node(&t.node_id)
                        .fail(Code::Internal, "the node is dead"),
                );
                t.delete_attachment().await?;
                t.detach_error("dead").await?;
                let other = t.on_other_node("b");
                other.given_node().await?;
                other.create_attachment(|_| {}).await?;
                other.attached().await?;
                other.published()
            },
        )
        .scenario(
            "hanging-volume",
            "a volume that hangs does not hold up the others",
            |t| async move {
                t.script(t.on_publish().hang());
                t.given_all(|_| {}).await?;
                let call = t.publish_begins().await?;
                let other = t.other("b");
                other.given_attached().await?;
                t.still_runs(&call)?;
                other.detach().await
            },
        )
        .safety(
            "no-overlap",
            "calls for one volume and node never overlap",
            |t| async move {
                t.script(t.on_publish().times(2).hang());
                t.given_all(|_| {}).await?;
                t.publish_begins().await?;
                t.patch_attachment(json!({ "metadata": { "labels": { "conformance.test/a": "b" } } }))
                    .await?;
                t.attached().await?;
                t.script(t.on_unpublish().times(1).hang());
                t.delete_attachment().await?;
                t.unpublish_begins().await?;
                t.patch_attachment(json!({ "metadata": { "labels": { "conformance.test/a": "c" } } }))
                    .await?;
                t.attachment_gone().await?;
                let calls: Vec<_> = t.publishes().into_iter().chain(t.unpublishes()).collect();
                demand(calls.windows(2).all(one_after_the_other), || {
                    format!("two calls ran at the same time: {calls:#?}")
                })
            },
        )
        .extension(
            "detach-first",
            "a volume for one node leaves it before it goes to the next",
            "not supported when the ControllerPublishVolume comes first and is refused",
            |t| async move {
                t.given_attached().await?;
                t.script(t.on_unpublish().delay(SLOW));
                t.delete_attachment().await?;
                t.unpublish_begins().await?;
                let other = t.on_other_node("b");
                other.given_node().await?;
                other.create_attachment(|_| {}).await?;
                other.attached().await?;
                let refused = other.publishes().len() > 1;
                offered(!refused, || {
                    "published to the next node while it was on the last".to_owned()
                })
            },
        )
        .extension(
            "one-handle-twice",
            "of two PersistentVolumes with one handle on a node, the detach of one does not take it from the other",
            "not supported when the volume is taken away",
            |t| async move {
                t.given_attached().await?;
                let twin = Test {
                    handle: t.handle.clone(),
                    ..t.other_volume("twin")
                };
                twin.given_volume(|_| {}).await?;
                twin.create_attachment(|_| {}).await?;
                twin.attached().await?;
                t.delete_attachment().await?;
                let said = |it: Option<&VolumeAttachment>| it.is_none_or(|it| detach_error_of(it).is_some());
                wait_for(
                    t.api::<VolumeAttachment>(),
                    &t.attachment,
                    "detached or refused",
                    LIMIT,
                    said,
                )
                .await?;
                let kept = t.is_published();
                twin.detach().await?;
                t.attachment_gone().await?;
                offered(kept, || "the volume was taken away from the other".to_owned())
            },
        )
        .done()
}
