//! A driver that does not answer over a connection that stands, as its process was replaced.

use csi_mock_driver::{Method, MockDriver, Rule};
use serde_json::{Value, json};

use crate::rig::{World, within};
use crate::support::Result;

/// Deadlines that pass soon.
fn hasty() -> Value {
    json!({
        "timeouts": { "publish": "1s", "unpublish": "1s", "listVolumes": "1s", "probe": "1s", "identity": "1s" },
        "reconcileSync": { "mode": "Disabled" },
    })
}

/// The old process hangs in each call that moves volumes, and would answer Probe.
#[tokio::test]
async fn a_driver_that_was_replaced_at_its_socket_is_called_there() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("silent-socket", hasty()).await?;
    driver.attach("silent-socket-1").await?;
    driver.mock.script(Rule::on(Method::ControllerPublishVolume).hang());
    let socket = world.socket(&driver.short);
    std::fs::remove_file(&socket)?;
    let next = MockDriver::builder(&driver.name).accept_any_volume();
    let next = next.start(&socket).await?;
    driver.claim("silent-socket-2").await?;
    world.fixtures.wait_for_attached("silent-socket-2").await?;
    // Where the answer is read late, the call is repeated.
    assert!(!next.calls_of(Method::ControllerPublishVolume).is_empty());
    driver.wait("Ready", "True", Some("Running")).await?;
    within("the old connection to be closed", driver.mock.wait_for_connections(0)).await
}
