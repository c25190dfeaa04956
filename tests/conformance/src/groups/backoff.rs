//! Failures are tried again, soon at first, and never all the time.

use std::time::Duration;

use serde_json::json;
use tonic::Code;

use csi_mock_driver::{CallRecord, Method};

use crate::expect::LIMIT;
use crate::scenario::{Group, Outcome, RETRY, Scenario, Stop, demand};
use crate::support::controlplane::audit::AuditEvent;
use crate::test::Test;

/// With pauses of 0.1, 0.2, 0.4, 0.8 and then 1 second there are six tries in it; some more are no harm. What is demanded
/// are bounds that a busy machine, which makes pauses longer, cannot break.
const WINDOW: Duration = Duration::from_millis(3500);
const MOST: usize = 10;

pub fn scenarios() -> Vec<Scenario> {
    Group::new("retry")
        .demands("a failing attach is tried again and again, in 3.5 s not more than 10 times")
        .scenario("attach", |t| async move {
            t.script(t.on_publish().fail(Code::Internal, "no"));
            t.given_publishing().await?;
            tokio::time::sleep(WINDOW).await;
            tries(&t, Method::ControllerPublishVolume, 3).await.map(drop)
        })
        .demands("a failing detach is tried again and again, in 3.5 s not more than 10 times")
        .scenario("detach", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().fail(Code::Internal, "no"));
            t.delete_attachment().await?;
            t.unpublish_begins().await?;
            tokio::time::sleep(WINDOW).await;
            tries(&t, Method::ControllerUnpublishVolume, 3).await.map(drop)
        })
        .demands("the pause of a failing attach grows from --retry-interval-start")
        .scenario("grows", |t| async move {
            t.script(t.on_publish().fail(Code::Internal, "no"));
            t.given_all(|_| {}).await?;
            let calls = tries(&t, Method::ControllerPublishVolume, 6).await?;
            // The attacher's own claim of the attachment wakes it once, whenever its watch tells of it; the call that was planned by then
            // comes all the same.
            let pauses: Vec<Duration> = pauses(&calls).collect();
            let short = pauses.iter().filter(|pause| **pause < RETRY.0 * 9 / 10).count();
            demand(short <= 2, || format!("pauses {pauses:?}"))?;
            let grown = pauses.last().is_some_and(|pause| *pause > RETRY.0 * 4);
            demand(grown, || format!("pauses {pauses:?} do not grow"))
        })
        .demands("an attach that is refused is not written about all the time")
        .recommended("refused-writes", |t| async move {
            t.given_node().await?;
            t.create_attachment(|_| {}).await?;
            t.attach_error(&t.volume).await?;
            tokio::time::sleep(WINDOW).await;
            let count = writes(&t)?;
            demand(count <= MOST + 2, || {
                format!("{count} writes about a volume that is not there")
            })
        })
        .demands("a failing attach costs one write for a try, and one before")
        .recommended("failing-writes", |t| async move {
            t.script(t.on_publish().fail(Code::Internal, "no"));
            t.given_publishing().await?;
            tokio::time::sleep(WINDOW).await;
            let (count, calls) = (writes(&t)?, t.publishes().len());
            demand(count <= calls + 2, || format!("{count} writes for {calls} calls"))
        })
        .demands("nothing is written about a volume that stays attached")
        .recommended("attached-writes", |t| async move {
            t.given_attached().await?;
            t.barrier("b").await?;
            // It is written down after its answer, and read by another thread.
            let barrier = t.other("b").attachment;
            let told = |event: &AuditEvent| {
                event.resource == "volumeattachments" && event.subresource == "status" && event.name == barrier
            };
            let cluster = &t.env.cluster;
            cluster
                .wait_for_audit_event("the status of the barrier", LIMIT, told)
                .await?;
            let before = writes(&t)?;
            tokio::time::sleep(WINDOW).await;
            let after = writes(&t)?;
            demand(after == before, || format!("{} writes", after - before))
        })
        .demands("labels do not make a failing attach be tried all the time")
        .recommended("labels", |t| async move {
            t.given_failing("no").await?;
            tokio::time::sleep(WINDOW / 2).await;
            for number in 0..5 {
                t.patch_attachment(json!({ "metadata": { "labels": { "conformance.test/n": number.to_string() } } }))
                    .await?;
            }
            tokio::time::sleep(WINDOW / 2).await;
            let count = t.publishes().len();
            demand(count <= MOST + 5, || format!("{count} calls"))
        })
        .done()
}

/// Waits until there are so many calls; too many in a short time are wrong.
async fn tries(t: &Test, method: Method, wanted: usize) -> Outcome<Vec<CallRecord>> {
    let mut calls = t.calls(method);
    while calls.len() < wanted {
        let seen = calls.last().map(|call| call.id);
        t.call(method, "again", move |call| Some(call.id) > seen).await?;
        calls = t.calls(method);
    }
    let since_first = |call: &CallRecord| Duration::try_from(call.started.duration_since(calls[0].started));
    let early = |call: &&CallRecord| since_first(call).is_ok_and(|since| since < WINDOW);
    let count = calls.iter().filter(early).count();
    demand(count <= MOST, || format!("{count} calls in {WINDOW:?}"))?;
    Ok(calls)
}

/// From the end of one call to the start of the next.
fn pauses(calls: &[CallRecord]) -> impl Iterator<Item = Duration> {
    calls.windows(2).filter_map(|pair| {
        let ended = pair[0].finished?;
        Duration::try_from(pair[1].started.duration_since(ended)).ok()
    })
}

/// Patches of the VolumeAttachment that the API server has answered, other than those of the suite itself.
fn writes(t: &Test) -> Outcome<usize> {
    let events = t.env.cluster.audit_events().map_err(Stop::from)?;
    let counts = events.iter().filter(|event| {
        event.verb == "patch"
            && event.resource == "volumeattachments"
            && event.name == t.attachment
            && event.username.starts_with("system:serviceaccount:")
    });
    Ok(counts.count())
}
