//! Writes that are refused, cut off, slow or never answered.

use std::time::{Duration, Instant};

use super::{Front, all_attached, all_detached, claim_all, names, publishes};
use crate::rig::World;
use crate::support::Result;
use crate::support::proxy::{Fault, Seen};

/// A write to the VolumeAttachments, or their status, whose names begin so.
fn writes_of(prefix: &'static str, status: bool) -> impl Fn(&Seen) -> bool + Send + Copy + 'static {
    move |seen| {
        let about = seen.path.contains(&format!("/volumeattachments/{prefix}"));
        seen.is_write() && about && seen.path.ends_with("/status") == status
    }
}

pub async fn writes_get_through(world: &World) -> Result<()> {
    let front = Front::new(world).await?;
    throttled(&front).await?;
    let faults = [
        ("error", Fault::Status(500, None), 60),
        ("unavailable", Fault::Status(503, None), 60),
        ("cut", Fault::Reset, 60),
    ];
    answers_that_say_nothing(&front, "storm", &faults).await?;
    slow(&front).await?;
    front.end(&["busy", "calm", "storm", "slow"]).await
}

/// Each one costs the time for which the operator waits, and fewer writes are on their way at a time.
pub async fn writes_that_are_not_answered_get_through(world: &World) -> Result<()> {
    let front = Front::with_timeout(world, "5s").await?;
    answers_that_say_nothing(&front, "silence", &[("hang", Fault::Hang, 8)]).await?;
    front.end(&["silence"]).await
}

/// 429 with Retry-After: this driver's writes of the kind wait for the whole time, those of another driver do not, and a
/// result is not thrown away for it.
async fn throttled(front: &Front<'_>) -> Result<()> {
    // Longer than an attach takes on a busy machine.
    const PAUSE: Duration = Duration::from_secs(15);
    let (busy, calm) = (front.driver("busy", "1s").await?, front.driver("calm", "1s").await?);
    let kind = writes_of("busy-", false);
    front.proxy.fault(Fault::Status(429, Some(PAUSE.as_secs())), 1, kind);
    busy.claim("busy-first").await?;
    let refused = front.proxy.wait_for("a refusal", 1, kind).await?[0].at;
    calm.attach("calm-va").await?;
    let calm_took = refused.elapsed();
    let more = names("busy", 10);
    claim_all(&busy, &more).await?;
    let all = [more, vec!["busy-first".to_owned()]].concat();
    all_attached(&busy, &all).await?;
    let writes = front.proxy.log().into_iter().filter(kind).map(|seen| seen.at);
    let early = writes.filter(|at| *at > refused && *at < refused + PAUSE).count();
    assert_eq!(early, 0, "writes during the pause");
    assert!(calm_took < PAUSE, "the other driver waited as well: {calm_took:?}");

    // More refusals of the status than there are tries: each was not looked at, so the call is not repeated for it.
    front
        .proxy
        .fault(Fault::Status(429, Some(1)), 6, writes_of("busy-told", true));
    let told = vec!["busy-told".to_owned()];
    claim_all(&busy, &told).await?;
    all_attached(&busy, &told).await?;
    for name in all.iter().chain(&told) {
        assert_eq!(publishes(&busy, name), 1, "{name}");
    }
    all_detached(&busy, &all).await
}

/// Errors, cut connections and no answer at all: each may hide a write that happened.
async fn answers_that_say_nothing(
    front: &Front<'_>,
    short: &'static str,
    faults: &[(&str, Fault, usize)],
) -> Result<()> {
    let driver = front.driver(short, "500ms").await?;
    for &(what, fault, times) in faults {
        let stormy = move |seen: &Seen| seen.is_write() && seen.path.contains(&format!("/{short}-"));
        front.proxy.fault(fault, times, stormy);
        let all = names(&format!("{short}-{what}"), 10);
        claim_all(&driver, &all).await?;
        all_attached(&driver, &all).await?;
        front.proxy.heal();
        front.proxy.fault(fault, times / 2, stormy);
        all_detached(&driver, &all).await?;
        front.proxy.heal();
    }
    Ok(())
}

async fn slow(front: &Front<'_>) -> Result<()> {
    let driver = front.driver("slow", "1s").await?;
    front
        .proxy
        .fault(Fault::Slow(Duration::from_millis(300)), usize::MAX, |_| true);
    let (all, began) = (names("slow", 20), Instant::now());
    claim_all(&driver, &all).await?;
    all_attached(&driver, &all).await?;
    all_detached(&driver, &all).await?;
    front.proxy.heal();
    for name in &all {
        assert_eq!(
            driver.calls_for(name).len(),
            2,
            "{name}: once each way, in {:?}",
            began.elapsed()
        );
    }
    Ok(())
}
