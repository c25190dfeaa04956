//! The life of a connection: who answers is asked first, and another endpoint is taken up after what runs has ended.

use std::time::Duration;

use csi_mock_driver::{CallResult, Method, MockDriver, Rule};
use serde_json::json;

use crate::rig::{World, within};
use crate::support::Result;
use crate::support::operator::{apply_config, wait_condition};

#[tokio::test]
async fn after_each_reconnect_the_driver_is_asked_who_it_is_before_it_works() -> Result<()> {
    let world = World::shared().await?;
    // The first try of the second volume loses the connection.
    let driver = world
        .driver("asked", json!({ "reconcileSync": { "mode": "Disabled" } }))
        .await?;
    driver.attach("asked-1").await?;
    let cut = Rule::on(Method::ControllerPublishVolume).times(1).drop_connection();
    driver.mock.script(cut);
    driver.attach("asked-2").await?;
    driver.stop().await;
    driver.claim("asked-3").await?;
    driver.start_again().await?;
    world.fixtures.wait_for_attached("asked-3").await?;
    let called: Vec<Method> = driver.mock.calls().iter().map(|call| call.method).collect();
    let hello = [
        Method::Probe,
        Method::GetPluginInfo,
        Method::GetPluginCapabilities,
        Method::ControllerGetCapabilities,
    ];
    let publish = [Method::ControllerPublishVolume];
    // The first connection makes two calls, of which the second cuts it.
    let wanted = [&hello[..], &publish, &publish, &hello, &publish, &hello, &publish].concat();
    assert_eq!(called, wanted);
    Ok(())
}

#[tokio::test]
async fn another_endpoint_drains_and_moves_that_driver_alone() -> Result<()> {
    let world = World::shared().await?;
    let beside = world.driver("move-beside", json!({})).await?;
    let driver = world.driver("move", json!({})).await?;
    let elsewhere = MockDriver::builder(&driver.name).accept_any_volume();
    let elsewhere = elsewhere.start(world.socket("move-to")).await;
    let elsewhere = elsewhere?;
    let slow = Rule::on(Method::ControllerPublishVolume).times(1);
    driver.mock.script(slow.delay(Duration::from_secs(3)));
    driver.claim("move-slow").await?;
    driver
        .call(Method::ControllerPublishVolume, "move-slow", |_| true)
        .await?;

    apply_config(&world.client, "move", world.spec("move-to", &json!({}))).await?;
    // The operator has seen it when the status is of this generation; attachments come by another watch and may be faster.
    driver.wait("Stalled", "False", None).await?;
    driver.claim("move-next").await?;
    beside.attach("move-beside-va").await?;
    let moved = elsewhere.wait_for_call(|call| call.method == Method::ControllerPublishVolume);
    let moved = within("Publish at the new place", moved).await?;
    assert_eq!(moved.volume.as_deref(), Some("move-next"));
    let slow = &driver.calls_for("move-slow")[..];
    assert_eq!(
        slow.iter().map(|call| call.outcome).collect::<Vec<_>>(),
        [CallResult::Answered]
    );
    assert!(
        slow[0].finished.is_some_and(|ended| ended <= moved.started),
        "it ended first"
    );
    for name in ["move-slow", "move-next"] {
        let stored = world.fixtures.wait_for_attached(name).await?;
        assert_eq!(stored.status.and_then(|status| status.attach_error), None, "{name}");
    }
    wait_condition(&world.client, "move", "Ready", "True", Some("Running")).await?;
    assert!(driver.calls_for("move-next").is_empty());
    assert_eq!(
        beside.mock.calls_of(Method::GetPluginInfo).len(),
        1,
        "the neighbour was not touched"
    );
    Ok(())
}
