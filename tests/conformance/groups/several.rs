//! Several volumes and nodes that have to do with each other.

use serde_json::json;
use tonic::Code;

use crate::scenario::{Group, Scenario, demand};

pub fn scenarios() -> Vec<Scenario> {
    Group::new("several nodes")
        .scenario(
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
        .scenario("a ReadWriteOnce volume moves to another node", |t| async move {
            t.given_attached().await?;
            let other = t.on_other_node("b");
            other.given_node().await?;
            other.create_attachment(|_| {}).await?;
            other.attach_error("FailedPrecondition").await?;
            t.detach().await?;
            other.attached().await?;
            other.published()
        })
        .scenario(
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
        .scenario("a volume that hangs does not hold up the others", |t| async move {
            t.script(t.on_publish().hang());
            t.given_all(|_| {}).await?;
            let call = t.publish_begins().await?;
            let other = t.other("b");
            other.given_attached().await?;
            other.detach().await?;
            t.still_runs(&call)
        })
        .scenario("calls for one volume and node never overlap", |t| async move {
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
            let calls = t.publishes().into_iter().chain(t.unpublishes());
            demand(calls.into_iter().all(|call| !call.overlap), || {
                "two calls ran at the same time".to_owned()
            })
        })
        .done()
}
