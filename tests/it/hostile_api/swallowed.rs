//! Connections to the API server that are swallowed: nothing more comes over them, and nobody says so.

use std::time::{Duration, Instant};

use serde_json::json;

use super::patient;
use super::pauses::look_during;
use crate::rig::{World, operator_options};
use crate::support::operator::{IDENTITY, install};
use crate::support::tunnel::Tunnel;
use crate::support::{Error, Operator, Result};

/// A connection of requests is replaced within 5 s and one of watches within 10 s, and the rest is for a busy machine. 41 s it was
/// by pings each 30 s.
const DONE: Duration = Duration::from_secs(18);
/// So many milliseconds a process may stand still in a round that counts. The default deadline of a renewal leaves more than that.
const SHORT: i64 = 2_000;

/// A cluster, and an operator that reaches it through a tunnel only.
async fn tunnelled() -> Result<(World, Tunnel, Operator)> {
    let world = World::own().await?;
    install(&world.cluster).await?;
    let direct = world.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let tunnel = Tunnel::start(&direct).await?;
    let operator = Operator::start_with(&tunnel.kubeconfig(&direct)?, operator_options())?;
    operator.wait_ready().await?;
    Ok((world, tunnel, operator))
}

/// With the default times of an election. A round in which a process stood still for long is repeated.
#[tokio::test]
async fn swallowed_connections_are_replaced_and_cost_no_lease() -> Result<()> {
    const WANTED: usize = 3;
    const MAX_ROUNDS: usize = 12;
    let (world, tunnel, operator) = tunnelled().await?;
    let driver = world.driver("swallowed", json!({})).await?;
    driver.attach("swallowed-before").await?;
    let losses = || operator.log_text().matches("lost the Lease").count();
    let mut calm = 0;
    for round in 0..MAX_ROUNDS {
        let (before, lost) = (tunnel.opened(), losses());
        let volume = format!("swallowed-{round}");
        let work = async {
            tunnel.swallow();
            let cut = Instant::now();
            driver.claim(&volume).await?;
            patient(&driver).wait_for_attached(&volume).await?;
            let took = cut.elapsed();
            // It is renewed over a new connection.
            world.renewals(&driver.name, 1).await?;
            Ok::<_, Error>(took)
        };
        let (took, looks) = look_during(&world, Box::pin(work)).await?;
        assert!(tunnel.opened() > before);
        if looks.stood_still() <= SHORT {
            assert!(took < DONE, "{took:?}\n{}", operator.log_text());
            assert_eq!(losses(), lost, "{}", operator.log_text());
            calm += 1;
        }
        if calm == WANTED {
            break;
        }
    }
    assert!(calm > 0, "a process stood still in each round");
    Ok(())
}

/// The API server stands still for a moment, as it does under load. To list everything again would be more load. A round in which a
/// process stood still as well is repeated: together that may be longer than the time after which a connection is rightly replaced.
#[tokio::test]
async fn a_short_stall_costs_no_connection_and_no_list() -> Result<()> {
    const WANTED: usize = 4;
    const MAX_ROUNDS: usize = 24;
    let (world, tunnel, operator) = tunnelled().await?;
    let driver = world.driver("stalled", json!({})).await?;
    let losses = || {
        let log = operator.log_text();
        ["cannot watch", "lost the Lease"].map(|text| log.matches(text).count())
    };
    let mut calm = 0;
    for round in 0..MAX_ROUNDS {
        // The connections that a round before has cost are replaced by the end of an attach and of a renewal.
        driver.attach(&format!("stalled-{round}-before")).await?;
        world.renewals(&driver.name, 1).await?;
        let before = (tunnel.opened(), losses());
        let volume = format!("stalled-{round}");
        let work = async {
            tunnel.stall(Duration::from_millis(2500));
            driver.attach(&volume).await
        };
        let (_attached, looks) = look_during(&world, Box::pin(work)).await?;
        if looks.stood_still() == 0 {
            assert_eq!((tunnel.opened(), losses()), before, "{}", operator.log_text());
            calm += 1;
        }
        if calm == WANTED {
            break;
        }
    }
    assert!(calm > 0, "a process stood still in each round");
    Ok(())
}
