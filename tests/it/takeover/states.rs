//! The operator starts where a sidecar was: on objects in the sidecar's exact form, in every state in which a sidecar can
//! have stopped. What is settled gets a note of its volume at most; the rest is carried on without a step more than it takes.

use std::collections::BTreeMap;

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{CallRecord, Method};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use serde_json::json;
use tonic::Code;

use super::objects::Left;
use super::{NODE_ID_ANNOTATION, NOTE_ANNOTATION};
use crate::rig::{Driver, World, delete_volume, detach, operator_options, strip};
use crate::support::Result;

/// A state, and what the operator does about it, each step without its subject.
struct State<'d> {
    name: &'static str,
    left: Left<'d>,
    steps: &'static [&'static str],
    end: End,
}

/// How a state ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Attached,
    Gone,
    /// It stays as it is, but for a note of its volume, which the sidecar does not write.
    Noted,
    /// It stays as it is.
    Same,
}

const FIRST_ATTACH: &[&str] = &[
    "patch persistentvolumes",
    "patch volumeattachments",
    "ControllerPublishVolume",
    "patch volumeattachments/status",
];
const ATTACH: &[&str] = &[
    "patch volumeattachments",
    "ControllerPublishVolume",
    "patch volumeattachments/status",
];
const NOTE: &[&str] = &["patch volumeattachments"];
const DETACH: &[&str] = &["ControllerUnpublishVolume", "patch volumeattachments"];
const DETACH_AND_RELEASE: &[&str] = &[
    "ControllerUnpublishVolume",
    "patch volumeattachments",
    "patch persistentvolumes",
];

fn settled<'d>(driver: &'d Driver<'d>) -> Vec<State<'d>> {
    let same = |name, change: fn(Left<'d>) -> Left<'d>| State {
        name,
        left: change(driver.left(name)),
        steps: &[],
        end: End::Same,
    };
    let noted = |name, change: fn(Left<'d>) -> Left<'d>| State {
        steps: NOTE,
        end: End::Noted,
        ..same(name, change)
    };
    vec![
        noted("attached", |left| left.claimed().attached()),
        // The sidecar clears an error only when its copy shows one, so that one may stay behind.
        noted("attached-error", |left| {
            left.claimed().attached().error("attachError", "stale", Some(13))
        }),
        same("attached-inline", |left| left.inline().claimed().attached()),
        noted("attached-volume-deleted", |left| {
            left.claimed().attached().volume_deleted()
        }),
        // Its second write, after the one that took the finalizer, did not come to pass.
        same("status-left", |left| {
            let status = json!({ "attached": true, "attachmentMetadata": { "devicePath": "/dev/x" } });
            left.held().status(&status).deleted()
        }),
    ]
}

fn attaching<'d>(driver: &'d Driver<'d>) -> Vec<State<'d>> {
    let attached = |name, change: fn(Left<'d>) -> Left<'d>, steps| State {
        name,
        left: change(driver.left(name)),
        steps,
        end: End::Attached,
    };
    vec![
        attached("new", |left| left, FIRST_ATTACH),
        attached("protected", Left::protected, ATTACH),
        attached("claimed", Left::claimed, ATTACH),
        attached(
            "claimed-error",
            |left| {
                let text = "rpc error: code = ResourceExhausted desc = no slot";
                left.claimed().error("attachError", text, Some(8))
            },
            ATTACH,
        ),
        attached("claimed-inline", |left| left.inline().claimed(), ATTACH),
    ]
}

fn detaching<'d>(driver: &'d Driver<'d>) -> Vec<State<'d>> {
    let gone = |name, change: fn(Left<'d>) -> Left<'d>, steps| State {
        name,
        left: change(driver.left(name)),
        steps,
        end: End::Gone,
    };
    vec![
        gone("detaching", |left| left.claimed().attached().deleted(), DETACH),
        gone(
            "detaching-error",
            |left| {
                let text = "rpc error: code = Internal desc = busy";
                left.claimed().attached().error("detachError", text, None).deleted()
            },
            DETACH,
        ),
        gone(
            "detaching-lost",
            |left| left.on_lost_node().claimed().attached().deleted(),
            DETACH,
        ),
        gone(
            "detaching-inline",
            |left| left.inline().claimed().attached().deleted(),
            DETACH,
        ),
        gone("never-attached", |left| left.claimed().deleted(), DETACH),
        gone(
            "detaching-volume-deleted",
            |left| left.claimed().attached().volume_deleted().deleted(),
            DETACH_AND_RELEASE,
        ),
    ]
}

pub async fn whatever_a_sidecar_left(world: &World) -> Result<()> {
    let driver = &world.unconfigured_driver("heir", |builder| builder).await?;
    let states = [settled(driver), attaching(driver), detaching(driver)];
    let states: Vec<State<'_>> = states.into_iter().flatten().collect();
    for state in &states {
        state.left.clone().make().await?;
    }
    let alone = driver.left("volume-deleted").protected().volume_deleted();
    alone.make_volume().await?;
    let before = driver.mock.published();

    let operator = world.operator(operator_options()).await?;
    driver.configure(&json!({})).await?;
    let fixtures = &world.fixtures;
    for state in &states {
        match state.end {
            End::Attached => drop(fixtures.wait_for_attached(state.name).await?),
            End::Gone => fixtures.wait_for_attachment_gone(state.name).await?,
            End::Noted => drop(wait_for_note(driver, state.name).await?),
            End::Same => {}
        }
    }
    fixtures.wait_for_volume_gone("volume-deleted").await?;
    fixtures.wait_for_volume_gone("detaching-volume-deleted").await?;
    driver.looked_at_everything("heir-more").await?;

    for state in &states {
        let steps = driver.steps(&[state.name], state.name)?;
        assert!(steps.iter().all(|step| step.status < 300), "{}: {steps:#?}", state.name);
        let subject = format!(" {}", state.name);
        let seen: Vec<&str> = steps
            .iter()
            .filter_map(|step| step.what.split(&subject).next())
            .collect();
        assert_eq!(seen, state.steps, "{}: {steps:#?}", state.name);
        if state.end == End::Attached {
            expect_form_of_the_sidecar(driver, state.name).await?;
        }
    }
    let after = driver.mock.published();
    for pair in &before {
        let detached = states
            .iter()
            .any(|state| state.name == pair.0 && state.end == End::Gone);
        assert_eq!(after.contains(pair), !detached, "{pair:?}");
    }
    let unpublished = driver.calls_for("detaching-lost");
    assert_eq!(
        unpublished[0].node.as_deref(),
        Some(&*driver.node_id()),
        "from the annotation"
    );
    let_go(driver).await?;
    drop(operator);
    world.fixtures.delete::<AttacherConfig>(&driver.short).await
}

/// Waits for the note of the volume on a VolumeAttachment.
pub(super) async fn wait_for_note(driver: &Driver<'_>, name: &str) -> Result<VolumeAttachment> {
    let is_noted = |attachment: &VolumeAttachment| attachment.annotations().contains_key(NOTE_ANNOTATION);
    let fixtures = &driver.world.fixtures;
    fixtures
        .wait_for_attachment(name, "has a note of its volume", is_noted)
        .await
}

/// What we leave is what a sidecar leaves, but for one annotation of our own.
async fn expect_form_of_the_sidecar(driver: &Driver<'_>, name: &str) -> Result<()> {
    let stored = driver.world.fixtures.get_attachment(name).await?;
    assert_eq!(stored.finalizers(), [driver.finalizer()], "{name}");
    let mut annotations = stored.annotations().clone();
    assert!(annotations.remove(NOTE_ANNOTATION).is_some(), "{name}");
    let expected = BTreeMap::from([(NODE_ID_ANNOTATION.to_owned(), driver.node_id())]);
    assert_eq!(annotations, expected, "{name}");
    let status = serde_json::to_value(&stored.status)?;
    let metadata = &status["attachmentMetadata"];
    assert!(metadata["devicePath"].is_string(), "{name}: {status}");
    assert_eq!(
        status,
        json!({ "attached": true, "attachmentMetadata": metadata }),
        "{name}"
    );
    if stored.spec.source.persistent_volume_name.is_some() {
        let volume = driver.world.fixtures.cluster::<PersistentVolume>().get(name).await;
        let volume = volume.expect("it is there");
        assert_eq!(volume.finalizers(), [driver.finalizer()], "{name}");
        assert!(volume.annotations().is_empty(), "{name}");
    }
    Ok(())
}

/// What was attached by the sidecar is detached by us later, and volumes go with their last attachment.
async fn let_go(driver: &Driver<'_>) -> Result<()> {
    let fixtures = &driver.world.fixtures;
    let attached = [
        "attached",
        "attached-error",
        "attached-inline",
        "attached-volume-deleted",
        "claimed-error",
    ];
    for name in attached {
        detach(fixtures, name).await?;
        let calls = driver.calls_for(name);
        let is_unpublish = |call: &&CallRecord| call.method == Method::ControllerUnpublishVolume;
        let unpublished: Vec<_> = calls.iter().filter(is_unpublish).collect();
        assert_eq!(unpublished.len(), 1, "{name}: {calls:#?}");
        let call = (unpublished[0].node.as_deref(), unpublished[0].code);
        assert_eq!(call, (Some(&*driver.node_id()), Some(Code::Ok)), "{name}");
    }
    fixtures.wait_for_volume_gone("attached-volume-deleted").await?;
    delete_volume(fixtures, "attached").await?;
    strip(&fixtures.cluster::<VolumeAttachment>(), "status-left").await?;
    fixtures.wait_for_attachment_gone("status-left").await?;
    assert!(driver.calls_for("status-left").is_empty());
    Ok(())
}
