//! What is changed behind the operator's back at the driver is put right, and nothing else is touched.

use std::sync::atomic::{AtomicUsize, Ordering};

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{CallRecord, CallResult, Method, MockHandle, Rule};
use kube::Api;
use serde_json::{Value, json};
use tonic::Code;

use crate::drop_in::{Scene, end};
use crate::events::event;
use crate::limits::value;
use crate::rig::{Driver, LIMIT, World, within};
use crate::support::Result;
use crate::support::wait::wait_for;

/// What the operator logs of a volume that it is about to attach or detach once more.
const MISPLACED: &str = "the volume is not where the VolumeAttachment says";

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

/// Waits until the driver has answered with so many pages from now on.
async fn pages(driver: &Driver<'_>, count: usize) -> Result<()> {
    answers(driver, count, None).await
}

/// Waits until the driver has refused so many pages from now on. Each ends a pass, so that all but the last of these passes are
/// judged by then.
async fn refusals(driver: &Driver<'_>, count: usize) -> Result<()> {
    answers(driver, count, Some(Code::Aborted)).await
}

/// Waits until the driver has answered ListVolumes so often with this code from now on; with any, if none is given.
async fn answers(driver: &Driver<'_>, count: usize, code: Option<Code>) -> Result<()> {
    let listed = move |call: &CallRecord| {
        call.method == Method::ListVolumes
            && call.outcome == CallResult::Answered
            && (code.is_none() || call.code == code)
    };
    let last = driver.mock.calls().iter().filter(|call| listed(call)).count() + count;
    let seen = AtomicUsize::new(0);
    // The wait looks at each call that was answered once, those of the past included.
    let reached = move |call: &CallRecord| listed(call) && seen.fetch_add(1, Ordering::Relaxed) + 1 >= last;
    let what = format!("{count} pages with {code:?}");
    within(&what, driver.mock.wait_for_call(reached)).await.map(drop)
}

/// Fails unless each of these volumes was published once and never again, and none was told to be somewhere else.
fn assert_left_alone(driver: &Driver<'_>, volumes: &[&str]) {
    let log = driver.world.log_text();
    for volume in volumes {
        let calls: Vec<_> = driver
            .calls_for(volume)
            .into_iter()
            .map(|call| (call.method, call.code))
            .collect();
        assert_eq!(calls, [(Method::ControllerPublishVolume, Some(Code::Ok))], "{volume}");
        let told = |line: &&str| line.contains(MISPLACED) && line.contains(&format!("\"{volume}\""));
        let told: Vec<&str> = log.lines().filter(told).collect();
        assert!(told.is_empty(), "{told:#?}");
    }
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
    assert!(seen["error"].is_null() && seen["completionTime"].is_string(), "{seen}");
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
    fails(&driver, Rule::on(Method::ListVolumes), ["reerr-1", "reerr-2"]).await
}

/// Half a listing must not look like a volume that is gone.
#[tokio::test]
async fn a_listing_whose_second_page_fails_changes_nothing() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("rehalf", often()).await?;
    for name in ["rehalf-1", "rehalf-2"] {
        driver.attach(name).await?;
    }
    let second_page = Rule::on(Method::ListVolumes).starting_token("after:rehalf-1");
    fails(&driver, second_page, ["rehalf-1", "rehalf-2"]).await?;
    // Its first page was answered each time.
    let of_both = |call: &&CallRecord| call.method == Method::ListVolumes && call.outcome == CallResult::Answered;
    let calls = driver.mock.calls();
    let listed: Vec<&CallRecord> = calls.iter().filter(of_both).collect();
    let mut halves = 0;
    for pair in listed.windows(2).filter(|pair| pair[1].code == Some(Code::Aborted)) {
        assert_eq!(pair[0].starting_token.as_deref(), Some(""), "{pair:#?}");
        assert_eq!(
            (pair[0].code, pair[1].starting_token.as_deref()),
            (Some(Code::Ok), Some("after:rehalf-1"))
        );
        halves += 1;
    }
    assert!(halves >= 3, "{listed:#?}");
    Ok(())
}

/// Lets calls fail until two passes in a row have, and more; both volumes are left alone, then and after the driver is well again.
async fn fails(driver: &Driver<'_>, rule: Rule, volumes: [&str; 2]) -> Result<()> {
    driver.mock.script(rule.fail(Code::Aborted, "the token expired"));
    let seen = status(driver, |sync| sync["error"].is_string()).await?;
    let error = seen["error"].as_str().unwrap_or_default();
    assert!(error.contains("the token expired"), "{seen}");
    assert_eq!(seen["mismatches"], 0, "{seen}");
    refusals(driver, 4).await?;
    // What those passes had begun would be done by the time when this is.
    driver.attach_one_more(&format!("{}-3", driver.short)).await?;
    assert_left_alone(driver, &volumes);
    driver.mock.clear_rules();
    status(driver, |sync| sync["error"].is_null() && sync["volumes"] == 3).await?;
    assert_left_alone(driver, &volumes);
    Ok(())
}

#[tokio::test]
async fn switched_off_nothing_is_asked_until_it_is_switched_on() -> Result<()> {
    let world = World::shared().await?;
    let election = json!({ "leaseDuration": "60s", "renewDeadline": "40s", "retryPeriod": "1s" });
    let mut settings = often();
    settings["leaderElection"] = election.clone();
    let driver = world.driver("reoff", settings.clone()).await?;
    driver.attach("reoff-1").await?;
    pages(&driver, 3).await?;
    let off = json!({ "reconcileSync": { "mode": "Disabled" }, "leaderElection": election });
    driver.configure(&off).await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    // A pass that ran has been given up by then.
    driver.attach_one_more("reoff-2").await?;
    let asked = || driver.mock.calls_of(Method::ListVolumes).len();
    let before = asked();
    // The time of some ten passes, as the operator has it.
    world.renewals(&driver.name, 3).await?;
    assert_eq!(asked(), before);
    driver.configure(&settings).await?;
    pages(&driver, 3).await
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
    // Two passes in a row have to contradict; the second may not be counted yet.
    let metrics = operator.metrics().await?;
    let driver = ("driver_name", "drop-in.csi.test");
    let counted = |name: &str, label| {
        value(
            &metrics,
            &format!("csi_attacher_reconcile_sync_{name}_total"),
            &[driver, label],
        )
    };
    let passes = counted("passes", ("outcome", "succeeded"));
    assert!(passes >= Some(1.0), "{passes:?} in: {metrics}");
    assert_eq!(counted("passes", ("outcome", "failed")), Some(0.0), "{metrics}");
    // Once, unless a machine that is busy let a third pass look before the volume was back.
    let forced = counted("forced", ("direction", "attach"));
    assert!(forced >= Some(1.0), "{forced:?} in: {metrics}");
    assert_eq!(counted("forced", ("direction", "detach")), Some(0.0), "{metrics}");
    assert!(operator.log_text().contains(MISPLACED));
    end(&mut operator).await
}
