//! From one replica to the next: told to stop.

use std::time::{Duration, Instant};

use csi_attacher_model::api::AttacherConfig;
use csi_attacher_model::api::names::lease_name;
use csi_mock_driver::{CallRecord, Method, Rule};
use k8s_openapi::api::coordination::v1::LeaseSpec;

use super::{assert_one_at_a_time, lasting};
use crate::rig::{Driver, LIMIT, World, host, leads, operator_options};
use crate::support::lease::{History, changes};
use crate::support::stage::stop;
use crate::support::{Operator, OperatorOptions, Result};

const PUBLISH: Method = Method::ControllerPublishVolume;
const RUNNING: usize = 20;

/// An operator that is given no name: by its variables, all of which are empty. A Lease whose holder is an empty name is free, and two
/// replicas of that name would lead at once.
fn nameless() -> OperatorOptions {
    let mut options = operator_options();
    options.arguments.clear();
    let variables = ["POD_NAME", "LOG_LEVEL", "LOG_FORMAT"].into_iter();
    variables.fold(options, |options, variable| options.variable(variable, ""))
}

pub async fn told_to_stop_it_gives_its_lease_up(world: &World) -> Result<()> {
    let mut first = world.replica("first").await?;
    let driver = world.driver("hand", lasting()).await?;
    world.holder(&driver.name, Some("first")).await?;
    let hurried = nameless().argument("--shutdown-grace-period=1s");
    let (host, second) = (host(), world.operator(hurried).await?);
    world.reported_holder("hand", Some("first")).await?;
    assert!(leads(&first, &driver.name).await? && !leads(&second, &driver.name).await?);

    let history = History::start(world.leases(), lease_name(&driver.name));
    driver.mock.script(Rule::on(PUBLISH).delay(Duration::from_millis(300)));
    let names: Vec<String> = (0..2 * RUNNING).map(|number| format!("hand-{number}")).collect();
    for name in &names[..RUNNING] {
        driver.claim(name).await?;
    }
    driver.call(PUBLISH, &names[RUNNING - 1], |_| true).await?;
    let pid = first.pid()?;
    first.signal("TERM")?;
    first.wait_for_log("stop signal received").await?;
    // These are for the successor.
    for name in &names[RUNNING..] {
        driver.claim(name).await?;
    }
    let status = first.wait_ended(LIMIT).await?;
    assert_eq!(status.code(), Some(0), "{}", first.log_text());
    let lease = world.holder(&driver.name, Some(&host)).await?;
    assert_eq!(lease.lease_transitions, Some(2));
    for name in &names {
        world.fixtures.wait_for_attached(name).await?;
    }
    world.reported_holder("hand", Some(&host)).await?;
    driver.wait("Ready", "True", Some("Running")).await?;

    let calls = assert_one_at_a_time(&driver.mock, names.len());
    assert_handed_over(&history.versions(LIMIT).await?, &calls, pid, &host);
    let connected = driver.mock.calls_of(Method::GetPluginInfo).len();
    assert_eq!(connected, 2, "no new connection to take over");
    // Each of the counts, the first comparison with the driver's list and the first look at all may still be to be written.
    let writes = world.writes_of(&host, "hand", 6).await?;
    assert!(writes <= 3, "{writes}");
    the_last_one_tells_that_it_stopped(&driver, &host, second).await?;
    world.fixtures.delete::<AttacherConfig>("hand").await
}

/// The Lease went from the first replica, which is this process, to the second because it was given up; and no call was made
/// outside the time of its caller.
fn assert_handed_over(versions: &[LeaseSpec], calls: &[CallRecord], first: u32, second: &str) {
    let is_by_first = |call: &&CallRecord| call.caller_pid == Some(first);
    let (by_first, by_second): (Vec<_>, Vec<_>) = calls.iter().partition(is_by_first);
    let counts = (by_first.len(), by_second.len());
    assert_eq!(counts, (RUNNING, RUNNING), "{first}: {calls:#?}");
    let changes = changes(versions);
    let [only] = &changes[..] else { panic!("{changes:#?}") };
    let told = (&*only.from, &*only.to, only.released);
    assert_eq!(told, ("first", second, true), "{versions:#?}");
    let given_up = versions.iter().find(|version| version.holder_identity.is_none());
    let given_up = given_up.unwrap().renew_time.as_ref().unwrap().0;
    let late = |call: &&CallRecord| call.finished.is_none_or(|ended| ended > given_up);
    assert!(!by_first.iter().any(late), "{given_up} {by_first:#?}");
    let taken = versions.last().unwrap().acquire_time.as_ref().unwrap().0;
    let early = |call: &&CallRecord| call.started < taken;
    assert!(!by_second.iter().any(early), "{taken} {by_second:#?}");
}

/// Told to stop, it ends no later than it was allowed to, and the next one of its name goes on.
async fn the_last_one_tells_that_it_stopped(driver: &Driver<'_>, name: &str, mut hung: Operator) -> Result<()> {
    let world = driver.world;
    driver.mock.clear_rules();
    driver.mock.script(Rule::on(PUBLISH).times(1).hang());
    driver.claim("hand-last").await?;
    driver.call(PUBLISH, "hand-last", |_| true).await?;
    let told = Instant::now();
    hung.signal("TERM")?;
    let status = hung.wait_ended(LIMIT).await?;
    let took = told.elapsed();
    assert_eq!(status.code(), Some(1), "{}", hung.log_text());
    // The call is cancelled shortly before the end, so that the Lease can be released. That it is not later, a busy machine decides
    // too; the call itself would have ended after a minute.
    let is_in_time = took >= Duration::from_millis(800) && took < Duration::from_secs(20);
    assert!(is_in_time, "{took:?}");
    let stored = world.fixtures.get_attachment("hand-last").await?;
    assert!(stored.status.is_none_or(|status| !status.attached));

    let mut only = world.operator(nameless()).await?;
    world.fixtures.wait_for_attached("hand-last").await?;
    assert_eq!(driver.calls_for("hand-last").len(), 2);
    world.reported_holder("hand", Some(name)).await?;
    stop(&mut only).await?;
    driver.wait("Ready", "False", Some("Stopped")).await?;
    world.reported_holder("hand", None).await?;
    world.holder(&driver.name, None).await?;
    assert!(only.log_text().contains("released the Lease"), "{}", only.log_text());
    Ok(())
}
