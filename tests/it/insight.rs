//! What is wrong with attachments and does not right itself is found and told: as metrics, conditions and events.

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{Method, Rule};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::time::Duration;
use tonic::Code;

use crate::events::event;
use crate::rig::{Driver, LIMIT, World, detach, merge_status, operator_options, part, strip};
use crate::support::operator::apply_config;
use crate::support::wait::wait_for;
use crate::support::{Error, Operator, OperatorOptions, Result, Volume};

/// An operator that looks often and has little patience.
fn keen() -> OperatorOptions {
    operator_options()
        .argument("--stuck-after=2s")
        .argument("--inspection-interval=300ms")
}

/// Waits until the gauge of a driver's findings of this kind has a value.
async fn count(operator: &Operator, driver: &Driver<'_>, kind: &str, value: usize) -> Result<()> {
    let line = format!(
        "csi_attacher_findings{{driver_name=\"{}\",kind=\"{kind}\"}} {value}\n",
        driver.name
    );
    let shown = |status, body: &str| status == 200 && body.contains(&line);
    operator.wait_for_answer("/metrics", shown).await.map(drop)
}

/// Waits until a condition is so, and answers its message.
async fn message(driver: &Driver<'_>, kind: &str, status: &str, reason: &str) -> Result<String> {
    told(driver, kind, status, reason, &[]).await
}

/// As [`message`], and the message has these parts. What is asked for now and then only, such as a Secret, may take longer than a watch.
pub async fn told(driver: &Driver<'_>, kind: &str, status: &str, reason: &str, parts: &[&str]) -> Result<String> {
    let found = |config: Option<&AttacherConfig>| {
        let conditions = &config?.status.as_ref()?.conditions;
        let found = conditions.iter().find(|condition| condition.type_ == kind)?;
        let is_so = found.status == status && found.reason == reason;
        let is_told = parts.iter().all(|part| found.message.contains(part));
        (is_so && is_told).then(|| found.message.clone())
    };
    let api: Api<AttacherConfig> = Api::all(driver.world.client.clone());
    let what = format!("{kind}={status} {reason} with {parts:?}");
    let config = wait_for(api, &driver.short, &what, LIMIT * 2, |config| found(config).is_some()).await?;
    Ok(found(config.as_ref()).unwrap_or_default())
}

/// A driver with its CSIDriver.
async fn known<'w>(world: &'w World, short: &str, attach_required: bool) -> Result<Driver<'w>> {
    let settings = json!({
        "backoff": { "initial": "50ms", "max": "100ms" }, "reconcileSync": { "mode": "Disabled" },
    });
    world
        .fixtures
        .csi_driver(&format!("{short}.csi.test"), attach_required)
        .await?;
    world.driver(short, settings).await
}

#[tokio::test]
async fn what_is_wrong_is_told_while_it_is() -> Result<()> {
    let world = &World::own().await?;
    let operator = &world.operator(keen()).await?;
    part("unserved", unserved(world, operator)).await?;
    part("stuck", stuck(world, operator)).await?;
    part("surroundings", surroundings(world, operator)).await?;
    part("CSIDrivers", csi_drivers(world, operator)).await?;
    part("another attacher", another_attacher(world, operator)).await?;
    part("without a name", nameless(world, operator)).await
}

/// The name of an AttacherConfig is no name of a driver: its series would stay when it is gone.
async fn nameless(world: &World, operator: &Operator) -> Result<()> {
    apply_config(&world.client, "nameless", world.spec("nameless", &json!({}))).await?;
    event(world, "AttacherConfig", "nameless", "DriverUnreachable", "").await?;
    let about = "csi_attacher_events_total{driver_name=\"\",reason=\"DriverUnreachable\",outcome=\"written\"} ";
    let counted = |status, body: &str| status == 200 && body.contains(about);
    let metrics = operator.wait_for_answer("/metrics", counted).await?;
    assert!(!metrics.contains("driver_name=\"nameless\""), "{metrics}");
    Ok(())
}

/// A sidecar without a Lease writes beside the operator: it is reported, and serving goes on.
async fn another_attacher(world: &World, operator: &Operator) -> Result<()> {
    let driver = known(world, "twins", true).await?;
    driver.attach("twins-va").await?;
    let api: Api<VolumeAttachment> = Api::all(world.client.clone());
    let params = PatchParams {
        field_manager: Some("csi-attacher".to_owned()),
        ..PatchParams::default()
    };
    // What is written just after the Lease was taken may be the last word of a sidecar that gave it up.
    let writes = async {
        for number in 0_u32.. {
            let status = json!({"status": {"attachmentMetadata": {"number": number.to_string()}}});
            let written = api.patch_status("twins-va", &params, &Patch::Merge(&status)).await;
            written?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok::<(), Error>(())
    };
    let parts = ["VolumeAttachment twins-va", "written by csi-attacher"];
    tokio::select! {
        ended = writes => ended?,
        text = told(&driver, "AttachmentsConsistent", "False", "OtherAttacher", &parts) => drop(text?),
    }
    count(operator, &driver, "other_attacher", 1).await?;
    event(world, "VolumeAttachment", "twins-va", "OtherAttacher", "csi-attacher").await?;
    driver.attach("twins-more").await.map(drop)
}

async fn stuck(world: &World, operator: &Operator) -> Result<()> {
    let driver = known(world, "stuck", true).await?;
    driver.attach("stuck-fine").await?;
    count(operator, &driver, "attach_stuck", 0).await?;
    let busy = Rule::on(Method::ControllerPublishVolume).volume("stuck-va");
    driver.mock.script(busy.fail(Code::Internal, "disk is busy"));
    driver.claim("stuck-va").await?;
    // One that has not failed yet may be told as stuck before its error is known.
    let parts = [
        "VolumeAttachment stuck-va",
        "node stuck-node",
        "waiting since 20",
        "disk is busy",
    ];
    let text = told(&driver, "AttachmentsHealthy", "False", "AttachmentsStuck", &parts).await?;
    assert!(!text.contains("stuck-fine"), "{text}");
    count(operator, &driver, "attach_stuck", 1).await?;
    // The other one may have been stuck for a moment as well, on a busy machine; then that is what the AttacherConfig tells.
    for (kind, name, part) in [
        ("VolumeAttachment", "stuck-va", "stuck-va"),
        ("AttacherConfig", "stuck", "VolumeAttachment stuck-"),
    ] {
        let seen = event(world, kind, name, "AttachStuck", part).await?;
        assert_eq!((seen.type_.as_deref(), seen.count), (Some("Warning"), Some(1)));
    }
    driver.mock.clear_rules();
    world.fixtures.wait_for_attached("stuck-va").await?;
    message(&driver, "AttachmentsHealthy", "True", "NoFailures").await?;
    count(operator, &driver, "attach_stuck", 0).await?;
    message(&driver, "AttachmentsConsistent", "True", "Consistent").await?;

    let busy = Rule::on(Method::ControllerUnpublishVolume).volume("stuck-va");
    driver.mock.script(busy.fail(Code::Internal, "still mounted"));
    world.fixtures.delete::<VolumeAttachment>("stuck-va").await?;
    count(operator, &driver, "detach_stuck", 1).await?;
    let parts = ["the detach of VolumeAttachment stuck-va", "still mounted"];
    told(&driver, "AttachmentsHealthy", "False", "AttachmentsStuck", &parts).await?;
    driver.mock.clear_rules();
    world.fixtures.wait_for_attachment_gone("stuck-va").await?;
    count(operator, &driver, "detach_stuck", 0).await
}

async fn surroundings(world: &World, operator: &Operator) -> Result<()> {
    let driver = known(world, "astray", true).await?;
    world
        .fixtures
        .csi_node("astray-other", &driver.name, "other-id")
        .await?;
    world
        .fixtures
        .csi_node("astray-third", &driver.name, "third-id")
        .await?;
    for (name, node) in [
        ("astray-1", "astray-node"),
        ("astray-2", "astray-other"),
        ("astray-3", "astray-third"),
    ] {
        driver.claim_at(name, node).await?;
        world.fixtures.wait_for_attached(name).await?;
    }
    disturb(world, &driver).await?;
    for (kind, value) in [
        ("attached_twice", 2),
        ("volume_gone", 1),
        ("node_gone", 1),
        ("driver_not_on_node", 0),
    ] {
        count(operator, &driver, kind, value).await?;
    }
    // The worst is the reason, the message tells of all.
    let parts = ["astray-1", "astray-2", "astray-3"];
    told(&driver, "AttachmentsConsistent", "False", "AttachedTwice", &parts).await?;
    event(
        world,
        "VolumeAttachment",
        "astray-twin",
        "AttachedTwice",
        "node astray-node",
    )
    .await?;
    event(world, "VolumeAttachment", "astray-2", "VolumeGone", "astray-2").await?;
    event(world, "VolumeAttachment", "astray-3", "NodeGone", "node astray-third").await?;

    for name in ["astray-twin", "astray-2", "astray-3"] {
        detach(&world.fixtures, name).await?;
    }
    for kind in ["attached_twice", "volume_gone", "node_gone"] {
        count(operator, &driver, kind, 0).await?;
    }
    message(&driver, "AttachmentsConsistent", "True", "Consistent")
        .await
        .map(drop)
}

/// Does by force what Kubernetes does not: a volume is attached twice, another one goes, and so does a node.
async fn disturb(world: &World, driver: &Driver<'_>) -> Result<()> {
    // The volume of the first is attached elsewhere too, as by hand.
    world
        .fixtures
        .volume_attachment("astray-twin", &driver.name, "astray-1", "astray-other")
        .await?;
    let attachments = world.fixtures.cluster::<VolumeAttachment>();
    merge_status(&attachments, "astray-twin", &json!({ "status": { "attached": true } })).await?;
    // That of the second is removed by force, and the node of the third too.
    world.fixtures.delete::<PersistentVolume>("astray-2").await?;
    strip(&world.fixtures.cluster::<PersistentVolume>(), "astray-2").await?;
    world.fixtures.delete::<CSINode>("astray-third").await
}

async fn csi_drivers(world: &World, operator: &Operator) -> Result<()> {
    let driver = world.driver("unknown", json!({})).await?;
    message(&driver, "AttachmentsConsistent", "False", "CSIDriverMissing").await?;
    event(
        world,
        "AttacherConfig",
        "unknown",
        "CSIDriverMissing",
        "there is no CSIDriver unknown.csi.test",
    )
    .await?;
    driver.attach("unknown-va").await?;
    world.fixtures.csi_driver(&driver.name, false).await?;
    message(&driver, "AttachmentsConsistent", "False", "LeftOver").await?;
    count(operator, &driver, "attach_not_required", 1).await?;
    count(operator, &driver, "left_over", 1).await?;
    event(
        world,
        "VolumeAttachment",
        "unknown-va",
        "LeftOver",
        "attachRequired false",
    )
    .await?;
    // It cannot be changed, only made anew.
    world.fixtures.delete::<CSIDriver>(&driver.name).await?;
    world.fixtures.csi_driver(&driver.name, true).await?;
    message(&driver, "AttachmentsConsistent", "True", "Consistent")
        .await
        .map(drop)
}

/// An attachment whose driver has no AttacherConfig is told by each replica. One that waits for a driver that another replica leads waits for
/// no AttacherConfig.
async fn unserved(world: &World, leader: &Operator) -> Result<()> {
    let driver = known(world, "led", true).await?;
    driver
        .mock
        .script(Rule::on(Method::ControllerPublishVolume).fail(Code::Internal, "never"));
    let standby = world.operator(keen().argument("--identity=a-standby-replica")).await?;
    driver.claim("led").await?;
    count(leader, &driver, "attach_stuck", 1).await?;
    let name = "nobody.csi.test";
    world
        .fixtures
        .persistent_volume(&Volume::new("nobody-pv", name, "h"))
        .await?;
    world
        .fixtures
        .volume_attachment("nobody-va", name, "nobody-pv", "nowhere")
        .await?;
    let line = |count: usize| format!("csi_attacher_unserved{{resource=\"volumeattachments\"}} {count}\n");
    let (one, none) = (line(1), line(0));
    for operator in [leader, &standby] {
        let shown = |status, body: &str| status == 200 && body.contains(&one);
        operator.wait_for_answer("/metrics", shown).await?;
        // Logged just after it is counted.
        operator.wait_for_log("their drivers have no AttacherConfig").await?;
        let log = operator.log_text();
        let told = |driver: &str| {
            log.lines()
                .any(|line| line.contains("their drivers have no AttacherConfig") && line.contains(driver))
        };
        assert!(told(name) && !told(&driver.name), "{log}");
    }
    world.fixtures.delete::<VolumeAttachment>("nobody-va").await?;
    for operator in [leader, &standby] {
        let shown = |status, body: &str| status == 200 && body.contains(&none);
        operator.wait_for_answer("/metrics", shown).await?;
    }
    driver.mock.clear_rules();
    detach(&world.fixtures, "led").await?;
    world.fixtures.delete::<AttacherConfig>("led").await
}
