//! Each hostile driver beside a good one, in one operator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_proto::v1::GetPluginInfoResponse;
use csi_mock_driver::{CallRecord, Method, Rule};
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use prost::Message as _;
use serde_json::{Value, json};
use tonic::Code;

use super::server::{Answer, Server};
use crate::error_texts::configs::NAME_MISMATCH;
use crate::error_texts::index::assert_indexed;
use crate::events::event;
use crate::rig::{LIMIT, World, condition, within};
use crate::support::operator::{IDENTITY, apply_config, release_lease};
use crate::support::wait::wait_for;
use crate::support::{Error, Result, Volume};

/// Tries that follow each other at once, comparisons without pause. The deadlines are the usual ones: what is answered, if
/// only in some way, is not to be late on a busy machine.
fn eager() -> Value {
    json!({
        "backoff": { "initial": "50ms", "max": "200ms", "jitterPercent": 0 },
        "reconcileSync": { "interval": "100ms" },
    })
}

/// The same, with deadlines that pass soon: for what hangs.
fn hasty() -> Value {
    let mut settings = eager();
    settings["timeouts"] = json!({
        "publish": "400ms", "unpublish": "400ms", "listVolumes": "400ms", "probe": "400ms", "identity": "400ms",
    });
    settings
}

/// A hostile driver with its AttacherConfig and its node. It lists nothing, which is not looked at.
async fn hostile(
    world: &World,
    short: &str,
    behave: impl Fn(&str, usize) -> Option<Answer> + Send + Sync + 'static,
) -> Result<Server> {
    let mut settings = eager();
    settings["reconcileSync"]["mode"] = json!("Disabled");
    hostile_with(world, short, &settings, behave).await
}

/// The same with other settings.
async fn hostile_with(
    world: &World,
    short: &str,
    settings: &Value,
    behave: impl Fn(&str, usize) -> Option<Answer> + Send + Sync + 'static,
) -> Result<Server> {
    let name = format!("{short}.csi.test");
    let server = Server::start(&world.socket(short), &name, behave)?;
    world
        .fixtures
        .csi_node(&format!("{short}-node"), &name, "node-id")
        .await?;
    release_lease(&world.client, IDENTITY, &name).await?;
    apply_config(&world.client, short, world.spec(short, settings)).await?;
    Ok(server)
}

/// A volume and a VolumeAttachment of a hostile driver, both of that name.
async fn claim(world: &World, short: &str, name: &str) -> Result<VolumeAttachment> {
    let driver = format!("{short}.csi.test");
    let fixtures = &world.fixtures;
    fixtures.persistent_volume(&Volume::new(name, &driver, name)).await?;
    fixtures
        .volume_attachment(name, &driver, name, &format!("{short}-node"))
        .await
}

/// Waits until the last comparison with ListVolumes failed, and answers over what.
async fn sync_error(world: &World, short: &str) -> Result<String> {
    let error = |config: &AttacherConfig| config.status.as_ref()?.last_reconcile_sync.as_ref()?.error.clone();
    let configs: Api<AttacherConfig> = Api::all(world.client.clone());
    let found = wait_for(configs, short, "a failed comparison", LIMIT, |config| {
        config.and_then(error).is_some()
    });
    let config = found.await?;
    config
        .as_ref()
        .and_then(error)
        .ok_or_else(|| Error::Other("no error".to_owned()))
}

#[tokio::test]
async fn who_hangs_is_told_and_alone() -> Result<()> {
    let world = World::shared().await?;
    let good = world.driver("hang-good", json!({})).await?;
    let _silent = hostile_with(&world, "hang-info", &hasty(), |called, _| {
        (called == "GetPluginInfo").then_some(Answer::Hang)
    })
    .await?;
    let text = condition(&world, "hang-info", "DriverReachable", "False", "Timeout").await?;
    assert!(text.contains("no answer from the driver within 0.4 s"), "{text}");
    good.attach("hang-info-beside").await?;
    let hangs = Arc::new(AtomicBool::new(true));
    let still = hangs.clone();
    let server = hostile_with(&world, "hang-work", &hasty(), move |called, _| {
        let work = ["ControllerPublishVolume", "ControllerUnpublishVolume", "ListVolumes"];
        (work.contains(&called) && still.load(Ordering::Relaxed)).then_some(Answer::Hang)
    })
    .await?;
    claim(&world, "hang-work", "hang-work-va").await?;
    let error = world.fixtures.wait_for_attach_error("hang-work-va").await?;
    assert_eq!(error.error_code, Some(Code::DeadlineExceeded as i32), "{error:?}");
    let text = condition(&world, "hang-work", "AttachmentsHealthy", "False", "AttachmentsFailing").await?;
    assert!(
        text.contains("hang-work-va") && text.contains("DeadlineExceeded"),
        "{text}"
    );
    let text = sync_error(&world, "hang-work").await?;
    assert!(text.contains("code = DeadlineExceeded"), "{text}");
    good.attach("hang-work-beside").await?;
    // Nobody knows whether the volume is at the node, so that it is taken back; that hangs too.
    world.fixtures.delete::<VolumeAttachment>("hang-work-va").await?;
    within("Unpublish", server.called("ControllerUnpublishVolume", 2)).await?;
    hangs.store(false, Ordering::Relaxed);
    world.fixtures.wait_for_attachment_gone("hang-work-va").await?;
    good.wait("Ready", "True", Some("Running")).await
}

#[tokio::test]
async fn a_flood_of_errors_stays_with_its_driver() -> Result<()> {
    let world = World::shared().await?;
    let good = world.driver("flood-good", json!({})).await?;
    let settings = json!({ "backoff": { "initial": "1ms", "max": "1ms", "jitterPercent": 0 } });
    let flood = world.driver("flood", settings).await?;
    flood
        .mock
        .script(Rule::on(Method::ControllerPublishVolume).fail(Code::Internal, "no\tno\u{7}no"));
    let names: Vec<String> = (0..20).map(|index| format!("flood-{index}")).collect();
    try_join_all(names.iter().map(|name| flood.claim(name))).await?;
    let text = condition(&world, "flood", "AttachmentsHealthy", "False", "AttachmentsFailing").await?;
    assert!(text.contains("code = Internal desc = no no"), "{text}");
    for index in 0..5 {
        good.attach(&format!("flood-beside-{index}")).await?;
    }
    // Numbers of calls begin with 0, and few are of other methods.
    let is_late = |call: &CallRecord| call.method == Method::ControllerPublishVolume && call.id > 110;
    flood.calls("it floods", 1, is_late).await?;
    flood.mock.clear_rules();
    for name in &names {
        within(name, world.fixtures.wait_for_attached(name)).await??;
    }
    flood.wait("AttachmentsHealthy", "True", None).await
}

#[tokio::test]
async fn a_driver_that_comes_back_under_another_name_is_another() -> Result<()> {
    let world = World::shared().await?;
    let good = world.driver("renamed-good", json!({})).await?;
    let driver = world.driver("renamed", json!({})).await?;
    driver.attach("renamed-before").await?;
    let next = "renamed-next.csi.test";
    let both = [(&*driver.name, "renamed-node-id"), (next, "renamed-node-id")];
    world.fixtures.csi_node_with("renamed-both", &both).await?;
    let fixtures = &world.fixtures;
    driver.stop().await;
    driver.mock.set_driver_name(next);
    driver.start_again().await?;
    let configs: Api<AttacherConfig> = Api::all(world.client.clone());
    wait_for(configs, "renamed", "the new name", LIMIT, |config| {
        let driver = config.and_then(|config| config.status.as_ref()?.driver.as_ref());
        driver.is_some_and(|driver| driver.name == next)
    })
    .await?;
    // What the old name has is not the business of the new one.
    driver.claim_at("renamed-old", "renamed-both").await?;
    fixtures
        .persistent_volume(&Volume::new("renamed-new", next, "renamed-new"))
        .await?;
    fixtures
        .volume_attachment("renamed-new", next, "renamed-new", "renamed-both")
        .await?;
    fixtures.wait_for_attached("renamed-new").await?;
    assert!(driver.calls_for("renamed-old").is_empty());
    assert_eq!(driver.calls_for("renamed-before").len(), 1);

    // With spec.driverName it is not even that.
    driver.configure(&json!({ "driverName": next })).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.stop().await;
    driver.mock.set_driver_name(&driver.name);
    driver.start_again().await?;
    let text = condition(&world, "renamed", "Stalled", "True", "DriverNameMismatch").await?;
    assert_indexed(NAME_MISMATCH, &text);
    for part in [&*driver.name, next, "spec.driverName"] {
        assert!(text.contains(part), "{text}");
    }
    driver.wait("Ready", "False", Some("DriverNameMismatch")).await?;
    let volume = Volume::new("renamed-late", next, "renamed-late");
    fixtures.persistent_volume(&volume).await?;
    fixtures
        .volume_attachment("renamed-late", next, "renamed-late", "renamed-both")
        .await?;
    good.attach_one_more("renamed-beside").await?;
    let unserved = ["renamed-old", "renamed-late"];
    for name in unserved {
        assert!(driver.calls_for(name).is_empty(), "{name}");
    }
    assert_eq!(world.requests(&unserved)?, []);
    driver.stop().await;
    driver.mock.set_driver_name(next);
    driver.start_again().await?;
    driver.wait("Stalled", "False", None).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    fixtures.wait_for_attached("renamed-late").await.map(drop)
}

/// Each name has a Lease, which nobody may delete, and series of metrics.
#[tokio::test]
async fn a_driver_of_many_names_gets_few_leases_and_series() -> Result<()> {
    let world = World::shared().await?;
    let good = world.driver("names-good", json!({})).await?;
    let name = |number: usize| format!("names-{number}.csi.test");
    let server = hostile(&world, "names", move |called, before| match called {
        "GetPluginInfo" => Some(Answer::Bytes(
            GetPluginInfoResponse {
                name: name(before),
                vendor_version: "1".to_owned(),
                ..Default::default()
            }
            .encode_to_vec(),
        )),
        // It is asked, answers, and hangs up.
        "ControllerGetCapabilities" => Some(Answer::GoAway),
        _ => None,
    })
    .await?;
    within("a fourth name", server.called("GetPluginInfo", 4)).await?;
    let text = condition(&world, "names", "Stalled", "True", "DriverNameMismatch").await?;
    assert!(
        text.contains("spec.driverName") && text.contains("after it had 3 other names"),
        "{text}"
    );
    let leases: Api<Lease> = Api::all(world.client.clone());
    let leases = leases.list(&ListParams::default()).await?;
    let made = leases
        .iter()
        .filter(|lease| lease.name_any().starts_with("external-attacher-leader-names-"))
        .count();
    assert!(made <= 4, "{made} Leases, that of the good driver included");
    let metrics = world.shared_operator().metrics().await?;
    for number in 0..2 {
        let left = metrics
            .lines()
            .find(|line| line.contains(&format!("\"{}\"", name(number))));
        assert_eq!(left, None, "a name that nobody has any more is left in the metrics");
    }
    good.attach("names-beside").await.map(drop)
}

/// As one that lists a migrated volume by another handle. Each comparison repeated the attach, for ever.
#[tokio::test]
async fn a_driver_that_never_lists_what_it_attached_is_asked_more_and_more_rarely() -> Result<()> {
    let world = World::shared().await?;
    let server = hostile_with(&world, "never-listed", &eager(), |_, _| None).await?;
    claim(&world, "never-listed", "never-listed-va").await?;
    world.fixtures.wait_for_attached("never-listed-va").await?;
    let words = "answers OK when it is attached to the node with ID node-id, and does not list it there";
    event(
        &world,
        "VolumeAttachment",
        "never-listed-va",
        "MismatchRepeating",
        words,
    )
    .await?;
    let listings = server.count("ListVolumes");
    within("comparisons", server.called("ListVolumes", listings + 60)).await?;
    let publishes = server.count("ControllerPublishVolume");
    assert!(
        (4..=12).contains(&publishes),
        "{publishes} in {} comparisons",
        listings + 60
    );
    Ok(())
}

#[tokio::test]
async fn a_goodbye_loses_no_call() -> Result<()> {
    let world = World::shared().await?;
    let leave = |called: &str, _| (called == "ControllerPublishVolume").then_some(Answer::GoAway);
    let server = hostile(&world, "goodbye", leave).await?;
    for index in 0..3 {
        let name = format!("goodbye-{index}");
        claim(&world, "goodbye", &name).await?;
        let stored = world.fixtures.wait_for_attached(&name).await?;
        assert_eq!(stored.status.and_then(|status| status.attach_error), None);
    }
    assert_eq!(server.count("ControllerPublishVolume"), 3);
    Ok(())
}

#[tokio::test]
async fn words_and_contexts_without_measure_are_cut_and_refused() -> Result<()> {
    let world = World::shared().await?;
    let wild = "%1B[31m%07no%0A".repeat(200) + &"x".repeat(64 << 10);
    let refuse = move |called: &str, _| (called == "ControllerPublishVolume").then(|| Answer::Status(9, wild.clone()));
    let _server = hostile(&world, "wild", refuse).await?;
    claim(&world, "wild", "wild-va").await?;
    let error = world.fixtures.wait_for_attach_error("wild-va").await?;
    assert_eq!(error.error_code, Some(Code::FailedPrecondition as i32));
    let text = error.message.unwrap_or_default();
    assert!(
        text.contains("no") && text.len() < 5000 && !text.chars().any(char::is_control),
        "{text}"
    );
    let text = condition(&world, "wild", "AttachmentsHealthy", "False", "AttachmentsFailing").await?;
    assert!(text.len() <= 1024 && !text.chars().any(char::is_control), "{text}");

    for (name, bytes, words) in [
        ("stuffed-small", 600 << 10, "publish"),
        ("stuffed-large", 5 << 20, "cannot be read"),
    ] {
        let context = BTreeMap::from([("stuffing".to_owned(), "x".repeat(bytes))]);
        let stuff = |settings: &mut csi_mock_driver::MockSettings| {
            settings.publish_contexts.insert(name.to_owned(), context);
        };
        let driver = world.driver_with(name, json!({}), |mock| mock.settings(stuff)).await?;
        driver.claim(name).await?;
        let error = world.fixtures.wait_for_attach_error(name).await?;
        let text = error.message.unwrap_or_default();
        assert!(text.contains(words), "{name}: {text}");
        // The driver has published it all the same.
        world.fixtures.delete::<VolumeAttachment>(name).await?;
        driver.call(Method::ControllerUnpublishVolume, name, |_| true).await?;
        world.fixtures.wait_for_attachment_gone(name).await?;
        assert!(driver.mock.published().is_empty(), "{name}");
    }
    Ok(())
}
