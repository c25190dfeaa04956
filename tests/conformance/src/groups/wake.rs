//! An attacher with pauses of a minute: what waits for something that comes must not sit out its pause.

use std::time::Duration;

use serde_json::json;

use crate::expect::{SOON, is_attached};
use crate::scenario::{Group, Outcome, Setup, demand, optional};
use crate::test::Test;

/// Long after [`SOON`].
const PAUSE: Duration = Duration::from_mins(1);
const UNLESS: &str = "not supported when it sits out its pause";

pub fn setup() -> Setup {
    let group = Group::new("wake");
    Setup {
        retry: (PAUSE, PAUSE),
        ..Setup::new("wake", 12, woken(pauses(group)).done(), super::without_lists)
    }
}

fn pauses(group: Group) -> Group {
    group
        .demands("a failed attach is left alone for its pause")
        .recommended("pause", |t| async move {
            t.given_failing("no").await?;
            tokio::time::sleep(Duration::from_secs(3)).await;
            // The attacher's own claim of the attachment may wake it once.
            let count = t.publishes().len();
            demand(count <= 2, || format!("{count} calls in 3 s with a pause of a minute"))
        })
        .demands("the pause of a failed attach does not hold up its deletion")
        .scenario("deleted-in-pause", |t| async move {
            t.given_failing("no").await?;
            t.delete_attachment().await?;
            t.attachment_gone_within(SOON).await
        })
        .demands("the pause of a failed attach does not hold up a new attachment of the same name")
        .scenario("same-name-in-pause", |t| async move {
            t.given_failing("no").await?;
            t.detach().await?;
            t.heal();
            t.create_attachment(|_| {}).await?;
            t.attachment_is("attached", SOON, is_attached).await.map(drop)
        })
}

fn woken(group: Group) -> Group {
    group
        .demands("a CSINode that comes wakes the attachments that wait for it")
        .unless(UNLESS)
        .extension("csinode", |t| async move {
            t.given_volume_and_attachment().await?;
            t.attach_error(&t.node).await?;
            t.given_node().await?;
            attached_soon(&t).await
        })
        .demands("a driver that registers on its node wakes the attachments that wait for it")
        .unless(UNLESS)
        .extension("csinode-driver", |t| async move {
            t.given_node_of(json!([])).await?;
            t.given_volume_and_attachment().await?;
            t.attach_error(&t.node).await?;
            let drivers = json!([{ "name": t.env.driver_name, "nodeID": t.node_id }]);
            t.patch_node(json!({ "spec": { "drivers": drivers } })).await?;
            attached_soon(&t).await
        })
        .demands("a PersistentVolume that comes wakes the attachments that wait for it")
        .unless(UNLESS)
        .extension("volume", |t| async move {
            t.given_node().await?;
            t.create_attachment(|_| {}).await?;
            t.attach_error(&t.volume).await?;
            t.given_volume(|_| {}).await?;
            attached_soon(&t).await
        })
}

async fn attached_soon(t: &Test) -> Outcome {
    let attached = t.attachment_is("attached", SOON, is_attached).await;
    optional(attached.map(drop), "not attached before the end of its pause")
}
