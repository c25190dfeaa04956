//! Settings that change under load, by the real kubectl: they are used from the next call on, no call is lost, and no
//! connection is made anew unless the endpoint is another one, and then that of this driver alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use csi_mock_driver::{
    CallRecord, CallResult, ControllerCapability, Method, MockDriver, MockHandle, Rule, ScriptAction,
};
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::rig::{Driver, LIMIT, World, detach, operator_options, wait_until, within};
use crate::support::{Error, Kubectl, Operator, Result};

const PUBLISH: Method = Method::ControllerPublishVolume;
const UNPUBLISH: Method = Method::ControllerUnpublishVolume;
const WORKERS: usize = 4;
/// How long an attach takes, so that changes find some in flight.
const CALL: Duration = Duration::from_millis(60);

/// Attaches and detaches one volume after the other until told to stop.
struct Load<'a> {
    driver: &'a Driver<'a>,
    stop: CancellationToken,
    /// Volumes that were attached and detached, by each worker.
    done: [AtomicUsize; WORKERS],
}

impl<'a> Load<'a> {
    fn new(driver: &'a Driver<'a>, stop: &CancellationToken) -> Self {
        Self {
            driver,
            stop: stop.clone(),
            done: std::array::from_fn(|_| AtomicUsize::new(0)),
        }
    }

    async fn run(&self, workers: usize) -> Result<()> {
        let workers = (0..workers).map(|worker| self.work(worker));
        let outcome = futures::future::try_join_all(workers).await.map(drop);
        if outcome.is_err() {
            // The others are not to go on for ever.
            self.stop.cancel();
        }
        outcome
    }

    async fn work(&self, worker: usize) -> Result<()> {
        let fixtures = &self.driver.world.fixtures;
        let mut round = 0;
        while !self.stop.is_cancelled() {
            let name = format!("{}-load-{worker}-{round}", self.driver.short);
            self.driver.attach(&name).await?;
            detach(fixtures, &name).await?;
            fixtures.delete::<PersistentVolume>(&name).await?;
            self.done[worker].fetch_add(1, Ordering::Relaxed);
            round += 1;
        }
        Ok(())
    }

    /// How many volumes each worker attached and detached.
    fn done(&self) -> [usize; WORKERS] {
        self.done.each_ref().map(|done| done.load(Ordering::Relaxed))
    }

    /// Waits until each of all workers has attached and detached a volume from its beginning to its end: what ran before is
    /// over then.
    async fn turns_over(&self) -> Result<()> {
        let before = self.done();
        let is_over = || self.done().iter().zip(before).all(|(now, before)| *now >= before + 2);
        wait_until("more volumes", || is_over() || self.stop.is_cancelled()).await
    }

    /// Waits until two of the attaches from a call on ran at one time: one is held until another one has come.
    async fn overlaps(&self, first: u64) -> Result<()> {
        let mock = &self.driver.mock;
        mock.script(Rule::on(PUBLISH).times(1).until_released());
        let is_held = || {
            let mut rules = mock.rules().into_iter();
            rules.all(|rule| rule.action != ScriptAction::UntilReleased)
        };
        let overlap = || is_held() && peak(&calls_from(mock, PUBLISH, first)) > 1;
        let overlapped = wait_until("two attaches at one time", || overlap() || self.stop.is_cancelled()).await;
        // Of those that are not held this changes nothing.
        for call in mock.calls_of(PUBLISH) {
            mock.release(call.id);
        }
        overlapped
    }
}

fn manifest(short: &str, spec: &Value) -> String {
    let object = json!({
        "apiVersion": "attacher.csi.dev/v1alpha1", "kind": "AttacherConfig", "metadata": {"name": short}, "spec": spec,
    });
    object.to_string()
}

/// Applies other settings and waits until they are in use.
async fn apply(kubectl: &Kubectl, driver: &Driver<'_>, settings: &Value) -> Result<()> {
    let said = kubectl
        .apply(&manifest(&driver.short, &driver.world.spec(&driver.short, settings)))
        .await?;
    assert!(said.contains("configured") || said.contains("created"), "{said}");
    driver.wait("Ready", "True", Some("Running")).await
}

/// As [`apply`], under load; the number of the next call, when no attempt runs any more that began with other settings: it
/// may have been on its way to its call when they came.
async fn change(kubectl: &Kubectl, load: &Load<'_>, settings: &Value) -> Result<u64> {
    apply(kubectl, load.driver, settings).await?;
    load.turns_over().await?;
    Ok(next_call(&load.driver.mock))
}

fn next_call(mock: &MockHandle) -> u64 {
    mock.calls().last().map_or(0, |call| call.id + 1)
}

/// The calls of a method from a number on that move volumes of the load.
fn calls_from(mock: &MockHandle, method: Method, first: u64) -> Vec<CallRecord> {
    let of_load = |call: &CallRecord| call.volume.as_deref().is_some_and(|volume| volume.contains("-load-"));
    let calls = mock.calls_of(method).into_iter();
    calls.filter(|call| call.id >= first && of_load(call)).collect()
}

/// The most of these calls that ran at one time.
fn peak(calls: &[CallRecord]) -> usize {
    let runs_at = |call: &CallRecord, at| call.started <= at && call.finished.is_none_or(|end| end > at);
    let at_start = calls
        .iter()
        .map(|one| calls.iter().filter(|call| runs_at(call, one.started)).count());
    at_start.max().unwrap_or_default()
}

/// Whether each deadline is this one, apart from what the way to the driver took.
fn have_deadline(calls: &[CallRecord], deadline: u64) -> bool {
    let fits = |call: &CallRecord| {
        call.deadline_ms
            .is_some_and(|found| (deadline - 500..=deadline).contains(&found))
    };
    !calls.is_empty() && calls.iter().all(fits)
}

fn hot() -> Value {
    json!({
        "timeouts": {"publish": "60s", "unpublish": "60s"},
        "backoff": {"initial": "1h", "max": "1h"},
        "reconcileSync": {"interval": "1h"},
    })
}

/// Every hot field, each in use from the next call on.
async fn hot_changes(kubectl: &Kubectl, operator: &Operator, load: &Load<'_>) -> Result<()> {
    let driver = load.driver;
    let mock = &driver.mock;
    mock.script(Rule::on(PUBLISH).volume("broken").fail(Code::Internal, "not now"));
    driver.claim("broken").await?;
    driver.call(PUBLISH, "broken", |_| true).await?;
    load.turns_over().await?;
    assert!(have_deadline(&calls_from(mock, PUBLISH, 0), 60_000));
    load.overlaps(0).await?;
    assert_eq!(driver.calls_for("broken").len(), 1, "the backoff is an hour");

    let mut settings = hot();
    settings["timeouts"] = json!({"publish": "7s", "unpublish": "9s"});
    let first = change(kubectl, load, &settings).await?;
    load.turns_over().await?;
    assert!(
        have_deadline(&calls_from(mock, PUBLISH, first), 7_000),
        "{:#?}",
        mock.calls_of(PUBLISH)
    );
    assert!(
        have_deadline(&calls_from(mock, UNPUBLISH, first), 9_000),
        "{:#?}",
        mock.calls_of(UNPUBLISH)
    );

    settings["timeouts"] = hot()["timeouts"].clone();
    settings["concurrency"] = json!({"attach": 1});
    let first = change(kubectl, load, &settings).await?;
    load.turns_over().await?;
    assert_eq!(peak(&calls_from(mock, PUBLISH, first)), 1);

    settings["concurrency"] = json!({"attach": 0});
    let first = change(kubectl, load, &settings).await?;
    load.overlaps(first).await?;

    let tries = driver.calls_for("broken").len();
    settings["backoff"] = json!({"initial": "50ms", "max": "50ms", "jitterPercent": 0});
    apply(kubectl, driver, &settings).await?;
    let later = mock.calls_of(PUBLISH).len();
    for _ in 0..3 {
        let next = next_call(mock);
        driver.call(PUBLISH, "broken", move |call| call.id >= next).await?;
    }
    assert!(driver.calls_for("broken").len() >= tries + 3 && mock.calls_of(PUBLISH).len() > later);
    mock.clear_rules_of("broken");
    driver.world.fixtures.wait_for_attached("broken").await?;

    settings["reconcileSync"] = json!({"interval": "100ms"});
    apply(kubectl, driver, &settings).await?;
    let next = next_call(mock);
    let listed = move |call: &CallRecord| call.method == Method::ListVolumes && call.id >= next;
    driver.calls("more listings", 3, listed).await?;

    settings["kubernetesAPI"] = json!({"qps": 200, "burst": 5});
    apply(kubectl, driver, &settings).await?;
    load.turns_over().await?;
    let series = format!("driver_name=\"{}\"", driver.name);
    let metrics = operator.metrics().await?;
    let held_back =
        |line: &str| line.starts_with("rest_client_rate_limiter_duration_seconds_count") && line.contains(&series);
    assert!(metrics.lines().any(held_back), "{metrics}");
    Ok(())
}

/// What cannot be used changes nothing, whether the API server or the operator finds out.
async fn bad_changes(kubectl: &Kubectl, load: &Load<'_>, bystander: &Driver<'_>) -> Result<()> {
    let driver = load.driver;
    let mut settings = hot();
    settings["backoff"] = json!({"initial": "2m", "max": "1m"});
    let bad = manifest(&driver.short, &driver.world.spec(&driver.short, &settings));
    let refusal = kubectl.refused(&["apply", "-f", "-"], &bad).await?;
    assert!(
        refusal.contains("spec.backoff.initial") && refusal.contains("lower initial or raise max"),
        "{refusal}"
    );

    let mut settings = hot();
    settings["timeouts"] = json!({"publish": "11s"});
    change(kubectl, load, &settings).await?;
    // Only the operator can know that an endpoint is another one's already.
    settings["timeouts"] = json!({"publish": "13s"});
    let stolen = driver.world.spec(&bystander.short, &settings);
    kubectl.apply(&manifest(&driver.short, &stolen)).await?;
    driver.wait("Stalled", "True", Some("EndpointConflict")).await?;
    let first = next_call(&driver.mock);
    load.turns_over().await?;
    assert!(
        have_deadline(&calls_from(&driver.mock, PUBLISH, first), 11_000),
        "the last good settings"
    );
    driver.wait("Ready", "True", Some("Running")).await?;
    apply(kubectl, driver, &hot()).await
}

/// The driver alone drains and moves.
async fn move_endpoint(kubectl: &Kubectl, load: &Load<'_>) -> Result<MockHandle> {
    let (driver, world) = (load.driver, load.driver.world);
    let moved = MockDriver::builder(&driver.name)
        .accept_any_volume()
        .delay(PUBLISH, CALL)
        .start(world.socket("moved"))
        .await?;
    // One that is in flight when the change comes.
    driver
        .mock
        .script(Rule::on(PUBLISH).volume("last").delay(Duration::from_secs(2)));
    driver.claim("last").await?;
    driver.call(PUBLISH, "last", |_| true).await?;
    kubectl
        .apply(&manifest(&driver.short, &world.spec("moved", &hot())))
        .await?;
    within(
        "a call at the new endpoint",
        moved.wait_for_call(|call| call.method == PUBLISH),
    )
    .await?;
    driver.wait("Ready", "True", Some("Running")).await?;
    load.turns_over().await?;
    let last = calls_from(&driver.mock, PUBLISH, 0)
        .into_iter()
        .chain(driver.calls_for("last"));
    let last = last.map(|call| call.finished).max().flatten();
    let first = calls_from(&moved, PUBLISH, 0).first().map(|call| call.started);
    assert!(
        last.is_some() && last < first,
        "the old calls ended before the new ones began: {last:?} {first:?}"
    );
    assert_eq!(driver.calls_for("last").len(), 1);
    assert!(
        moved.calls().iter().all(|call| call.volume.as_deref() != Some("last")),
        "it is on record"
    );
    world.fixtures.wait_for_attached("last").await?;
    Ok(moved)
}

/// One connection only, no call was given up, and each volume of the load was moved by one call each way.
fn assert_undisturbed(mock: &MockHandle) {
    for method in [Method::Probe, Method::GetPluginInfo] {
        assert_eq!(mock.calls_of(method).len(), 1, "{method:?}: one connection");
    }
    let given_up = |call: &CallRecord| !matches!(call.outcome, CallResult::Answered);
    let given_up: Vec<_> = mock.calls().into_iter().filter(given_up).collect();
    assert!(given_up.is_empty(), "{given_up:#?}");
    for method in [PUBLISH, UNPUBLISH] {
        let mut volumes: Vec<_> = calls_from(mock, method, 0)
            .into_iter()
            .map(|call| call.volume)
            .collect();
        let all = volumes.len();
        volumes.sort();
        volumes.dedup();
        assert_eq!(volumes.len(), all, "{method:?}: no call was made twice");
    }
}

#[tokio::test]
async fn settings_change_under_load() -> Result<()> {
    let world = World::own().await?;
    let kubectl = Kubectl::of(&world.cluster).await?;
    let operator = world.operator(operator_options()).await?;
    let build = |mock: csi_mock_driver::MockDriverBuilder| mock.delay(PUBLISH, CALL).keep_calls(100_000);
    let driver = world.unconfigured_driver("reload", build).await?;
    let bystander = world.unconfigured_driver("bystander", build).await?;
    assert!(csi_mock_driver::ALL_CAPABILITIES.contains(&ControllerCapability::ListVolumesPublishedNodes));
    // The older one of the two keeps its endpoint.
    apply(&kubectl, &bystander, &hot()).await?;
    apply(&kubectl, &driver, &hot()).await?;

    let stop = CancellationToken::new();
    let (load, beside) = (Load::new(&driver, &stop), Load::new(&bystander, &stop));
    let script = async {
        let outcome = async {
            hot_changes(&kubectl, &operator, &load).await?;
            bad_changes(&kubectl, &load, &bystander).await?;
            assert_eq!(driver.mock.calls_of(Method::Probe).len(), 1);
            let before = beside.done();
            let moved = move_endpoint(&kubectl, &load).await?;
            assert_ne!(beside.done(), before, "the other driver went on");
            Ok::<_, Error>(moved)
        };
        let outcome = outcome.await;
        stop.cancel();
        outcome
    };
    let all = async { tokio::join!(script, load.run(WORKERS), beside.run(1)) };
    let (moved, loaded, beside_loaded) = tokio::time::timeout(LIMIT * 10, all)
        .await
        .map_err(|_| Error::Other("the load does not end".to_owned()))?;
    let moved = moved?;
    loaded?;
    beside_loaded?;
    for mock in [&driver.mock, &bystander.mock, &moved] {
        assert_undisturbed(mock);
    }
    Ok(())
}
