//! Replicas that take turns by the driver's Lease, on a real API server.

use std::time::{Duration, Instant};

use csi_mock_driver::{CallResult, Method, MockDriver, Rule};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use crate::drop_in::{ACCOUNT, DRIVER, Scene, end};
use crate::rig::{LIMIT, within};
use crate::support::wait::wait_for;
use crate::support::{Error, Operator, Result};

const LEASE: &str = "external-attacher-leader-drop-in-csi-test";
/// Of a Lease whose end is waited for. It outlives a machine that stands still for some seconds.
const LEASE_DURATION: Duration = Duration::from_secs(8);
/// How long after its last renewal such a Lease must be taken, by the times in it: five tries after it is over.
const TAKEN_WITHIN: Duration = Duration::from_secs(8 + 5);

impl Scene {
    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.world.client.clone(), ACCOUNT.0)
    }

    /// Starts a replica of this name and waits until it could work. Its Lease is renewed often, and lasts long enough not to be
    /// lost by a machine that is busy.
    pub async fn replica(&self, name: &str) -> Result<Operator> {
        self.replica_beside("drop-in", name, ["30s", "20s"]).await
    }

    /// As [`Scene::replica`], with a Lease of [`LEASE_DURATION`].
    async fn mortal_replica(&self, name: &str) -> Result<Operator> {
        self.replica_beside("drop-in", name, ["8s", "6s"]).await
    }

    async fn replica_beside(&self, socket: &str, name: &str, [duration, deadline]: [&str; 2]) -> Result<Operator> {
        let identity = format!("--identity={name}");
        let duration = format!("--leader-election-lease-duration={duration}");
        let deadline = format!("--leader-election-renew-deadline={deadline}");
        let arguments = [
            "--leader-election",
            "--leader-election-namespace=csi-driver",
            "--leader-election-retry-period=1s",
            "--leader-election-labels=app:attacher",
            &duration,
            &deadline,
            &identity,
        ];
        let operator = self.start_beside(socket, &arguments).await?;
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

    /// Gives the Lease to a sidecar, whoever holds it.
    async fn take_the_lease_away(&self) -> Result<()> {
        loop {
            let mut lease = self
                .leases()
                .get(LEASE)
                .await
                .map_err(|error| Error::Other(error.to_string()))?;
            lease.spec = of_a_sidecar().spec;
            match self.leases().replace(LEASE, &PostParams::default(), &lease).await {
                // It was renewed in between.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                outcome => return outcome.map(drop).map_err(|error| Error::Other(error.to_string())),
            }
        }
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
    scene.detach("lease-1").await?;
    assert!(!first.log_text().contains("lease-4"), "{}", first.log_text());
    Ok(())
}

#[tokio::test]
async fn a_replica_that_is_killed_is_succeeded_when_its_lease_is_over() -> Result<()> {
    let scene = Scene::new().await?;
    let mut first = scene.mortal_replica("first").await?;
    scene.attach("killed-1").await?;
    let mut second = scene.mortal_replica("second").await?;
    first.signal("KILL")?;
    first.wait_ended(LIMIT).await?;
    let left = scene.holder(Some("first")).await?;
    scene.claim("killed-2").await?;
    let taken = scene.holder(Some("second")).await?;
    // Not from when it was killed: the last renewal was before that.
    let rested = times(&taken)?.0.duration_since(times(&left)?.1);
    println!("{rested:#} from the last renewal until the Lease was taken, of {LEASE_DURATION:?}");
    assert!(rested.as_secs_f64() >= LEASE_DURATION.as_secs_f64(), "{rested:#}");
    assert!(rested.as_secs_f64() <= TAKEN_WITHIN.as_secs_f64(), "{rested:#}");
    scene.world.fixtures.wait_for_attached("killed-2").await?;

    // One that starts under its old name has its Lease back at once.
    second.signal("KILL")?;
    second.wait_ended(LIMIT).await?;
    let mut second = scene.mortal_replica("second").await?;
    scene.detach("killed-2").await?;
    // A Lease that it had waited for would have been acquired anew.
    let kept = scene.holder(Some("second")).await?;
    assert_eq!(times(&kept)?.0, times(&taken)?.0);
    let calls = scene.moves();
    assert_eq!(calls.len(), 3, "{calls:?}");
    end(&mut second).await
}

/// When a Lease was acquired, and when it was renewed last.
pub fn times(lease: &Lease) -> Result<(jiff::Timestamp, jiff::Timestamp)> {
    let spec = lease.spec.as_ref();
    let times = spec.and_then(|spec| Some((spec.acquire_time.as_ref()?.0, spec.renew_time.as_ref()?.0)));
    times.ok_or_else(|| Error::Other("nobody holds the Lease".to_owned()))
}

/// A Lease as a sidecar holds it, for longer than a test takes.
fn of_a_sidecar() -> Lease {
    let now = || Some(MicroTime(jiff::Timestamp::now()));
    Lease {
        metadata: ObjectMeta {
            name: Some(LEASE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some("csi-attacher-0".to_owned()),
            lease_duration_seconds: Some(600),
            lease_transitions: Some(7),
            acquire_time: now(),
            renew_time: now(),
            ..LeaseSpec::default()
        }),
    }
}

#[tokio::test]
async fn a_lease_of_a_sidecar_keeps_us_from_working() -> Result<()> {
    let scene = Scene::new().await?;
    let mut held = scene
        .leases()
        .create(&PostParams::default(), &of_a_sidecar())
        .await
        .map_err(|error| Error::Other(error.to_string()))?;
    scene.claim("sidecar-1").await?;
    let operator = scene.replica("operator").await?;
    operator.wait_for_answer("/readyz", |status, _| status == 200).await?;
    let has_led = || operator.log_text().contains("elector: leading");
    assert!(!has_led(), "{}", operator.log_text());
    assert!(scene.moves().is_empty(), "{:?}", scene.moves());
    let untouched = scene.world.fixtures.get_attachment("sidecar-1").await?;
    assert_eq!(untouched.metadata.finalizers, None);

    // The sidecar stops and releases it.
    if let Some(spec) = &mut held.spec {
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
    }
    scene
        .leases()
        .replace(LEASE, &PostParams::default(), &held)
        .await
        .map_err(|error| Error::Other(error.to_string()))?;
    let released = Instant::now();
    scene.world.fixtures.wait_for_attached("sidecar-1").await?;
    println!(
        "{:?} from the release until the volume was attached",
        released.elapsed()
    );
    let lease = scene.holder(Some("operator")).await?;
    assert_eq!(lease.spec.and_then(|spec| spec.lease_transitions), Some(8));

    assert!(has_led(), "{}", operator.log_text());

    // Taken from us, as by a person in need: we stop, and go on living.
    scene.take_the_lease_away().await?;
    let line = format!("leader_election_master_status{{name=\"{LEASE}\"}} 0");
    operator
        .wait_for_answer("/metrics", |_, body| body.contains(&line))
        .await?;
    scene
        .world
        .fixtures
        .delete::<k8s_openapi::api::storage::v1::VolumeAttachment>("sidecar-1")
        .await?;
    operator.wait_ready().await?;
    assert_eq!(scene.moves().len(), 1, "{:?}", scene.moves());
    Ok(())
}

#[tokio::test]
async fn a_replica_that_lost_its_driver_leaves_the_lease_to_one_that_has_it() -> Result<()> {
    let scene = Scene::new().await?;
    // The same driver in another pod.
    let other = MockDriver::builder(DRIVER).accept_any_volume();
    let other = other.start(scene.world.socket("other")).await;
    let other = other.map_err(|error| Error::Other(error.to_string()))?;
    let first = scene.replica("first").await?;
    scene.attach("left-1").await?;
    let second = scene.replica_beside("other", "second", ["30s", "20s"]).await?;
    scene.mock.stop().await;
    scene.holder(Some("second")).await?;
    scene.attach("left-2").await?;
    assert_eq!(other.calls_of(Method::ControllerPublishVolume).len(), 1);
    // Its driver back, it waits for its turn.
    let started = scene.mock.start_again().await;
    started.map_err(|error| Error::Other(error.to_string()))?;
    first.wait_ready().await?;
    assert!(!leads(&first).await? && leads(&second).await?);
    Ok(())
}
