//! Lists and watches that are refused, expire, end, say nothing or are cut off, and an API server that is away.

use std::time::{Duration, Instant};

use csi_attacher_kube::apiserver::SlotLimits;
use csi_mock_driver::Method;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::{Front, about, all_attached, all_detached, claim_all, names, patient, publishes};
use crate::rig::{Driver, World};
use crate::support::Result;
use crate::support::proxy::{Cut, Fault, Proxy, Seen};

pub async fn what_a_watch_does_not_tell_is_found(world: &World) -> Result<()> {
    // A page that hangs is given up after four times as long.
    let front = Front::with_timeout(world, "3s").await?;
    let driver = front.driver("seen", "1s").await?;
    for (number, cut) in [Cut::Gone, Cut::End, Cut::Reset].into_iter().enumerate() {
        in_a_gap(&front, &driver, number, cut).await?;
    }
    throttled_lists(&front, &driver).await?;
    expired_pages(&front, &driver).await?;
    watches_that_end(&front, &driver).await?;
    front.end(&["seen"]).await
}

/// Things happen while the watches are silent; then they are cut.
async fn in_a_gap(front: &Front<'_>, driver: &Driver<'_>, number: usize, cut: Cut) -> Result<()> {
    let before = names(&format!("seen-{number}-before"), 5);
    claim_all(driver, &before).await?;
    all_attached(driver, &before).await?;
    front.proxy.silence("");
    let after = names(&format!("seen-{number}-after"), 5);
    claim_all(driver, &after).await?;
    for name in &before {
        driver.world.fixtures.delete::<VolumeAttachment>(name).await?;
    }
    assert!(
        after.iter().all(|name| publishes(driver, name) == 0),
        "the watch was silent"
    );
    front.proxy.cut(cut);
    front.proxy.heal();
    all_attached(driver, &after).await?;
    all_detached(driver, &before).await?;
    for name in before.iter().chain(&after) {
        assert_eq!(publishes(driver, name), 1, "{name}");
    }
    Ok(())
}

/// A list that is refused with Retry-After is not asked for again before its time, and the other kinds go on.
async fn throttled_lists(front: &Front<'_>, driver: &Driver<'_>) -> Result<()> {
    const PAUSE: Duration = Duration::from_secs(4);
    let lists = |seen: &Seen| seen.is_list() && about(seen, "csinodes");
    let before = front.proxy.log().into_iter().filter(lists).count();
    front.proxy.fault(Fault::Status(429, Some(PAUSE.as_secs())), 1, lists);
    front.proxy.cut(Cut::Gone);
    let seen = front.proxy.wait_for("a list of csinodes", before + 2, lists).await?;
    let (refused, again) = (&seen[before], &seen[before + 1]);
    let reads = |seen: &Seen| !seen.is_write() && about(seen, "csinodes");
    let early = front.proxy.log().into_iter().filter(reads);
    let early = early
        .filter(|seen| seen.at > refused.at && seen.at < refused.at + PAUSE)
        .count();
    assert_eq!(early, 0, "csinodes were asked for during the pause");
    assert!(again.at >= refused.at + PAUSE && again.forwarded);
    driver.claim("seen-throttled").await?;
    patient(driver).wait_for_attached("seen-throttled").await.map(drop)
}

/// A page that never comes, and continue tokens that always expire between two pages.
async fn expired_pages(front: &Front<'_>, driver: &Driver<'_>) -> Result<()> {
    let fixtures = &driver.world.fixtures;
    let many = names("paged", 600);
    let nodes = stream::iter(&many).map(|name| fixtures.csi_node(name, &driver.name, name));
    nodes.buffer_unordered(30).map_ok(drop).try_collect::<()>().await?;
    let second_pages = |seen: &Seen| about(seen, "csinodes") && seen.query.contains("continue=");
    front.proxy.fault(Fault::Hang, 1, second_pages);
    front.proxy.fault(Fault::Status(410, None), usize::MAX, second_pages);
    front.proxy.silence("");
    fixtures.csi_node("zz-last", &driver.name, "zz-last-id").await?;
    front.proxy.cut(Cut::Gone);
    let whole = |seen: &Seen| seen.is_list() && about(seen, "csinodes") && seen.query.contains("limit=0");
    front.proxy.wait_for("a list as a whole", 1, whole).await?;
    front.proxy.wait_for("second pages", 2, second_pages).await?;
    front.proxy.heal();
    fixtures.persistent_volume(&driver.volume("seen-last")).await?;
    fixtures
        .volume_attachment("seen-last", &driver.name, "seen-last", "zz-last")
        .await?;
    patient(driver).wait_for_attached("seen-last").await.map(drop)
}

/// Watches that end as soon as they begin are begun again, but not without a pause.
async fn watches_that_end(front: &Front<'_>, driver: &Driver<'_>) -> Result<()> {
    let watches = |seen: &Seen| seen.is_watch() && about(seen, "volumeattachments");
    let before = front.proxy.log().into_iter().filter(watches).count();
    front
        .proxy
        .fault(Fault::Ended, usize::MAX, |seen: &Seen| seen.is_watch());
    front.proxy.cut(Cut::End);
    let began = Instant::now();
    let seen = front.proxy.wait_for("watches", before + 8, watches).await?;
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", &seen[before..]);
    driver.claim("seen-ended").await?;
    front.proxy.heal();
    patient(driver).wait_for_attached("seen-ended").await?;
    front.operator.wait_ready().await
}

/// The API server is away when the operator starts, and once more later: two hundred attachments wait when it comes back then. They do not all
/// come at once.
pub async fn after_an_outage_the_api_server_is_not_run_over(world: &World) -> Result<()> {
    const MANY: usize = 200;
    let front = Front::started(world, "15s", Proxy::outage).await?;
    is_waited_for(&front).await?;
    let driver = front.driver("away", "8s").await?;
    driver.attach("away-before").await?;
    let all = names("away", MANY);
    // They are seen and cannot be written, so that each is tried again and again.
    let writes = |seen: &Seen| seen.is_write() && seen.path.contains("/away-");
    front.proxy.fault(Fault::Reset, usize::MAX, writes);
    claim_all(&driver, &all).await?;
    front.proxy.wait_for("failed writes", 3 * MANY, writes).await?;
    front.proxy.outage();
    front
        .operator
        .wait_for_answer("/readyz", |status, body| status == 503 && body.contains("watch/"))
        .await?;
    assert_eq!(front.operator.get("/livez").await?.0, 200);
    let before = front.proxy.log().len();
    front.proxy.most_writes_at_once();
    front.proxy.heal();
    all_attached(&driver, &all).await?;
    let log = front.proxy.log().split_off(before);
    // No answer lowered the limit to the least, from which it rises with answers; three more are for its Lease, its status and
    // an event, which are in no line.
    let allowed = SlotLimits::default().max / 2 + 3;
    let at_once = front.proxy.most_writes_at_once();
    assert!(at_once <= allowed, "{at_once} writes at the same time");
    let writes = log.iter().filter(|seen| seen.is_write()).count();
    // For each: protect, claim, mark as attached, an event about the attachment and one about the volume, and one too early.
    assert!(writes <= 6 * MANY, "{writes} writes for {MANY} attachments");
    let reads = log
        .iter()
        .filter(|seen| !seen.is_write() && !seen.path.contains("/away-"))
        .count();
    assert!(reads <= 40, "{reads} lists and watches");
    for name in all.iter().chain(&["away-before".to_owned()]) {
        assert_eq!(publishes(&driver, name), 1, "{name}");
    }
    let probes = driver.mock.calls_of(Method::Probe).len();
    assert_eq!(
        probes, 1,
        "the driver's connection has nothing to do with the API server"
    );
    // That it is ready again it says a minute later, see `watches_that_end`.
    all_detached(&driver, &all).await?;
    front.end(&["away"]).await
}

/// Without an API server it lives, says so and waits for one.
async fn is_waited_for(front: &Front<'_>) -> Result<()> {
    let text = format!("cannot reach the API server at {}", front.proxy.url());
    // The log line comes before the check that this waits for.
    let is_told = |status: u16, body: &str| status == 503 && body.contains(&text);
    front.operator.wait_for_answer("/readyz", is_told).await?;
    let log = front.operator.log_text();
    assert!(log.contains(&text), "{log}");
    assert_eq!(front.operator.get("/livez").await?.0, 200);
    front.proxy.heal();
    front.operator.wait_ready().await
}
