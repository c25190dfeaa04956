//! Proves that the operator ends no later than it was allowed to. That what runs is finished and recorded, `replicas::hand_over` shows.

use std::time::{Duration, Instant};

use csi_mock_driver::{Method, Rule};
use serde_json::json;

use crate::rig::{LIMIT, World, operator_options};
use crate::support::Result;

#[tokio::test]
async fn a_call_that_hangs_is_left_behind_at_the_end_of_the_grace_period() -> Result<()> {
    let world = World::own().await?;
    let options = operator_options().argument("--shutdown-grace-period=1s");
    let mut operator = world.operator(options).await?;
    let driver = world.driver("hung", json!({})).await?;
    driver
        .mock
        .script(Rule::on(Method::ControllerPublishVolume).times(1).hang());
    driver.claim("hung-va").await?;
    driver
        .call(Method::ControllerPublishVolume, "hung-va", |_| true)
        .await?;
    let told = Instant::now();
    operator.signal("TERM")?;
    let status = operator.wait_ended(LIMIT).await?;
    let took = told.elapsed();
    assert_eq!(status.code(), Some(1), "{}", operator.log_text());
    // The call is cancelled shortly before the end, so that the Lease can be released. That it is not later, a busy machine decides
    // too; the call itself would have ended after a minute.
    assert!(
        took >= Duration::from_millis(800) && took < Duration::from_secs(20),
        "{took:?}"
    );
    let stored = world.fixtures.get_attachment("hung-va").await?;
    assert!(stored.status.is_none_or(|status| !status.attached));

    // The next one goes on where that one stopped.
    let operator = world.operator(operator_options()).await?;
    world.fixtures.wait_for_attached("hung-va").await?;
    assert_eq!(driver.calls_for("hung-va").len(), 2);
    drop(operator);
    Ok(())
}
