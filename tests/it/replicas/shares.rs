//! Free Leases spread over several replicas, and then stay where they are.

use csi_attacher_model::api::names::{LEASE_PREFIX, lease_name};
use csi_mock_driver::Method;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::api::ListParams;

use super::{end, lasting, moves, other};
use crate::rig::{LIMIT, World};
use crate::support::Result;
use crate::support::wait::wait_for;

/// So many that no replica gets all of them by chance.
const DRIVERS: usize = 14;

/// How many Leases each of these replicas holds, and how often a Lease changed its holder.
async fn held_by(world: &World, replicas: [&str; 2]) -> Result<([usize; 2], i32)> {
    let leases = world.leases().list(&ListParams::default()).await.map_err(other)?;
    let of_driver = |lease: &Lease| lease.name_any().starts_with(LEASE_PREFIX);
    let specs = leases.into_iter().filter(of_driver).filter_map(|lease| lease.spec);
    let specs: Vec<_> = specs.collect();
    let of = |replica: &str| {
        specs
            .iter()
            .filter(|spec| spec.holder_identity.as_deref() == Some(replica))
            .count()
    };
    let changes = specs.iter().filter_map(|spec| spec.lease_transitions).sum();
    Ok((replicas.map(of), changes))
}

#[tokio::test]
async fn what_is_released_spreads_and_what_works_stays_where_it_is() -> Result<()> {
    let world = World::own().await?;
    let mut first = world.replica("first").await?;
    let mut drivers = Vec::new();
    for number in 0..DRIVERS {
        drivers.push(world.driver(&format!("share-{number}"), lasting()).await?);
    }
    let _second = world.replica("second").await?;
    let _third = world.replica("third").await?;
    // Nobody asks for what works.
    world.renewals(&drivers[0].name, 8).await?;
    let first_taken = i32::try_from(DRIVERS).map_err(other)?;
    assert_eq!(held_by(&world, ["second", "third"]).await?, ([0, 0], first_taken));

    end(&mut first).await?;
    for driver in &drivers {
        let name = lease_name(&driver.name);
        let taken = wait_for(world.leases(), &name, "a Lease that is held again", LIMIT, |lease| {
            let spec = lease.and_then(|lease| lease.spec.as_ref());
            spec.is_some_and(|spec| spec.holder_identity.is_some())
        });
        taken.await?;
        driver.attach(&format!("{}-va", driver.short)).await?;
        let calls = moves(&driver.mock);
        assert!(calls.len() == 1 && !calls[0].overlap, "{calls:#?}");
    }
    let settled = held_by(&world, ["second", "third"]).await?;
    let ([of_second, of_third], changes) = settled;
    assert!(
        of_second > 0 && of_third > 0 && of_second + of_third == DRIVERS,
        "{settled:?}"
    );
    assert_eq!(changes, 2 * first_taken, "each was taken once");
    world.renewals(&drivers[0].name, 6).await?;
    assert_eq!(held_by(&world, ["second", "third"]).await?, settled);
    for driver in &drivers {
        driver.wait("Ready", "True", Some("Running")).await?;
        // A Probe alone is asked of a driver whose answer takes long.
        let connected = driver.mock.calls_of(Method::GetPluginInfo).len();
        assert_eq!(connected, 3, "no new connection to take over");
    }
    Ok(())
}
