//! Settled attachments cost nothing, however often they are looked at.

use csi_mock_driver::Method;
use futures::future::try_join_all;
use jiff::Timestamp;
use serde_json::json;

use crate::rig::{LIMIT, World, operator_options};
use crate::support::Result;

const VOLUMES: usize = 50;

#[tokio::test]
async fn a_restart_over_attached_volumes_writes_and_calls_nothing() -> Result<()> {
    let world = World::own().await?;
    let mut operator = world.operator(operator_options()).await?;
    let driver = world.driver("resync", json!({})).await?;
    let names: Vec<String> = (0..VOLUMES).map(|index| format!("resync-{index}")).collect();
    try_join_all(names.iter().map(|name| driver.attach(name))).await?;
    driver.attach_one_more("resync-before").await?;
    operator.signal("TERM")?;
    assert!(operator.wait_ended(LIMIT).await?.success(), "{}", operator.log_text());

    let calls = driver.mock.calls().len();
    let restarted = Timestamp::now();
    let operator = world.operator(operator_options()).await?;
    driver.attach_one_more("resync-after").await?;
    let names: Vec<&str> = names.iter().map(String::as_str).chain(["resync-before"]).collect();
    let since: Vec<_> = world
        .requests(&names)?
        .into_iter()
        .filter(|step| step.at >= restarted)
        .collect();
    assert_eq!(since, []);
    let controller: Vec<_> = driver.mock.calls()[calls..]
        .iter()
        .filter(|call| call.volume.is_some())
        .map(|call| (call.method, call.volume.clone().unwrap_or_default()))
        .collect();
    assert_eq!(
        controller,
        [(Method::ControllerPublishVolume, "resync-after".to_owned())]
    );
    drop(operator);
    Ok(())
}
