//! Connections to the API server that are swallowed: nothing more comes over them, and nobody says so.

use std::time::{Duration, Instant};

use csi_attacher_model::api::AttacherConfig;
use serde_json::json;

use super::patient;
use super::pauses::look_during;
use crate::rig::{World, operator_options, part};
use crate::support::operator::{IDENTITY, install};
use crate::support::tunnel::Tunnel;
use crate::support::{Error, Operator, Result};

/// A connection of requests is replaced within 5 s and one of watches within 10 s, and the rest is for a busy machine. 41 s it was
/// by pings each 30 s.
const DONE: Duration = Duration::from_secs(18);
/// So many milliseconds a process may stand still in a round that counts. The default deadline of a renewal leaves more than that.
const SHORT: i64 = 2_000;

/// Each part has an operator with a tunnel of its own, and a driver of its own.
#[tokio::test]
async fn connections_that_say_nothing() -> Result<()> {
    let world = &World::own().await?;
    part("swallowed", swallowed_connections_are_replaced_and_cost_no_lease(world)).await?;
    part("a short stall", a_short_stall_costs_no_connection_and_no_list(world)).await
}

/// An operator that reaches the cluster through a tunnel only.
async fn tunnelled(world: &World) -> Result<(Tunnel, Operator)> {
    install(&world.cluster).await?;
    let direct = world.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let tunnel = Tunnel::start(&direct).await?;
    let operator = Operator::start_with(&tunnel.kubeconfig(&direct)?, operator_options())?;
    operator.wait_ready().await?;
    Ok((tunnel, operator))
}

/// With the default times of an election. A round in which a process stood still for long is repeated.
async fn swallowed_connections_are_replaced_and_cost_no_lease(world: &World) -> Result<()> {
    const WANTED: usize = 3;
    const MAX_ROUNDS: usize = 12;
    let (tunnel, operator) = tunnelled(world).await?;
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
        let (took, looks) = look_during(world, Box::pin(work)).await?;
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
    world.fixtures.delete::<AttacherConfig>("swallowed").await
}

/// The API server stands still for a moment, as it does under load. To list everything again would be more load. A round in which a
/// process stood still as well is repeated: together that may be longer than the time after which a connection is rightly replaced.
async fn a_short_stall_costs_no_connection_and_no_list(world: &World) -> Result<()> {
    const WANTED: usize = 4;
    const MAX_ROUNDS: usize = 24;
    let (tunnel, operator) = tunnelled(world).await?;
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
        let (_attached, looks) = look_during(world, Box::pin(work)).await?;
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
