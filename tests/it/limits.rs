//! The limits of a driver: work that waits for one shows in status and metrics. That lanes hold each other up as little as drivers do, and
//! the limit of requests, is in the unit tests of the attempts (`lanes`).

use csi_mock_driver::{Method, Rule};
use serde_json::{Value, json};

use crate::insight::told;
use crate::rig::{Driver, World};
use crate::support::{Operator, Result};

const PUBLISH: Method = Method::ControllerPublishVolume;
const UNPUBLISH: Method = Method::ControllerUnpublishVolume;

/// The value of the one series with this name and these labels.
pub fn value(metrics: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |line: &str| {
        labels
            .iter()
            .all(|(key, value)| line.contains(&format!("{key}=\"{value}\"")))
    };
    let line = metrics
        .lines()
        .find(|line| line.starts_with(&format!("{name}{{")) && has(line))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// Waits until a series has a value that satisfies `wanted`.
async fn wait_for_value(
    operator: &Operator,
    name: &str,
    labels: &[(&str, &str)],
    wanted: impl Fn(f64) -> bool,
) -> Result<()> {
    let found = |_, metrics: &str| value(metrics, name, labels).is_some_and(&wanted);
    operator.wait_for_answer("/metrics", found).await.map(drop)
}

/// Limits, a backoff that is short, and calls that do not end by themselves.
fn settings(concurrency: &Value) -> Value {
    json!({
        "concurrency": concurrency, "backoff": {"initial": "100ms"}, "timeouts": {"publish": "10m", "unpublish": "10m"},
    })
}

/// A driver that answers no call of these methods.
async fn silent_driver<'w>(world: &'w World, short: &str, concurrency: Value) -> Result<Driver<'w>> {
    let build =
        |mock: csi_mock_driver::MockDriverBuilder| mock.rule(Rule::on(PUBLISH).hang()).rule(Rule::on(UNPUBLISH).hang());
    world.driver_with(short, settings(&concurrency), build).await
}

/// All at once: on a slow machine, one after the other would never reach a limit.
async fn claim_all(driver: &Driver<'_>, count: usize) -> Result<()> {
    let claims = (0..count).map(|number| async move {
        let name = format!("{}-{number}", driver.short);
        driver.claim(&name).await.map(drop)
    });
    futures::future::try_join_all(claims).await.map(drop)
}

/// Lets every call be answered, also those that hang: they are cut off by the end of their connection.
async fn recover(driver: &Driver<'_>, count: usize) -> Result<()> {
    driver.mock.clear_rules();
    driver.mock.drop_connections();
    for number in 0..count {
        let name = format!("{}-{number}", driver.short);
        driver.world.fixtures.wait_for_attached(&name).await?;
    }
    Ok(())
}

async fn a_full_lane_shows_until_its_limit_is_raised(world: &World, operator: &Operator) -> Result<()> {
    let driver = silent_driver(world, "full", json!({"attach": 1})).await?;
    assert_eq!(
        told(&driver, "Saturated", "False", "NotSaturated", &[]).await?,
        "no limit of spec.concurrency delays attaches or detaches"
    );
    claim_all(&driver, 3).await?;
    let message = told(&driver, "Saturated", "True", "LaneFull", &["waiting: 2"]).await?;
    assert!(
        message.starts_with(
            "the attach lane is full: 1 in flight, as spec.concurrency.attach allows; waiting: 2, the longest"
        ) && message.contains("raise spec.concurrency.attach "),
        "{message}"
    );
    let lane = [("driver_name", driver.name.as_str()), ("operation", "attach")];
    for (name, expected) in [("waiting", 2.0), ("in_flight", 1.0), ("limit", 1.0)] {
        let name = format!("csi_attacher_lane_{name}");
        wait_for_value(operator, &name, &lane, |value| (value - expected).abs() < 0.1).await?;
    }
    wait_for_value(operator, "csi_attacher_lane_oldest_waiting_seconds", &lane, |value| {
        value > 1.0
    })
    .await?;
    let reason = [("driver_name", driver.name.as_str()), ("reason", "LaneFull")];
    wait_for_value(operator, "csi_attacher_saturated", &reason, |value| value > 0.5).await?;
    assert_eq!(driver.mock.in_flight_of(PUBLISH).peak, 1);

    driver.configure(&settings(&json!({"attach": 0}))).await?;
    for number in 0..3 {
        driver.call(PUBLISH, &format!("full-{number}"), |_| true).await?;
    }
    told(&driver, "Saturated", "False", "NotSaturated", &[]).await?;
    wait_for_value(operator, "csi_attacher_saturated", &reason, |value| value < 0.5).await?;
    assert_eq!(driver.mock.in_flight_of(PUBLISH).now, 3, "raised without ending a call");
    recover(&driver, 3).await
}

async fn each_limit_shows_as_itself(world: &World) -> Result<()> {
    let per_node = silent_driver(world, "pernode", json!({"perNode": 1})).await?;
    claim_all(&per_node, 3).await?;
    let part = "node pernode-node has 1 call in flight";
    told(&per_node, "Saturated", "True", "NodeLimit", &[part]).await?;
    assert_eq!(per_node.mock.in_flight_of(PUBLISH).peak, 1);
    recover(&per_node, 3).await?;

    let rated = silent_driver(world, "rated", json!({"callsPerSecond": 1})).await?;
    claim_all(&rated, 6).await?;
    let part = "raise spec.concurrency.callsPerSecond ";
    told(&rated, "Saturated", "True", "RateLimited", &[part]).await?;
    recover(&rated, 6).await
}

#[tokio::test]
async fn limits_are_kept_and_shown() -> Result<()> {
    let world = World::shared().await?;
    let operator = world.shared_operator();
    a_full_lane_shows_until_its_limit_is_raised(&world, operator).await?;
    each_limit_shows_as_itself(&world).await
}
