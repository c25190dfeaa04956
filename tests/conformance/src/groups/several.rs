//! Several volumes and nodes that have to do with each other.

use jiff::SignedDuration;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;
use tonic::Code;

use csi_mock_driver::{CallRecord, CallResult, Method};

use crate::env::SLOW;
use crate::expect::{LIMIT, detach_error_of};
use crate::scenario::{Group, Outcome, Scenario, demand, offered};
use crate::support::wait::wait_for;
use crate::test::Test;

/// Whether the second call began after the first had ended. Of a call that its caller has given up the driver may hear no sooner
/// than of the next one, which then began about when the first one's deadline was over; two that were made beside each other
/// would both run until their deadlines.
fn one_after_the_other(pair: &[CallRecord]) -> bool {
    let Some(ended) = pair[0].finished else { return false };
    let late = match pair[0].outcome {
        CallResult::Answered => SignedDuration::ZERO,
        _ => SignedDuration::from_secs(1),
    };
    ended.duration_since(pair[1].started) <= late
}

/// Changes the attachment while each of two calls of this method runs: no reason to make another one.
async fn changed_meanwhile(t: &Test, method: Method) -> Outcome {
    for number in 0..2 {
        let call = t.call(method, "began", move |call| call.outcome == CallResult::Running);
        let call = call.await?;
        let label = format!("{method:?}-{number}");
        t.patch_attachment(json!({ "metadata": { "labels": { "conformance.test/a": label } } }))
            .await?;
        t.call(method, "ended", move |other| {
            other.id == call.id && other.finished.is_some()
        })
        .await?;
    }
    Ok(())
}

pub fn scenarios() -> Vec<Scenario> {
    Group::new("nodes")
        .demands("a ReadWriteMany volume is on two nodes at the same time")
        .scenario("two-nodes", |t| async move {
            t.given_all(|pv| pv["spec"]["accessModes"] = json!(["ReadWriteMany"]))
                .await?;
            let other = t.given_on_other_node("b").await?;
            t.claimed(&t.attached().await?)?;
            other.claimed(&other.attached().await?)?;
            t.published()?;
            other.published()?;
            t.detach().await?;
            other.published()
        })
        .demands("a ReadWriteOnce volume moves to another node")
        .scenario("moves", |t| async move {
            t.given_attached().await?;
            let other = t.given_on_other_node("b").await?;
            other.attach_error("FailedPrecondition").await?;
            t.detach().await?;
            other.attached().await?;
            other.published()
        })
        .demands("a volume that cannot be detached from a dead node does not block its next node for ever")
        .scenario("dead-node", |t| async move {
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
            let other = t.given_on_other_node("b").await?;
            other.attached().await?;
            other.published()
        })
        .demands("a volume that hangs does not hold up the others")
        .scenario("hanging-volume", |t| async move {
            let other = t.other("b");
            other.given_node().await?;
            other.given_volume(|_| {}).await?;
            t.script(t.on_publish().hang());
            let call = t.given_publishing().await?;
            other.create_attachment(|_| {}).await?;
            other.publish_begins().await?;
            t.still_runs(&call)?;
            other.attached().await?;
            other.detach().await
        })
        .demands("calls for one volume and node never overlap")
        .safety("no-overlap", |t| async move {
            // Each way one call that its caller gives up, and one that is answered, late.
            t.script(t.on_publish().times(1).hang());
            t.script(t.on_publish().times(1).delay(SLOW));
            t.given_all(|_| {}).await?;
            changed_meanwhile(&t, Method::ControllerPublishVolume).await?;
            t.attached().await?;
            t.script(t.on_unpublish().times(1).hang());
            t.script(t.on_unpublish().times(1).delay(SLOW));
            t.delete_attachment().await?;
            changed_meanwhile(&t, Method::ControllerUnpublishVolume).await?;
            t.attachment_gone().await?;
            let calls: Vec<_> = t.publishes().into_iter().chain(t.unpublishes()).collect();
            demand(calls.windows(2).all(one_after_the_other), || {
                format!("two calls ran at the same time: {calls:#?}")
            })
        })
        .demands("a volume for one node leaves it before it goes to the next")
        .unless("not supported when the ControllerPublishVolume comes first and is refused")
        .extension("detach-first", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().delay(SLOW));
            t.delete_attachment().await?;
            t.unpublish_begins().await?;
            let other = t.given_on_other_node("b").await?;
            other.attached().await?;
            let refused = other.publishes().len() > 1;
            offered(!refused, || {
                "published to the next node while it was on the last".to_owned()
            })
        })
        .demands(
            "of two PersistentVolumes with one handle on a node, the detach of one does not take it from the other",
        )
        .unless("not supported when the volume is taken away")
        .extension("one-handle-twice", |t| async move {
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
        })
        .done()
}
