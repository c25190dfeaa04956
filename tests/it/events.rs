//! What people read with `kubectl describe`: events on the VolumeAttachment, the PersistentVolume and the claim.

use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use serde_json::{Value, json};
use tonic::Code;

use crate::error_texts::attachments::{ATTEMPT_TO_DETACH, NODE_GONE};
use crate::error_texts::index::assert_indexed;
use crate::rig::{Driver, LIMIT, World, detach};
use crate::support::Result;
use crate::support::wait::wait_for_any;

/// Waits for an event with this reason on this object, whose message has this part.
pub async fn event(world: &World, kind: &str, name: &str, reason: &str, part: &str) -> Result<Event> {
    let events: Api<Event> = Api::namespaced(world.client.clone(), "default");
    let what = format!("{reason} on {kind} {name} with {part:?}");
    wait_for_any(events, &what, LIMIT, |event| {
        let about = &event.involved_object;
        about.kind.as_deref() == Some(kind)
            && about.name.as_deref() == Some(name)
            && event.reason.as_deref() == Some(reason)
            && event.message.as_deref().is_some_and(|message| message.contains(part))
    })
    .await
}

/// Tries that follow each other soon. The deadlines of calls are the usual ones: attempts are counted here, and on a busy
/// machine a call may take a while.
fn settings() -> Value {
    json!({ "backoff": { "initial": "50ms", "max": "100ms" } })
}

async fn driver<'w>(world: &'w World, short: &str) -> Result<Driver<'w>> {
    world.driver(short, settings()).await
}

#[tokio::test]
async fn each_step_of_an_attach_is_told_on_attachment_volume_and_claim() -> Result<()> {
    let world = World::shared().await?;
    let driver = driver(&world, "told").await?;
    let publish = || Rule::on(Method::ControllerPublishVolume).volume("told-va").times(1);
    driver.mock.script(publish().fail(Code::Aborted, "still at it"));
    driver
        .mock
        .script(publish().fail(Code::ResourceExhausted, "node is full"));
    driver
        .mock
        .script(publish().fail(Code::FailedPrecondition, "in use elsewhere"));
    let volume = driver
        .volume("told-va")
        .claim("default", "told-claim", Some("told-uid"));
    world.fixtures.persistent_volume(&volume).await?;
    driver.attachment("told-va", "told-va").await?;
    world.fixtures.wait_for_attached("told-va").await?;
    for (reason, part, kind) in [
        (
            "AttachUncertain",
            "attempt 1 to attach it to node told-node failed",
            "Warning",
        ),
        (
            "LimitReached",
            "code = ResourceExhausted desc = node is full",
            "Warning",
        ),
        ("AttachFailed", "retrying in 0.", "Warning"),
        ("Attached", "attached to node told-node in attempt 4", "Normal"),
    ] {
        for (object, name) in [
            ("VolumeAttachment", "told-va"),
            ("PersistentVolume", "told-va"),
            ("PersistentVolumeClaim", "told-claim"),
        ] {
            let event = event(&world, object, name, reason, part).await?;
            assert_eq!(event.type_.as_deref(), Some(kind), "{reason} on {object}");
            let source = event.source.unwrap_or_default();
            assert_eq!(source.component.as_deref(), Some("csi-attacher-operator"));
        }
    }
    Ok(())
}

/// The words about one node do not wait for, or hide, those about another one.
#[tokio::test]
async fn attachments_of_one_volume_have_events_of_their_own() -> Result<()> {
    let world = World::shared().await?;
    let driver = driver(&world, "many").await?;
    world
        .fixtures
        .csi_node("many-other", &driver.name, "many-other-id")
        .await?;
    let volume = driver.volume("many-pv").access_modes(&["ReadWriteMany"]);
    world.fixtures.persistent_volume(&volume).await?;
    for (node, text) in [
        (driver.node_id(), "first node is full"),
        ("many-other-id".to_owned(), "second node is full"),
    ] {
        let rule = Rule::on(Method::ControllerPublishVolume).volume("many-pv").node(node);
        driver.mock.script(rule.fail(Code::Internal, text));
    }
    driver.attachment("many-one", "many-pv").await?;
    let other = world
        .fixtures
        .volume_attachment("many-two", &driver.name, "many-pv", "many-other");
    other.await?;
    for text in ["first node is full", "second node is full"] {
        event(&world, "PersistentVolume", "many-pv", "AttachFailed", text).await?;
    }
    // So that both texts are there at once, and not one after the other.
    event(
        &world,
        "PersistentVolume",
        "many-pv",
        "AttachFailed",
        "first node is full",
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_detach_tells_what_holds_it_up() -> Result<()> {
    let world = World::shared().await?;
    let driver = driver(&world, "leave").await?;
    driver.attach("leave-va").await?;
    world.fixtures.delete::<CSINode>(&driver.node()).await?;
    driver.nodes_are_seen().await?;
    let unpublish = Rule::on(Method::ControllerUnpublishVolume).volume("leave-va").times(1);
    driver.mock.script(unpublish.fail(Code::Internal, "still mounted"));
    detach(&world.fixtures, "leave-va").await?;
    for (reason, part, message) in [
        ("NodeGone", "has no CSINode any more", NODE_GONE),
        ("DetachFailed", "still mounted", ATTEMPT_TO_DETACH),
    ] {
        let told = event(&world, "PersistentVolume", "leave-va", reason, part).await?;
        assert_indexed(message, &told.message.unwrap_or_default());
    }
    event(&world, "PersistentVolume", "leave-va", "Detached", "in attempt 2").await?;
    Ok(())
}

#[tokio::test]
async fn what_a_config_came_to_is_told_on_it() -> Result<()> {
    let world = World::shared().await?;
    let driver = driver(&world, "heard").await?;
    let config = "AttacherConfig";
    event(&world, config, "heard", "Ready", "attaching and detaching volumes").await?;
    driver.stop().await;
    let gone = event(&world, config, "heard", "DriverUnreachable", "").await?;
    assert_eq!(gone.type_.as_deref(), Some("Warning"));
    driver.start_again().await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver
        .configure(&json!({ "driverName": "somebody.else.csi.test" }))
        .await?;
    let stalled = event(&world, config, "heard", "Stalled", "DriverNameMismatch").await?;
    assert_eq!(stalled.type_.as_deref(), Some("Warning"));
    driver.configure(&json!({ "suspend": true })).await?;
    event(&world, config, "heard", "Suspended", "spec.suspend is true")
        .await
        .map(drop)
}
