//! Proves how the operator ends: with what runs finished and recorded, and never later than it was allowed to.

use std::time::{Duration, Instant};

use csi_mock_driver::{CallResult, Method, Rule};
use serde_json::json;

use crate::rig::{LIMIT, World, operator_options};
use crate::support::Result;

#[tokio::test]
async fn a_running_call_is_finished_and_its_result_recorded() -> Result<()> {
    let world = World::own().await?;
    let mut operator = world.operator(operator_options()).await?;
    let driver = world.driver("ending", json!({})).await?;
    let slow = Rule::on(Method::ControllerPublishVolume);
    driver.mock.script(slow.delay(Duration::from_secs(2)));
    driver.claim("ending-va").await?;
    driver
        .call(Method::ControllerPublishVolume, "ending-va", |_| true)
        .await?;
    operator.signal("TERM")?;
    let status = operator.wait_ended(LIMIT).await?;
    assert!(status.success(), "{status}: {}", operator.log_text());
    let calls = driver.calls_for("ending-va");
    assert_eq!((calls.len(), calls[0].outcome), (1, CallResult::Answered), "{calls:?}");
    let stored = world.fixtures.get_attachment("ending-va").await?;
    assert!(stored.status.is_some_and(|status| status.attached));
    Ok(())
}

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
