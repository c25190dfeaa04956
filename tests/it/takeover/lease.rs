//! A rolling change from the sidecar to the operator and back: both run at the same time, and the driver's Lease says who
//! works.

use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{CallRecord, Method};
use k8s_openapi::api::coordination::v1::Lease;

use crate::drop_in::{ACCOUNT, DRIVER, Scene, end};
use crate::replicas::moves;
use crate::rig::{held, host, leads, stands_by};
use crate::support::{Result, Sidecar};

/// Of both. Short, as a killed sidecar's Lease has to run out, and yet longer than a busy machine holds up who renews it.
const DURATIONS: [&str; 5] = [
    "--leader-election",
    "--leader-election-namespace=csi-driver",
    "--leader-election-lease-duration=8s",
    "--leader-election-renew-deadline=6s",
    "--leader-election-retry-period=1s",
];
const HEALTH: &str = "/healthz/leader-election";

async fn sidecar(scene: &Scene) -> Result<Sidecar> {
    Sidecar::start(&scene.world.cluster, &scene.world.socket("drop-in"), &DURATIONS).await
}

/// Waits until the Lease is held by this process.
async fn holder(scene: &Scene, wanted: &str) -> Result<Lease> {
    let leases = scene.world.fixtures.namespaced(ACCOUNT.0);
    held(leases, &lease_name(DRIVER), Some(wanted)).await
}

pub async fn exclude_each_other(scene: &Scene) -> Result<()> {
    let host = host();
    let first = sidecar(scene).await?;
    holder(scene, &host).await?;
    let own = ["--identity=operator", "--leader-election-labels=app:attacher"];
    let mut operator = scene.start(&[&DURATIONS[..], &own].concat()).await?;
    operator.wait_ready().await?;
    scene.attach("lease-old").await?;
    scene.attach("lease-kept").await?;
    let log = operator.log_text();
    assert!(!log.contains("leading lease="), "{log}");
    stands_by(&operator, DRIVER).await?;
    assert_eq!(operator.get(HEALTH).await?, (200, "ok".to_owned()));

    // Killed, as a sidecar always ends: the operator waits until the Lease is over.
    drop(first);
    scene.claim("lease-new").await?;
    let lease = holder(scene, "operator").await?;
    assert_eq!(lease.metadata.labels.unwrap()["app"], "attacher");
    scene.world.fixtures.wait_for_attached("lease-new").await?;
    scene.detach("lease-old").await?;
    assert!(leads(&operator, DRIVER).await?);
    assert_eq!(operator.get(HEALTH).await?, (200, "ok".to_owned()));

    // A sidecar that comes back waits in its turn, and has the Lease when the operator is told to stop.
    let mut second = sidecar(scene).await?;
    scene.attach("lease-more").await?;
    end(&mut operator).await?;
    holder(scene, &host).await?;
    for name in ["lease-new", "lease-more", "lease-kept"] {
        scene.detach(name).await?;
    }
    second.check()?;
    assert!(scene.mock.published().is_empty());
    let calls = moves(&scene.mock);
    assert!(calls.iter().all(|call| !call.overlap), "{calls:#?}");
    let count = |name: &str, method: Method| {
        let is_one = |call: &&CallRecord| call.volume.as_deref() == Some(name) && call.method == method;
        calls.iter().filter(is_one).count()
    };
    for name in ["lease-old", "lease-kept", "lease-new", "lease-more"] {
        assert_eq!(count(name, Method::ControllerUnpublishVolume), 1, "{name}: {calls:#?}");
    }
    // What we attach is attached once.
    for name in ["lease-new", "lease-more"] {
        assert_eq!(count(name, Method::ControllerPublishVolume), 1, "{name}: {calls:#?}");
    }
    Ok(())
}
