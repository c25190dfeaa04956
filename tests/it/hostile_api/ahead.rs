//! Watches that end, are late or expire while lists and answers work: nothing was restored, and nothing waits for a restore.

use std::time::Duration;

use csi_mock_driver::Method;

use super::{Front, all_attached, claim_all, names};
use crate::support::Result;
use crate::support::proxy::Cut;

const RESTORED: &str = "went back to an older state";

/// Answers to our own writes are ahead of watches that end under load. That is no restore, and no attach waits for one.
#[tokio::test]
async fn watches_that_end_under_load_hold_no_attach_back() -> Result<()> {
    let front = Front::with_timeout("15s").await?;
    let driver = front.driver("ahead", "1s").await?;
    let all = names("ahead", 200);
    let breaks = async {
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            front.proxy.cut(Cut::End);
        }
    };
    let (claimed, ()) = tokio::join!(claim_all(&driver, &all), breaks);
    claimed?;
    all_attached(&driver, &all).await?;
    let log = front.operator.log_text();
    let alarms = log.lines().filter(|line| line.contains(RESTORED)).count();
    assert_eq!(alarms, 0, "nothing was restored");
    let calls = driver.mock.calls_of(Method::ControllerPublishVolume);
    let mut starts: Vec<i64> = calls.iter().map(|call| call.started.as_millisecond()).collect();
    starts.sort_unstable();
    let longest = starts.windows(2).map(|pair| pair[1] - pair[0]).max();
    println!("longest pause between two calls: {longest:?} ms");
    assert!(longest < Some(3_000), "{longest:?} ms without a call");
    Ok(())
}
