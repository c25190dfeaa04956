//! What is changed behind the operator's back at the driver is put right, and nothing else is touched.

use std::sync::atomic::{AtomicUsize, Ordering};

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{CallRecord, Method, MockHandle, Outcome, Rule};
use kube::Api;
use serde_json::{Value, json};
use tonic::Code;

use crate::drop_in::{Scene, end};
use crate::events::event;
use crate::rig::{Driver, LIMIT, World, within};
use crate::support::Result;
use crate::support::wait::wait_for;

/// Passes so short after one another that a test can wait for several.
fn often() -> Value {
    json!({ "reconcileSync": { "interval": "200ms", "maxEntries": 1 } })
}

/// Waits until the volume is at the node.
async fn back(mock: &MockHandle, volume: &str, node_id: &str) -> Result<()> {
    let place = (volume.to_owned(), node_id.to_owned());
    let published = mock.wait_for_published(|published| published.contains(&place));
    within("the volume to be attached again", published).await.map(drop)
}

/// Waits until the driver was asked for so many pages from now on.
async fn pages(driver: &Driver<'_>, count: usize) -> Result<()> {
    let listed = |call: &CallRecord| call.method == Method::ListVolumes && call.outcome == Outcome::Answered;
    let last = driver.mock.calls().into_iter().filter(listed).count() + count;
    let seen = AtomicUsize::new(0);
    // The wait looks at each call that was answered once, those of the past included.
    let reached = move |call: &CallRecord| listed(call) && seen.fetch_add(1, Ordering::Relaxed) + 1 >= last;
    within("pages", driver.mock.wait_for_call(reached)).await.map(drop)
}

async fn status(driver: &Driver<'_>, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let api: Api<AttacherConfig> = Api::all(driver.world.client.clone());
    let found = wait_for(api, &driver.short, "lastReconcileSync", LIMIT, |config| {
        let status = config.and_then(|config| serde_json::to_value(config.status.as_ref()?).ok());
        status.is_some_and(|status| wanted(&status["lastReconcileSync"]))
    });
    let status = found.await?.and_then(|config| serde_json::to_value(config.status).ok());
    Ok(status.unwrap_or_default()["lastReconcileSync"].clone())
}

#[tokio::test]
async fn a_volume_that_was_detached_by_hand_is_attached_again() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("resync", often()).await?;
    for name in ["resync-1", "resync-2"] {
        driver.attach(name).await?;
    }
    // Nobody asked for this one: it stays where it is.
    driver.mock.create_volume("resync-stranger");
    driver.mock.drift_attach("resync-stranger", "somewhere");
    assert!(driver.mock.drift_detach("resync-1", &driver.node_id()));
    back(&driver.mock, "resync-1", &driver.node_id()).await?;
    pages(&driver, 9).await?;
    // Who looks at the volume is told of both, and the alarm is over by itself.
    event(
        &world,
        "PersistentVolume",
        "resync-1",
        "AttachmentMismatch",
        "it is attached again",
    )
    .await?;
    event(
        &world,
        "VolumeAttachment",
        "resync-1",
        "AttachmentRepaired",
        "lists it at the node",
    )
    .await?;
    let seen = status(&driver, |sync| sync["mismatches"] == 0 && sync["volumes"] == 3).await?;
    assert!(seen["error"].is_null() && seen["finishedAt"].is_string(), "{seen}");
    // Once, and recorded, and its neighbour was left alone.
    let methods = |name: &str| -> Vec<Method> { driver.calls_for(name).into_iter().map(|call| call.method).collect() };
    assert_eq!(methods("resync-1"), [Method::ControllerPublishVolume; 2]);
    assert_eq!(methods("resync-2"), [Method::ControllerPublishVolume]);
    assert_eq!(methods("resync-stranger"), []);
    let stored = world.fixtures.get_attachment("resync-1").await?;
    assert!(
        stored
            .status
            .is_some_and(|status| status.attached && status.attach_error.is_none())
    );
    Ok(())
}

/// As after a restore of etcd: nobody knows whether it is in use.
#[tokio::test]
async fn a_volume_without_an_attachment_is_reported_and_not_touched() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("restray", often()).await?;
    driver.attach("restray-1").await?;
    driver.mock.create_volume("restray-2");
    driver.mock.drift_attach("restray-2", &driver.node_id());
    let seen = status(&driver, |sync| sync["withoutAttachment"]["count"] == 1).await?;
    let example = json!([{"volumeHandle": "restray-2", "nodeID": driver.node_id()}]);
    assert_eq!(seen["withoutAttachment"]["examples"], example, "{seen}");
    let words = "1 volume at nodes of this cluster without a VolumeAttachment, such as volume restray-2";
    event(
        &world,
        "AttacherConfig",
        &driver.short,
        "VolumesWithoutAttachment",
        words,
    )
    .await?;
    pages(&driver, 9).await?;
    assert!(driver.calls_for("restray-2").is_empty());
    // It gets one, and is counted no more.
    driver.attach("restray-2").await?;
    status(&driver, |sync| sync["withoutAttachment"].is_null()).await?;
    assert_eq!(driver.calls_for("restray-2").len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_repair_that_fails_is_tried_until_it_works_and_attached_stays() -> Result<()> {
    let world = World::shared().await?;
    let mut settings = often();
    settings["backoff"] = json!({ "initial": "50ms", "max": "200ms" });
    let driver = world.driver("refix", settings).await?;
    driver.attach("refix-1").await?;
    let busy = Rule::on(Method::ControllerPublishVolume).times(3);
    driver.mock.script(busy.fail(Code::Unavailable, "busy"));
    assert!(driver.mock.drift_detach("refix-1", &driver.node_id()));
    back(&driver.mock, "refix-1", &driver.node_id()).await?;
    let stored = world.fixtures.get_attachment("refix-1").await?;
    assert!(stored.status.is_some_and(|status| status.attached));
    let calls = driver.calls_for("refix-1");
    assert_eq!(calls.len(), 5, "{calls:?}");
    Ok(())
}

#[tokio::test]
async fn a_listing_that_fails_is_told_and_changes_nothing() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("reerr", often()).await?;
    for name in ["reerr-1", "reerr-2"] {
        driver.attach(name).await?;
    }
    // Half a listing must not look like a volume that is gone.
    let second_page = Rule::on(Method::ListVolumes).fail(Code::Aborted, "the token expired");
    driver.mock.script(second_page);
    let seen = status(&driver, |sync| sync["error"].is_string()).await?;
    assert!(
        seen["error"].as_str().unwrap_or_default().contains("the token expired"),
        "{seen}"
    );
    passes_failing(&driver).await?;
    assert!(
        driver
            .calls_for("reerr-1")
            .iter()
            .all(|call| call.outcome == Outcome::Answered)
    );
    assert_eq!(driver.calls_for("reerr-1").len(), 1);
    driver.mock.clear_rules();
    status(&driver, |sync| sync["error"].is_null() && sync["volumes"] == 2).await?;

    // Switched off, nothing is asked; switched on again, it goes on.
    driver
        .configure(&json!({ "reconcileSync": { "mode": "Disabled" } }))
        .await?;
    driver.wait("Ready", "True", None).await?;
    driver.configure(&often()).await?;
    pages(&driver, 1).await
}

async fn passes_failing(driver: &Driver<'_>) -> Result<()> {
    let failed = |call: &CallRecord| call.method == Method::ListVolumes && call.code == Some(Code::Aborted);
    within("a failing pass", driver.mock.wait_for_call(failed))
        .await
        .map(drop)
}

#[tokio::test]
async fn the_flags_of_the_sidecar_do_the_same() -> Result<()> {
    let scene = Scene::new().await?;
    let mut operator = scene.start(&["--reconcile-sync=200ms", "--max-entries=1"]).await?;
    operator.wait_ready().await?;
    for name in ["flags-1", "flags-2"] {
        scene.attach(name).await?;
    }
    assert!(scene.mock.drift_detach("flags-2", "node-id"));
    back(&scene.mock, "flags-2", "node-id").await?;
    let passes = "csi_attacher_reconcile_sync_passes_total{driver_name=\"drop-in.csi.test\",outcome=\"succeeded\"}";
    let metrics = operator.metrics().await?;
    assert!(metrics.contains(passes));
    // Once, unless a machine that is busy let a third pass look before the volume was back.
    let forced = "csi_attacher_reconcile_sync_forced_total{driver_name=\"drop-in.csi.test\",direction=\"attach\"} ";
    let times = metrics.lines().find_map(|line| line.strip_prefix(forced));
    assert!(times.is_some_and(|times| times != "0"), "{metrics}");
    assert!(
        operator
            .log_text()
            .contains("the volume is not where the VolumeAttachment says")
    );
    end(&mut operator).await
}
