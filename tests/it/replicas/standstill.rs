//! A leader whose process stands still for longer than its Lease, and goes on with what it knew.

use std::time::Duration;

use csi_mock_driver::{CallRecord, Method, Rule};
use futures::future::try_join_all;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tonic::Code;

use super::moves;
use crate::rig::{Driver, World, stands_by};
use crate::support::Result;
use crate::support::stage::stop;

/// Drivers, and volumes of each. Whether a wrong operator makes a call is a race for each driver.
const DRIVERS: usize = 8;
const VOLUMES: usize = 15;
/// At least as long as this the leader stands still: longer than its Lease.
const STANDSTILL: Duration = Duration::from_secs(22);
/// The successor has to wait for the end of the Lease first.
const LATE: Duration = Duration::from_mins(1);

/// The Lease outlives a machine that stands still for some seconds. Work is due before the Lease is to be renewed, so that
/// the timers of both end in this order while the process stands still.
fn settings() -> Value {
    json!({
        "leaderElection": {"leaseDuration": "20s", "renewDeadline": "15s", "retryPeriod": "3s"},
        "backoff": {"initial": "200ms", "max": "500ms"},
    })
}

impl Driver<'_> {
    fn names(&self) -> Vec<String> {
        (0..VOLUMES).map(|number| format!("{}-{number}", self.short)).collect()
    }

    /// Has volumes attached whose detach fails again and again.
    async fn fail_to_detach(&self) -> Result<()> {
        let names = self.names();
        try_join_all(names.iter().map(|name| self.attach(name))).await?;
        let fails = Rule::on(Method::ControllerUnpublishVolume);
        self.mock.script(fails.fail(Code::Unavailable, "the backend is away"));
        let fixtures = &self.world.fixtures;
        try_join_all(names.iter().map(|name| fixtures.delete::<VolumeAttachment>(name))).await?;
        let failed = |call: &CallRecord| call.code == Some(Code::Unavailable);
        let method = Method::ControllerUnpublishVolume;
        try_join_all(names.iter().map(|name| self.call(method, name, failed))).await?;
        Ok(())
    }

    /// The successor detaches the volumes, and they are attached again by VolumeAttachments of the same names.
    async fn attach_again(&self) -> Result<()> {
        let (names, fixtures) = (self.names(), self.world.fixtures.clone().with_limit(LATE));
        try_join_all(names.iter().map(|name| fixtures.wait_for_attachment_gone(name))).await?;
        try_join_all(names.iter().map(|name| self.attachment(name, name))).await?;
        try_join_all(names.iter().map(|name| fixtures.wait_for_attached(name))).await?;
        Ok(())
    }

    /// The calls by one process that move volumes, from this number on.
    fn calls_of(&self, pid: u32, from: u64) -> Vec<CallRecord> {
        let mut calls = moves(&self.mock);
        calls.retain(|call| call.caller_pid == Some(pid) && call.id >= from);
        calls
    }
}

/// The history of issue 14: the detaches that were due belong to VolumeAttachments that are gone, and the volumes are attached
/// again, to VolumeAttachments of the same names.
#[tokio::test]
async fn a_leader_that_stood_still_detaches_nothing_that_was_attached_meanwhile() -> Result<()> {
    let world = World::own().await?;
    let first = world.replica("first").await?;
    let names: Vec<String> = (0..DRIVERS).map(|number| format!("still{number}")).collect();
    let drivers = try_join_all(names.iter().map(|name| world.driver(name, settings()))).await?;
    try_join_all(drivers.iter().map(Driver::fail_to_detach)).await?;
    let pid = first.pid()?;
    let mut second = world.replica("second").await?;
    for driver in &drivers {
        world.holder(&driver.name, Some("first")).await?;
    }

    first.signal("STOP")?;
    let stopped = Instant::now();
    for driver in &drivers {
        driver.mock.clear_rules();
    }
    try_join_all(drivers.iter().map(Driver::attach_again)).await?;
    // What is waited for is that the time of the Lease is over, not only that another has it.
    sleep_until(stopped + STANDSTILL).await;
    let marks: Vec<u64> = drivers.iter().map(|driver| driver.mock.call_count()).collect();
    first.signal("CONT")?;

    let mut strays = Vec::new();
    for (driver, from) in drivers.iter().zip(&marks) {
        stands_by(&first, &driver.name).await?;
        // Whatever else it was about to do, it has done or left alone by then.
        driver.attach(&format!("{}-more", driver.short)).await?;
        strays.extend(driver.calls_of(pid, *from));
    }
    let count = strays.len();
    assert_eq!(count, 0, "by the one that stood still: {strays:#?}");
    for driver in &drivers {
        assert_eq!(driver.mock.published().len(), VOLUMES + 1, "{}", driver.name);
    }

    // It is a standby like any other, and works when its turn comes.
    stop(&mut second).await?;
    let (driver, from) = (&drivers[0], marks[0]);
    world.holder(&driver.name, Some("first")).await?;
    driver.attach("still-last").await?;
    assert_eq!(driver.calls_of(pid, from).len(), 1);
    Ok(())
}
