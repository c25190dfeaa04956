//! A rolling change from the sidecar to the operator and back: both run at the same time, and the driver's Lease says who
//! works.

use csi_mock_driver::Method;

use crate::drop_in::{Scene, end};
use crate::support::{Operator, Result, Sidecar};

/// Of both. Short, as a killed sidecar's Lease has to run out, and yet longer than a busy machine holds up who renews it.
const DURATIONS: [&str; 5] = [
    "--leader-election",
    "--leader-election-namespace=csi-driver",
    "--leader-election-lease-duration=8s",
    "--leader-election-renew-deadline=6s",
    "--leader-election-retry-period=1s",
];

/// The sidecar names itself after the host.
fn host() -> String {
    let output = std::process::Command::new("uname").arg("-n").output();
    let name = String::from_utf8_lossy(&output.expect("uname is there").stdout)
        .trim()
        .to_owned();
    let allowed = |letter: char| {
        if letter.is_ascii_alphanumeric() || letter == '-' {
            letter
        } else {
            '-'
        }
    };
    name.chars().map(allowed).collect()
}

async fn sidecar(scene: &Scene) -> Result<Sidecar> {
    Sidecar::start(&scene.world.cluster, &scene.world.socket("drop-in"), &DURATIONS).await
}

/// An operator that could work, were the Lease its own.
async fn operator(scene: &Scene) -> Result<Operator> {
    let arguments = [DURATIONS.as_slice(), ["--identity=operator"].as_slice()].concat();
    let operator = scene.start(&arguments).await?;
    operator.wait_ready().await?;
    Ok(operator)
}

#[tokio::test]
async fn sidecar_and_operator_exclude_each_other_by_the_lease() -> Result<()> {
    let scene = Scene::new().await?;
    let host: &'static str = Box::leak(host().into_boxed_str());
    let first = sidecar(&scene).await?;
    scene.holder(Some(host)).await?;
    let mut operator = operator(&scene).await?;
    scene.attach("lease-old").await?;
    scene.attach("lease-kept").await?;
    assert!(
        !operator.log_text().contains("leading lease="),
        "{}",
        operator.log_text()
    );

    // Killed, as a sidecar always ends: the operator waits until the Lease is over.
    drop(first);
    scene.claim("lease-new").await?;
    scene.holder(Some("operator")).await?;
    scene.world.fixtures.wait_for_attached("lease-new").await?;
    scene.detach("lease-old").await?;

    // A sidecar that comes back waits in its turn, and has the Lease when the operator is told to stop.
    let mut second = sidecar(&scene).await?;
    scene.attach("lease-more").await?;
    end(&mut operator).await?;
    scene.holder(Some(host)).await?;
    for name in ["lease-new", "lease-more", "lease-kept"] {
        scene.detach(name).await?;
    }
    second.check()?;
    assert!(scene.mock.published().is_empty());
    let calls = scene.mock.calls();
    assert!(calls.iter().all(|call| !call.overlap), "{calls:#?}");
    for name in ["lease-old", "lease-kept", "lease-new", "lease-more"] {
        let unpublished = scene
            .moves()
            .into_iter()
            .filter(|(volume, method)| volume == name && *method == Method::ControllerUnpublishVolume);
        assert_eq!(unpublished.count(), 1, "{name}: {calls:#?}");
    }
    let ours = ["lease-new", "lease-more"].map(|name| {
        let published = scene
            .moves()
            .into_iter()
            .filter(|(volume, method)| volume == name && *method == Method::ControllerPublishVolume);
        published.count()
    });
    assert_eq!(ours, [1, 1], "what we attach is attached once: {calls:#?}");
    Ok(())
}
