//! An API server that is not there, or not there for a while.

use csi_mock_driver::Method;
use futures::future::try_join_all;
use serde_json::json;

use crate::rig::{LIMIT, World, detach, operator_options};
use crate::support::operator::{IDENTITY, install};
use crate::support::{Operator, Result};

#[tokio::test]
async fn without_an_api_server_it_lives_says_so_and_waits_for_one() -> Result<()> {
    let world = World::own().await?;
    install(&world.cluster).await?;
    let kubeconfig = world.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    world.cluster.stop_apiserver();
    let operator = Operator::start_with(&kubeconfig, operator_options())?;
    let text = format!("cannot reach the API server at {}", world.cluster.url());
    // The log line comes before the check that this waits for.
    operator
        .wait_for_answer("/readyz", |status, body| status == 503 && body.contains(&text))
        .await?;
    assert!(operator.log_text().contains(&text), "{}", operator.log_text());
    assert_eq!(operator.get("/livez").await?.0, 200);

    world.cluster.start_apiserver().await?;
    operator.wait_ready().await?;
    let driver = world.driver("first", json!({})).await?;
    driver.attach("first-va").await.map(drop)
}

#[tokio::test]
async fn an_api_server_that_restarts_is_found_again() -> Result<()> {
    let world = World::own().await?;
    let operator = world.operator(operator_options()).await?;
    let process = operator.pid()?;
    let driver = world.driver("outage", json!({})).await?;
    let names = ["outage-1", "outage-2", "outage-3"];
    try_join_all(names.map(|name| driver.attach(name))).await?;
    // The watch may show a status before the operator has the answer to its write; an answer that the end of the API
    // server cuts off is asked for by one more call. By the end of one more attach the answers about the others are there.
    driver.attach_one_more("outage-0").await?;

    world.cluster.stop_apiserver();
    operator
        .wait_for_answer("/readyz", |status, body| {
            status == 503 && body.contains("watch/volumeattachments failed")
        })
        .await?;
    assert_eq!(operator.get("/livez").await?.0, 200);
    world.cluster.start_apiserver().await?;
    // Watches are tried again after pauses that grow as long as the outage was.
    let patient = world.fixtures.clone().with_limit(LIMIT * 4);
    driver.claim("outage-4").await?;
    patient.wait_for_attached("outage-4").await?;
    detach(&world.fixtures, "outage-1").await?;
    operator.wait_ready().await?;

    for (name, calls) in [("outage-1", 2), ("outage-2", 1), ("outage-3", 1), ("outage-4", 1)] {
        let seen = driver.calls_for(name);
        assert_eq!(seen.len(), calls, "{seen:#?}\n{}", operator.log_text());
    }
    assert_eq!(
        driver.mock.calls_of(Method::Probe).len(),
        1,
        "the driver's connection has nothing to do with the API server"
    );
    assert_eq!(operator.pid()?, process);
    Ok(())
}
