//! Replicas in place of a sidecar that take turns by the driver's Lease. The other histories of a Lease are those of `replicas`.

use std::time::{Duration, Instant};

use csi_mock_driver::{CallResult, Method, Rule};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use crate::drop_in::{ACCOUNT, Scene};
use crate::rig::{LIMIT, within};
use crate::support::wait::wait_for;
use crate::support::{Error, Operator, Result};

const LEASE: &str = "external-attacher-leader-drop-in-csi-test";
impl Scene {
    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.world.client.clone(), ACCOUNT.0)
    }

    /// Starts a replica of this name and waits until it could work. Its Lease is renewed often, and lasts long enough not to be
    /// lost by a machine that is busy.
    pub async fn replica(&self, name: &str) -> Result<Operator> {
        let identity = format!("--identity={name}");
        let arguments = [
            "--leader-election",
            "--leader-election-namespace=csi-driver",
            "--leader-election-retry-period=1s",
            "--leader-election-labels=app:attacher",
            "--leader-election-lease-duration=30s",
            "--leader-election-renew-deadline=20s",
            &identity,
        ];
        let operator = self.start(&arguments).await?;
        operator.wait_ready().await?;
        Ok(operator)
    }

    /// Waits until the Lease is held by this replica, or by nobody.
    pub async fn holder(&self, wanted: Option<&'static str>) -> Result<Lease> {
        let what = format!("the Lease held by {wanted:?}");
        let lease = wait_for(self.leases(), LEASE, &what, LIMIT, move |lease| {
            let spec = lease.and_then(|lease| lease.spec.as_ref());
            spec.is_some_and(|spec| spec.holder_identity.as_deref() == wanted)
        });
        lease.await?.ok_or_else(|| Error::Other("the Lease is gone".to_owned()))
    }

    /// The calls that publish or unpublish, by volume and method.
    pub fn moves(&self) -> Vec<(String, Method)> {
        let calls = self.mock.calls().into_iter();
        calls.filter_map(|call| Some((call.volume?, call.method))).collect()
    }
}

async fn leads(operator: &Operator) -> Result<bool> {
    let line = format!("leader_election_master_status{{name=\"{LEASE}\"}} 1");
    Ok(operator.metrics().await?.lines().any(|found| found == line))
}

#[tokio::test]
async fn of_two_replicas_one_works_and_hands_over_when_told_to_stop() -> Result<()> {
    let scene = Scene::new().await?;
    let mut first = scene.replica("first").await?;
    let lease = scene.holder(Some("first")).await?;
    assert_eq!(lease.metadata.labels.unwrap_or_default()["app"], "attacher");
    let second = scene.replica("second").await?;
    for name in ["lease-1", "lease-2"] {
        scene.attach(name).await?;
    }
    assert_eq!(scene.moves().len(), 2, "{:?}", scene.moves());
    assert!(leads(&first).await? && !leads(&second).await?);
    for replica in [&first, &second] {
        assert_eq!(replica.get("/healthz/leader-election").await?, (200, "ok".to_owned()));
    }

    // Told to stop during a call: the call ends and is recorded, and only then the Lease goes.
    let slow = Rule::on(Method::ControllerPublishVolume).times(1);
    scene.mock.script(slow.delay(Duration::from_secs(1)));
    scene.claim("lease-3").await?;
    let called = scene
        .mock
        .wait_for_call(|call| call.volume.as_deref() == Some("lease-3"));
    within("the call", called).await?;
    first.signal("TERM")?;
    first.wait_for_log("stop signal received").await?;
    // This one is for the successor.
    scene.claim("lease-4").await?;
    let lease = scene.holder(Some("second")).await?;
    let status = first.wait_ended(LIMIT).await?;
    let ended = Instant::now();
    assert_eq!(status.code(), Some(0), "{}", first.log_text());
    assert!(first.log_text().contains("released the Lease"), "{}", first.log_text());
    for name in ["lease-3", "lease-4"] {
        scene.world.fixtures.wait_for_attached(name).await?;
    }
    let publishes: Vec<_> = scene.mock.calls_of(Method::ControllerPublishVolume);
    assert_eq!(publishes.len(), 4, "{publishes:?}");
    assert!(
        publishes.iter().all(|call| call.outcome == CallResult::Answered),
        "{publishes:?}"
    );
    assert_eq!(lease.spec.and_then(|spec| spec.lease_transitions), Some(1));
    println!(
        "{:?} from the end of the first replica until both volumes were attached",
        ended.elapsed()
    );
    let connected = scene.mock.calls_of(Method::GetPluginInfo).len();
    assert_eq!(connected, 2, "no new connection to take over");
    scene.detach("lease-1").await?;
    assert!(!first.log_text().contains("lease-4"), "{}", first.log_text());
    Ok(())
}

/// When a Lease was acquired, and when it was renewed last.
pub fn times(lease: &Lease) -> Result<(jiff::Timestamp, jiff::Timestamp)> {
    let spec = lease.spec.as_ref();
    let times = spec.and_then(|spec| Some((spec.acquire_time.as_ref()?.0, spec.renew_time.as_ref()?.0)));
    times.ok_or_else(|| Error::Other("nobody holds the Lease".to_owned()))
}
