//! Drivers that do not answer over a connection that stands: it leads nowhere, or to a process that was replaced.

use std::net::SocketAddr;

use csi_mock_driver::{ListenEndpoint, Method, MockDriver, Rule};
use serde_json::{Value, json};

use crate::rig::{Driver, World, within};
use crate::support::operator::{IDENTITY, apply_config, release_lease, wait_condition};
use crate::support::tunnel::Tunnel;
use crate::support::{Error, Result};

/// Deadlines that pass soon.
fn hasty() -> Value {
    json!({
        "timeouts": { "publish": "1s", "unpublish": "1s", "listVolumes": "1s", "probe": "1s", "identity": "1s" },
        "reconcileSync": { "mode": "Disabled" },
    })
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Other(error.into().to_string())
}

/// A driver on a port of the loopback interface, behind a proxy.
#[tokio::test]
async fn a_connection_that_a_proxy_swallows_is_replaced() -> Result<()> {
    let world = World::shared().await?;
    let (short, name) = ("silent-proxy".to_owned(), "silent-proxy.csi.test".to_owned());
    let any = ListenEndpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mock = MockDriver::builder(&name).accept_any_volume();
    let mock = mock.start_on(any).await?;
    let ListenEndpoint::Tcp(address) = mock.endpoint().clone() else {
        return Err(other("no port"));
    };
    let driver = Driver {
        world: &world,
        short,
        name,
        mock,
    };
    world
        .fixtures
        .csi_node(&driver.node(), &driver.name, &driver.node_id())
        .await?;
    release_lease(&world.client, IDENTITY, &driver.name).await?;
    let tunnel = Tunnel::to(&address.to_string()).await?;
    let mut spec = world.spec(&driver.short, &hasty());
    spec["endpoint"] = json!(format!("http://{}", tunnel.address()));
    apply_config(&world.client, &driver.short, spec).await?;
    driver.attach("silent-proxy-1").await?;
    for round in 2..4 {
        tunnel.swallow();
        driver.attach(&format!("silent-proxy-{round}")).await?;
        assert_eq!(tunnel.opened(), round, "one more connection");
    }
    driver.wait("DriverReachable", "True", Some("Connected")).await
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
    assert_eq!(next.calls_of(Method::ControllerPublishVolume).len(), 1);
    driver.wait("Ready", "True", Some("Running")).await?;
    within("the old connection to be closed", driver.mock.wait_for_connections(0)).await
}

/// Nobody answers, over whatever connection: that is said, and is over when somebody does.
#[tokio::test]
async fn a_driver_that_answers_nothing_any_more_is_unreachable() -> Result<()> {
    let world = World::shared().await?;
    let driver = world.driver("silent-driver", hasty()).await?;
    driver.attach("silent-driver-1").await?;
    driver.mock.script(Rule::any().hang());
    driver.claim("silent-driver-2").await?;
    driver.wait("DriverReachable", "False", Some("Timeout")).await?;
    wait_condition(
        &world.client,
        &driver.short,
        "Ready",
        "False",
        Some("DriverUnreachable"),
    )
    .await?;
    driver.mock.clear_rules();
    world.fixtures.wait_for_attached("silent-driver-2").await?;
    driver.wait("DriverReachable", "True", Some("Connected")).await
}
