//! Connections to the API server that are swallowed: nothing more comes over them, and nobody says so.

use std::time::{Duration, Instant};

use csi_attacher_model::api::names::lease_name;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::json;

use crate::rig::{LIMIT, World, operator_options};
use crate::support::operator::{IDENTITY, install};
use crate::support::tunnel::Tunnel;
use crate::support::wait::wait_for;
use crate::support::{Operator, Result};

/// A connection of requests is replaced within 5 s and one of watches within 10 s, and the rest is for a busy machine. 41 s it was
/// by pings each 30 s.
const DONE: Duration = Duration::from_secs(18);

/// With the default times of an election.
#[tokio::test]
async fn swallowed_connections_are_replaced_and_cost_no_lease() -> Result<()> {
    let world = World::own().await?;
    install(&world.cluster).await?;
    let direct = world.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let tunnel = Tunnel::start(&direct).await?;
    let operator = Operator::start_with(&tunnel.kubeconfig(&direct)?, operator_options())?;
    operator.wait_ready().await?;
    let driver = world.driver("swallowed", json!({})).await?;
    driver.attach("swallowed-before").await?;
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), IDENTITY);
    let name = lease_name(&driver.name);
    for round in 0..3 {
        let before = tunnel.opened();
        tunnel.swallow();
        let cut = Instant::now();
        let volume = format!("swallowed-{round}");
        driver.attach(&volume).await?;
        let took = cut.elapsed();
        assert!(took < DONE, "{took:?}\n{}", operator.log_text());
        assert!(tunnel.opened() > before);
        // It is renewed over a new connection.
        let renewed = leases.get(&name).await.ok().and_then(|lease| lease.spec?.renew_time);
        let what = format!("{name} renewed after {renewed:?}");
        wait_for(leases.clone(), &name, &what, LIMIT, move |lease| {
            let time = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.clone());
            time > renewed
        })
        .await?;
    }
    let log = operator.log_text();
    assert!(!log.contains("lost the Lease"), "{log}");
    Ok(())
}

/// The API server stands still for a moment, as it does under load. To list everything again would be more load.
#[tokio::test]
async fn a_short_stall_costs_no_connection_and_no_list() -> Result<()> {
    let world = World::own().await?;
    install(&world.cluster).await?;
    let direct = world.cluster.kubeconfig_for_service_account(IDENTITY, IDENTITY).await?;
    let tunnel = Tunnel::start(&direct).await?;
    let operator = Operator::start_with(&tunnel.kubeconfig(&direct)?, operator_options())?;
    operator.wait_ready().await?;
    let driver = world.driver("stalled", json!({})).await?;
    driver.attach("stalled-before").await?;
    let before = tunnel.opened();
    for round in 0..4 {
        tunnel.stall(Duration::from_millis(2500));
        driver.attach(&format!("stalled-{round}")).await?;
    }
    assert_eq!(tunnel.opened(), before, "{}", operator.log_text());
    let log = operator.log_text();
    assert!(
        !log.contains("cannot watch") && !log.contains("lost the Lease"),
        "{log}"
    );
    Ok(())
}
