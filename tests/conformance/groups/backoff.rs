//! Failures are tried again, soon at first, and never all the time.

use std::time::Duration;

use serde_json::json;
use tonic::Code;

use csi_attacher_operator::mock::CallRecord;

use crate::env::RETRY;
use crate::scenario::{Group, Outcome, Scenario, Stop, demand};
use crate::test::Test;

/// With pauses of 0.1, 0.2, 0.4, 0.8 and then 1 second there are six tries in it; some more are no harm.
const WINDOW: Duration = Duration::from_millis(3500);
const FEWEST: usize = 3;
const MOST: usize = 10;

pub fn scenarios() -> Vec<Scenario> {
    Group::new("retry")
        .scenario("a failing attach is tried 3 to 10 times in 3.5 s", |t| async move {
            t.script(t.on_publish().fail(Code::Internal, "no"));
            t.given_all(|_| {}).await?;
            t.publish_begins().await?;
            tokio::time::sleep(WINDOW).await;
            tries(&t.publishes())
        })
        .scenario("a failing detach is tried 3 to 10 times in 3.5 s", |t| async move {
            t.given_attached().await?;
            t.script(t.on_unpublish().fail(Code::Internal, "no"));
            t.delete_attachment().await?;
            t.unpublish_begins().await?;
            tokio::time::sleep(WINDOW).await;
            tries(&t.unpublishes())
        })
        .scenario(
            "the pause of a failing attach grows from --retry-interval-start",
            |t| async move {
                t.script(t.on_publish().fail(Code::Internal, "no"));
                t.given_all(|_| {}).await?;
                t.publish_begins().await?;
                tokio::time::sleep(WINDOW).await;
                // The first pause may be missing: the attacher's own claim of the attachment wakes it.
                let mut pauses: Vec<Duration> = pauses(&t.publishes()).skip(1).collect();
                pauses.truncate(3);
                let short = pauses.iter().find(|pause| **pause < RETRY.0 * 9 / 10);
                demand(short.is_none(), || format!("pauses {pauses:?}"))?;
                let growing = pauses.windows(2).all(|pair| pair[1] > pair[0]);
                demand(growing && pauses.len() == 3, || {
                    format!("pauses {pauses:?} do not grow")
                })
            },
        )
        .scenario(
            "an attach that is refused is not written about all the time",
            |t| async move {
                t.given_node().await?;
                t.create_attachment(|_| {}).await?;
                t.attach_error(&t.volume).await?;
                tokio::time::sleep(WINDOW).await;
                let count = writes(&t)?;
                demand(count <= MOST + 2, || {
                    format!("{count} writes about a volume that is not there")
                })
            },
        )
        .scenario(
            "a failing attach costs one write for a try, and one before",
            |t| async move {
                t.script(t.on_publish().fail(Code::Internal, "no"));
                t.given_all(|_| {}).await?;
                t.publish_begins().await?;
                tokio::time::sleep(WINDOW).await;
                let (count, calls) = (writes(&t)?, t.publishes().len());
                demand(count <= calls + 2, || format!("{count} writes for {calls} calls"))
            },
        )
        .scenario(
            "nothing is written about a volume that stays attached",
            |t| async move {
                t.given_attached().await?;
                t.barrier("b").await?;
                let before = writes(&t)?;
                tokio::time::sleep(WINDOW).await;
                let after = writes(&t)?;
                demand(after == before, || format!("{} writes", after - before))
            },
        )
        .scenario(
            "labels do not make a failing attach be tried all the time",
            |t| async move {
                t.script(t.on_publish().fail(Code::Internal, "no"));
                t.given_all(|_| {}).await?;
                t.attach_error("no").await?;
                tokio::time::sleep(WINDOW / 2).await;
                for number in 0..5 {
                    t.patch_attachment(
                        json!({ "metadata": { "labels": { "conformance.test/n": number.to_string() } } }),
                    )
                    .await?;
                }
                tokio::time::sleep(WINDOW / 2).await;
                let count = t.publishes().len();
                demand(count <= MOST + 5, || format!("{count} calls"))
            },
        )
        .done()
}

fn tries(calls: &[CallRecord]) -> Outcome {
    let count = calls.len();
    demand((FEWEST..=MOST).contains(&count), || {
        format!("{count} calls in {WINDOW:?}")
    })
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
