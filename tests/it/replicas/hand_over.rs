//! From one replica to the next: told to stop, and killed.

use std::time::{Duration, Instant};

use csi_mock_driver::{Method, Outcome, Rule};
use jiff::Timestamp;

use super::{LEASE_DURATION, TAKEN_WITHIN, end, lasting, leads, moves, short};
use crate::lease::times;
use crate::rig::{LIMIT, World};
use crate::support::Result;

const RUNNING: usize = 20;

#[tokio::test]
async fn told_to_stop_it_hands_over_at_once_with_calls_in_flight() -> Result<()> {
    let world = World::own().await?;
    let mut first = world.replica("first").await?;
    let driver = world.driver("hand", lasting()).await?;
    world.holder(&driver.name, Some("first")).await?;
    let second = world.replica("second").await?;
    world.reported_holder("hand", Some("first")).await?;
    assert!(leads(&first, &driver.name).await? && !leads(&second, &driver.name).await?);

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
    let told = Timestamp::now();
    first.signal("TERM")?;
    for name in &names[RUNNING..] {
        driver.claim(name).await?;
    }
    let status = first.wait_ended(LIMIT).await?;
    assert_eq!(status.code(), Some(0), "{}", first.log_text());
    let lease = world.holder(&driver.name, Some("second")).await?;
    assert_eq!(lease.spec.and_then(|spec| spec.lease_transitions), Some(1));
    for name in &names {
        world.fixtures.wait_for_attached(name).await?;
    }
    world.reported_holder("hand", Some("second")).await?;
    driver.wait("Ready", "True", None).await?;

    let calls = moves(&driver.mock);
    assert!(
        calls
            .iter()
            .all(|call| !call.overlap && call.outcome == Outcome::Answered),
        "{calls:#?}"
    );
    assert_eq!(calls.len(), names.len(), "each once: {calls:#?}");
    let by_second = second.log_text();
    let begun = calls.iter().filter(|call| {
        let volume = call.volume.as_deref().unwrap_or_default();
        by_second.contains(&format!("\"volumeHandle\":\"{volume}\""))
    });
    let begun = begun.map(|call| call.started).min().expect("the second one has called");
    let took = begun.duration_since(told);
    println!("{took:#} from SIGTERM until the first call of the successor, with calls of 300 ms in flight");
    // The Lease did not run out, which takes twice as long.
    assert!(took.as_secs_f64() < LIMIT.as_secs_f64(), "{took:#}");

    // Nobody but the leader writes the status, and that only when it changes.
    let writes = world.status_writes("hand")?.len();
    world.renewals(&driver.name, 6).await?;
    let late = world.status_writes("hand")?.split_off(writes);
    assert!(
        late.iter().all(|body| body["status"]["holder"] == "second"),
        "{late:#?}"
    );
    // Each of the counts, the first comparison with the driver's list and the first look at all may still be to be written.
    assert!(late.len() <= 3, "{late:#?}");
    Ok(())
}

#[tokio::test]
async fn the_last_replica_tells_that_it_stopped() -> Result<()> {
    let world = World::own().await?;
    let mut only = world.replica("only").await?;
    let driver = world.driver("last", lasting()).await?;
    driver.attach("last-1").await?;
    world.reported_holder("last", Some("only")).await?;
    end(&mut only).await?;
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
    first.signal("KILL")?;
    let killed = Instant::now();
    first.wait_ended(LIMIT).await?;
    let left = world.holder(&driver.name, Some("first")).await?;
    driver.claim("killed-2").await?;
    let taken = world.holder(&driver.name, Some("second")).await?;
    let took = killed.elapsed();
    // Not from when it was killed: the last renewal was before that.
    let rested = times(&taken)?.0.duration_since(times(&left)?.1);
    assert!(rested.as_secs_f64() >= LEASE_DURATION.as_secs_f64(), "{rested:#}");
    assert!(took <= TAKEN_WITHIN, "{took:?}");
    println!("{took:?} from kill -9 until the Lease was taken, of {LEASE_DURATION:?}");
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
