//! The life of a connection: who answers is asked first. That another endpoint is taken up after what runs has ended, `reload` shows.

use csi_mock_driver::{Method, Rule};
use serde_json::json;

use crate::rig::World;
use crate::support::Result;

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
