//! `release`: refused in each unsafe case, done in the safe ones, and recorded.

use csi_mock_driver::{ControllerCapability, Method, MockDriverBuilder, Rule};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;
use tonic::Code;

use super::plugin::{Plugin, Ran};
use super::why::held;
use crate::events::event;
use crate::rig::{Driver, World, merge, merge_status};
use crate::support::Result;

const KNOWN: &str = "--i-know-the-volume-is-not-attached-anywhere";

/// A driver whose detaches fail, with a node that is not Ready.
async fn driver<'w>(
    world: &'w World,
    short: &str,
    build: impl FnOnce(MockDriverBuilder) -> MockDriverBuilder,
) -> Result<Driver<'w>> {
    let backoff = json!({ "initial": "200ms", "max": "1s" });
    let driver = world.driver_with(short, json!({ "backoff": backoff }), build).await?;
    driver
        .mock
        .script(Rule::on(Method::ControllerUnpublishVolume).fail(Code::Internal, "never"));
    world.fixtures.node(&driver.node()).await?;
    ready(world, &driver.node(), "Unknown").await;
    Ok(driver)
}

fn without_listing(builder: MockDriverBuilder) -> MockDriverBuilder {
    builder.without_capability(ControllerCapability::ListVolumes)
}

async fn ready(world: &World, node: &str, status: &str) {
    let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status, "reason": "played", "message": "by a test"}]}});
    let patched = merge_status(&world.fixtures.cluster::<Node>(), node, &patch).await;
    patched.expect("an administrator may do this");
}

async fn taint(world: &World, node: &str) {
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"});
    let patch = json!({"spec": {"taints": [taint]}});
    let patched = merge(&world.fixtures.cluster::<Node>(), node, &patch).await;
    patched.expect("an administrator may do this");
}

/// Attaches a volume and deletes its VolumeAttachment, whose detach fails.
async fn stuck(driver: &Driver<'_>, name: &str) -> Result<()> {
    driver.attach(name).await?;
    driver.world.fixtures.delete::<VolumeAttachment>(name).await?;
    driver.world.fixtures.wait_for_detach_error(name).await.map(drop)
}

/// A release that is refused, with this in the answer, and leaves the finalizer.
async fn refused(driver: &Driver<'_>, arguments: &[&str], says: &str) -> Result<Ran> {
    let plugin = Plugin::of(driver.world).await?;
    let ran = plugin.run(arguments).await?;
    assert_eq!(ran.code, 6, "{arguments:?}: {ran:?}");
    let said = format!("{}{}", ran.out, ran.error);
    assert!(said.contains(says), "{arguments:?}: {says} is not in {said}");
    let left = driver.world.fixtures.get_attachment(arguments[2]).await?;
    assert_eq!(left.metadata.finalizers, Some(vec![driver.finalizer()]));
    Ok(ran)
}

async fn released(driver: &Driver<'_>, arguments: &[&str]) -> Result<()> {
    let plugin = Plugin::of(driver.world).await?;
    let ran = plugin.run(arguments).await?;
    assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
    driver.world.fixtures.wait_for_attachment_gone(arguments[2]).await
}

#[tokio::test]
async fn the_operator_refuses_what_is_not_proven() -> Result<()> {
    let world = World::managed().await?;
    let driver = driver(&world, "rel-plain", without_listing).await?;
    stuck(&driver, "rel-unproven").await?;
    let ran = refused(&driver, &["release", "va", "rel-unproven"], "NoProof").await?;
    assert!(ran.out.contains("evidence: last error of the detach"), "{ran:?}");
    event(
        &world,
        "VolumeAttachment",
        "rel-unproven",
        "ReleaseRefused",
        "nothing proves",
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn the_operator_releases_on_proof_and_records_it() -> Result<()> {
    let world = World::managed().await?;
    let driver = driver(&world, "rel-proof", without_listing).await?;
    stuck(&driver, "rel-known").await?;
    let dry = Plugin::of(&world)
        .await?
        .run(&["release", "va", "rel-known", KNOWN, "--dry-run=server"])
        .await?;
    assert_eq!(dry.code, 0, "{dry:?}");
    let untouched = world.fixtures.get_attachment("rel-known").await?;
    assert_eq!(untouched.metadata.finalizers, Some(vec![driver.finalizer()]));
    released(
        &driver,
        &[
            "release",
            "va",
            "rel-known",
            KNOWN,
            "--reason",
            "the machine is scrapped",
        ],
    )
    .await?;
    let told = event(
        &world,
        "VolumeAttachment",
        "rel-known",
        "Released",
        "the machine is scrapped",
    )
    .await?;
    let text = told.message.unwrap_or_default();
    assert!(
        text.contains("requested by ") && text.contains("confirmed that the volume is attached nowhere"),
        "{text}"
    );
    assert_eq!(
        told.source.unwrap_or_default().component.as_deref(),
        Some("csi-attacher-operator")
    );
    stuck(&driver, "rel-tainted").await?;
    taint(&world, &driver.node()).await;
    released(&driver, &["release", "va", "rel-tainted"]).await?;
    event(
        &world,
        "VolumeAttachment",
        "rel-tainted",
        "Released",
        "out-of-service taint",
    )
    .await?;
    Ok(())
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "one history, told in its order")]
async fn where_nobody_serves_the_driver() -> Result<()> {
    let world = World::managed().await?;
    let driver = world.unconfigured_driver("rel-orphan", |builder| builder).await?;
    world.fixtures.node(&driver.node()).await?;
    ready(&world, &driver.node(), "Unknown").await;
    world.fixtures.persistent_volume(&driver.volume("rel-orphan")).await?;
    held(&driver, "rel-orphan").await?;
    world.fixtures.delete::<VolumeAttachment>("rel-orphan").await?;
    let quiet = "--quiet-for=0s";
    refused(&driver, &["release", "va", "rel-orphan", KNOWN], "less than 300 s").await?;
    refused(&driver, &["release", "va", "rel-orphan", quiet], "nothing proves").await?;
    world.fixtures.delete::<Node>(&driver.node()).await?;
    let ran = refused(
        &driver,
        &["release", "va", "rel-orphan", quiet],
        "a Node object that is missing is no proof",
    )
    .await?;
    assert!(ran.out.contains("evidence: "), "{ran:?}");
    let dry = Plugin::of(&world)
        .await?
        .run(&["release", "va", "rel-orphan", quiet, KNOWN, "--dry-run=server"])
        .await?;
    assert_eq!(dry.code, 0, "{dry:?}");
    world.fixtures.get_attachment("rel-orphan").await?;
    released(
        &driver,
        &[
            "release",
            "va",
            "rel-orphan",
            quiet,
            KNOWN,
            "--reason",
            "no such storage any more",
        ],
    )
    .await?;
    let told = event(
        &world,
        "VolumeAttachment",
        "rel-orphan",
        "Released",
        "no such storage any more",
    )
    .await?;
    assert_eq!(
        told.source.unwrap_or_default().component.as_deref(),
        Some("kubectl-attacher")
    );
    a_volume_too(&world, &driver).await
}

/// A PersistentVolume of a driver that nobody serves.
async fn a_volume_too(world: &World, driver: &Driver<'_>) -> Result<()> {
    let volumes = world.fixtures.cluster::<PersistentVolume>();
    let finalizers = json!({"metadata": {"finalizers": [driver.finalizer()]}});
    merge(&volumes, "rel-orphan", &finalizers).await?;
    let plugin = Plugin::of(world).await?;
    let live = plugin.run(&["release", "pv", "rel-orphan", KNOWN]).await?;
    assert_eq!(
        (live.code, live.error.contains("is not being deleted")),
        (6, true),
        "{live:?}"
    );
    world.fixtures.delete::<PersistentVolume>("rel-orphan").await?;
    let unproven = plugin.run(&["release", "pv", "rel-orphan"]).await?;
    assert_eq!(
        (unproven.code, unproven.error.contains("nothing proves")),
        (6, true),
        "{unproven:?}"
    );
    let done = plugin.run(&["release", "pv", "rel-orphan", KNOWN]).await?;
    assert_eq!(done.code, 0, "{done:?}");
    world.fixtures.wait_for_volume_gone("rel-orphan").await
}
