//! What is changed behind the operator's back at the driver is put right, and what is told of it. What a listing that fails may not do, and what
//! becomes of a volume without an attachment, is in the suite (`reconcile`) and in the unit tests of the comparison.

use csi_attacher_model::api::AttacherConfig;
use csi_mock_driver::{CallRecord, CallResult, Method};
use kube::Api;
use serde_json::{Value, json};

use crate::events::event;
use crate::rig::{Driver, LIMIT, World, within};
use crate::support::Result;
use crate::support::wait::wait_for;

/// Passes so short after one another that a test can wait for several.
fn often() -> Value {
    json!({ "reconcileSync": { "interval": "200ms", "maxEntries": 1 } })
}

/// Waits until the volume is at the node.
async fn back(driver: &Driver<'_>, volume: &str) -> Result<()> {
    let place = (volume.to_owned(), driver.node_id());
    let published = driver.mock.wait_for_published(|published| published.contains(&place));
    within("the volume to be attached again", published).await.map(drop)
}

/// Waits until the driver has answered with so many pages from now on.
async fn pages(driver: &Driver<'_>, count: usize) -> Result<()> {
    let listed = |call: &CallRecord| call.method == Method::ListVolumes && call.outcome == CallResult::Answered;
    let before = driver.mock.calls().iter().filter(|call| listed(call)).count();
    driver
        .calls(&format!("{count} pages"), before + count, listed)
        .await
        .map(drop)
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
    back(&driver, "resync-1").await?;
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
