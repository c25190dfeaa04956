//! Events for people who ask why. Optional: an attacher that writes none counts as "not supported". Reasons are not judged.

use k8s_openapi::api::events::v1::Event;
use kube::Api;
use tonic::Code;

use crate::expect::SOON;
use crate::scenario::{Group, Outcome, Scenario, optional};
use crate::support::wait::wait_for_any;
use crate::test::Test;

const UNLESS: &str = "not supported when there is no such event";

pub fn scenarios() -> Vec<Scenario> {
    Group::new("events")
        .demands("a failed attach is told by a warning on the VolumeAttachment")
        .unless(UNLESS)
        .extension("failed-attach", |t| async move {
            t.script(t.on_publish().fail(Code::ResourceExhausted, "this node is full"));
            t.given_all(|_| {}).await?;
            t.attach_error("full").await?;
            event(&t, "Warning", "ResourceExhausted").await
        })
        .demands("a failed detach is told by a warning on the VolumeAttachment")
        .unless(UNLESS)
        .extension("failed-detach", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().fail(Code::Internal, "the disk is busy"));
            t.delete_attachment().await?;
            t.detach_error("busy").await?;
            event(&t, "Warning", "Internal").await
        })
        .demands("an attach is told by an event on the VolumeAttachment")
        .unless(UNLESS)
        .extension("attached", |t| async move {
            t.given_attached().await?;
            event(&t, "Normal", "").await
        })
        .done()
}

async fn event(t: &Test, kind: &str, part: &str) -> Outcome {
    let events: Api<Event> = Api::all(t.env.client.clone());
    let found = wait_for_any(events, "of the VolumeAttachment", SOON, |event| {
        let about = event.regarding.as_ref().and_then(|it| it.name.as_ref()) == Some(&t.attachment);
        let note = event.note.as_deref().unwrap_or_default();
        about && event.type_.as_deref() == Some(kind) && note.contains(part)
    });
    optional(found.await.map(drop).map_err(Into::into), "no such event")
}
