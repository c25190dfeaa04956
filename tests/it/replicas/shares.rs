//! With several replicas the drivers spread over them, and then stay where they are.

use csi_attacher_operator::mock::Method;

use super::{lasting, moves};
use crate::rig::World;
use crate::support::Result;

const DRIVERS: usize = 4;

#[tokio::test]
async fn a_replica_that_joins_gets_its_share_and_no_more() -> Result<()> {
    let world = World::own().await?;
    let _first = world.replica("first").await?;
    let mut drivers = Vec::new();
    for number in 0..DRIVERS {
        drivers.push(world.driver(&format!("share-{number}"), lasting()).await?);
    }
    let transitions = async || -> Result<(i32, usize)> {
        let (mut changes, mut of_second) = (0, 0);
        for lease in world
            .leases()
            .list(&kube::api::ListParams::default())
            .await
            .map_err(super::other)?
        {
            let spec = lease.spec.unwrap_or_default();
            changes += spec.lease_transitions.unwrap_or_default();
            of_second += usize::from(spec.holder_identity.as_deref() == Some("second"));
        }
        Ok((changes, of_second))
    };
    // One alone writes nothing but its renewals.
    world.renewals(&drivers[0].name, 8).await?;
    assert_eq!(transitions().await?, (0, 0));

    let second = world.replica("second").await?;
    let waits = drivers.iter().map(|driver| {
        let (world, name) = (&world, driver.name.clone());
        Box::pin(async move { world.holder(&name, Some("second")).await })
    });
    let (half, _, rest) = futures::future::select_all(waits).await;
    half?;
    let (half, _, rest) = futures::future::select_all(rest).await;
    half?;
    drop(rest);
    assert!(
        second.log_text().contains("asked for a driver"),
        "{}",
        second.log_text()
    );
    for driver in &drivers {
        driver.attach(&format!("{}-va", driver.short)).await?;
        let calls = moves(&driver.mock);
        assert!(calls.len() == 1 && !calls[0].overlap, "{calls:#?}");
    }
    // A Lease is left to the replica that asked for it for two seconds only. One that stands still for that long has to ask
    // again.
    let settled = transitions().await?;
    assert!((2..=4).contains(&settled.0) && settled.1 == 2, "{settled:?}");
    for _ in 0..12 {
        world.renewals(&drivers[0].name, 1).await?;
        assert_eq!(transitions().await?, settled, "two for each, and quiet");
    }
    for driver in &drivers {
        driver.wait("Ready", "True", None).await?;
        let probes = driver.mock.calls_of(Method::Probe).len();
        assert_eq!(probes, 2, "no new connection for a hand-over");
    }
    Ok(())
}
