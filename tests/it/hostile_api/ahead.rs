//! Watches that end, are late or expire while lists and answers work: nothing was restored, and nothing waits for a restore.

use std::time::{Duration, Instant};

use csi_mock_driver::Method;
use serde_json::json;

use super::pauses::look_during;
use super::{Front, LATE, about, all_attached, claim_all, names, patient};
use crate::provision::{grant, provisioning, soon};
use crate::rig::{World, delete_volume, detach};
use crate::support::Result;
use crate::support::proxy::{Cut, Fault, Seen};

const RESTORED: &str = "went back to an older state";

/// Answers to our own writes are ahead of watches that end under load. That is no restore, and no attach waits for one.
pub async fn watches_that_end_under_load_hold_no_attach_back(world: &World) -> Result<()> {
    let front = Front::new(world).await?;
    let driver = front.driver("ahead", "1s").await?;
    let all = names("ahead", 200);
    let breaks = async {
        // One more, and a watch that the API server ends by itself may wait.
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            front.proxy.cut(Cut::End);
        }
    };
    let work = async {
        let (claimed, ()) = tokio::join!(claim_all(&driver, &all), breaks);
        claimed?;
        all_attached(&driver, &all).await
    };
    let ((), looks) = look_during(world, Box::pin(work)).await?;
    let log = front.operator.log_text();
    let alarms = log.lines().filter(|line| line.contains(RESTORED)).count();
    assert_eq!(alarms, 0, "nothing was restored");
    let calls = driver.mock.calls_of(Method::ControllerPublishVolume);
    let mut starts: Vec<i64> = calls.iter().map(|call| call.started.as_millisecond()).collect();
    starts.sort_unstable();
    // While a process stands still, the attaches wait for that process.
    let pauses = starts.windows(2).map(|pair| (pair[0], pair[1]));
    let longest = pauses
        .map(|(from, to)| to - from - looks.stood_still_between(from, to))
        .max();
    println!("longest pause between two calls while no process stood still: {longest:?} ms");
    assert!(longest < Some(5_000), "{longest:?} ms without a call");
    front.end(&["ahead"]).await
}

/// Each watch of PersistentVolumes is refused with 410, and lists work. Where the volume is to be deleted, lists that begin after a read of the
/// PersistentVolume are enough.
pub async fn a_volume_whose_watch_always_expires_is_released_and_deleted(world: &World) -> Result<()> {
    let front = Front::new(world).await?;
    let driver = front.driver("expired", "1s").await?;
    driver.attach("expired-before").await?;
    grant(&world.cluster).await?;
    let deletes = provisioning(world, "expired-d", &soon()).await?;
    deletes.released("expired-0", "vol-0", json!({})).await?;
    assert_eq!(deletes.is_deleted("expired-0", "vol-0").await?, 1);
    let watches = |seen: &Seen| seen.is_watch() && about(seen, "persistentvolumes");
    front.proxy.fault(Fault::Status(410, None), usize::MAX, watches);
    front.proxy.cut(Cut::Gone);
    driver.attach("expired").await?;
    // The volume is seen by a list, which may wait for its turn; and so may the list of attachments after that.
    let fixtures = patient(&driver);
    detach(&fixtures, "expired").await?;
    let began = Instant::now();
    delete_volume(&fixtures, "expired").await?;
    println!("released after {:?}", began.elapsed());
    assert!(!front.operator.log_text().contains(RESTORED));

    deletes.released("expired-1", "vol-1", json!({})).await?;
    assert_eq!(deletes.is_deleted_within("expired-1", "vol-1", LATE).await?, 1);
    // Where one has the handle as well, or it is attached, nothing is deleted.
    let retain = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
    deletes.saved_as("expired-other", "vol-2", retain).await?;
    deletes.released("expired-2", "vol-2", json!({})).await?;
    deletes.released("expired-3", "vol-3", json!({})).await?;
    assert_eq!(deletes.is_deleted_within("expired-3", "vol-3", LATE).await?, 1);
    assert_eq!(deletes.deletions("vol-2"), 0);
    front.end(&["expired", "expired-d"]).await
}
