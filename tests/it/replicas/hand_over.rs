//! From one replica to the next: told to stop, and killed.

use std::time::{Duration, Instant};

use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{CallRecord, CallResult, Method, Rule};
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::LeaseSpec;

use super::{LEASE_DURATION, TAKEN_WITHIN, lasting, leads, moves, short};
use crate::hostile_api::pauses::look_during;
use crate::lease::times;
use crate::rig::{LIMIT, World, operator_options};
use crate::support::lease::{History, changes};
use crate::support::stage::stop;
use crate::support::{OperatorOptions, Result};

const RUNNING: usize = 20;

#[tokio::test]
async fn told_to_stop_it_gives_its_lease_up_after_the_calls_in_flight() -> Result<()> {
    let world = World::own().await?;
    let mut first = world.replica("first").await?;
    let driver = world.driver("hand", lasting()).await?;
    world.holder(&driver.name, Some("first")).await?;
    let second = world.replica("second").await?;
    world.reported_holder("hand", Some("first")).await?;
    assert!(leads(&first, &driver.name).await? && !leads(&second, &driver.name).await?);

    let history = History::start(world.leases(), lease_name(&driver.name));
    // Calls run when it is told to stop, and more wait for their turn.
    let slow = Rule::on(Method::ControllerPublishVolume);
    driver.mock.script(slow.delay(Duration::from_millis(300)));
    let names: Vec<String> = (0..2 * RUNNING).map(|number| format!("hand-{number}")).collect();
    for name in &names[..RUNNING] {
        driver.claim(name).await?;
    }
    driver
        .call(Method::ControllerPublishVolume, &names[RUNNING - 1], |_| true)
        .await?;
    let pid = first.pid()?;
    first.signal("TERM")?;
    for name in &names[RUNNING..] {
        driver.claim(name).await?;
    }
    let status = first.wait_ended(LIMIT).await?;
    assert_eq!(status.code(), Some(0), "{}", first.log_text());
    let lease = world.holder(&driver.name, Some("second")).await?;
    assert_eq!(lease.spec.and_then(|spec| spec.lease_transitions), Some(2));
    for name in &names {
        world.fixtures.wait_for_attached(name).await?;
    }
    world.reported_holder("hand", Some("second")).await?;
    driver.wait("Ready", "True", Some("Running")).await?;

    let calls = moves(&driver.mock);
    assert!(
        calls
            .iter()
            .all(|call| !call.overlap && call.outcome == CallResult::Answered),
        "{calls:#?}"
    );
    assert_eq!(calls.len(), names.len(), "each once: {calls:#?}");
    assert_handed_over(&history.versions(LIMIT).await?, &calls, pid);
    only_the_leader_writes(&world, &driver.name).await
}

/// The Lease went from the first replica, which is this process, to the second because it was given up; and no call was made
/// outside the time of its caller.
fn assert_handed_over(versions: &[LeaseSpec], calls: &[CallRecord], first: u32) {
    let (by_first, by_second): (Vec<&CallRecord>, Vec<&CallRecord>) =
        calls.iter().partition(|call| call.caller_pid == Some(first));
    assert!(
        by_first.len() >= RUNNING && !by_second.is_empty(),
        "{first}: {calls:#?}"
    );
    let changes: Vec<_> = changes(versions)
        .into_iter()
        .map(|change| (change.from, change.to, change.released))
        .collect();
    let given_up = ("first".to_owned(), "second".to_owned(), true);
    assert_eq!(changes, [given_up], "{versions:#?}");
    let given_up = versions.iter().find(|version| version.holder_identity.is_none());
    let given_up = given_up.and_then(|version| version.renew_time.as_ref());
    let given_up = given_up.expect("it was given up").0;
    let late = by_first
        .iter()
        .filter(|call| call.finished.is_none_or(|ended| ended > given_up));
    assert_eq!(late.count(), 0, "{given_up} {by_first:#?}");
    let taken = versions.last().and_then(|version| version.acquire_time.as_ref());
    let taken = taken.expect("it was taken").0;
    let early = by_second.iter().filter(|call| call.started < taken);
    assert_eq!(early.count(), 0, "{taken} {by_second:#?}");
}

/// Nobody but the leader writes the status, and that only when it changes.
async fn only_the_leader_writes(world: &World, driver: &str) -> Result<()> {
    let writes = world.status_writes("hand")?.len();
    world.renewals(driver, 6).await?;
    let late = world.status_writes("hand")?.split_off(writes);
    assert!(
        late.iter().all(|body| body["status"]["holder"] == "second"),
        "{late:#?}"
    );
    // Each of the counts, the first comparison with the driver's list and the first look at all may still be to be written.
    assert!(late.len() <= 3, "{late:#?}");
    Ok(())
}

/// An operator that is given no name: by its variables, all of which are empty.
fn nameless() -> OperatorOptions {
    let mut options = operator_options();
    options.arguments.clear();
    for variable in ["POD_NAME", "LOG_LEVEL", "LOG_FORMAT"] {
        options = options.variable(variable, "");
    }
    options
}

/// A Lease whose holder is an empty name is free, and two replicas of that name would lead at once: it has that of the host. Told to stop, it ends
/// no later than it was allowed to, and the next one goes on; the last one tells that it stopped.
#[tokio::test]
async fn an_empty_name_is_no_name_and_the_last_replica_tells_that_it_stopped() -> Result<()> {
    let world = World::own().await?;
    let mut hung = world
        .operator(nameless().argument("--shutdown-grace-period=1s"))
        .await?;
    let driver = world.driver("last", lasting()).await?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host has a name");
    let host: &'static str = host.trim().to_owned().leak();
    world.holder(&driver.name, Some(host)).await?;
    let hangs = Rule::on(Method::ControllerPublishVolume).times(1);
    driver.mock.script(hangs.hang());
    driver.claim("last-1").await?;
    driver.call(Method::ControllerPublishVolume, "last-1", |_| true).await?;
    let told = Instant::now();
    hung.signal("TERM")?;
    let status = hung.wait_ended(LIMIT).await?;
    let took = told.elapsed();
    assert_eq!(status.code(), Some(1), "{}", hung.log_text());
    // The call is cancelled shortly before the end, so that the Lease can be released. That it is not later, a busy machine decides
    // too; the call itself would have ended after a minute.
    assert!(
        took >= Duration::from_millis(800) && took < Duration::from_secs(20),
        "{took:?}"
    );
    let stored = world.fixtures.get_attachment("last-1").await?;
    assert!(stored.status.is_none_or(|status| !status.attached));

    let mut only = world.operator(nameless()).await?;
    world.fixtures.wait_for_attached("last-1").await?;
    assert_eq!(driver.calls_for("last-1").len(), 2);
    world.reported_holder("last", Some(host)).await?;
    stop(&mut only).await?;
    driver.wait("Ready", "False", Some("Stopped")).await?;
    world.reported_holder("last", None).await?;
    world.holder(&driver.name, None).await?;
    assert!(only.log_text().contains("released the Lease"), "{}", only.log_text());
    Ok(())
}

#[tokio::test]
async fn killed_it_is_succeeded_when_its_leases_are_over() -> Result<()> {
    let world = World::own().await?;
    let mut first = world.replica("first").await?;
    let driver = world.driver("killed", short()).await?;
    driver.attach("killed-1").await?;
    let mut second = world.replica("second").await?;
    // It competes for the Lease before that is over, as a standby does.
    let waits = format!(
        "leader_election_master_status{{name=\"{}\"}} 0\n",
        lease_name(&driver.name)
    );
    second
        .wait_for_answer("/metrics", |_, text| text.contains(&waits))
        .await?;
    let work = async {
        first.signal("KILL")?;
        first.wait_ended(LIMIT).await?;
        let left = world.holder(&driver.name, Some("first")).await?;
        driver.claim("killed-2").await?;
        Ok((left, world.holder(&driver.name, Some("second")).await?))
    };
    let ((left, taken), looks) = look_during(&world, Box::pin(work)).await?;
    // Not from when it was killed: the last renewal was before that.
    let rested = times(&taken)?.0.duration_since(times(&left)?.1);
    println!("{rested:#} from the last renewal until the Lease was taken, of {LEASE_DURATION:?}");
    assert!(rested.as_secs_f64() >= LEASE_DURATION.as_secs_f64(), "{rested:#}");
    // While another process stands still, the second replica waits for that process.
    let stood_still = SignedDuration::from_millis(looks.stood_still());
    assert!(rested <= TAKEN_WITHIN + stood_still, "{rested:#}");
    world.fixtures.wait_for_attached("killed-2").await?;
    world.reported_holder("killed", Some("second")).await?;

    // One that starts under its old name has its Lease back at once.
    second.signal("KILL")?;
    second.wait_ended(LIMIT).await?;
    let _second = world.replica("second").await?;
    driver.attach("killed-3").await?;
    // A Lease that it had waited for would have been acquired anew.
    let kept = world.holder(&driver.name, Some("second")).await?;
    assert_eq!(times(&kept)?.0, times(&taken)?.0);
    let calls = moves(&driver.mock);
    assert!(calls.len() == 3 && calls.iter().all(|call| !call.overlap), "{calls:#?}");
    Ok(())
}
